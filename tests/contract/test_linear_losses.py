"""Losses of an output layer equal the losses of its scores on every backend, in little memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from backends import backends_for, skip_unless_usable
from pairs import every_pair
from tsallis.ops import reference
from tsallis.ops.autograd import linear_chunks

BACKENDS = backends_for("output layer")
CHUNKS = ("in chunks", "all at once")
ALPHAS = (1.0, 1.05, 1.25, 1.5, 1.75, 2.0, 2.5)


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    skip_unless_usable(request.param)
    with tsallis.backend(request.param):
        yield request.param


def resize(monkeypatch: pytest.MonkeyPatch, **sizes: float) -> None:
    monkeypatch.setattr(linear_chunks, "CPU", linear_chunks.CPU._replace(**sizes))


@pytest.fixture(params=CHUNKS)
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use chunks of seven rows of the layer below, the last one shorter, or a single chunk that keeps its scores."""
    if request.param == "in chunks":
        resize(monkeypatch, chunk=7 * 50, single_chunk=0)


def layer(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states [2, 10, 6], a weight [50, 6], a bias, and targets (two of them are ignored)."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 10, 6, generator=generator, dtype=torch.float64) * scale
    weight, bias = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((50, 6), (50,)))
    target = torch.randint(50, (2, 10), generator=generator)
    target[0, 3] = target[1, 9] = -100
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), target


