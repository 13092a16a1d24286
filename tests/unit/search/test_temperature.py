"""A temperature divides the scores in float64; draws follow the resulting probabilities and support."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.models import RNNSeq2Seq
from tsallis.ops import reference
from tsallis.search import Ensemble, exhaustive, sample, score_tokens, with_top_p
from tsallis.search.temperature import divide_scores, with_temperature
from tsallis.symbols import BOS, EOS

SRC, LENGTHS = torch.tensor([[4, 7, 9, 5], [6, 6, 8, 0]]), torch.tensor([4, 3])
TEMPERATURES = (0.05, 0.3, 0.7, 1.0, 1.6, 5.0, 200.0)


def model(seed: int = 0, output: str = "entmax", alpha: float = 1.5) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    made = RNNSeq2Seq(12, 11, d_model=16, output=output, output_alpha=alpha).eval()
    with torch.no_grad():
        made.output.projection.weight.mul_(8)  # scores far enough apart for supports to differ
    return made


@pytest.mark.parametrize(("output", "alpha"), [("softmax", 1.0), ("entmax", 1.3), ("entmax", 1.5), ("sparsemax", 2.0)])
def test_probabilities_match_the_reference(output: str, alpha: float) -> None:
    made, supports = model(output=output, alpha=alpha), []
    scores = made.step(made.start(made.encode(SRC, LENGTHS)), torch.tensor([BOS, BOS])).scores.detach()
    for temperature in TEMPERATURES:
        expected = reference.entmax(scores.double() / temperature, alpha)
        probs = with_temperature(made, temperature).output.log_probs(scores).exp()
        torch.testing.assert_close(probs, expected, atol=1e-6 if temperature == 1 else 1e-12, rtol=0)
        supports.append(probs > 0)
    for lower, higher in itertools.pairwise(supports):
        assert (lower <= higher).all()  # the support of a lower temperature lies within that of a higher one
    sizes = [int(support.sum()) for support in supports]
    assert (sizes[0] < sizes[-1]) == (alpha > 1) and sizes[-1] == int((scores > -torch.inf).sum())


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_symbols_become_possible_at_the_documented_temperature(alpha: float) -> None:
    scores = torch.tensor([[1.0, 0.7, 0.2, -0.5]], dtype=torch.float64)
    made = model(output="entmax", alpha=alpha)
    for symbol in range(1, 4):
        gaps = scores[0, :symbol] - scores[0, symbol]
        least = (alpha - 1) * float((gaps ** (1 / (alpha - 1))).sum()) ** (alpha - 1)
        for temperature, possible in ((least * 0.999, False), (least * 1.001, True)):
            log_probs = with_temperature(made, temperature).output.log_probs(scores)
            assert (log_probs[0, symbol] > -math.inf) == possible


def tokens(draws: list[list[Any]]) -> list[list[Any]]:
    return [[draw and (draw.tokens, draw.log_prob, draw.support) for draw in part] for part in draws]


def test_a_temperature_of_one_changes_no_bit() -> None:
    made, seeds = model(), [3, 4]
    assert with_temperature(made, 1) is made
    plain = sample(made, SRC, LENGTHS, 20, seeds=seeds, max_length=8)
    assert tokens(sample(made, SRC, LENGTHS, 20, seeds=seeds, max_length=8, temperature=1.0)) == tokens(plain)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_draws_have_the_log_probabilities_of_their_temperature(temperature: float) -> None:
    made = model()
    draws = sample(made, SRC, LENGTHS, 30, seeds=[1, 2], max_length=20, temperature=temperature)
    first = torch.stack([made.step(made.start(made.encode(SRC, LENGTHS)), torch.tensor([BOS, BOS])).scores[0]]).detach()
    expected = reference.entmax(first.double() / temperature, 1.5)[0]
    count = 0
    for draw in draws[0]:
        if draw is not None:
            rows = SRC[:1], LENGTHS[:1], torch.tensor([[BOS, *draw.tokens]]), torch.tensor([[*draw.tokens, EOS]])
            (scores,) = score_tokens(with_temperature(made, temperature), *rows)
            assert draw.log_prob == pytest.approx(scores.log_prob, abs=1e-4)
            assert math.exp(scores.log_probs[0]) == pytest.approx(float(expected[scores.tokens[0]]), abs=1e-5)
            assert draw.support[0] == int((expected > 0).sum())
            count += 1
    assert count > 5


def test_a_temperature_applies_to_each_model_of_an_ensemble() -> None:
    one, other = model(1), model(2)
    both = with_temperature(Ensemble([one, other]), 0.5)
    step = both.step(both.start(both.encode(SRC, LENGTHS)), torch.tensor([BOS, BOS]))
    each = [m.step(m.start(m.encode(SRC, LENGTHS)), torch.tensor([BOS, BOS])).scores.detach() for m in (one, other)]
    expected = sum(reference.entmax(scores.double() / 0.5, 1.5) for scores in each) / 2
    torch.testing.assert_close(both.output.log_probs(step.scores).exp(), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e30, 1.7e308])
def test_extreme_temperatures_divide_without_overflow(temperature: float) -> None:
    scores = torch.tensor([[30.0, -20.0, 30.0, -torch.inf], [-torch.inf] * 4])
    divided = divide_scores(scores, temperature)
    assert not divided.isnan().any() and (divided[:, 3] == -torch.inf).all() and (divided[1] == -torch.inf).all()
    probs = with_temperature(model(), temperature).output.log_probs(scores[:1]).exp()
    expected = [0.5, 0, 0.5, 0] if temperature < 1 else [1 / 3, 1 / 3, 1 / 3, 0]
    assert probs[0].tolist() == pytest.approx(expected)


def test_a_temperature_for_alpha_relu_raises() -> None:
    relu = model(output="alpha_relu")
    with pytest.raises(ValueError, match="needs a model whose probabilities sum to 1"):
        sample(relu, SRC, LENGTHS, temperature=0.5)
    assert sample(relu, SRC, LENGTHS, 2, max_length=3, temperature=1)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_wrapped_models_and_ensembles_agree_at_a_temperature(temperature: float) -> None:
    made = model()
    for wrap in (lambda x: with_top_p(x, 0.9), lambda x: with_temperature(x, 0.7)):
        (plain,), (averaged,) = (
            exhaustive(with_temperature(wrap(x), temperature), SRC[:1], LENGTHS[:1], max_length=2)
            for x in (made, Ensemble([made, made]))
        )
        expected = {h.tokens: h.prob for h in plain.hypotheses}
        assert {h.tokens: h.prob for h in averaged.hypotheses} == pytest.approx(expected, rel=1e-5)


class Identity:
    """An output layer whose scores are log-probabilities."""

    normalized = True

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores


def test_log_probabilities_can_be_divided_by_a_temperature() -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).log()
    made = model()
    del made.output
    made.output = Identity()
    tempered = with_temperature(made, 0.5).output.log_probs(log_probs).exp()
    assert tempered[0].tolist() == pytest.approx([0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38, 0])


def test_a_top_p_of_1_returns_the_model() -> None:
    made = model()
    assert with_top_p(made, 1.0) is made


@pytest.mark.parametrize(("probs", "top_p"), [((0.7, 0.2, 0.1), 0.9), ((0.35, 0.35, 0.3), 0.7)])
def test_a_sum_that_equals_top_p_up_to_rounding_reaches_it(probs: tuple[float, ...], top_p: float) -> None:
    made = model()
    del made.output
    made.output = Identity()
    log_probs = torch.tensor([probs], dtype=torch.float64).log()
    kept = with_top_p(made, top_p).output.log_probs(log_probs) > -torch.inf
    assert kept.tolist() == [[True, True, False]]
