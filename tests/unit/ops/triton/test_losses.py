"""Tests of the Triton loss kernels: values, gradients and supports against float64, and rows without a loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from sweep import ALPHAS, PATHS, PATHS_AND_ALPHAS, tiling
from triton_interpreter import DEVICE, close, gpu, losses
from tsallis.ops import reference
from tsallis.ops.eager.entropy import entropy_alpha_gradient

ERROR, GRADIENT = 2e-6, 5e-6  # tolerances relative to the largest value or to 1


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Split small rows in the same way as long ones."""
    monkeypatch.setattr(losses, "tiling", tiling(request.param))
    monkeypatch.setattr(losses, "TILE", 64)
    return str(request.param)


def dense(index: Tensor, value: Tensor, counts: Tensor, d: int) -> Tensor:
    rows = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    out = torch.zeros(len(counts), d, dtype=torch.float64, device=counts.device)
    return out.index_put_((rows, index.long()), value.double())


def check(scores: Tensor, alpha: float | Tensor, target: Tensor | None = None) -> None:
    scores = scores.to(DEVICE)
    rows, d = scores.shape
    inputs = alpha.to(DEVICE) if isinstance(alpha, Tensor) else alpha
    target = torch.randint(d, (rows,), device=DEVICE) if target is None else target.to(DEVICE)
    exact = scores.double().requires_grad_()
    alphas = torch.as_tensor(alpha, dtype=torch.float64, device=DEVICE).expand(rows, 1)
    expected = reference.entmax_loss(exact, target, alphas)
    probs = reference.entmax(exact, alphas).detach()
    loss, stats, slope = gpu.entmax_loss(scores, target, inputs, True)
    close(loss, expected, ERROR)
    close(slope, entropy_alpha_gradient(probs, alphas), 5 * ERROR)
    grad = torch.randn(rows, device=DEVICE)
    (right,) = torch.autograd.grad(expected, exact, grad.double())
    close(gpu.entmax_loss_gradient(scores, target, inputs, stats, grad), right, GRADIENT)
    counts = stats[:, -1].long()
    certain = ((probs == 0) | (probs > 1e-7)).all(-1)
    assert torch.equal(counts[certain], (probs > 0).sum(-1)[certain])
    index, value = gpu.support(scores, inputs, stats, F.pad(counts.cumsum(0), (1, 0)))
    close(dense(index, value, counts, d), probs, ERROR)


@pytest.mark.parametrize(("path", "alpha"), PATHS_AND_ALPHAS, indirect=["path"])
def test_every_size_and_path_matches_float64(path: str, alpha: float) -> None:
    for d in [1, 7, 33, 129, 300] if path == "short" else [1, 100]:
        check(torch.randn(3 if d < 100 else 2, d) * 2, alpha)


def test_per_row_alphas_match_float64(path: str) -> None:
    check(torch.randn(len(ALPHAS), 65), torch.tensor(ALPHAS).unsqueeze(-1))


@pytest.mark.parametrize("scale", [0.0, 1e-41, 1e3])
def test_flat_and_steep_rows_match_float64(path: str, scale: float) -> None:
    check(torch.randn(4, 65) * scale, torch.tensor([[1.0], [1.3], [1.5], [2.0]]))


def test_scores_with_a_large_offset_match_float64(path: str) -> None:
    z = (torch.randn(2, 65) * 2 + 1e6) - 1e6
    check(z + 1e6, 1.5, torch.tensor([0, 1]))


@pytest.mark.parametrize(("path", "alpha"), PATHS_AND_ALPHAS, indirect=["path"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
def test_ignored_and_non_finite_rows_match_eager(path: str, alpha: float) -> None:
    z = torch.randn(8, 65, device=DEVICE)
    z[0] = -torch.inf
    z[1, 3] = -torch.inf  # the score of the target
    z[2, 7] = torch.nan
    z[3, 9] = torch.inf
    z[4, 7] = torch.nan
    target = torch.tensor([3, 3, 3, 3, -1, -1, 3, 3], device=DEVICE)
    loss, stats, slope = gpu.entmax_loss(z, target, alpha, True)
    with tsallis.backend("eager"):
        leaf = z.double().requires_grad_()
        alphas = torch.full((8, 1), alpha, dtype=torch.float64, device=DEVICE, requires_grad=True)
        expected = tsallis.entmax_loss(leaf, target, alphas, ignore_index=-1, reduction="none")
        right, moved = torch.autograd.grad(expected, (leaf, alphas), torch.ones_like(expected))
    torch.testing.assert_close(loss.double(), expected, equal_nan=True, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slope.double(), moved, equal_nan=True, atol=1e-5, rtol=1e-5)
    dz = gpu.entmax_loss_gradient(z, target, alpha, stats, torch.ones_like(loss))
    torch.testing.assert_close(dz.double(), right, equal_nan=True, atol=1e-6, rtol=1e-6)
    assert (stats[[0, 4, 5], -1] == 0).all()
    choice = gpu.entmax_loss_gradient(z, target, alpha, stats, torch.ones_like(loss), out=z)
    assert choice is z
    assert torch.equal(z.isnan(), dz.isnan()) and torch.equal(z.nan_to_num(), dz.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_matches_float64(path: str, dtype: torch.dtype) -> None:
    z, y = (torch.randn(3, 65, device=DEVICE) * 2).to(dtype), torch.tensor([0, 5, 64], device=DEVICE)
    for alpha in (1.25, 1.5):
        exact = z.double().requires_grad_()
        expected = reference.entmax_loss(exact, y, alpha)
        loss, stats, _ = gpu.entmax_loss(z, y, alpha, False)
        assert loss.dtype == torch.float32
        close(loss, expected, ERROR)
        (right,) = torch.autograd.grad(expected.sum(), exact)
        dz = gpu.entmax_loss_gradient(z, y, alpha, stats, torch.ones_like(loss))
        assert dz.dtype == dtype
        close(dz, right, torch.finfo(dtype).eps)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("tau", [-0.5, 0.3])
def test_alpha_relu_matches_float64(alpha: float, tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "TILE", 64)
    for d in (1, 33, 129):
        z, y = torch.randn(3, d, device=DEVICE), torch.randint(d, (3,), device=DEVICE)
        exact = z.double().requires_grad_()
        expected = reference.alpha_relu_loss(exact, y, alpha, tau)
        y[2] = -1
        loss, stats = gpu.alpha_relu_loss(z, y, alpha, tau)
        close(loss[:2], expected[:2], ERROR)
        assert loss[2] == 0 and stats[2, -1] == 0
        (right,) = torch.autograd.grad(expected[:2].sum(), exact)
        dz = gpu.entmax_loss_gradient(z, y, alpha, stats, torch.ones_like(loss))
        close(dz, right, GRADIENT)
        counts = stats[:, -1].long()
        assert torch.equal(counts[:2], (reference.alpha_relu(z, alpha, tau) > 0).sum(-1)[:2])
        index, value = gpu.support(z, alpha, stats, F.pad(counts.cumsum(0), (1, 0)))
        close(dense(index, value, counts, d)[:2], reference.alpha_relu(z, alpha, tau)[:2], ERROR)