def exact(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute losses [2, 10] with the float64 reference; they are 0 where the target is ignored."""
    scores = F.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    loss = reference.entmax_loss(scores, target.clamp(min=0), alpha)
    return torch.where(target >= 0, loss, 0)


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(0.5, 1.5, loss.numel(), dtype=torch.float64).reshape(loss.shape).to(loss.dtype)
    return torch.autograd.grad((loss * weights).sum(), of)


@every_pair(
    indirect=["backend", "small_chunks"],
    backend=BACKENDS,
    small_chunks=CHUNKS,
    alpha=ALPHAS,
    scale=[0.1, 1.0, 20.0],
    dtype=[torch.float64, torch.float32],
    biased=[True, False],
    reduction=["none", "mean", "sum"],
)
def test_losses_and_gradients_match_reference(
    alpha: float, scale: float, dtype: torch.dtype, biased: bool, reduction: str, small_chunks: None
) -> None:
    hidden, weight, bias, target = layer(dtype, scale)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)][: 3 if biased else 2]
    loss = tsallis.linear_entmax_loss(hidden, weight, target, alpha, bias=bias if biased else None, reduction=reduction)
    expected = exact(hidden, weight, bias if biased else None, target, alpha)
    if reduction != "none":
        expected = expected.sum() / (1 if reduction == "sum" else (target >= 0).sum())
    tolerance = {torch.float64: 1e-9, torch.float32: 3e-5 * max(1, scale)}[dtype]
    torch.testing.assert_close(loss.double(), expected, atol=tolerance, rtol=1e-5)
    if alpha == 2.5 and dtype == torch.float32:
        return  # rounded scores have different probabilities: the map is steep at the edge of the support
    for result, right in zip(gradients(loss, *leaves), gradients(expected, *leaves), strict=True):
        torch.testing.assert_close(result, right.to(dtype), atol=10 * tolerance, rtol=1e-4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("share", [0.0, 1 / 32, 1.0])
def test_lists_and_dense_chunks_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    resize(monkeypatch, share=share)
    hidden, weight, bias, target = (x.requires_grad_() if x.is_floating_point() else x for x in layer())
    hidden.data[0, :7] *= 10  # peaked rows in addition to flat ones
    leaves = (hidden, weight, bias)
    loss = tsallis.linear_entmax_loss(hidden, weight, target, 1.5, bias=bias, reduction="none")
    expected = exact(hidden, weight, bias, target, 1.5)
    torch.testing.assert_close(gradients(loss, *leaves), gradients(expected, *leaves), atol=1e-9, rtol=1e-9)


@every_pair(
    indirect=["backend", "small_chunks"],
    backend=BACKENDS,
    small_chunks=CHUNKS,
    alpha=[1.25, 1.5, 2.0],
    tau=[-0.2, 0.5, 2.0],
    share=[0.0, 1.0],
)
def test_alpha_relu_loss_matches_reference(
    monkeypatch: pytest.MonkeyPatch, alpha: float, tau: float, share: float, small_chunks: None
) -> None:
    resize(monkeypatch, share=share)
    hidden, weight, bias, target = (x.requires_grad_() if x.is_floating_point() else x for x in layer())
    leaves = (hidden, weight, bias)
    loss = tsallis.linear_alpha_relu_loss(hidden, weight, target, alpha, tau, bias=bias, reduction="none")
    scores = F.linear(hidden, weight, bias)
    expected = torch.where(target >= 0, reference.alpha_relu_loss(scores, target.clamp(min=0), alpha, tau), 0)
    torch.testing.assert_close(loss, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(gradients(loss, *leaves), gradients(expected, *leaves), atol=1e-9, rtol=1e-9)


def test_reductions_and_dtypes_follow_entmax_loss() -> None:
    hidden, weight, bias, target = layer(torch.float32)
    each = tsallis.linear_entmax_loss(hidden, weight, target, bias=bias, reduction="none")
    assert each.shape == target.shape and each.dtype == torch.float32
    torch.testing.assert_close(tsallis.linear_entmax_loss(hidden, weight, target, bias=bias), each.sum() / 18)
    total = tsallis.linear_entmax_loss(hidden, weight, target, bias=bias, reduction="sum")
    torch.testing.assert_close(total, each.sum())
    for dtype in (torch.bfloat16, torch.float16):
        half = [x.to(dtype).requires_grad_() for x in (hidden, weight, bias)]
        loss = tsallis.linear_entmax_loss(half[0], half[1], target, bias=half[2])
        assert loss.dtype == dtype
        loss.backward()
        again = [x.detach().requires_grad_() for x in half]
        tsallis.entmax_loss(F.linear(again[0], again[1], again[2]), target).backward()
        for one, other in zip(half, again, strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=2e-2, rtol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tsallis.linear_entmax_loss(hidden, weight, target).dtype == torch.float32


def test_nan_rows_stay_isolated_and_empty_losses_are_zero() -> None:
    hidden, weight, bias, target = layer()
    hidden[0, 0, 0] = torch.nan
    hidden.requires_grad_()
    loss = tsallis.linear_entmax_loss(hidden, weight, target, bias=bias, reduction="none")
    assert loss[0, 0].isnan() and loss[0, 1:].isfinite().all() and loss[1].isfinite().all()
    (result,) = torch.autograd.grad(loss.sum(), hidden)
    assert result[0, 0].isnan().all() and result[0, 1:].isfinite().all() and result[1].isfinite().all()
    nothing = tsallis.linear_entmax_loss(hidden[:, :0], weight, target[:, :0], reduction="sum")
    assert nothing == 0
    everything_ignored = tsallis.linear_entmax_loss(hidden[1], weight, torch.full((10,), -100), reduction="sum")
    assert everything_ignored == 0
    assert torch.autograd.grad(everything_ignored, hidden)[0].abs().sum() == 0


def test_invalid_arguments_raise() -> None:
    h, w, b, y = layer()
    loss, relu = tsallis.linear_entmax_loss, tsallis.linear_alpha_relu_loss
    for error, words, call in (
        (ValueError, r"weight \[classes, d\], got", lambda: loss(h, w[:, :3], y)),
        (ValueError, "bias must have shape", lambda: loss(h, w, y, bias=b[:3])),
        (ValueError, "classes from 0 to 49", lambda: loss(h, w, y + 50)),
        (ValueError, "class targets must have shape", lambda: loss(h, w, y[0])),
        (ValueError, "alpha must be finite", lambda: loss(h, w, y, 0.5)),
        (ValueError, "alpha of alpha-ReLU", lambda: relu(h, w, y, 1.0)),
        (TypeError, "the same dtype", lambda: loss(h.float(), w, y)),
        (ValueError, "reduction must be one of", lambda: loss(h, w, y, reduction="average")),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("wrong", [5, 10**6])
def test_compiled_loss_rejects_out_of_range_classes(wrong: int) -> None:
    compiled = torch.compile(tsallis.linear_entmax_loss, backend="aot_eager")
    hidden, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    with pytest.raises(ValueError, match=f"classes from 0 to 4, got {wrong}"):
        compiled(hidden, weight, torch.tensor([0, wrong, 1]))


@pytest.mark.parametrize("alpha", [1.5, "tensor", "alpha-ReLU"])
def test_compiled_gradients_of_transposed_inputs(alpha: float | str) -> None:
    def loss(flat: Tensor, weight: Tensor, alphas: Tensor) -> Tensor:
        hidden, target = flat.view(9, 4).t(), torch.tensor([0, 1, -100, 2])
        if alpha == "alpha-ReLU":
            return tsallis.linear_alpha_relu_loss(hidden, weight.t(), target)
        return tsallis.linear_entmax_loss(hidden, weight.t(), target, alphas.t() if alpha == "tensor" else alpha)

    inputs = [torch.randn(36), torch.randn(9, 6), torch.rand(1, 4) + 1]
    results = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        function(*leaves).backward()
        results.append([x.grad for x in leaves])
    torch.testing.assert_close(*results)


def test_score_matrix_is_not_saved_for_backward() -> None:
    hidden = torch.randn(600, 8, requires_grad=True)
    weight = torch.randn(20_000, 8, requires_grad=True)
    saved = 0

    def count(x: Tensor) -> Tensor:
        nonlocal saved
        saved += 0 if x is hidden or x is weight else x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        loss = tsallis.linear_entmax_loss(hidden * 3, weight, torch.randint(20_000, (600,)))
    assert saved < 600 * 20_000 * 4 / 30
    loss.backward()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("scale", [0.1, 20.0])
def test_second_backward_gives_the_same_gradients(alpha: float, scale: float) -> None:
    """The second pass must not read kept scores that the first pass has overwritten."""
    hidden, weight, bias, target = layer(torch.float64, scale)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    loss = tsallis.linear_entmax_loss(hidden, weight, target, alpha, bias=bias, reduction="sum")
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(first, second, atol=1e-13, rtol=1e-12)
