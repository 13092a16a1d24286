"""Tests of hard monotonic attention against an explicit sum over all alignments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.functional import alpha_relu, alpha_relu_loss, entmax, entmax_loss
from tsallis.models import RNNSeq2Seq
from tsallis.search import Ensemble, beam_search, score

ATTENTIONS = [("softmax", 1.0), ("entmax", 1.5), ("sparsemax", 2.0)]
OUTPUTS = [("softmax", 1.0), ("entmax", 1.3), ("sparsemax", 2.0), ("alpha_relu", 1.5)]
FORBIDDEN = (0, 1, 3)
SRC = torch.tensor([[5, 7, 4, 6]])
LENGTHS = torch.tensor([4])
TARGET = [4, 6, 5, 2]
TOKENS = torch.tensor([[1, *TARGET[:-1]]])
every_attention = pytest.mark.parametrize(("attention", "attention_alpha"), ATTENTIONS)
every_output = pytest.mark.parametrize(("output", "output_alpha"), OUTPUTS)
every_order = pytest.mark.parametrize("order", [0, 1])


def build(order: int, seed: int = 0, **options: Any) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    settings = {"dropout": 0.0, "input_feeding": False, "monotonic": order, "tau": -0.2, "forbidden": FORBIDDEN}
    model = RNNSeq2Seq(8, 8, 6, **{**settings, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(15)
    return model


def parts(model: RNNSeq2Seq, tokens: Tensor = TOKENS) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return per step: transitions [from, to], output scores [src, symbols], and hidden states [src, d_model]."""
    memory = model.encode(SRC, LENGTHS)
    start = tuple(torch.stack(x) for x in (memory.summary[: model.layers], memory.summary[model.layers :]))
    states, _ = model.decoder(model.tgt_embedding(tokens), start)
    count, transitions, scores, hidden = SRC.shape[1], [], [], []
    for state in states[0]:
        mixed = torch.tanh(model.combine(torch.cat([memory.states[0], state.expand(count, -1)], -1)))
        attention = model.attention.bilinear(memory.states[0]) @ state
        rows = []
        for last in range(count):
            row = attention[last:]
            if model.output.jump is not None:
                jumps = model.output.jump(mixed[last])
                row = row + torch.stack([jumps[min(distance, 4)] for distance in range(count - last)])
            rows.append(torch.cat([row.new_zeros(last), entmax(row, model.attention.alpha)]))
        transitions.append(torch.stack(rows))
        hidden.append(mixed)
        projected = mixed @ model.output.weight.T + model.output.bias
        scores.append(projected.index_fill(-1, torch.tensor(FORBIDDEN), -torch.inf))
    return transitions, scores, hidden


def probs_of(model: RNNSeq2Seq, scores: Tensor) -> Tensor:
    output = model.output
    return entmax(scores, output.alpha) if output.normalized else alpha_relu(scores, output.alpha, output.tau)


def brute_force(model: RNNSeq2Seq, target: list[int]) -> Tensor:
    """Return the probability that an output starts with `target`: sum over all monotonic alignments."""
    transitions, scores, _ = parts(model, torch.tensor([[1, *target[:-1]]]))
    total = torch.zeros((), dtype=torch.float64)
    for alignment in itertools.combinations_with_replacement(range(SRC.shape[1]), len(target)):
        probability, last = torch.ones((), dtype=torch.float64), 0
        for step, (place, symbol) in enumerate(zip(alignment, target, strict=True)):
            emitted = probs_of(model, scores[step][place])[symbol]
            probability, last = probability * transitions[step][last, place] * emitted, place
        total = total + probability
    return total


@every_attention
@every_order
def test_loss_and_gradients_match_sum_over_alignments(order: int, attention: str, attention_alpha: float) -> None:
    model = build(order, attention=attention, attention_alpha=attention_alpha, output="softmax")
    loss = model.output.loss(model(SRC, LENGTHS, TOKENS).hidden, torch.tensor([TARGET]), reduction="sum")
    expected = -brute_force(model, TARGET).log()
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    names, parameters = zip(*model.named_parameters(), strict=True)
    results = [torch.autograd.grad(x, parameters, allow_unused=True) for x in (loss, expected)]
    for name, one, other in zip(names, *results, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-8, msg=name)
    assert (results[0][names.index("output.projection.weight")] != 0).any()


@every_output
@every_order
def test_probabilities_match_sum_over_alignments(order: int, output: str, output_alpha: float) -> None:
    zeros = 0
    for seed in range(3):
        model = build(order, seed, output=output, output_alpha=output_alpha)
        symbols = [number for number in range(8) if number not in FORBIDDEN]
        for target in itertools.product(symbols, repeat=2):
            state, total = model.start(model.encode(SRC, LENGTHS)), 0.0
            for token, symbol in zip((1, target[0]), target, strict=True):
                step = model.step(state, torch.tensor([token]))
                log_probs = model.output.log_probs(step.scores)[0]
                assert (log_probs[list(FORBIDDEN)] == -torch.inf).all()
                if model.output.normalized:
                    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-12)
                total, state = total + log_probs[symbol].item(), step.state
            expected = float(brute_force(model, [*target]).detach())
            assert (total == -math.inf) == (expected == 0)
            assert math.exp(total) == pytest.approx(expected, abs=1e-12)
            zeros += expected == 0
    assert (zeros > 0) == (output != "softmax")


