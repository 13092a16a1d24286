"""The mass of a density in each of many intervals: the weight that continuous attention gives to a word."""

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
from tsallis.ops.dtypes import upcast

POINTS = 40  # of the rule in each interval, where there is no closed form
FEW = 32  # where the support is short
SMOOTH = 3.6  # standard deviations that a beta-Gaussian of alpha 1.2 reaches


def cell_masses(density: Density, edges: Tensor) -> Tensor:
    r"""Return the masses of a density in neighbouring intervals of the line.

    .. math:: m_l = \int_{e_l}^{e_{l+1}} p(t)\, dt

    Never negative, and exactly zero in intervals outside the support; their sum is the mass between the outer edges.
    In closed form for the Gaussian, the truncated parabola, the Laplace and the triangular density (Martins et al.
    2020, sec. 2), by quadrature for others; differentiable in what the density depends on.

    Args:
        density: on the line, of any batch shape [...].
        edges: [cells + 1] or [..., cells + 1], ascending; where two are equal, the interval is empty.

    Returns:
        [..., cells]

    Raises:
        ValueError: a density in the plane, or edges whose shape doesn't fit.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01))
        >>> cell_masses(density, torch.linspace(0, 1, 5))
        tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """
    check_floating(edges, "edges")
    if density.dims != 1:
        raise ValueError(f"masses of intervals are for densities on the line, got one in {density.dims} dimensions")
    if edges.dim() == 0 or edges.shape[-1] < 2:
        raise ValueError(f"edges must be [..., cells + 1], got shape {tuple(edges.shape)}")
    try:
        torch.broadcast_shapes(density.batch_shape, edges.shape[:-1])
    except RuntimeError as error:
        raise ValueError(
            f"edges of shape {tuple(edges.shape)} don't fit a density of batch shape {tuple(density.batch_shape)}"
        ) from error
    with torch.autocast(edges.device.type, enabled=False):
        return _masses(density, upcast(edges))


def _masses(density: Density, edges: Tensor) -> Tensor:
    if isinstance(density, Mixture):
        if density.stacked:
            masses = _masses(density.parts[0], edges.unsqueeze(-2))  # [..., components, cells]
        else:
            masses = torch.stack([_masses(part, edges) for part in density.parts], -2)
        return (density.weights.unsqueeze(-1) * masses).sum(-2).to(density.dtype)
    if not isinstance(density, Elliptical):
        raise TypeError(f"no masses are known of a {type(density).__name__}")
    mean, std = density.mean, density.factor
    edges = edges.reshape(*[1] * (mean.dim() + 1 - edges.dim()), *edges.shape)
    # The batch comes last, as what shapes a density may have its shape, too.
    u = (edges.movedim(-1, 0).to(mean) - mean) / std  # [cells + 1, ...]
    return standard_masses(density.family, u[:-1], u[1:]).movedim(0, -1).to(density.dtype)


def standard_masses(family: Family, low: Tensor, high: Tensor) -> Tensor:
    """Return the masses of a standardised density, between bounds [cells, ...]."""
    if isinstance(family, BetaGaussian) and family.number == 1:
        return _in_a_tail(low, high, _normal_below)
    if isinstance(family, BetaGaussian) and family.number == 2:
        a, b = (x.div(math.sqrt(5)).clamp(-1, 1) for x in (low, high))
        return (0.75 * (b - a) * (1 - (a.square() + a * b + b.square()) / 3)).clamp(min=0)
    if isinstance(family, Laplace):
        return _in_a_tail(low, high, _laplace_below)
    if isinstance(family, Triangular):
        (a, c), (b, d) = (_split(x.div(family.end).clamp(-1, 1)) for x in (low, high))
        return ((b - a) * (2 + a + b) + (d - c) * (2 - c - d)) / 2
    if isinstance(family, BetaGaussian):
        return _integrate(family, low, high)
    (a, c), (b, d) = _split(low), _split(high)
    return _integrate(family, a, b) + _integrate(family, c, d)


