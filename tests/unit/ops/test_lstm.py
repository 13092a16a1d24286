"""Tests of fused LSTM operations with custom backward passes, against PyTorch's operations and LSTM."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from tsallis.models import RNNSeq2Seq
from tsallis.models import lstm as lstm_model
from tsallis.models.recurrence import read_rows
from tsallis.ops.autograd.lstm_layer import fused_layer, plain_layer
from tsallis.ops.autograd.lstm_steps import LSTMLayer, LSTMSteps, fused_steps, plain_steps

TGT, BATCH, SRC, SIZE = 3, 4, 5, 6
LENGTHS = torch.tensor([5, 1, 3, 5])


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def steps(layers: int = 2, alpha: float = 1.5, dropout: bool = True) -> LSTMSteps:
    masks = torch.rand(TGT, layers + 1, BATCH, SIZE, dtype=torch.double).ge(0.3) / 0.7 if dropout else None
    return LSTMSteps(
        draw(TGT, BATCH, 4 * SIZE),
        draw(BATCH, SRC, SIZE),
        draw(BATCH, SRC, SIZE),
        torch.arange(SRC) < LENGTHS.unsqueeze(1),
        draw(BATCH, SIZE),
        draw(SIZE, 2 * SIZE),
        None if masks is None else masks[:, 2:],
        None if masks is None else masks[:, 0],
        [LSTMLayer(draw(4 * SIZE, SIZE), draw(4 * SIZE, SIZE), draw(4 * SIZE) if i else None) for i in range(layers)],
        [draw(BATCH, SIZE) for _ in range(layers)],
        [draw(BATCH, SIZE) for _ in range(layers)],
        alpha,
    )


def trainable(x: LSTMSteps) -> list[Tensor]:
    tensors = [*x[:8], *(part for layer in x.layers for part in layer), *x.hidden, *x.cell]
    return [part for part in tensors if part is not None and part.requires_grad]


def replace(x: LSTMSteps, tensors: tuple[Tensor, ...]) -> LSTMSteps:
    """Replace the trainable tensors, in their order."""
    later = iter(tensors)

    def take(part: Tensor | None) -> Tensor | None:
        return next(later) if part is not None and part.requires_grad else part

    first = [take(part) for part in x[:8]]
    layers = [LSTMLayer(*(take(part) for part in layer)) for layer in x.layers]
    return LSTMSteps(*first, layers, [take(h) for h in x.hidden], [take(c) for c in x.cell], x.alpha)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("dropout", [False, True])
def test_fused_steps_and_gradients_match_plain_operations(layers: int, alpha: float, dropout: bool) -> None:
    x = steps(layers, alpha, dropout)
    slopes = draw(BATCH, TGT, SIZE).detach(), draw(BATCH, TGT, SRC).detach()
    zeros = {"allow_unused": True, "materialize_grads": True}
    for chosen in ([0, 1], [0], [1]):
        results = []
        for compute in (fused_steps, plain_steps):
            outputs = [compute(x)[i] for i in chosen]
            gradients = torch.autograd.grad(outputs, trainable(x), [slopes[i] for i in chosen], **zeros)
            results.append([*outputs, *gradients])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_fused_steps_pass_gradcheck_and_gradgradcheck() -> None:
    x = steps(alpha=1.3)
    assert gradcheck(lambda *parts: fused_steps(replace(x, parts)), tuple(trainable(x)), fast_mode=True)
    assert gradgradcheck(lambda *parts: fused_steps(replace(x, parts)), tuple(trainable(x)), fast_mode=True)


def test_double_backward_counts_dependent_inputs_once() -> None:
    """Check that gradients through keys, which models compute from the memory, are counted only once."""
    x, weight = steps(), draw(SIZE, SIZE)
    results = []
    for compute in (fused_steps, plain_steps):
        states, _ = compute(x._replace(keys=x.memory @ weight))
        (first,) = torch.autograd.grad(states.pow(2).sum(), x.memory, create_graph=True)
        results.append([first, *torch.autograd.grad(first.sin().sum(), [x.memory, weight, x.combine])])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_in_place_changes_of_outputs_keep_gradients() -> None:
    x = steps()
    (expected,) = torch.autograd.grad(fused_steps(x)[1].sum(), x.keys)
    states, weights = fused_steps(x)
    with torch.no_grad():
        states.zero_(), weights.zero_()
    (ours,) = torch.autograd.grad(weights.sum(), x.keys)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("directions", [1, 2])
def test_fused_layer_and_gradients_match_plain_operations(directions: int) -> None:
    gates, weight = draw(directions, SRC, BATCH, 4 * SIZE), draw(directions, 4 * SIZE, SIZE)
    slopes = draw(directions, SRC, BATCH, SIZE).detach(), draw(directions, BATCH, SIZE).detach()
    for chosen in ([0, 1], [0], [1]):
        results = []
        for compute in (fused_layer, plain_layer):
            outputs = [compute(gates, weight, LENGTHS - 1)[i] for i in chosen]
            results.append([*outputs, *torch.autograd.grad(outputs, [gates, weight], [slopes[i] for i in chosen])])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert gradcheck(lambda *x: fused_layer(*x, LENGTHS - 1), (gates, weight), fast_mode=True)
    assert gradgradcheck(lambda *x: fused_layer(*x, LENGTHS - 1), (gates, weight), fast_mode=True)


@pytest.mark.parametrize("layers", [1, 2])
def test_read_rows_matches_pytorch_lstm(layers: int) -> None:
    module = nn.LSTM(SIZE, 3, layers, bidirectional=True, batch_first=True).double()
    x = draw(BATCH, SRC, SIZE)
    packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    states, (hidden, cells) = module(packed)
    states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
    ours, last = read_rows(module, x, LENGTHS, 0.0)
    ours = ours * (torch.arange(SRC) < LENGTHS.unsqueeze(1)).unsqueeze(-1)
    slopes = [torch.randn_like(part) for part in (states, hidden, cells)]
    wanted = [x, *module.parameters()]
    theirs = [states, hidden, cells, *torch.autograd.grad((states, hidden, cells), wanted, slopes)]
    own = [ours, *last, *torch.autograd.grad((ours, *last), wanted, slopes)]
    torch.testing.assert_close(own, theirs, rtol=1e-10, atol=1e-12)


def decoded(model: RNNSeq2Seq, autocast: bool = False) -> list[Tensor]:
    """Return hidden states, attention weights, and the gradients of all parameters used."""
    torch.manual_seed(1)
    src, tgt = torch.randint(4, 13, (BATCH, SRC)), torch.randint(4, 11, (BATCH, TGT))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = model(src, LENGTHS, tgt)
        loss = result.hidden.float().pow(2).sum() + (result.attention.float() ** 2).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [result.hidden, result.attention, *(x for x in gradients if x is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_model_matches_with_and_without_fused_operations(dtype: torch.dtype, monkeypatch) -> None:
    model = RNNSeq2Seq(13, 11, d_model=SIZE, layers=3, dropout=0.0).to(dtype)
    ours = decoded(model)
    monkeypatch.setattr(lstm_model, "tracing_active", lambda: True)
    torch.testing.assert_close(ours, decoded(model))


def test_gradients_accumulate_over_backward_passes() -> None:
    """Check that no two gradients share memory: in-place accumulation in one would change the other."""
    model = RNNSeq2Seq(13, 11, d_model=SIZE, dropout=0.0).double()
    src, tgt = torch.randint(4, 13, (BATCH, SRC)), torch.randint(4, 11, (BATCH, TGT))
    first = []
    for _ in range(3):
        model(src, LENGTHS, tgt).hidden.pow(2).sum().backward()
        first = first or [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), first, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, 3 * gradient, rtol=1e-10, atol=1e-12)
    pointers = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
    assert len(set(pointers)) == len(pointers)


def test_autocast_error_is_at_most_that_of_pytorch(monkeypatch) -> None:
    model = RNNSeq2Seq(13, 11, d_model=32, dropout=0.0)
    ours = decoded(model, autocast=True)
    assert ours[0].dtype == ours[1].dtype == torch.float32  # autocast computes only matrix products in half precision
    monkeypatch.setattr(lstm_model, "tracing_active", lambda: True)
    theirs, exact = decoded(model, autocast=True), decoded(model.double())

    def error(parts: list[Tensor]) -> float:
        return sum(
            float((a.detach().double() - b.detach()).norm() / b.detach().norm())
            for a, b in zip(parts, exact, strict=True)
        )

    assert error(ours) <= error(theirs)
    assert 0 < error(ours) / len(exact) < 0.02


def test_bfloat16_results_and_gradients_are_near_float64() -> None:
    model = RNNSeq2Seq(13, 11, d_model=SIZE, dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    model.bfloat16()  # round first, so that only the computation differs
    ours, exact = decoded(model), decoded(copy.deepcopy(model).double())
    assert {x.dtype for x in ours} == {torch.bfloat16}
    for a, b in zip(ours, exact, strict=True):
        assert (a.double() - b).norm() < 0.03 * b.norm()


def test_fused_operations_are_used_when_supported(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(lstm_model, "fused_steps", lambda x: calls.append("steps") or fused_steps(x))
    monkeypatch.setattr(lstm_model, "read_rows", lambda *x: calls.append("rows") or read_rows(*x))
    decoded(RNNSeq2Seq(13, 11, d_model=SIZE))
    assert calls == ["rows", "steps"]
    for arguments in ({"cell": "gru"}, {"scorer": "additive"}, {"density": "gaussian"}):
        calls.clear()
        decoded(RNNSeq2Seq(13, 11, d_model=SIZE, **arguments))
        assert "steps" not in calls
    hooked = RNNSeq2Seq(13, 11, d_model=SIZE)
    hooked.attention.register_forward_hook(lambda *_: calls.append("hook"))
    calls.clear()
    decoded(hooked)
    assert calls == ["rows"] + ["hook"] * TGT
    hooked.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    calls.clear()
    decoded(hooked)
    assert calls == ["encoder"] + ["hook"] * TGT
