"""Scoring, sampling and ensembles, which leave the models unchanged."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from contract.tables import EOS, A, B, random_table, sources, trie
from tsallis.models import RNNSeq2Seq
from tsallis.search import (
    Certificate,
    Ensemble,
    Exclusion,
    Hypothesis,
    Result,
    beam_search,
    exhaustive,
    sample,
    score,
    score_tokens,
)
from tsallis.search.sampling import draw_tokens
from tsallis.symbols import BOS
from tsallis.toolkit.data.batching import make_batch

ROWS = {(): {A: 0.75, B: 0.25}, (A,): {EOS: 1.0}, (B,): {A: 0.5, EOS: 0.5}, (B, A): {EOS: 1.0}}


def targets(*outputs: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = make_batch([[0]] * len(outputs), outputs, range(len(outputs)))
    return batch.tgt_in, batch.tgt_out


def test_scores_are_log_probabilities_of_the_targets() -> None:
    tgt_in, tgt_out = targets((A,), (B, A), (B,), (A, A), (), (A, B, A))
    result = score(trie(ROWS), *sources(*[0] * 6), tgt_in, tgt_out)
    assert result.dtype == torch.float64
    assert result.exp().tolist() == pytest.approx([0.75, 0.125, 0.125, 0, 0, 0])
    assert result[3:].tolist() == [-math.inf] * 3


def test_outputs_tied_with_the_bound_are_proven() -> None:
    """Sums of the same logarithms in another order differ in their last digits."""
    hypotheses = tuple(Hypothesis((A,) * n, math.log(p), (), ()) for n, p in ((1, 0.5), (2, 0.25), (3, 0.125)))
    bound = math.log(0.25) + 1e-14
    result = Result(hypotheses, Certificate("optimal", bound))
    assert result.proven == hypotheses[:2]
    bound = math.log(0.25) + 1e-9  # larger than rounding errors: a missing output is more probable
    assert Result(hypotheses, Certificate("optimal", bound)).proven == hypotheses[:1]


def outputs_of(draws) -> list[list[tuple[int, ...] | None]]:
    return [[h.tokens if h else None for h in drawn] for drawn in draws]


def test_samples_have_log_probabilities_and_supports() -> None:
    (drawn,) = sample(trie(ROWS), *sources(0), 20, seeds=[0])
    by_output = {h.tokens: h for h in drawn if h}
    assert by_output[B, A].log_prob == pytest.approx(math.log(0.125))
    assert by_output[B, A].support == (2, 2, 1) and by_output[A,].num_attended == (1, 1)


def test_samples_continue_a_prefix() -> None:
    ((*drawn,), (*impossible,)) = sample(trie(ROWS), *sources(0, 0), 200, prefixes=[(B,), (A, A)], seeds=[0, 0])
    assert {h.tokens for h in drawn} == {(B,), (B, A)} and set(impossible) == {None}
    assert drawn[0].log_prob == pytest.approx(math.log(0.125))


def test_draws_without_an_end_are_none() -> None:
    cut = outputs_of(sample(trie(ROWS), *sources(0), 400, max_length=1, seeds=[0]))[0]
    assert set(cut) == {(A,), (B,), None} and 0.05 < cut.count(None) / 400 < 0.2
    dead = trie({(): {A: 0.5, B: 0.5}, (A,): {EOS: 1e-200}}, normalized=False)
    assert set(outputs_of(sample(dead, *sources(0), 50, seeds=[0]))[0]) == {(A,), None}


def test_a_uniform_number_of_1_draws_the_last_possible_symbol() -> None:
    log_probs = torch.tensor([[-torch.inf, math.log(0.25), math.log(0.75), -torch.inf], [-torch.inf] * 4]).double()
    for number, token in ((0.0, 1), (0.24, 1), (0.26, 2), (1.0, 2)):  # 1.0 stands for a product that was rounded up
        draws, log_prob = draw_tokens(log_probs, torch.full((2,), number, dtype=torch.float64), torch.zeros(2))
        assert draws[0] == token and log_prob[0] == log_probs[0, token] and log_prob[1] == -torch.inf


def test_an_ensemble_has_the_union_of_supports() -> None:
    other = {(): {B: 0.5, EOS: 0.5}, (B,): {EOS: 1.0}}
    ensemble = Ensemble([trie(ROWS), trie(other)])
    (result,) = beam_search(ensemble, *sources(0))
    # (A,) is a dead end of the second model: half of the first model's mass remains there.
    actual = {h.tokens: h.prob for h in result.hypotheses}
    assert actual == pytest.approx({(A,): 0.375 * 0.5, (B,): 0.375 * 0.75, (): 0.25, (B, A): 0.375 * 0.25 * 0.5})
    step = ensemble.step(ensemble.start(ensemble.encode(*sources(0))), torch.tensor([BOS]))
    torch.testing.assert_close(ensemble.output.probs(step.scores), ensemble.output.log_probs(step.scores).exp())
    assert Ensemble([trie(ROWS), trie(ROWS, normalized=False)]).output.normalized is False
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])


def test_single_and_nested_ensembles_match_the_model() -> None:
    src, lengths = sources(0, 1, 2)
    alone = beam_search(random_table("entmax", 1.5, 0), src, lengths, beam_size=3, max_length=4)
    assert beam_search(Ensemble([random_table("entmax", 1.5, 0)]), src, lengths, beam_size=3, max_length=4) == alone
    nested = Ensemble([Ensemble([random_table("entmax", 1.5, 0)] * 2), random_table("entmax", 1.5, 0)])
    for a, b in zip(exhaustive(nested, src, lengths, max_length=4), alone, strict=True):
        assert a.best.tokens == b.best.tokens and a.best.log_prob == pytest.approx(b.best.log_prob)


def test_tiny_probabilities_stay_possible_in_an_ensemble() -> None:
    log_probs = torch.full((1, 7), -torch.inf, dtype=torch.float64)
    log_probs[0, EOS], log_probs[0, A] = 0.0, -2000.0  # its exp is zero even in float64
    model = trie(ROWS)
    plain = model.step
    model.step = lambda state, token: plain(state, token)._replace(scores=log_probs.expand(len(token), -1))
    ensemble = Ensemble([model, model])
    step = ensemble.step(ensemble.start(ensemble.encode(*sources(0))), torch.tensor([BOS]))
    assert step.scores[0, A].item() == pytest.approx(-2000)


def test_ensembles_of_different_vocabulary_sizes_raise() -> None:
    ensemble = Ensemble([RNNSeq2Seq(9, 8, 4, 1), RNNSeq2Seq(9, 7, 4, 1)])
    with pytest.raises(ValueError, match=r"vocabularies of the same size, got \[7, 8\]"):
        beam_search(ensemble, torch.full((1, 2), 4), torch.tensor([2]))


def test_searches_restore_the_training_mode_of_each_module() -> None:
    models = [RNNSeq2Seq(9, 8, 4, 2, 0.5) for _ in range(2)]
    models[0].encoder.eval()
    models[1].eval()
    before = [[m.training for m in model.modules()] for model in models]
    assert {True, False} == set(before[0])
    src, lengths = torch.full((1, 2), 4), torch.tensor([2])
    record: list[bool] = []
    models[0].combine.register_forward_hook(lambda module, *_: record.append(module.training))
    with pytest.raises(RuntimeError, match="stop"):
        nn.Module.register_forward_hook(models[1].combine, stop_second())
        beam_search(Ensemble(models), src, lengths)
    assert [[m.training for m in model.modules()] for model in models] == before
    assert record and not any(record)


def stop_second():
    """Return a hook that fails at its second call."""
    calls: list[int] = []

    def hook(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("stop")

    return hook


def test_hypotheses_compare_and_hash_without_attention() -> None:
    plain = Hypothesis((4,), -0.5, (1, 1), (1, 1))
    saved = Hypothesis((4,), -0.5, (1, 1), (1, 1), torch.ones(2, 3))
    assert plain == saved and len({plain, saved}) == 1


def test_truncated_results_have_correct_bounds() -> None:
    hypotheses = tuple(Hypothesis((4,) * n, math.log(p), (), ()) for n, p in enumerate((0.4, 0.3, 0.1)))
    bounded = Result(hypotheses, Certificate("optimal", math.log(0.2)))
    assert bounded.proven == hypotheses[:2]
    assert bounded.truncated(None) is bounded and bounded.truncated(3) is bounded
    assert bounded.truncated(1).certificate == Certificate("optimal", math.log(0.3))
    assert bounded.truncated(2).certificate == Certificate("optimal", math.log(0.2))
    none = Result(hypotheses, Certificate("none", -1.0))
    assert none.proven == () and none.truncated(1).certificate.kind == "none"


def test_token_scores_sum_to_the_score_and_name_exclusions() -> None:
    outputs = [(A,), (B, A), (A, A, B), ()]
    scores = score_tokens(trie(ROWS), *sources(0, 0, 0, 0), *targets(*outputs))
    whole = score(trie(ROWS), *sources(0, 0, 0, 0), *targets(*outputs)).tolist()
    assert [s.log_prob for s in scores] == whole
    assert scores[1].tokens == (B, A, EOS) and scores[1].support == (2, 2, 1) and scores[1].exclusion is None
    assert [math.exp(p) for p in scores[1].log_probs] == pytest.approx([0.25, 0.5, 1.0])
    cut = scores[2]
    assert cut.tokens == (A, A) and cut.log_probs == (math.log(0.75), -math.inf)
    assert cut.exclusion == Exclusion(1, A, None, 1, ((EOS, 1.0),))
    assert [(t, pytest.approx(p)) for t, p in scores[3].exclusion.alternatives] == [(A, 0.75), (B, 0.25)]


@pytest.mark.parametrize(
    ("output", "alpha", "tau"), [("sparsemax", 2.0, 0.0), ("entmax", 1.3, 0.0), ("alpha_relu", 1.5, 0.4)]
)
def test_the_gap_is_the_distance_to_the_threshold(output: str, alpha: float, tau: float) -> None:
    """The gap is the distance to the threshold: slightly more makes the token possible, slightly less does not."""
    torch.manual_seed(3)
    model = RNNSeq2Seq(9, 12, 8, output=output, output_alpha=alpha, tau=tau, forbidden=(0, 1)).double()
    with torch.no_grad():
        model.output.projection.bias.normal_(0, 3)
    src, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    gaps = {}
    for token in range(4, 12):
        (scores,) = score_tokens(model, src, lengths, *targets((token,)))
        if scores.exclusion and scores.exclusion.step == 0:
            gaps[token] = scores.exclusion.gap
            assert scores.exclusion.support == len(scores.exclusion.alternatives) < 8
    assert len(gaps) > 1 and all(gap is not None and gap > 0 for gap in gaps.values())
    for token, gap in gaps.items():
        for change, possible in ((-1e-6, False), (1e-6, True)):
            with torch.no_grad():
                model.output.projection.bias[token] += gap + change
                (scores,) = score_tokens(model, src, lengths, *targets((token,)))
                model.output.projection.bias[token] -= gap + change
            assert (scores.log_probs[0] > -math.inf) == possible
    (never,) = score_tokens(model, src, lengths, *targets((1,)))
    assert never.exclusion is not None and never.exclusion.gap == math.inf
