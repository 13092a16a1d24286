"""How much of a density lies in each of many intervals: what continuous attention gives to a word."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.continuous.beta import BetaGaussian
from tsallis.continuous.elliptical import Density, Elliptical
from tsallis.continuous.families import Laplace, Triangular
from tsallis.continuous.family import Family
from tsallis.continuous.mixture import Mixture
from tsallis.functional.continuous import gauss_legendre
from tsallis.functional.rows import check_floating
from tsallis.kernels.autograd import widen

POINTS = 32  # of the rule in each interval, where there is no closed form
FAR = 9.0  # standard deviations beyond which nothing is left of a density without an end


def cell_masses(density: Density, edges: Tensor) -> Tensor:
    r"""The masses :math:`\int_{e_l}^{e_{l+1}} p(t)\, dt` of neighbouring intervals of the line.

    Never negative, and exactly zero in intervals outside the support; their sum is the mass between the outer edges.
    In closed form for the Gaussian, the truncated parabola, the Laplace and the triangular density, by quadrature for
    others; differentiable in what the density depends on.

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
        return _masses(density, widen(edges))


def _masses(density: Density, edges: Tensor) -> Tensor:
    if isinstance(density, Mixture):
        if density.stacked:
            found = _masses(density.parts[0], edges.unsqueeze(-2))  # [..., components, cells]
        else:
            found = torch.stack([_masses(part, edges) for part in density.parts], -2)
        return (density.weights.unsqueeze(-1) * found).sum(-2)
    if not isinstance(density, Elliptical):
        raise TypeError(f"no masses are known of a {type(density).__name__}")
    mean, std = density.mean, density.factor
    edges = edges.reshape(*[1] * (mean.dim() + 1 - edges.dim()), *edges.shape)
    # The batch comes last, as what shapes a density may have its shape, too.
    u = (edges.movedim(-1, 0).to(mean) - mean) / std  # [cells + 1, ...]
    return _standard_masses(density.family, u[:-1], u[1:]).movedim(0, -1).to(density.dtype)


def _standard_masses(family: Family, low: Tensor, high: Tensor) -> Tensor:
    """Of a standardised density, between bounds [cells, ...]."""
    if isinstance(family, BetaGaussian) and family.number == 1:
        return _in_a_tail(low, high, _normal_below)
    if isinstance(family, BetaGaussian) and family.number == 2:
        a, b = (x.div(math.sqrt(5)).clamp(-1, 1) for x in (low, high))
        return (0.75 * (b - a) * (1 - (a.square() + a * b + b.square()) / 3)).clamp(min=0)
    if isinstance(family, Laplace):
        return _in_a_tail(low, high, _laplace_below)
    if isinstance(family, Triangular):
        left, right = ([x.div(family.end).clamp(*ends) for x in (low, high)] for ends in ((-1, 0), (0, 1)))
        below = (left[1] - left[0]) * (2 + left[0] + left[1])
        return (below + (right[1] - right[0]) * (2 - right[0] - right[1])) / 2
    if isinstance(family, BetaGaussian):
        return _integrated(family, low, high)
    # Not smooth at the mean.
    return _integrated(family, low.clamp(max=0), high.clamp(max=0)) + _integrated(
        family, low.clamp(min=0), high.clamp(min=0)
    )


def _in_a_tail(low: Tensor, high: Tensor, below: Callable[[Tensor], Tensor]) -> Tensor:
    """A difference of the distribution function, in the lower tail: where the mean is between, or mirrored."""
    mirrored = low > 0
    a, b = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    return (below(b) - below(a)).clamp(min=0)


def _normal_below(u: Tensor) -> Tensor:
    twice: Tensor = torch.special.erfc(u * -math.sqrt(0.5))
    return twice / 2


def _laplace_below(u: Tensor) -> Tensor:
    tail = torch.exp(torch.where(u < 0, u, -u) * math.sqrt(2)) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _integrated(family: Family, low: Tensor, high: Tensor) -> Tensor:
    """By Gauss-Legendre after u = reach sin f, which takes the end of a support its steepness."""
    reach = torch.as_tensor(family.reach(low), dtype=low.dtype, device=low.device).clamp(max=FAR)
    start, end = (_angle(x / reach) for x in (low, high))  # [cells, ...]
    x, weights = (v.reshape(-1, *[1] * low.dim()) for v in gauss_legendre(POINTS).to(low))
    f = start + (end - start) * (x + 1) / 2  # [points, cells, ...]
    values = family.density((reach * torch.sin(f)).square()) * reach * torch.cos(f)
    return ((weights * values).sum(0) * (end - start)).clamp(min=0)


def _angle(x: Tensor) -> Tensor:
    """arcsin, constant outside [-1, 1]; where it is steep its gradient is none."""
    inside = x.abs() < 1
    return torch.where(inside, torch.asin(torch.where(inside, x, 0)), torch.sign(x) * (math.pi / 2))
