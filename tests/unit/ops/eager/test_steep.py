"""Tests of alphas above 2 against many-digit formulas: powers of small probabilities vanish in float64 rounding."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

import tsallis
from backends import skip_unless_usable
from tsallis.ops import reference
from tsallis.ops.eager import graph, steep
from tsallis.ops.registry import BACKENDS

ALPHAS = [2.5, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0, 50.0]


def exact(row: list[float], alpha: float, budget: float = 1.0) -> list[Decimal]:
    """Return the probabilities of a row: find the support by trial, the smallest probability by bisection."""
    eps = Decimal(alpha) - 1
    scores = [Decimal(z) for z in row]

    def power(u: Decimal) -> Decimal:
        return min(Decimal(1), (u.ln() / eps).exp()) if u > 0 else Decimal(0)

    def probabilities(least: Decimal, q: Decimal) -> list[Decimal]:
        edge = (eps * q.ln()).exp() if q else Decimal(0)
        return [power(edge + eps * (z - least)) if z >= least else Decimal(0) for z in scores]

    least = min(z for z in scores if sum(probabilities(z, Decimal(0))) < Decimal(budget))
    low, high = Decimal(0), Decimal(1)
    for _ in range(90):
        middle = (low + high) / 2
        above = sum(probabilities(least, middle)) > Decimal(budget)
        low, high = (low, middle) if above else (middle, high)
    return probabilities(least, high)


def derivatives(probs: list[Decimal], grad: list[float], alpha: float) -> tuple[list[Decimal], Decimal]:
    """Return the gradients of a row's scores and of its alpha."""
    eps = Decimal(alpha) - 1
    s = [((1 - eps) * p.ln()).exp() if p else Decimal(0) for p in probs]
    # k is -dp/dalpha divided by s, at a fixed threshold.
    k = [(1 + (eps * p.ln()).exp() * (eps * p.ln() - 1)) / eps**2 if p else Decimal(0) for p in probs]

    def jacobian(vector: list[Decimal]) -> list[Decimal]:
        mean = sum(a * b for a, b in zip(s, vector, strict=True)) / sum(s)
        return [a * (b - mean) for a, b in zip(s, vector, strict=True)]

    upstream = [Decimal(g) for g in grad]
    return jacobian(upstream), -sum(g * x for g, x in zip(upstream, jacobian(k), strict=True))


