"""Tests of entropy, escort, normmax and budgets: closed forms and edge cases outside the contract tests."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import tsallis


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1e-60), (torch.float32, 1e-36)])
def test_entropy_of_tiny_probabilities_matches_closed_form(dtype: torch.dtype, least: float) -> None:
    """Check alpha near 0, for which the entropy counts the support, even with tiny probabilities."""
    p = torch.tensor([1.0, least], dtype=dtype, requires_grad=True)
    alpha = torch.tensor(0.01, dtype=dtype, requires_grad=True)
    result = tsallis.tsallis_entropy(p, alpha)
    q, a = math.exp(0.01 * math.log(p[1].item())), 0.01  # q = p^alpha
    expected = (q - p[1].item()) / (a * (1 - a))
    assert result.item() == pytest.approx(expected, rel=1e-5)
    of_p, of_alpha = torch.autograd.grad(result, [p, alpha])
    assert of_p[1].item() == pytest.approx((a * q / p[1].item() - 1) / (a * (1 - a)), rel=1e-4)
    slope = math.log(p[1].item()) * q / (a * (1 - a)) - expected * (1 - 2 * a) / (a * (1 - a))
    assert of_alpha.item() == pytest.approx(slope, rel=1e-4)


def test_entropy_of_subnormal_probabilities_is_finite() -> None:
    p = torch.tensor([1.0, 1e-44], requires_grad=True)
    alpha = torch.tensor([0.05], requires_grad=True)
    entropy = tsallis.tsallis_entropy(p, alpha)
    entropy.backward()
    assert entropy.isfinite() and alpha.grad is not None and alpha.grad.isfinite().all()


def test_entropy_supports_any_dim() -> None:
    p = torch.rand(2, 3, 4).softmax(1)
    assert tsallis.tsallis_entropy(p, 1.5, dim=1).shape == (2, 4)
    torch.testing.assert_close(tsallis.tsallis_entropy(p, 1.5, 1), tsallis.tsallis_entropy(p.movedim(1, -1), 1.5))


def test_escort_matches_known_values() -> None:
    p = torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(tsallis.escort(p, 1.0), p)
    torch.testing.assert_close(tsallis.escort(p, 0.0)[0], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(tsallis.escort(p, 2.0)[0], torch.tensor([0.49, 0.09, 0.0]) / 0.58)
    assert torch.equal(tsallis.escort(p, 0.5)[2], p[2])
    tiny = torch.tensor([1e-30, 1e-31, 0.0])
    torch.testing.assert_close(tsallis.escort(tiny, 3.0), torch.tensor([1000.0, 1.0, 0.0]) / 1001)
    q = torch.rand(3, 5, dtype=torch.float64).softmax(-1).requires_grad_()
    assert gradcheck(lambda q: tsallis.escort(q, 0.5), (q,), check_forward_ad=True)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 4.0])
def test_normmax_maximizes_its_objective(alpha: float) -> None:
    z = torch.randn(4, 6, dtype=torch.float64) * 2
    p = tsallis.normmax(z, alpha)
    value = (p * z).sum(-1) - p.norm(alpha, -1)
    for _ in range(200):
        other = torch.randn(4, 6, dtype=torch.float64).mul(3).softmax(-1)
        mixed = p + (other - p) * torch.rand(4, 1, dtype=torch.float64)
        assert ((mixed * z).sum(-1) - mixed.norm(alpha, -1) <= value + 1e-9).all()


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("budget", [0.5, 1.0, 2.0, 3.5, 5.0])
def test_excluded_scores_and_large_budgets_are_supported(alpha: float, budget: float) -> None:
    z = torch.randn(6, 5, dtype=torch.float64) * 3
    z[0, 1:] = -torch.inf
    p = tsallis.budgeted_entmax(z, alpha, budget)
    assert p[0, 0].item() == pytest.approx(min(budget, 1.0)) and (p[0, 1:] == 0).all()
    more = tsallis.budgeted_entmax(z[1:], alpha, 9.0)
    assert (more == 1).all()


@pytest.mark.parametrize("beta", [-3.0, -0.5])
def test_escort_supports_negative_beta(beta: float) -> None:
    """Check negative powers: that of the smallest probability can be far outside the range of float32."""
    p = torch.tensor([[0.0, -31.0, -torch.inf], [0.0, 0.0, 0.0], [-torch.inf, 0.0, -torch.inf]]).softmax(-1)
    powers = torch.where(p == 0, 0, p.double() ** beta)
    torch.testing.assert_close(tsallis.escort(p, beta).double(), powers / powers.sum(-1, keepdim=True))
    assert tsallis.escort(torch.zeros(2, 3), beta).eq(0).all() and tsallis.escort(torch.tensor(0.3), beta) == 1
    tiny = torch.tensor([1.0, 1e-42], requires_grad=True)
    escort = tsallis.escort(tiny, beta)
    assert escort.isfinite().all() and escort[1] > escort[0]
    inner = torch.rand(3, 4, dtype=torch.float64).add(0.1).requires_grad_()
    assert gradcheck(lambda x: tsallis.escort(x, beta), inner)
    assert gradgradcheck(lambda x: tsallis.escort(x, beta), inner)