def _split(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return what of a bound lies below the mean and what above, where a density is not smooth.

    The gradient at the mean goes one way: two clamps would both let it pass.
    """
    below = u < 0
    return torch.where(below, u, 0), torch.where(below, 0, u)


def _in_a_tail(low: Tensor, high: Tensor, cdf: Callable[[Tensor], Tensor]) -> Tensor:
    """Subtract values of the distribution function in the lower tail: where the mean is between, or mirrored."""
    mirrored = low > 0
    a, b = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    return (cdf(b) - cdf(a)).clamp(min=0)


def _normal_below(u: Tensor) -> Tensor:
    twice: Tensor = torch.special.erfc(u * -math.sqrt(0.5))
    return twice / 2


def _laplace_below(u: Tensor) -> Tensor:
    tail = torch.exp(torch.where(u < 0, u, -u) * math.sqrt(2)) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _integrate(family: Family, low: Tensor, high: Tensor) -> Tensor:
    at = substitution(family, low, high, family.reach(low))
    points = FEW if isinstance(at, Sines) and not at.twice else POINTS
    x, weights = (v.reshape(-1, *[1] * low.dim()) for v in gauss_legendre(points).to(low))
    u, slope = at(x)  # [points, cells, ...]
    return (weights * slope * family.density(u.square())).sum(0).clamp(min=0)


class Sines(NamedTuple):
    r"""u = reach sin f from `start` to `end`; twice where the density ends too steeply for that, f = pi/2 sin g."""

    reach: Tensor
    start: Tensor
    end: Tensor
    twice: bool

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u at x from -1 to 1, and twice its derivative."""
        g = self.start + (self.end - self.start) * (x + 1) / 2
        f = torch.sin(g) * (math.pi / 2) if self.twice else g
        slope = (self.end - self.start) * self.reach * torch.cos(f)
        return self.reach * torch.sin(f), slope * torch.cos(g) * (math.pi / 2) if self.twice else slope


class Straight(NamedTuple):
    """u as a linear function of x, from `start` to `end`."""

    start: Tensor
    end: Tensor

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and twice its derivative, as :class:`Sines` does."""
        return self.start + (self.end - self.start) * (x + 1) / 2, self.end - self.start


class Either(NamedTuple):
    """The first substitution or the second, chosen for each density."""

    choose: Tensor
    first: Sines
    second: Straight

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and twice its derivative, as :class:`Sines` does."""
        a, b = self.first(x), self.second(x)
        return torch.where(self.choose, a[0], b[0]), torch.where(self.choose, a[1], b[1])


def substitution(
    family: Family, low: Tensor, high: Tensor, reach: float | Tensor, least: Tensor | None = None
) -> Sines | Straight | Either:
    r"""Return the substitution from x on [-1, 1] to u from `low` to `high` [...], no further than `reach` from 0.

    In proportion where a density ends in a power of 5 at least, as it does at :data:`SMOOTH` standard deviations and
    more: Gauss and Legendre's rule needs 39 points for 1e-12 then
    (:class:`~tsallis.continuous.quadrature_sizes.Normal`). Else by a sine, which takes the end of a support its
    steepness; below a power of 1 by two of them.
    """
    ends = torch.as_tensor(reach, dtype=low.dtype, device=low.device).clamp(max=SPAN)
    ends = ends if least is None else torch.minimum(ends, least)
    straight = Straight(*(torch.minimum(torch.maximum(x, -ends), ends) for x in (low, high)))
    if not isinstance(reach, Tensor) and reach >= SMOOTH:
        return straight
    twice = isinstance(reach, Tensor) or (isinstance(family, BetaGaussian) and float(family.alphas) > 2)
    start, end = (_angle(x / ends.clamp(min=torch.finfo(low.dtype).tiny)) for x in (low, high))
    if twice:
        start, end = _angle(start * (2 / math.pi)), _angle(end * (2 / math.pi))
    sines = Sines(ends, start, end, twice)
    return Either(reach < SMOOTH, sines, straight) if isinstance(reach, Tensor) else sines


def _angle(x: Tensor) -> Tensor:
    """Compute arcsin, constant outside [-1, 1]; where it is steep its gradient is none. NaN stays NaN."""
    outside = x.abs() >= 1
    return torch.where(outside, torch.sign(x) * (math.pi / 2), torch.asin(torch.where(outside, 0, x)))
