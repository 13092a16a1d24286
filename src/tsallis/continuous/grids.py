"""How much of a density lies in each cell of a grid: what continuous attention gives to a piece of an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.continuous.beta import BetaGaussian
from tsallis.continuous.elliptical import Elliptical
from tsallis.functional.continuous import gauss_legendre

POINTS = 32  # of a rule along one side of a cell
FAR = 7.0  # standard deviations beyond which next to nothing is left of a Gaussian: 2e-11


def grid_masses(density: Elliptical, height: int, width: int) -> Tensor:
    r"""The masses :math:`\int_{\text{cell}} p(t)\, dt` of the cells of a grid over the unit square.

    What :func:`cell_masses` is on the line. Each cell is integrated by Gauss and Legendre's rule of
    32 points along x, as far as 7 standard deviations from the mean, and along y in closed form for the Gaussian and
    the truncated paraboloid, by another rule for other densities. Never negative, exactly zero in cells outside the
    support; the sum is the mass inside the square.

    Args:
        density: in the plane, of any batch shape [...]; positions are (x, y), x to the right and y down.
        height: rows of the grid.
        width: columns of the grid.

    Returns:
        [..., height, width] in the density's dtype, without gradients.

    Raises:
        ValueError: a density on the line, or a grid without cells.

    Example:
        >>> from tsallis.continuous import TruncatedParaboloid
        >>> density = TruncatedParaboloid.from_mean_cov(torch.tensor([0.25, 0.5]), 0.005 * torch.eye(2))
        >>> grid_masses(density, 2, 2)
        tensor([[0.5000, 0.0000],
                [0.5000, 0.0000]])
    """
    if density.dims != 2:
        raise ValueError(f"cells of a grid are for densities in the plane, got one in {density.dims} dimensions")
    if height < 1 or width < 1:
        raise ValueError(f"a grid needs rows and columns, got {height} and {width}")
    with torch.no_grad(), torch.autocast(density.mean.device.type, enabled=False):
        return _grid_masses(density, height, width).to(density.dtype)


def _grid_masses(density: Elliptical, height: int, width: int) -> Tensor:
    """In standard coordinates x = mu_x + a u and y = mu_y + b u + c v a column is an interval of u.

    Dimensions are [points, columns, rows, ...], the batch last, as what shapes a density may have its shape, too.
    """
    mean, factor = density.mean.double(), density.factor.double()
    reach = torch.as_tensor(density.family.reach(mean[..., 0]), dtype=mean.dtype, device=mean.device).clamp(max=FAR)
    a, b, c = factor[..., 0, 0], factor[..., 1, 0], factor[..., 1, 1]
    across, down = (
        torch.linspace(0, 1, count + 1, dtype=mean.dtype, device=mean.device).reshape(-1, *[1] * a.dim())
        for count in (width, height)
    )
    u, weights = _nodes((across - mean[..., 0]) / a, reach)  # [points, columns, 1, ...]
    v = (down - mean[..., 1] - b * u) / c  # [points, columns, rows + 1, ...]
    half = (reach.square() - u.square()).clamp(min=0).sqrt()  # of the density's chord at u
    found = (weights * _along(density, u, v, half)).sum(0)  # [columns, rows, ...]
    return found.clamp(min=0).transpose(0, 1).movedim((0, 1), (-2, -1))


def _nodes(edges: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights [points, cells, 1, ...] of a rule in each interval between `edges` [cells + 1, ...].

    After u = reach sin f, which takes the end of a support its steepness.
    """
    angle = torch.asin((edges / reach).clamp(-1, 1))
    start, end = angle[:-1].unsqueeze(1), angle[1:].unsqueeze(1)  # [cells, 1, ...]
    x, weights = (n.reshape(-1, *[1] * start.dim()) for n in gauss_legendre(POINTS).to(start))
    f = start + (end - start) * (x + 1) / 2
    return reach * torch.sin(f), weights * (end - start) * reach * torch.cos(f)


def _along(density: Elliptical, u: Tensor, v: Tensor, half: Tensor) -> Tensor:
    """What the standardised density has along v between neighbouring edges `v` [points, columns, rows + 1, ...]."""
    family = density.family
    if isinstance(family, BetaGaussian) and family.number == 1:
        across: Tensor = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi) * torch.special.ndtr(v).diff(dim=2)
        return across
    ends = torch.minimum(torch.maximum(v, -half), half)
    if isinstance(family, BetaGaussian) and family.number == 2:
        centre = family.density(torch.zeros_like(half))  # of a paraboloid that falls to 0 at the end of the chord
        slope = centre / (u.square() + half.square()).clamp(min=torch.finfo(u.dtype).tiny)
        return (slope * (half.square() * ends - ends**3 / 3)).diff(dim=2)
    angle = torch.asin((ends / half.clamp(min=torch.finfo(u.dtype).tiny)).clamp(-1, 1))
    low, span = angle[:, :, :-1], angle.diff(dim=2)
    found = torch.zeros_like(span)
    for x, weight in zip(*gauss_legendre(POINTS).to(span), strict=True):  # one by one: all together are many numbers
        f = low + span * (x + 1) / 2
        found += weight * family.density(u.square() + (half * torch.sin(f)).square()) * half * torch.cos(f)
    return found * span
