"""Tests of log-probabilities against 45-digit results: near the threshold, near certainty, at every scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from exact_logs import exact_logs
from instruction_sets import PRESENT, use
from tsallis.distributions import EntmaxCategorical, kl_divergence
from tsallis.functional.maps import log_entmax
from tsallis.nn import OutputLayer
from tsallis.ops import cpu, eager
from tsallis.ops.arguments import BestSymbols

ALPHAS = (1.0, 1 + 1e-6, 1.0001, 1.01, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
END = 1


def rows(alpha: float, offset: float) -> Tensor:
    """Return rows of four float32 scores: ordinary ones, a leading one, and gaps up to the threshold."""
    width = 60.0 if alpha < 1.02 else 1 / (alpha - 1)
    generator = torch.Generator().manual_seed(int(alpha * 1000))
    gaps = torch.rand(4, 4, generator=generator) * width
    gaps[:, 2] = 0
    gaps[1] = torch.tensor([0.9, 0.99, 0, 0.999]) * width
    gaps[2] = torch.tensor([0.99999, 1.00001, 0, math.inf]) * width
    return (offset - gaps).float()


def close(ours: Tensor, truth: Tensor, rtol: float = 1e-6) -> None:
    torch.testing.assert_close(ours.double(), truth, atol=1e-30, rtol=rtol)


def exact(scores: Tensor, alpha: float, tau: float | None = None) -> Tensor:
    return torch.tensor([exact_logs(row, alpha, tau) for row in scores.tolist()], dtype=torch.float64)


def spread(best: BestSymbols, classes: int, end: int) -> Tensor:
    """Convert the best symbols to log-probabilities of all symbols."""
    result = torch.full((len(best.ends), classes), -math.inf, dtype=torch.float64)
    for row, (logs, symbols) in enumerate(zip(best.log_probs.tolist(), best.symbols.tolist(), strict=True)):
        for value, symbol in zip(logs, symbols, strict=True):
            if value > -math.inf:
                result[row, symbol] = value
    result[:, end] = best.ends
    return result


@pytest.mark.parametrize("alpha", ALPHAS)
def test_log_probs_match_exact_results(alpha: float) -> None:
    for offset in (0.0, -1e4, 1e17, 3e38):
        z = rows(alpha, offset)
        truth = exact(z, alpha)
        close(log_entmax(z, alpha), truth, 1e-9)
        close(log_entmax(z, torch.full((4, 1), alpha, dtype=torch.float64)), truth, 1e-9)
        layer = OutputLayer(1, 4, "softmax" if alpha == 1 else "entmax", alpha if alpha > 1 else 1.5)
        close(layer.log_probs(z), truth, 1e-9)
        d = EntmaxCategorical(z, alpha)
        close(torch.stack([d.log_prob(torch.full((4,), k)) for k in range(4)], -1), truth)
        assert torch.equal(d.support.mask, truth > -math.inf)
        assert torch.equal(d.support_size, (truth > -math.inf).sum(-1))
        best = eager.best_symbols(z, alpha, None, 4, END)
        close(spread(best, 4, END), truth, 1e-9)
        assert torch.equal(best.support, (truth > -math.inf).sum(-1))


@pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
@pytest.mark.parametrize("alpha", ALPHAS[:-1])
@pytest.mark.parametrize("instructions", PRESENT)
def test_kernel_log_probs_match_exact_results(instructions: str, alpha: float) -> None:
    for offset in (0.0, 1e17, -3e38):
        z = rows(alpha, offset)
        truth = exact(z, alpha)
        with use(instructions):
            best = cpu.best_symbols(z, alpha, None, 4, END)
        close(spread(best, 4, END), truth)
        assert torch.equal(best.support, (truth > -math.inf).sum(-1))
        assert best.mass.tolist() == [1.0 if offset == 0 else math.inf] * 4


@pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
@pytest.mark.parametrize("instructions", PRESENT)
@pytest.mark.parametrize("alpha", [1.05, 1.1, 1.25, 1.5, 2.0])
def test_kernels_match_log_entmax_on_long_supports(instructions: str, alpha: float) -> None:
    z = torch.randn(3, 4000, generator=torch.Generator().manual_seed(1)) * 1.5
    truth = log_entmax(z, alpha)
    with use(instructions):
        best = cpu.best_symbols(z, alpha, None, 4000, END)
    close(spread(best, 4000, END), truth)
    assert torch.equal(best.support, (truth > -math.inf).sum(-1))


@pytest.mark.parametrize("tau", [0.0, 0.3, -2.0])
@pytest.mark.parametrize("alpha", [1.05, 1.25, 2.0])
def test_alpha_relu_log_probs_match_when_values_overflow(alpha: float, tau: float) -> None:
    edge = tau / (alpha - 1)
    z = torch.tensor([[edge + 1e-3, edge - 1e-3, 5.0, 1e17, 3e38]])
    truth = exact(z, alpha, tau)
    close(OutputLayer(1, 5, "alpha_relu", alpha, tau).log_probs(z), truth)
    for backend in (eager, cpu) if cpu.status().available else (eager,):
        close(spread(backend.best_symbols(z, alpha, tau, 5, END), 5, END), truth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.05, 1.5])
def test_half_precision_log_probs_match_exact_results(dtype: torch.dtype, alpha: float) -> None:
    z = torch.tensor([[0.0, -30.0 if alpha < 1.04 else -0.99 / (alpha - 1)]]).to(dtype)
    truth = exact(z.double(), alpha)
    d = EntmaxCategorical(z, alpha)
    close(d.log_prob(torch.tensor([1])), truth[:, 1], torch.finfo(dtype).eps)
    assert d.log_prob(torch.tensor([1])).dtype == d.entropy().dtype == dtype
    assert d.support_size.item() == 2
    close(OutputLayer(1, 2, "entmax", alpha).log_probs(z), truth, 1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.05, 1.5])
def test_entropy_and_kl_divergence_match_exact_results(alpha: float) -> None:
    gap = 200.0 if alpha < 1.04 else 0.9999 / (alpha - 1)
    p, q = torch.tensor([0.0, -gap / 2, -1.0]), torch.tensor([-gap, 0.0, -1.0])
    of_p, of_q = exact(p[None], alpha)[0], exact(q[None], alpha)[0]
    divergence = (of_p.exp() * (of_p - of_q)).sum()
    first, second = EntmaxCategorical(p, alpha), EntmaxCategorical(q, alpha)
    close(kl_divergence(first, second), divergence)
    close(first.entropy(), -(of_p.exp() * of_p).sum())
    # PyTorch's distribution, with finite logits where the float32 probability underflows.
    dense = torch.distributions.Categorical(logits=torch.tensor([-200.0, 0.0, -1.0]))
    close(kl_divergence(first, dense), (of_p.exp() * (of_p - dense.logits.double())).sum())


def test_log_probs_near_certainty_are_accurate() -> None:
    for alpha, gap in ((1.0, 40.0), (1.05, 19.0), (1.5, 1.99999)):
        z = torch.tensor([[0.0, -gap]])
        close(log_entmax(z, alpha), exact(z, alpha), 1e-9)
        assert bool((log_entmax(z, alpha) < 0).all())


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.05, 1.5, 2.0, 2.5])
def test_gradients_are_right_where_probabilities_are_tiny(alpha: float) -> None:
    width = 300.0 if alpha <= 1 else 0.999 / (alpha - 1)
    z = torch.tensor([[0.0, -width, -width / 3, -2 * width], [-width / 2, 0.0, -0.1, 0.1]], dtype=torch.float64)
    z, alphas = z.requires_grad_(), torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    inside = log_entmax(z, alpha) > -math.inf

    def finite(scores: Tensor, alphas: Tensor) -> Tensor:
        return log_entmax(scores, alphas)[inside]

    assert torch.autograd.gradcheck(finite, (z, alphas))
    grads = torch.autograd.grad(log_entmax(z, alphas)[0, 3], (z, alphas), allow_unused=True)
    if alpha > 1:  # outside the support the gradient is zero
        assert all(grad is None or not grad.any() for grad in grads)


def test_empty_rows_give_minus_inf_and_nan_rows_give_nan() -> None:
    z = torch.tensor([[-math.inf, -math.inf], [0.0, math.nan], [-math.inf, math.nan], [0.0, -math.inf]])
    for alpha in (1.0, 1.5, 2.0, 3.0, torch.full((4, 1), 1.5)):
        logs = log_entmax(z, alpha)
        assert logs[0].tolist() == [-math.inf] * 2 and logs[3].tolist() == [0, -math.inf]
        assert bool(logs[1:3].isnan().all())
