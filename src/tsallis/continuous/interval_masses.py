"""Compute the masses of a density in intervals: the attention weight of each word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.continuous.densities.base import Family
from tsallis.continuous.densities.beta_gaussian import BetaGaussian
from tsallis.continuous.densities.distance import Laplace, Triangular
from tsallis.continuous.densities.elliptical import Density, Elliptical
from tsallis.continuous.densities.mixture import Mixture
from tsallis.continuous.quadrature import gauss_legendre
from tsallis.continuous.quadrature_sizes import SPAN
from tsallis.functional.rows import check_floating
from tsallis.ops.dtypes import upcast, without_autocast

POINTS = 40  # points of the rule in an interval without a closed form
FEW = 32  # points if the support is short
SMOOTH = 3.6  # reach of a beta-Gaussian of alpha 1.2, in standard deviations


def cell_masses(density: Density, edges: Tensor) -> Tensor:
    r"""Return the masses of a density in neighbouring intervals of the line.

    .. math:: m_l = \int_{e_l}^{e_{l+1}} p(t)\, dt

    Masses are never negative, and exactly zero in intervals outside the support. Their sum is the mass between the
    outer edges. The Gaussian, the truncated parabola, the Laplace and the triangular density have closed forms
    (Martins et al. 2020, sec. 2); others use quadrature. All are differentiable in the parameters of the density.

    Args:
        density: Density on the line with any batch shape [...].
        edges: Edges [cells + 1] or [..., cells + 1], ascending; equal edges give an empty interval.

    Returns:
        Masses [..., cells].

    Raises:
        ValueError: If the density is in the plane, or the shape of the edges doesn't fit.
        TypeError: If the density is not an Elliptical or a Mixture of them, or the edges are not floating point.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01))
        >>> cell_masses(density, torch.linspace(0, 1, 5))
        tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """
    check_floating(edges, "edges")
    if not isinstance(density, Density):
        raise TypeError(f"density must be an Elliptical or a Mixture of them, got {type(density).__name__}")
    if density.dims != 1:
        raise ValueError(f"density must have 1 dimension, got {density.dims}")
    if edges.dim() == 0 or edges.shape[-1] < 2:
        raise ValueError(f"edges must have shape [..., cells + 1], got {tuple(edges.shape)}")
    try:
        torch.broadcast_shapes(density.batch_shape, edges.shape[:-1])
    except RuntimeError as error:
        raise ValueError(
            f"edges must have shape [..., cells + 1], and [...] must fit the batch shape {tuple(density.batch_shape)}, "
            f"got {tuple(edges.shape)}"
        ) from error
    with without_autocast(edges.device.type):
        return _masses(density, upcast(edges))


def _masses(density: Density, edges: Tensor) -> Tensor:
    if isinstance(density, Mixture):
        edges = edges.unsqueeze(-2) if density.stacked else edges
        return density._mix([_masses(part, edges) for part in density.parts], 1).to(density.dtype)
    if not isinstance(density, Elliptical):
        raise TypeError(f"density must be an Elliptical or a Mixture of them, got {type(density).__name__}")
    mean, std = density.mean, density.factor
    edges = edges.reshape(*[1] * (mean.dim() + 1 - edges.dim()), *edges.shape)
    # Put the batch last: the parameters of a family may have its shape.
    edges = edges.movedim(-1, 0).to(mean)  # [cells + 1, ...]
    infinite = edges.isinf()  # an infinite quotient would have the gradient NaN
    u = torch.where(infinite, edges, (torch.where(infinite, 0, edges) - mean) / std)
    return standard_masses(density.family, u[:-1], u[1:]).movedim(0, -1).to(density.dtype)


def standard_masses(family: Family, low: Tensor, high: Tensor) -> Tensor:
    """Return the masses of a standardised density between bounds [cells, ...]."""
    if isinstance(family, BetaGaussian) and family.number == 1:
        return _cdf_difference(low, high, _normal_cdf)
    if isinstance(family, BetaGaussian) and family.number == 2:
        a, b = (x.div(math.sqrt(5)).clamp(-1, 1) for x in (low, high))
        return (0.75 * (b - a) * (1 - (a.square() + a * b + b.square()) / 3)).clamp(min=0)
    if isinstance(family, Laplace):
        return _cdf_difference(low, high, _laplace_cdf)
    if isinstance(family, Triangular):
        (a, c), (b, d) = (_split_at_mean(x.div(family.end).clamp(-1, 1)) for x in (low, high))
        return ((b - a) * (2 + a + b) + (d - c) * (2 - c - d)) / 2
    if isinstance(family, BetaGaussian):
        return _integrate(family, low, high)
    (a, c), (b, d) = _split_at_mean(low), _split_at_mean(high)
    return _integrate(family, a, b) + _integrate(family, c, d)


def _split_at_mean(u: Tensor) -> tuple[Tensor, Tensor]:
    """Split a bound into the parts below and above the mean, because the density has a kink at the mean.

    For a bound at the mean, only one part gets the gradient; with two clamps, both parts would get it.
    """
    below = u < 0
    return torch.where(below, u, 0), torch.where(below, 0, u)


def _cdf_difference(low: Tensor, high: Tensor, cdf: Callable[[Tensor], Tensor]) -> Tensor:
    """Return cdf(high) - cdf(low); mirror intervals above the mean into the lower tail, to avoid cancellation."""
    mirrored = low > 0
    a, b = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    return (cdf(b) - cdf(a)).clamp(min=0)


def _normal_cdf(u: Tensor) -> Tensor:
    erfc: Tensor = torch.special.erfc(u * -math.sqrt(0.5))
    return erfc / 2


def _laplace_cdf(u: Tensor) -> Tensor:
    tail = torch.exp(torch.where(u < 0, u, -u) * math.sqrt(2)) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _integrate(family: Family, low: Tensor, high: Tensor) -> Tensor:
    substitute = substitution(family, low, high, family.reach(low))
    points = FEW if isinstance(substitute, Sines) and not substitute.twice else POINTS
    x, weights = (v.reshape(-1, *[1] * low.dim()) for v in gauss_legendre(points).to(low))
    u, slope = substitute(x)  # [points, cells, ...]
    return (weights * slope * family.density(u.square())).sum(0).clamp(min=0)


class Sines(NamedTuple):
    r"""Substitution u = reach sin f for f from `start` to `end`; with `twice`, also f = pi/2 sin g for steep ends."""

    reach: Tensor
    start: Tensor
    end: Tensor
    twice: bool

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u at x in [-1, 1], and twice the derivative of u."""
        g = self.start + (self.end - self.start) * (x + 1) / 2
        f = torch.sin(g) * (math.pi / 2) if self.twice else g
        slope = (self.end - self.start) * self.reach * torch.cos(f)
        return self.reach * torch.sin(f), slope * torch.cos(g) * (math.pi / 2) if self.twice else slope


