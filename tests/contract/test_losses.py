"""Every loss has the reference's values, the map's residual as gradient, and the conventions of cross-entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis
from backends import backends_for
from contract.conftest import BACKENDS
from pairs import every_pair
from tsallis.ops import reference

ALL_BACKENDS = BACKENDS["test_losses"]

ALPHAS = (0.3, 1.0, 1.0001, 1.2, 1.5, 1.9, 2.0, 2.5)


def problem(rows: int = 6, d: int = 7, dtype: torch.dtype = torch.float64, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(d)
    z = torch.randn(rows, d, generator=generator, dtype=dtype) * scale
    return z, torch.randint(d, (rows,), generator=generator)


@every_pair(indirect=["computed_by"], alpha=ALPHAS, d=[1, 2, 9, 1025, 9001], computed_by=backends_for("losses"))
def test_values_and_gradients_match_reference(alpha: float, d: int) -> None:
    z, y = problem(d=d)
    exact = z.clone().requires_grad_()
    expected = reference.entmax_loss(exact, y, alpha)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        scores = z.to(dtype).requires_grad_()
        loss = tsallis.entmax_loss(scores, y, alpha, reduction="none")
        torch.testing.assert_close(loss.double(), expected, atol=tolerance, rtol=tolerance)
        (grad,) = torch.autograd.grad(loss.sum(), scores)
        torch.testing.assert_close(grad.double(), slope, atol=max(tolerance, 1e-7), rtol=0)


def test_alpha_gradient_at_one_matches_finite_differences() -> None:
    z, y = problem(4, 6)
    one = torch.ones(4, 1, dtype=torch.float64)

    def central(step: float) -> Tensor:
        up, down = (reference.entmax_loss(z, y, one + sign * step) for sign in (1, -1))
        return (up - down) / (2 * step)

    expected = (4 * central(5e-3) - central(1e-2)) / 3  # the error is of fourth order in the step
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-7)):
        alpha = one.to(dtype, copy=True).requires_grad_()
        (result,) = torch.autograd.grad(tsallis.entmax_loss(z.to(dtype), y, alpha, reduction="sum"), alpha)
        torch.testing.assert_close(result.squeeze(-1).double(), expected, atol=tolerance, rtol=tolerance)


@every_pair(
    indirect=["computed_by"],
    reduction=["mean", "sum", "none"],
    smoothing=[0.0, 0.1, 1.0],
    weighted=[False, True],
    computed_by=ALL_BACKENDS,
)
def test_alpha_one_matches_cross_entropy_with_all_options(reduction: str, smoothing: float, weighted: bool) -> None:
    z, y = problem(8, 5)
    y[3] = -100
    weight = torch.rand(5, dtype=torch.float64) + 0.1 if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    torch.testing.assert_close(tsallis.entmax_loss(z, y, 1.0, **options), F.cross_entropy(z, y, **options))


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.5, 2.0])
def test_soft_target_losses_match_reference(alpha: float) -> None:
    z, y = problem()
    soft = torch.rand(6, 7, dtype=torch.float64) ** 4
    soft = soft / soft.sum(-1, keepdim=True)
    loss = tsallis.entmax_loss(z, soft, alpha, reduction="none")
    torch.testing.assert_close(loss, reference.entmax_loss(z, soft, alpha))
    assert (loss > 0).all()
    own = tsallis.entmax(z, alpha)
    torch.testing.assert_close(tsallis.entmax_loss(z, own, alpha), torch.zeros((), dtype=torch.float64))
    classes = F.one_hot(y, 7).double()
    torch.testing.assert_close(tsallis.entmax_loss(z, classes, alpha), tsallis.entmax_loss(z, y, alpha))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_soft_target_losses_are_never_negative(alpha: float) -> None:
    z, _ = problem(300, 50, torch.float32)
    own = tsallis.entmax(z, alpha)
    loss = tsallis.entmax_loss(z.requires_grad_(), own, alpha, reduction="none")
    assert (loss >= 0).all() and (loss < 2e-6).all() and (loss == 0).any()
    # Clamping a negative rounding error to 0 doesn't change the gradients.
    grad = torch.autograd.grad(loss.sum(), z, create_graph=True)[0]
    torch.testing.assert_close(grad, torch.zeros_like(z), rtol=0, atol=1e-5)
    (second,) = torch.autograd.grad(grad[:, 0].sum(), z)
    entry = tsallis.entmax(z, alpha)[:, 0].sum()
    torch.testing.assert_close(second, torch.autograd.grad(entry, z)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_loss_is_exactly_zero_beyond_the_margin(alpha: float) -> None:
    z = torch.zeros(1, 5)
    z[0, 2] = 1 / (alpha - 1) + 1e-3
    assert tsallis.entmax_loss(z, torch.tensor([2]), alpha).item() == 0
    assert tsallis.entmax_loss(z, torch.tensor([1]), alpha).item() > 1


@every_pair(indirect=["computed_by"], broken=[torch.nan, torch.inf], alpha=ALPHAS, computed_by=ALL_BACKENDS)
def test_non_finite_rows_get_nan_alpha_gradients(broken: float, alpha: float) -> None:
    z, y = problem(3, 5)
    z[1, 2] = broken
    alphas = torch.full((3, 1), alpha, dtype=z.dtype, requires_grad=True)
    (result,) = torch.autograd.grad(tsallis.entmax_loss(z, y, alphas, reduction="sum"), alphas)
    assert result[1].isnan() and result[[0, 2]].isfinite().all()


def test_alpha_one_rows_match_cross_entropy() -> None:
    z, y = problem(4, 400)
    alpha = torch.tensor([[1.0], [1.0], [2.5], [1.0]], dtype=z.dtype)
    with tsallis.backend("eager"):
        result = tsallis.entmax_loss(z, y, alpha, reduction="none")
    expected = F.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(result[[0, 1, 3]], expected[[0, 1, 3]], atol=1e-14, rtol=1e-14)


@every_pair(
    indirect=["computed_by"], alpha=[1.0, 1.1, 1.5, 2.0, 3.0], offset=[1e6, -1e6, 1e20], computed_by=ALL_BACKENDS
)
def test_losses_with_large_offsets_are_never_negative(alpha: float, offset: float) -> None:
    z, y = problem(64, 300, torch.float32)
    shifted = z + offset
    loss = tsallis.entmax_loss(shifted, y, alpha, reduction="none")
    assert (loss >= 0).all()
    exact = reference.entmax_loss(shifted.double(), y, alpha)
    torch.testing.assert_close(loss.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("d", [6, 2048])
def test_ignored_and_empty_rows_have_zero_loss_and_gradient(alpha: float, d: int) -> None:
    z = torch.randn(6, d)
    z[0] = -torch.inf
    z[1, 2] = torch.nan
    z[2, 3] = torch.nan
    z[3, 1] = -torch.inf
    z.requires_grad_()
    y = torch.tensor([0, -100, 1, 4, -100, 2])
    loss = tsallis.entmax_loss(z, y, alpha, reduction="none")
    assert loss[0] == 0 and loss[1] == 0 and loss[4] == 0
    assert loss[2].isnan() and loss[[3, 5]].isfinite().all()
    for create_graph in (False, True):
        (grad,) = torch.autograd.grad(loss.sum(), z, create_graph=create_graph, retain_graph=True)
        assert (grad[[0, 1, 4]] == 0).all()
        assert grad[2].isnan().any()
        assert grad[[3, 5]].isfinite().all() and grad[3, 1] == 0
    target_out = tsallis.entmax_loss(z[3:4], torch.tensor([1]), alpha)
    assert target_out == torch.inf


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_ignored_rows_do_not_affect_second_derivatives(alpha: float) -> None:
    z, y = problem(4, 5)
    y[1] = -100

    def derivatives(scores: Tensor) -> tuple[Tensor, ...]:
        scores = scores.clone().requires_grad_()
        alphas = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        loss = tsallis.entmax_loss(scores, y, alphas)
        first = torch.autograd.grad(loss, (scores, alphas), create_graph=True)
        return *first, *torch.autograd.grad(sum(x.square().sum() for x in first), (scores, alphas))

    expected = derivatives(z)
    z[1, 2:] = torch.nan
    torch.testing.assert_close(derivatives(z), expected, rtol=0, atol=0)


def test_targets_of_any_shape_match_flat_targets() -> None:
    z, y = problem(12, 5)
    loss = tsallis.entmax_loss(z.view(3, 4, 5), y.view(3, 4), reduction="none")
    torch.testing.assert_close(loss.flatten(), tsallis.entmax_loss(z, y, reduction="none"))
    single = tsallis.entmax_loss(z[0], y[0])
    torch.testing.assert_close(single, loss[0, 0])
    torch.testing.assert_close(tsallis.entmax_loss(z, y.int()), tsallis.entmax_loss(z, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_losses_are_computed_in_float32(dtype: torch.dtype) -> None:
    z, y = problem(16, 500, torch.float32)
    z = z.to(dtype).requires_grad_()
    loss = tsallis.entmax_loss(z, y, reduction="none")
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, tsallis.entmax_loss(z.float(), y, reduction="none").to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tsallis.entmax_loss(z, y).dtype == torch.float32
    loss.sum().backward()
    assert z.grad is not None and z.grad.dtype == dtype


@pytest.mark.by_reference(False)
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("tau", [-0.3, 0.0, 0.2])
def test_alpha_relu_matches_reference(alpha: float, tau: float) -> None:
    z, y = problem(6, 9)
    z[0, 3] = -torch.inf
    exact = z.clone().requires_grad_()
    expected = reference.alpha_relu_loss(exact, y, alpha, tau)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
        scores = z.to(dtype).requires_grad_()
        values = tsallis.alpha_relu(scores, alpha, tau).double()
        torch.testing.assert_close(values, reference.alpha_relu(z, alpha, tau), atol=tolerance, rtol=tolerance)
        loss = tsallis.alpha_relu_loss(scores, y, alpha, tau, reduction="none")
        torch.testing.assert_close(loss.double(), expected, atol=tolerance, rtol=tolerance)
        assert (loss >= 0).all()
        (grad,) = torch.autograd.grad(loss.sum(), scores)
        torch.testing.assert_close(grad.double(), slope, atol=tolerance, rtol=tolerance)


@pytest.mark.by_reference(False)
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", ["number", "tensor", "compiled"])
def test_ignored_rows_do_not_affect_alpha_relu_loss(alpha: float, broken: float, kind: str) -> None:
    z, y = problem(4, 5)
    y[1] = -100
    tau = torch.tensor(0.1, dtype=torch.float64, requires_grad=kind == "tensor")

    def derivatives(scores: Tensor) -> list[Tensor]:
        """Return the loss and both orders of derivatives, in the scores and in tau if it is a tensor."""
        scores = scores.clone().requires_grad_()

        def compute(scores: Tensor) -> Tensor:
            return tsallis.alpha_relu_loss(scores, y, alpha, tau if kind == "tensor" else 0.1)

        inputs = (scores, tau) if kind == "tensor" else (scores,)
        loss = (torch.compile(compute, backend="eager") if kind == "compiled" else compute)(scores)
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        return [loss, *first, *torch.autograd.grad(sum(x.square().sum() for x in first), inputs)]

    expected = derivatives(z)
    z[1, 2:] = broken
    torch.testing.assert_close(derivatives(z), expected, rtol=0, atol=0)


@pytest.mark.any_backend
@pytest.mark.parametrize(("d_vocab", "tau"), [(10_000, 0.3258), (40_000, 0.1683), (60_000, 0.1379)])
def test_estimate_tau_returns_known_values(d_vocab: int, tau: float) -> None:
    assert tsallis.estimate_tau(512, d_vocab) == pytest.approx(tau, abs=5e-5)


@pytest.mark.by_reference(False)  # a mean needs many long rows
def test_tau_from_scores_is_the_mean_threshold() -> None:
    z = torch.randn(200, 4000) * (2 * 512 / 4512) ** 0.5
    tau = tsallis.estimate_tau_from_scores(z)
    assert tau == pytest.approx(tsallis.estimate_tau(512, 4000), abs=0.02)
    assert tsallis.alpha_relu(z, tau=tau).sum(-1).mean().item() == pytest.approx(1, abs=0.1)
    p = tsallis.entmax(z[:1], 1.3)
    one = tsallis.estimate_tau_from_scores(z[:1], 1.3)
    torch.testing.assert_close(tsallis.alpha_relu(z[:1], 1.3, one), p, atol=1e-5, rtol=1e-4)


INVALID = [
    (lambda z, y: tsallis.entmax_loss(z, y + 3), ValueError, "got 5"),
    (lambda z, y: tsallis.entmax_loss(z, y - 1), ValueError, "got -1"),
    (lambda z, y: tsallis.entmax_loss(z, y[:2]), ValueError, r"\(2,\)"),
    (lambda z, y: tsallis.entmax_loss(z, y, reduction="max"), ValueError, "max"),
    (lambda z, y: tsallis.entmax_loss(z, y, label_smoothing=1.5), ValueError, "1.5"),
    (lambda z, y: tsallis.entmax_loss(z, y, weight=torch.ones(3)), ValueError, r"\(3,\)"),
    (lambda z, y: tsallis.entmax_loss(z, y.double()), ValueError, "probability targets"),
    (lambda z, y: tsallis.entmax_loss(z, y == 1), TypeError, "bool"),
    (lambda z, y: tsallis.entmax_loss(z, y, -0.9), ValueError, "-0.9"),
    (lambda z, y: tsallis.entmax_loss(z, y, torch.full((4, 1), -0.5)), ValueError, "-0.5"),
    (lambda z, y: tsallis.entmax_loss(z, y, torch.ones(5)), ValueError, r"\(5,\); did you mean weight=\?"),
    (lambda z, y: tsallis.nn.EntmaxLoss(torch.ones(5))(z, y), ValueError, r"did you mean weight=\?"),
    (lambda z, y: tsallis.entmax_loss(z.T[None], y[None]), ValueError, r"\(1, 4\); .* scores.movedim\(1, -1\)"),
    (lambda z, y: tsallis.alpha_relu_loss(z.T[None], y[None]), ValueError, r"scores.movedim\(1, -1\)"),
    (lambda z, y: tsallis.entmax_loss(z, y, "learned"), TypeError, "alpha .* 'learned'"),
    (lambda z, y: tsallis.alpha_relu_loss(z, y, True), TypeError, "alpha .* True"),
    (lambda z, y: tsallis.alpha_relu_loss(z, y + 3), ValueError, "got 5"),
    (lambda z, y: tsallis.alpha_relu(z, 1.0), ValueError, "above 1"),
    (lambda z, y: tsallis.alpha_relu_loss(z, y, tau=torch.zeros(2)), ValueError, r"\(2,\)"),
    (lambda z, y: tsallis.estimate_tau(0, 10), ValueError, "0"),
    (lambda z, y: tsallis.estimate_tau_from_scores(z * torch.nan), ValueError, "finite"),
]


@pytest.mark.any_backend
@pytest.mark.parametrize(("call", "error", "words"), INVALID)
def test_invalid_arguments_raise(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(torch.randn(4, 5), torch.tensor([0, 1, 2, 2]))


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_negative_probability_targets_are_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"probability targets must be at least 0, got -0\.1"):
        tsallis.entmax_loss(torch.randn(2, 3), torch.tensor([[0.5, 0.6, -0.1], [0, 1, 0]]), alpha)
