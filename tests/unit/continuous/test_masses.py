"""Masses of intervals equal the integral of the density, are never negative, and are 0 outside the support."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tsallis.continuous import (
    BetaGaussian,
    Density,
    Gaussian,
    Laplace,
    Mixture,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    cell_masses,
)

MEAN = torch.tensor([[0.31], [0.5], [-0.2]], dtype=torch.float64)
VARIANCE = torch.tensor([0.04, 0.0004], dtype=torch.float64)
SHAPED = {
    "alpha 1.01": lambda m, v: BetaGaussian(m, v, 1.01),
    "alpha 1.5": lambda m, v: BetaGaussian(m, v, 1.5),
    "alpha 3": lambda m, v: BetaGaussian(m, v, 3.0),
    "alphas": lambda m, v: BetaGaussian(m, v, torch.tensor([[1.0], [1.3], [2.0]], dtype=torch.float64)),
}
KINDS = {**SHAPED, **{kind.__name__: kind for kind in (Gaussian, TruncatedParabola, Laplace, Triangular)}}
every_kind = pytest.mark.parametrize("name", KINDS)
# No edge lies where a density begins or ends, and one interval is empty.
EDGES = torch.tensor([-9.0, -0.3, 0.05, 0.3, 0.301, 0.35, 0.35, 0.71, 1.2, 9.0], dtype=torch.float64)


def make(name: str) -> Density:
    density: Density = KINDS[name](MEAN, VARIANCE)
    return density


def integrated(density: Density, edges: Tensor) -> Tensor:
    """Integrate by the midpoint rule, with 20,000 parts per interval."""
    parts = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    result = []
    for low, high in itertools.pairwise(edges):
        t = low + (high - low) * parts
        result.append(density.pdf(t.reshape(-1, *[1] * len(density.batch_shape))).mean(0) * (high - low))
    return torch.stack(result, -1)


@every_kind
def test_masses_match_numerical_integrals(name: str) -> None:
    density = make(name)
    masses = cell_masses(density, EDGES)
    assert masses.shape == (3, 2, 9) and masses.dtype == torch.float64
    torch.testing.assert_close(masses, integrated(density, EDGES), atol=2e-5, rtol=0)
    torch.testing.assert_close(masses.sum(-1), torch.ones(3, 2).double(), atol=2e-6, rtol=0)
    assert (masses >= 0).all() and (masses[..., 5] == 0).all()


@every_kind
def test_float32_masses_sum_to_one_and_vanish_outside_support(name: str) -> None:
    density = KINDS[name](MEAN.float(), VARIANCE.float())
    edges = torch.linspace(-8, 8, 1601)
    masses = cell_masses(density, edges)
    assert masses.dtype == torch.float32 and (masses >= 0).all()
    torch.testing.assert_close(masses.sum(-1), torch.ones(3, 2), atol=1e-5, rtol=0)
    if density.support.bounded:
        lower, upper = density.support.lower.unsqueeze(-1), density.support.upper.unsqueeze(-1)
        outside = (edges[1:] < lower - 1e-6) | (edges[:-1] > upper + 1e-6)
        apart = torch.maximum((edges[1:] - MEAN.unsqueeze(-1)).abs(), (edges[:-1] - MEAN.unsqueeze(-1)).abs())
        reached = apart < 6 * VARIANCE.sqrt().unsqueeze(-1)  # beyond, the mass for an alpha near 1 is too small
        inside = (edges[:-1] > lower + 1e-6) & (edges[1:] < upper - 1e-6) & reached
        bounded = lower.isfinite()
        assert (masses[outside & bounded] == 0).all() and (masses[inside & bounded] > 0).all()
        assert outside.any() and inside.any()


def test_mixture_masses_match_parts_and_integrals() -> None:
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    parts = TruncatedParabola(torch.tensor([[0.2, 0.8]]).double().expand(4, 2), torch.tensor(0.01).double())
    masses = cell_masses(Mixture(weights.expand(4, 2), parts), EDGES)
    assert masses.shape == (4, 9)
    torch.testing.assert_close(masses, (weights.unsqueeze(-1) * cell_masses(parts, EDGES)).sum(-2))
    several = Mixture(weights, [Gaussian(MEAN[0, 0], VARIANCE[0]), Laplace(MEAN[1, 0], VARIANCE[1])])
    torch.testing.assert_close(cell_masses(several, EDGES), integrated(several, EDGES), atol=2e-5, rtol=0)


def test_edges_can_differ_per_density() -> None:
    edges = torch.stack([EDGES, EDGES / 2, EDGES - 0.1]).unsqueeze(1)  # [3, 1, cells + 1]
    masses = cell_masses(make("Gaussian"), edges)
    for row in range(3):
        alone = cell_masses(Gaussian(MEAN[row], VARIANCE), edges[row, 0])
        torch.testing.assert_close(masses[row], alone)


def test_tail_masses_are_accurate() -> None:
    """Far from the mean, the difference of distribution functions near 1 would be only rounding error."""
    edges = torch.tensor([-7.0, -6.0, -5.0, 5.0, 6.0, 7.0])
    mean, one = torch.tensor(0.0), torch.tensor(1.0)
    for kind, expected in ((Gaussian, 2.8565e-7), (Laplace, 3.21420e-4)):
        masses = cell_masses(kind(mean, one), edges)
        assert float(masses[3]) == pytest.approx(expected, rel=1e-3)
        torch.testing.assert_close(masses, masses.flip(0))


def test_invalid_arguments_raise() -> None:
    density = make("Gaussian")
    with pytest.raises(ValueError, match="density must have 1 dimension, got 2"):
        cell_masses(TruncatedParaboloid(torch.zeros(2), torch.eye(2)), EDGES)
    with pytest.raises(ValueError, match=r"edges must have shape \[\.\.\., cells \+ 1\], got \(1,\)"):
        cell_masses(density, EDGES[:1])
    with pytest.raises(ValueError, match=r"batch shape \(3, 2\), got \(4, 2, 10\)"):
        cell_masses(density, EDGES.expand(4, 2, 10))
    with pytest.raises(TypeError, match="edges must be floating point"):
        cell_masses(density, torch.arange(3))
    with pytest.raises(TypeError, match="density must be an Elliptical or a Mixture of them, got Normal"):
        cell_masses(torch.distributions.Normal(0.0, 1.0), EDGES)  # type: ignore[arg-type]


def slopes_at_edges(density: Density, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the masses in the mean and in the standard deviation, from the density at the edges."""
    p = torch.stack([density.pdf(edge) for edge in edges])
    u = torch.where(edges.isfinite(), (edges - density.mean) / density.variance.sqrt(), 0)
    return -p.diff(), -(p * u).diff()


