"""Compute the mass of a density in each cell of a grid: the attention weight of a region of an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.continuous import quadrature_sizes
from tsallis.continuous.densities.beta_gaussian import BetaGaussian
from tsallis.continuous.densities.elliptical import Density, Elliptical
from tsallis.continuous.densities.mixture import Mixture
from tsallis.continuous.interval_masses import POINTS, standard_masses, substitution
from tsallis.continuous.quadrature import gauss_legendre
from tsallis.errors import check_integer
from tsallis.ops.dtypes import without_autocast

FAR = 7.5  # standard deviations; the mass of a Gaussian beyond them is 6e-13


def grid_masses(density: Density, height: int, width: int) -> Tensor:
    r"""Return the masses of a density in the cells of a grid over the unit square.

    .. math:: m_{ij} = \int_{x_j}^{x_{j+1}} \int_{y_i}^{y_{i+1}} p(x, y)\, dy\, dx

    Masses are never negative, and exactly zero in cells outside the support. Their sum is the mass inside the square.
    :func:`cell_masses` does the same on the line.

    For each column and each edge between rows, the mass below the edge is integrated along x. The integral is split
    where the edge enters and leaves the density (its support, or 7.5 standard deviations around the mean), so strong
    correlations lose no accuracy. Where the edge crosses the density, a rule of at most 40 points integrates along x.
    Along y there is a closed form for the Gaussian and the truncated paraboloid (Martins et al. 2020, eq. 11); other
    densities use a second rule. Elsewhere the mass is that of a marginal density on the line.

    Args:
        density: Density in the plane with any batch shape [...]; positions are (x, y); x points right, y down.
        height: Number of rows of the grid.
        width: Number of columns of the grid.

    Returns:
        Masses [..., height, width] in the density's dtype, without gradients.

    Raises:
        ValueError: If the density is on the line, or the grid has no cells.
        TypeError: If the density is not an Elliptical or a Mixture of them.

    Example:
        >>> from tsallis.continuous import TruncatedParaboloid
        >>> density = TruncatedParaboloid.from_mean_cov(torch.tensor([0.25, 0.5]), 0.005 * torch.eye(2))
        >>> grid_masses(density, 2, 2)
        tensor([[0.5000, 0.0000],
                [0.5000, 0.0000]])
    """
    if not isinstance(density, Density):
        raise TypeError(f"density must be an Elliptical or a Mixture of them, got {type(density).__name__}")
    if density.dims != 2:
        raise ValueError(f"density must have 2 dimensions, got {density.dims}")
    check_integer("height", height, 1)
    check_integer("width", width, 1)
    with torch.no_grad(), without_autocast(density.mean.device.type):
        return _masses(density, height, width).to(density.dtype)


def _masses(density: Density, height: int, width: int) -> Tensor:
    if isinstance(density, Mixture):
        return density._mix([_masses(part, height, width) for part in density.parts], 2)
    if not isinstance(density, Elliptical):
        raise TypeError(f"density must be an Elliptical or a Mixture of them, got {type(density).__name__}")
    return _elliptical_masses(density, height, width)


def _elliptical_masses(density: Elliptical, height: int, width: int) -> Tensor:
    """Compute masses in the coordinates x = mu_x + a u, y = mu_y + b u + c v.

    A column is an interval of u, and the edge of a row is a line. Tensors are [points, columns, edges, ...]. The batch
    comes last because the parameters of a family may have its shape.
    """
    mean, factor, family = density.mean.double(), density.factor.double(), density.family
    assert isinstance(family, BetaGaussian)  # the only family in the plane
    reach = torch.as_tensor(family.reach(mean[..., 0]), dtype=mean.dtype, device=mean.device).clamp(max=FAR)
    a, b, c = factor[..., 0, 0], factor[..., 1, 0], factor[..., 1, 1]
    column_edges, row_edges = (
        torch.linspace(0, 1, count + 1, dtype=mean.dtype, device=mean.device).reshape(-1, *[1] * a.dim())
        for count in (width, height)
    )
    columns = torch.minimum(torch.maximum((column_edges - mean[..., 0]) / a, -reach), reach)  # [columns + 1, ...]
    longest = (b.square() + c.square()).sqrt()
    edges = torch.minimum(torch.maximum((row_edges - mean[..., 1]) / longest, -reach), reach)  # distances [edges, ...]
    # Split where an edge meets the circle of the reach: the mass below the edge isn't smooth in u there.
    half = (reach.square() - edges.square()).clamp(min=0).sqrt()
    first, last = (edges * b - c * half) / longest, (edges * b + c * half) / longest
    low, high = columns[:-1].unsqueeze(1), columns[1:].unsqueeze(1)  # [columns, 1, ...]
    start, end = (torch.minimum(torch.maximum(x, low), high) for x in (first, last))  # [columns, edges, ...]
    edges, alpha = edges * longest, torch.as_tensor(family.alphas).to(start).expand_as(start)
    mass_below = torch.zeros_like(start)
    for left, right, crosses in ((low, start, False), (start, end, True), (end, high, False)):
        selected = right > left
        if not crosses:
            selected = selected & (edges > b * (left + right) / 2)  # select edges above the whole density
        bounds = left.expand_as(start)[selected], right.expand_as(start)[selected]
        selected_family = family if family.number is not None else BetaGaussian(alpha[selected], 2)
        if crosses:
            coordinates = (x.expand_as(start)[selected] for x in (edges, b, c, reach))
            mass_below[selected] += _mass_below_edges(selected_family, *bounds, *coordinates)
        else:
            mass_below[selected] += _marginal_masses(selected_family, *bounds)
    masses = mass_below.diff(dim=1).clamp(min=0).transpose(0, 1).movedim((0, 1), (-2, -1))
    unknown = mean.isnan().any(-1) | factor.isnan().flatten(-2).any(-1)
    return masses.masked_fill(unknown[..., None, None], math.nan)


def _marginal_masses(family: BetaGaussian, low: Tensor, high: Tensor) -> Tensor:
    """Return the masses of one coordinate's marginal density between bounds [cells]."""
    if family.number != 2:
        return standard_masses(family.marginal(), low, high)
    left, right = (
        x * (5 - 2 * x.square()) * (1 - x.square()).sqrt() + 3 * torch.asin(x)
        for x in ((bound / math.sqrt(6)).clamp(-1, 1) for bound in (low, high))
    )
    return (right - left) / (3 * math.pi)