class Straight(NamedTuple):
    """Linear substitution: u is a linear function of x and goes from `start` to `end`."""

    start: Tensor
    end: Tensor

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u at x, and twice the derivative of u, like :class:`Sines`."""
        return self.start + (self.end - self.start) * (x + 1) / 2, self.end - self.start


class Either(NamedTuple):
    """Choice between two substitutions, made for each density."""

    choose: Tensor
    first: Sines
    second: Straight

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u at x, and twice the derivative of u, like :class:`Sines`."""
        a, b = self.first(x), self.second(x)
        return torch.where(self.choose, a[0], b[0]), torch.where(self.choose, a[1], b[1])


def substitution(
    family: Family, low: Tensor, high: Tensor, reach: float | Tensor, end_limit: Tensor | None = None
) -> Sines | Straight | Either:
    r"""Return the substitution from x in [-1, 1] to u in [`low`, `high`]; the bounds are at most `reach` from 0.

    The substitution is linear if the support reaches at least :data:`SMOOTH` standard deviations: the density then
    vanishes at its ends with a power of at least 5, and the Gauss-Legendre rule needs 39 points for an error of 1e-12
    (:class:`~tsallis.continuous.quadrature_sizes.Normal`). Otherwise a sine smooths the ends of the support; powers
    below 1 need a second sine.
    """
    ends = torch.as_tensor(reach, dtype=low.dtype, device=low.device).clamp(max=SPAN)
    ends = ends if end_limit is None else torch.minimum(ends, end_limit)
    straight = Straight(*(torch.minimum(torch.maximum(x, -ends), ends) for x in (low, high)))
    if not isinstance(reach, Tensor) and reach >= SMOOTH:
        return straight
    twice = isinstance(reach, Tensor) or (isinstance(family, BetaGaussian) and float(family.alphas) > 2)
    start, end = (_arcsin(x / ends.clamp(min=torch.finfo(low.dtype).tiny)) for x in (low, high))
    if twice:
        start, end = _arcsin(start * (2 / math.pi)), _arcsin(end * (2 / math.pi))
    sines = Sines(ends, start, end, twice)
    return Either(reach < SMOOTH, sines, straight) if isinstance(reach, Tensor) else sines


def _arcsin(x: Tensor) -> Tensor:
    """Compute arcsin, constant and without gradient outside (-1, 1); NaN stays NaN."""
    outside = x.abs() >= 1
    return torch.where(outside, torch.sign(x) * (math.pi / 2), torch.asin(torch.where(outside, 0, x)))
