"""Masses of a density in the cells of a grid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.continuous import BetaGaussian, Gaussian, Mixture, TruncatedParaboloid, grid_centres, grid_masses

COV = [[0.03, 0.012], [0.012, 0.02]]


def summed(density: Any, height: int, width: int, fine: int) -> Tensor:
    """Compute the masses of cells from many points."""
    points = grid_centres(height * fine, width * fine).double()  # row by row
    pdf = density.pdf(points).reshape(height, fine, width, fine)
    return pdf.mean((1, 3)) / (height * width)


GRIDS = [
    lambda mean, cov: Gaussian.from_mean_cov(mean, cov, dims=2),
    TruncatedParaboloid.from_mean_cov,
    lambda mean, cov: BetaGaussian.from_mean_cov(mean, cov, alpha=1.5, dims=2),
    lambda mean, cov: BetaGaussian.from_mean_cov(mean, cov, alpha=torch.tensor(1.3).double(), dims=2),
]


@pytest.mark.parametrize("family", GRIDS, ids=["gaussian", "paraboloid", "1.5", "tensor"])
def test_cell_masses_match_summed_pdf(family: Any) -> None:
    mean = torch.tensor([0.6, 0.35]).double()
    density = family(mean, torch.tensor(COV).double())
    result = grid_masses(density, 5, 7)
    assert result.shape == (5, 7) and result.dtype == torch.float64 and (result >= 0).all()
    torch.testing.assert_close(result, summed(density, 5, 7, 200), atol=3e-5, rtol=1e-4)
    small = family(mean, torch.tensor(COV).double() / 1e4)  # lies in one cell, away from its centre
    only = torch.zeros(5, 7).double()
    only[1, 4] = 1
    torch.testing.assert_close(grid_masses(small, 5, 7), only, atol=2e-6, rtol=0)


def test_mixture_masses_are_weighted_sums() -> None:
    means, weights = torch.tensor([[0.4, 0.5], [0.6, 0.2]]), torch.tensor([0.25, 0.75])
    covs = torch.stack([torch.tensor(COV), 0.01 * torch.eye(2)])
    parts = [TruncatedParaboloid(mean, cov) for mean, cov in zip(means, covs, strict=True)]
    expected = sum(weight * grid_masses(part, 3, 4) for weight, part in zip(weights, parts, strict=True))
    for mixture in (Mixture(weights, TruncatedParaboloid(means, covs)), Mixture(weights, parts)):
        torch.testing.assert_close(grid_masses(mixture, 3, 4), expected)


def test_cells_outside_an_ellipse_have_no_mass() -> None:
    density = TruncatedParaboloid.from_mean_cov(torch.tensor([0.4, 0.5]), torch.tensor(COV) / 8)
    result = grid_masses(density, 20, 20)
    inside = density.support.check(grid_centres(400, 400)).reshape(20, 20, 20, 20).any(3).any(1)
    assert ((result > 0) == inside).float().mean() > 0.99  # except for cells that the ellipse hardly touches
    assert (result[~inside] < 1e-6).all() and 0 < inside.sum() < 200
    torch.testing.assert_close(result.sum(), torch.tensor(1.0), atol=1e-4, rtol=0)


def test_invalid_dimensions_and_sizes_raise() -> None:
    with pytest.raises(ValueError, match="density must have 2 dimensions, got 1"):
        grid_masses(Gaussian(torch.tensor(0.5), torch.tensor(0.1)), 2, 2)
    paraboloid = TruncatedParaboloid.from_mean_cov(torch.zeros(2), torch.eye(2))
    with pytest.raises(ValueError, match="height must be at least 1, got 0"):
        grid_masses(paraboloid, 0, 2)
    with pytest.raises(TypeError, match=r"width must be a whole number, got 2\.5"):
        grid_masses(paraboloid, 2, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        paraboloid.support.boundary(0)
    with pytest.raises(TypeError, match="density must be an Elliptical or a Mixture of them, got Normal"):
        grid_masses(torch.distributions.Normal(0.0, 1.0), 2, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_nan_affects_only_its_row(alpha: float) -> None:
    mean = torch.tensor([[0.4, 0.5], [torch.nan, 0.5]])
    masses = grid_masses(BetaGaussian(mean, 0.01 * torch.eye(2), alpha, 2, validate_args=False), 2, 3)
    assert masses[1].isnan().all()
    torch.testing.assert_close(masses[0], grid_masses(BetaGaussian(mean[0], 0.01 * torch.eye(2), alpha, 2), 2, 3))