def _mass_below_edges(
    family: BetaGaussian, start: Tensor, end: Tensor, edges: Tensor, b: Tensor, c: Tensor, reach: Tensor
) -> Tensor:
    """Return the mass below edges that cross the density, for u from `start` to `end`; all are [cells]."""
    points = POINTS
    if family.number == 1 and start.numel():  # smooth at the ends, so the widest panel sets the number of points
        steepness = float(((end - start) / 2 * (1 + (b / c).square()).sqrt()).amax())
        points = quadrature_sizes.min_points(quadrature_sizes.WeightedRule(1.0), steepness, start.dtype)
    x, weights = (n.unsqueeze(-1) for n in gauss_legendre(points).to(start))
    if family.number != 1:  # crowd points at the ends, where the density vanishes like a power of the distance
        angle = x * (math.pi / 2)
        x, weights = torch.sin(angle), weights * torch.cos(angle) * (math.pi / 2)
    u = start + (end - start) * (1 + x) / 2  # [points, cells]
    weights = weights * (end - start)
    half = (reach.square() - u.square()).clamp(min=0).sqrt()  # half the chord of the support at u
    return (weights * _chord_integral(family, u, (edges - b * u) / c, half)).sum(0)


def _chord_integral(family: BetaGaussian, u: Tensor, v: Tensor, half: Tensor) -> Tensor:
    """Return the standardised density at u, integrated along its chord from the lower end to v."""
    if family.number == 1:
        mass: Tensor = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi) * torch.special.ndtr(v)
        return mass
    v = torch.minimum(torch.maximum(v, -half), half)
    if family.number == 2:
        centre = family.density(torch.zeros_like(half))  # peak of a paraboloid that falls to 0 at the ends
        slope = centre / (u.square() + half.square()).clamp(min=torch.finfo(u.dtype).tiny)
        return slope * (half + v).square() * (2 * half - v) / 3
    mass = torch.zeros_like(v)
    substitute = substitution(family, -half, v, family.reach(u), half)
    for x, weight in zip(*gauss_legendre(POINTS).to(v), strict=True):  # loop over nodes to save memory
        node, slope = substitute(x)
        mass += weight * slope * family.density(u.square() + node.square())
    return mass