@pytest.mark.parametrize(("output", "output_alpha"), OUTPUTS[1:])
@every_order
def test_sparse_output_loss_matches_formula(order: int, output: str, output_alpha: float) -> None:
    model = build(order, 1, output=output, output_alpha=output_alpha)
    gold = torch.tensor([[4, 6, -100, 2]])
    decoded = model(SRC, LENGTHS, TOKENS)
    losses = model.output.loss(decoded.hidden, gold, reduction="none")
    _, scores, _ = parts(model)
    power, alpha = output_alpha - 1, output_alpha
    expected = torch.zeros(1, 4, dtype=torch.float64)
    for step in (0, 1, 3):
        symbol = int(gold[0, step])
        target = torch.full((4,), symbol)
        if model.output.normalized:
            each = entmax_loss(scores[step], target, alpha, reduction="none")
        else:
            each = alpha_relu_loss(scores[step], target, alpha, -0.2, reduction="none")
        probs = decoded.attention[0, step] @ probs_of(model, scores[step])
        lost = 1 - (probs[symbol] ** power if probs[symbol] > 0 else 0)
        divergence = lost / power - (1 - (probs**alpha).sum()) / alpha
        expected[0, step] = (decoded.attention[0, step] @ each + divergence) / 2
    torch.testing.assert_close(losses, expected, atol=1e-10, rtol=1e-10)
    weights = torch.randn(1, 4, dtype=torch.float64)
    parameters = [p for name, p in model.named_parameters() if name.startswith(("output", "combine", "attention"))]
    results = [torch.autograd.grad((x * weights).sum(), parameters, retain_graph=True) for x in (losses, expected)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-8)


@every_order
def test_label_smoothing_matches_formula(order: int) -> None:
    model = build(order, output="sparsemax")
    decoded, gold = model(SRC, LENGTHS, TOKENS), torch.tensor([TARGET])
    plain, smooth = (model.output.loss(decoded.hidden, gold, -100, "sum", s) for s in (0.0, 0.2))
    _, scores, _ = parts(model)
    lead = 0.0
    for step, symbol in enumerate(TARGET):
        each = scores[step][:, symbol] - scores[step][:, [2, 4, 5, 6, 7]].mean(-1)
        lead = lead + decoded.attention[0, step] @ each
    torch.testing.assert_close(smooth - plain, 0.2 * lead)


@every_order
def test_impossible_symbols_do_not_change_the_alignment(order: int) -> None:
    model = build(order)
    state = model.step(model.start(model.encode(SRC, LENGTHS)), torch.tensor([1])).state
    before = state.alignment[0].exp()
    step = model.step(state, torch.tensor([3]))  # the unknown symbol is never possible
    assert step.attention.isfinite().all() and step.attention.sum().item() == pytest.approx(1)
    transitions, _, _ = parts(model, torch.tensor([[1, 3]]))
    torch.testing.assert_close(step.attention, before @ transitions[1])
    decoded = model(SRC, LENGTHS, torch.tensor([[1, 3, 0]]))
    model.output.loss(decoded.hidden, torch.tensor([[4, 5, -100]])).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_positions_never_decrease() -> None:
    model = build(1, attention="sparsemax")
    state = model.start(model.encode(SRC, LENGTHS))
    assert state.alignment[0].exp().tolist() == [[1, 0, 0, 0]]
    for transition in parts(model)[0]:
        assert transition.tril(-1).count_nonzero() == 0
    after = model.step(state, torch.tensor([1]))
    torch.testing.assert_close(after.attention[0], parts(model)[0][0][0])


def test_ensemble_averages_probabilities() -> None:
    models = [build(order, order, output="sparsemax") for order in (0, 1)]
    each = [m.output.probs(m.output.scores(m(SRC, LENGTHS, TOKENS).hidden)) for m in models]
    ensemble = Ensemble(models)
    scores = ensemble.output.scores(ensemble(SRC, LENGTHS, TOKENS).hidden)
    torch.testing.assert_close(scores.exp(), (each[0] + each[1]) / 2)


def test_scores_in_float32_are_close_to_float64() -> None:
    model = build(1, output="softmax", attention="softmax")
    gold = torch.tensor([TARGET])
    expected = score(model, SRC, LENGTHS, TOKENS, gold)
    (result,) = beam_search(model.float(), SRC, LENGTHS, beam_size=3, max_length=4)
    assert score(model, SRC, LENGTHS, TOKENS, gold).item() == pytest.approx(expected.item(), abs=1e-3)
    assert all(h.log_prob > -math.inf for h in result.hypotheses)


INCOMPATIBLE = [
    ({"monotonic": 2}, "monotonic must be 0 or 1, .* got 2"),
    ({"input_feeding": True}, "input_feeding must be False with monotonic, got True"),
    ({"copy": [-1] * 8}, "copy must be None with monotonic"),
    ({"features": [4]}, "features must be None with monotonic"),
    ({"density": "gaussian"}, "density must be None with monotonic"),
]


@pytest.mark.parametrize(("options", "message"), INCOMPATIBLE)
def test_incompatible_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(0, **options)
