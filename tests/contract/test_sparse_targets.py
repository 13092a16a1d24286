"""Losses of sparse targets equal those of dense probabilities on every backend, without creating a dense row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from backends import backends_for, skip_unless_usable
from tsallis import SparseRows
from tsallis.nn import EntmaxLoss, OutputLayer
from tsallis.ops.autograd import linear_chunks

BACKENDS = backends_for("output layer")
ALPHAS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
CLASSES = 50
EMPTY = (3, 19)


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    skip_unless_usable(request.param)
    with tsallis.backend(request.param):
        yield request.param


@pytest.fixture(params=["lists", "dense", "scores kept"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use chunks of seven rows that save lists or recompute their scores, or one chunk that keeps its scores."""
    sizes = {"lists": (350, 0, 1.0), "dense": (350, 0, 0.0), "scores kept": (350, 10**6, 0.0)}[request.param]
    chunk, single_chunk, share = sizes
    monkeypatch.setattr(
        linear_chunks, "CPU", linear_chunks.CPU._replace(chunk=chunk, single_chunk=single_chunk, share=share)
    )


def layer(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states [20, 6], a weight [50, 6] and a bias [50], all with gradients."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((20, 6), (CLASSES, 6), (CLASSES,))
    values = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    values[0] *= scale
    hidden, weight, bias = (x.to(dtype).requires_grad_() for x in values)
    return hidden, weight, bias


def targets(rows: int = 20) -> tuple[SparseRows, Tensor]:
    """Return sparse rows (two are empty, one is a single class) and the same rows as a dense tensor [rows, 50]."""
    generator = torch.Generator().manual_seed(5)
    probs = tsallis.entmax(torch.randn(rows, CLASSES, generator=generator) * 3, 1.5)
    probs[0] = F.one_hot(torch.tensor(7), CLASSES)
    probs[list(EMPTY)] = 0
    return SparseRows.from_dense(probs), probs


def dense_loss(scores: Tensor, probs: Tensor, alpha: float | Tensor) -> Tensor:
    """Return losses [rows] from the loss of dense probabilities in float64; empty rows are ignored."""
    loss = tsallis.entmax_loss(scores.double(), probs.double(), alpha, reduction="none")
    return torch.where(probs.sum(-1) > 0, loss, 0)


def dense_relu_loss(scores: Tensor, probs: Tensor, alpha: float, tau: float) -> Tensor:
    z, y, eps = scores.double(), probs.double(), alpha - 1
    r = tsallis.alpha_relu(z, alpha, tau)

    def entropy(p: Tensor) -> Tensor:
        return (1 - p.pow(alpha).sum(-1)) / (alpha * eps)

    loss = ((r - y) * (z - tau / eps)).sum(-1) + entropy(r) - entropy(y)
    return torch.where(y.sum(-1) > 0, loss, 0)


def weighted(loss: Tensor) -> Tensor:
    return (loss * torch.linspace(0.5, 1.5, len(loss)).to(loss)).sum()


def assert_equal(loss: Tensor, expected: Tensor, leaves: tuple[Tensor, ...]) -> None:
    """Compare losses [rows] and their gradients to 1e-6 of the largest value."""
    results = ([x, *torch.autograd.grad(weighted(x), leaves, retain_graph=True)] for x in (loss, expected))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=1e-6 * max(1.0, b.abs().max().item()))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_score_losses_match_dense_targets(alpha: float, scale: float) -> None:
    hidden, weight, bias = layer(scale=scale)
    rows, probs = targets()
    scores = F.linear(hidden, weight, bias).detach().requires_grad_()
    loss = tsallis.entmax_loss(scores, rows, alpha, reduction="none")
    assert loss[list(EMPTY)].tolist() == [0, 0]
    assert (loss >= 0).all()
    assert_equal(loss, dense_loss(scores, probs, alpha), (scores,))
    if alpha > 1:
        relu = tsallis.alpha_relu_loss(scores, rows, alpha, 0.1, reduction="none")
        assert_equal(relu, dense_relu_loss(scores, probs, alpha, 0.1), (scores,))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_layer_losses_match_dense_targets(alpha: float, scale: float, chunks: None) -> None:
    leaves = layer(scale=scale)
    hidden, weight, bias = leaves
    rows, probs = targets()
    scores = F.linear(hidden.double(), weight.double(), bias.double())
    loss = tsallis.linear_entmax_loss(hidden, weight, rows, alpha, bias=bias, reduction="none")
    assert_equal(loss, dense_loss(scores, probs, alpha), leaves)
    if alpha > 1:
        relu = tsallis.linear_alpha_relu_loss(hidden, weight, rows, alpha, 0.1, bias=bias, reduction="none")
        assert_equal(relu, dense_relu_loss(scores, probs, alpha, 0.1), leaves)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_ignore_empty_rows(reduction: str, chunks: None) -> None:
    leaves = layer()
    rows, probs = targets()
    sums = dense_loss(F.linear(leaves[0], leaves[1]), probs, 1.5).sum()
    expected = sums / 18 if reduction == "mean" else sums
    loss = tsallis.linear_entmax_loss(leaves[0], leaves[1], rows, reduction=reduction)
    scores = tsallis.entmax_loss(F.linear(leaves[0], leaves[1]), rows, reduction=reduction)
    torch.testing.assert_close(loss.double(), expected)
    torch.testing.assert_close(scores.double(), expected)
    found, wanted = (torch.autograd.grad(x, leaves[:2], retain_graph=True) for x in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_alpha_gradients_match_dense_targets(chunks: None) -> None:
    hidden, weight, _ = layer(torch.float64)
    rows, probs = targets()
    alpha = torch.linspace(1.0, 2.0, 20, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    loss = tsallis.linear_entmax_loss(hidden, weight, rows, alpha, reduction="none")
    scores = tsallis.entmax_loss(hidden @ weight.T, rows, alpha, reduction="none")
    for one in (loss, scores):
        assert_equal(one, dense_loss(hidden @ weight.T, probs, alpha), (hidden, weight, alpha))


Losses = dict[str, Callable[[Tensor, Tensor, SparseRows], Tensor]]
LOSSES: Losses = {
    "scores": lambda h, w, y: tsallis.entmax_loss(h @ w.T, y, reduction="none"),
    "layer": lambda h, w, y: tsallis.linear_entmax_loss(h, w, y, reduction="none"),
    "alpha-ReLU": lambda h, w, y: tsallis.alpha_relu_loss(h @ w.T, y, reduction="none"),
    "layer, alpha-ReLU": lambda h, w, y: tsallis.linear_alpha_relu_loss(h, w, y, reduction="none"),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_pass_gradgradcheck(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (3, 4))
    rows = SparseRows(torch.tensor([0, 2, 3]), torch.tensor([0.75, 0.25, 1.0]), torch.tensor([0, 2, 2, 3]))
    inputs = hidden.requires_grad_(), weight.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda h, w: LOSSES[kind](h, w, rows), inputs, atol=1e-4)


@pytest.mark.parametrize("kind", LOSSES)
def test_func_grad_and_jvp_match_autograd(kind: str) -> None:
    hidden, weight, _ = layer(torch.float64)
    rows, _ = targets()
    loss = LOSSES[kind](hidden, weight, rows)
    (expected,) = torch.autograd.grad(weighted(loss), hidden)
    grad = torch.func.grad(lambda h: weighted(LOSSES[kind](h, weight, rows)))(hidden.detach())
    torch.testing.assert_close(grad, expected)
    tangent = torch.ones_like(hidden)
    _, slope = torch.func.jvp(
        lambda h: weighted(LOSSES[kind](h, weight.detach(), rows)), (hidden.detach(),), (tangent,)
    )
    torch.testing.assert_close(slope, expected.sum())


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_compiled_losses_match_eager(kind: str) -> None:
    hidden, weight, _ = layer()
    compiled = torch.compile(lambda h, w, y: LOSSES[kind](h, w, y), fullgraph=True, dynamic=True)
    for count in (20, 12):
        rows, _ = targets()
        rows, part = rows[:count], hidden[:count]
        loss, expected = compiled(part, weight, rows), LOSSES[kind](part, weight, rows)
        torch.testing.assert_close(loss, expected)
        found = torch.autograd.grad(weighted(loss), (hidden, weight))
        torch.testing.assert_close(found, torch.autograd.grad(weighted(expected), (hidden, weight)))


def test_output_layer_and_module_losses_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, _, _ = layer()
    rows, probs = targets()
    probs[:, 0] = 0
    probs[list({*range(20)} - {*EMPTY})] /= probs.sum(-1, keepdim=True)[list({*range(20)} - {*EMPTY})]
    rows = SparseRows.from_dense(probs)
    for transform in ("entmax", "alpha_relu"):
        output = OutputLayer(6, CLASSES, transform, forbidden=(0,))
        scores = output(hidden)
        expected = output.loss_of_scores(scores, rows)
        if transform == "entmax":
            torch.testing.assert_close(EntmaxLoss()(scores, rows), expected)
            torch.testing.assert_close(dense_loss(scores, probs, 1.5).sum().float() / 18, expected)
        for many in (1, 1 << 30):
            monkeypatch.setattr("tsallis.nn.output.MANY_SCORES", many)
            torch.testing.assert_close(output.loss(hidden.reshape(4, 5, 6), rows), expected)
    with pytest.raises(ValueError, match=r"label_smoothing .* 0\.1"):
        output.loss(hidden, rows, label_smoothing=0.1)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_impossible_targets_have_infinite_loss(alpha: float, chunks: None) -> None:
    """A target with a score of -inf has an infinite loss; a row of -inf has loss and gradient 0."""
    scores = torch.zeros(3, CLASSES)
    scores[0, 1] = scores[1, 7] = -torch.inf
    scores[2] = -torch.inf
    rows = SparseRows(torch.tensor([1, 2] * 3), torch.tensor([0.75, 0.25, 0.25, 0.75, 0.5, 0.5]), torch.arange(0, 7, 2))
    scores.requires_grad_()
    loss = tsallis.entmax_loss(scores, rows, alpha, reduction="none")
    assert loss[0] == torch.inf
    assert loss[1].isfinite()
    assert loss[2] == 0
    loss[1:].sum().backward()
    torch.testing.assert_close(scores.grad[1].sum(), torch.tensor(0.0), rtol=0, atol=1e-6)
    assert not scores.grad[2].any()
    bias = torch.full((CLASSES,), -torch.inf)
    hidden, weight = torch.zeros(3, 2, requires_grad=True), torch.ones(CLASSES, 2, requires_grad=True)
    lost = tsallis.linear_entmax_loss(hidden, weight, rows, alpha, bias=bias, reduction="none")
    assert lost.tolist() == [0, 0, 0]
    lost.sum().backward()
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_truncated_target_rows_are_normalized() -> None:
    scores = torch.randn(1, CLASSES)
    index, offsets = torch.tensor([4, 9]), torch.tensor([0, 2])
    cut = SparseRows(index, torch.tensor([0.6, 0.2]), offsets, torch.tensor([0.2]))
    whole = SparseRows(index, torch.tensor([0.75, 0.25]), offsets)
    torch.testing.assert_close(tsallis.entmax_loss(scores, cut), tsallis.entmax_loss(scores, whole))


def test_bfloat16_losses_match_dense_targets() -> None:
    hidden, weight, bias = layer(torch.bfloat16)
    rows, probs = targets()
    scores = F.linear(hidden, weight, bias).detach().requires_grad_()
    loss = tsallis.entmax_loss(scores, rows, reduction="none")
    assert loss.dtype == torch.bfloat16
    torch.testing.assert_close(loss, dense_loss(scores, probs, 1.5).bfloat16())
    (grad,) = torch.autograd.grad(loss.float().sum(), scores)
    (expected,) = torch.autograd.grad(dense_loss(scores, probs, 1.5).sum(), scores)
    torch.testing.assert_close(grad, expected)
    loss = tsallis.linear_entmax_loss(hidden, weight, rows, bias=bias, reduction="none")
    torch.testing.assert_close(loss, dense_loss(scores, probs, 1.5).bfloat16(), rtol=0.02, atol=0.02)


def test_invalid_targets_raise() -> None:
    rows, _ = targets()
    scores = torch.zeros(20, CLASSES)
    with pytest.raises(ValueError, match=r"20 rows.*got 19"):
        tsallis.entmax_loss(scores, rows[:19])
    largest = int(rows.indices.max())
    with pytest.raises(ValueError, match=f"0 to {largest - 1}, got {largest}"):
        tsallis.entmax_loss(scores[:, :largest], rows)
    with pytest.raises(ValueError, match=r"20 rows.*got 19"):
        tsallis.linear_entmax_loss(torch.zeros(20, 4), torch.zeros(CLASSES, 4), rows[:19])
    with pytest.raises(ValueError, match="label_smoothing"):
        tsallis.entmax_loss(scores, rows, label_smoothing=0.1)