def rows(scale: float, d: int = 7) -> Tensor:
    """Return scores [4, d]; the last two rows have ties."""
    noise = torch.randn(4, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noise[2:] = noise[2:].round()
    return (noise * scale).float().double()


def known(alpha: float) -> tuple[Tensor, Tensor]:
    """Return scores [13, 7] of several scales, and their probabilities."""
    scores = torch.cat([rows(0.01), rows(1.0), rows(100.0), torch.tensor([[0.3, 0.2, *[0.0] * 5]]).double()])
    with localcontext() as context:
        context.prec = 60
        expected = [[float(p) for p in exact(row, alpha)] for row in scores.tolist()]
    return scores, torch.tensor(expected, dtype=torch.float64)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_probabilities_have_full_precision(alpha: float) -> None:
    scores, expected = known(alpha)
    alphas = torch.full((len(scores), 1), alpha)
    for few, dtype in ((2e-15, torch.float64), (1e-7, torch.float32)):
        for number in (alpha, alphas):
            probs = tsallis.entmax(scores.to(dtype), number).double()
            torch.testing.assert_close(probs, expected, rtol=10 * few, atol=few)
    compiled = torch.compile(lambda z: tsallis.entmax(z, alpha), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), expected, rtol=0, atol=2e-15)
    torch.testing.assert_close(reference.entmax(scores, alpha), expected, rtol=0, atol=2e-15)
    for number in (alpha, alphas):
        torch.testing.assert_close(graph.entmax(scores.float(), number).double(), expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("name", ["auto", *BACKENDS])
def test_every_backend_is_precise_at_alpha_10(name: str) -> None:
    if name != "auto":
        skip_unless_usable(name)
    scores, expected = known(10.0)
    with tsallis.backend(name):
        torch.testing.assert_close(tsallis.entmax(scores.float(), 10.0).double(), expected, rtol=1e-6, atol=1e-7)
        query, key = torch.full((1, 1, 1), 1.0), torch.tensor([[[0.3], [0.2], [0.0]]])
        _, weights = tsallis.entmax_attention(query, key, key, 10.0, return_weights=True)
        loss = tsallis.entmax_loss(scores, torch.arange(13) % 7, 10.0, reduction="none")
    torch.testing.assert_close(weights[0, 0], expected[-1, :3].float(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(loss, reference.entmax_loss(scores, torch.arange(13) % 7, 10.0), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("alpha", [2.5, 10.0, 50.0])
def test_long_rows_have_full_precision(alpha: float) -> None:
    generator = torch.Generator().manual_seed(4)
    for scale in (0.01, 1.0, 30.0):
        scores = torch.randn(2, 1000, generator=generator, dtype=torch.float64) * scale
        expected = reference.entmax(scores, alpha)
        torch.testing.assert_close(tsallis.entmax(scores, alpha), expected, rtol=1e-13, atol=4e-15)
        assert torch.equal(tsallis.entmax(scores, alpha) > 0, expected > 0)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_have_full_precision_with_extreme_slopes(alpha: float) -> None:
    """With probabilities 0.99 and 0.01, the slope at alpha 50 is 1e96; the larger entry determines the derivative."""
    scores = torch.tensor([[0.3, 0.2, -1.0], [0.0, 1 / (alpha - 1) - 0.001, -3.0], [0.02, 0.01, 0.0]]).double()
    grad = [0.5, -1.5, 2.0]
    with localcontext() as context:
        context.prec = 500  # the plain formula subtracts numbers that are much larger than their difference
        results = [derivatives(exact(row, alpha), grad, alpha) for row in scores.tolist()]
    dz = torch.tensor([[float(x) for x in row] for row, _ in results], dtype=torch.float64)
    da = torch.tensor([[float(x)] for _, x in results], dtype=torch.float64)
    upstream = torch.tensor(grad, dtype=torch.float64).expand(3, 3)
    z = scores.clone().requires_grad_()
    alphas = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    limit = {"rtol": 1e-10, "atol": 1e-12}
    for number in (alpha, alphas):
        probs = tsallis.entmax(z, number)
        gradients = torch.autograd.grad(probs, (z, alphas), upstream, allow_unused=True)
        torch.testing.assert_close(gradients[0], dz, **limit)
        assert gradients[1] is None or torch.allclose(gradients[1], da, **limit)
    _, pushed = torch.func.jvp(tsallis.entmax, (scores, alphas.detach()), (upstream, torch.zeros(3, 1).double()))
    torch.testing.assert_close(pushed, dz, **limit)
    _, pulled = torch.func.vjp(tsallis.entmax, scores, alphas.detach())
    torch.testing.assert_close(pulled(upstream), (dz, da), **limit)
    narrow = z.detach().float().requires_grad_()
    (dz,) = torch.autograd.grad(tsallis.entmax(narrow, alpha), narrow, upstream.float())
    assert dz.isfinite().all()


@pytest.mark.parametrize("alpha", [2.5, 10.0])
def test_first_and_second_derivatives_pass_gradcheck(alpha: float) -> None:
    scores = (rows(0.2, 5)[1:3] + torch.linspace(0, 0.01, 5)).requires_grad_()  # no ties: they have no derivative
    alphas = torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    for compute in (tsallis.entmax, lambda z, a: tsallis.budgeted_entmax(z, a, 1.5)):
        assert torch.autograd.gradcheck(compute, (scores, alphas), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(compute, (scores, alphas))


@pytest.mark.parametrize("alpha", [2.5, 10.0, 30.0])
@pytest.mark.parametrize("budget", [0.5, 1.0, 2.5])
def test_budgeted_probabilities_have_full_precision(alpha: float, budget: float) -> None:
    scores = torch.cat([rows(0.05), rows(1.0)])
    with localcontext() as context:
        context.prec = 60
        expected = [[float(p) for p in exact(row, alpha, budget)] for row in scores.tolist()]
    expected = torch.tensor(expected, dtype=torch.float64)
    alphas = torch.full((len(scores), 1), alpha, dtype=torch.float64)
    for number in (alpha, alphas):
        probs = tsallis.budgeted_entmax(scores, number, budget)
        torch.testing.assert_close(probs, expected, rtol=1e-12, atol=2e-15)


def test_a_large_budget_gives_finite_scores_probability_1() -> None:
    scores = torch.tensor([[1.0, 2.0, -torch.inf], [torch.nan, 0.0, 1.0], [0.0, 3.0, 1.0]])
    probs = tsallis.budgeted_entmax(scores, 10.0, 3)
    assert probs[0].tolist() == [1, 1, 0] and probs[1].isnan().all() and probs[2].tolist() == [1, 1, 1]


def test_entmax_is_invariant_to_a_constant_offset() -> None:
    scores = torch.tensor([[0.0, 2.0**-20, 3 * 2.0**-20, 0.09375]], dtype=torch.float64)
    torch.testing.assert_close(tsallis.entmax(scores + 2.0**30, 10.0), tsallis.entmax(scores, 10.0), rtol=0, atol=0)


def test_newton_converges_within_10_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that ten steps are enough for every row, including scores of very different sizes."""
    generator = torch.Generator().manual_seed(6)
    scores = -torch.rand(50, 300, generator=generator, dtype=torch.float64).mul(-40).exp()
    enough, _ = steep.solve_steep(scores, 10.0)
    monkeypatch.setattr(steep, "STEPS", 10)
    assert torch.equal(steep.solve_steep(scores, 10.0)[0], enough)