@every_kind
@pytest.mark.parametrize("at", ["mean", "ends", "equal"])
def test_gradients_at_degenerate_edges_match_pdf(name: str, at: str) -> None:
    """Place edges at the mean, at the end of the support, and two at the same point."""
    mean, std = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.5, 0.15))
    alphas = {"alphas": lambda m, v: BetaGaussian(m, v, torch.tensor(1.3, dtype=torch.float64))}
    density: Density = (KINDS | alphas)[name](mean, std.square())
    end = density.support.upper if density.support.bounded else torch.tensor(0.9, dtype=torch.float64)
    edges = {
        "mean": torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64),
        "ends": torch.stack([1 - end, mean.detach(), end, end + 1]),
        "equal": torch.tensor([0.2, 0.5, 0.5, 0.8], dtype=torch.float64),
    }[at].requires_grad_()
    weights = torch.linspace(-1, 2, len(edges) - 1, dtype=torch.float64)
    loss = (cell_masses(density, edges) * weights).sum()
    slopes = torch.autograd.grad(loss, (mean, std, edges))
    with torch.no_grad():
        in_mean, in_std = slopes_at_edges(density, edges)
        padded = torch.nn.functional.pad(weights, (1, 1))
        in_edges = -padded.diff() * torch.stack([density.pdf(edge) for edge in edges])
    torch.testing.assert_close(slopes[0], (weights * in_mean).sum(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(slopes[1], (weights * in_std).sum(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(slopes[2], in_edges, rtol=1e-6, atol=1e-5)


@every_kind
def test_nan_affects_only_its_row_and_cells(name: str) -> None:
    mean = MEAN.clone()
    mean[1] = torch.nan
    density: Density = KINDS[name](MEAN, VARIANCE)
    spoilt: Density = density.expand((3, 2))
    spoilt._mean = mean.expand(3, 2)
    masses = cell_masses(spoilt, EDGES)
    assert masses[1].isnan().all()
    keep = [0, 2]
    torch.testing.assert_close(masses[keep], cell_masses(density, EDGES)[keep])
    edges = EDGES.clone()
    edges[3] = torch.nan
    assert cell_masses(density, edges).isnan().any(0).any(0).tolist() == [i in (2, 3) for i in range(9)]


@every_kind
def test_infinite_edges_match_far_edges_with_gradients(name: str) -> None:
    mean, variance = MEAN.clone().requires_grad_(), VARIANCE.clone().requires_grad_()
    results = []
    for far in (torch.inf, 20.0):
        edges = torch.tensor([-far, 0.3, 0.6, far], dtype=torch.float64)
        masses = cell_masses(KINDS[name](mean, variance), edges)
        results.append((masses, *torch.autograd.grad(masses[..., 0].sum(), (mean, variance))))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9)
