"""Tanh-sinh quadrature in float64: it shares no code with the library and is accurate where a power reaches 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from tsallis.continuous import Density, Interval

TAILS = 45.0  # number of standard deviations beyond which a Laplace density is negligible


def tanh_sinh(step: float = 0.04) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [-1, 1]."""
    k = torch.arange(-math.floor(3.6 / step), math.floor(3.6 / step) + 1, dtype=torch.float64) * step
    inner = math.pi / 2 * torch.sinh(k)
    return torch.tanh(inner), step * math.pi / 2 * torch.cosh(k) / torch.cosh(inner).square()


def line(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return points [points, ...] and their weights for the intervals from `low` to `high` [...]."""
    x, w = (v.reshape(-1, *(1,) * low.dim()) for v in tanh_sinh())
    return low + (high - low) * (1 + x) / 2, w * (high - low) / 2


def over_line(density: Density, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Integrate a function over the support, split at the mean (where the density may have a kink) and around it."""
    support, mean = density.support, density.mean.double()
    std = density.variance.double().sqrt()
    cuts = [mean + k * std for k in (-TAILS, -9, -4.5, -2, 0, 2, 4.5, 9, TAILS)]
    if isinstance(support, Interval):
        cuts = [cut.clamp(support.lower.double(), support.upper.double()) for cut in cuts]
    total: Tensor | None = None
    for low, high in pairwise(cuts):
        t, share = line(low, high)
        values = function(t)
        part = (share.reshape(share.shape + (1,) * (values.dim() - share.dim())) * values).sum(0)
        total = part if total is None else total + part
    return total


def over_plane(density: Density, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Integrate a function over the supporting ellipse, or over 8.5 standard deviations if the support is unbounded.

    The integral is computed line by line. The points are evenly spaced if the density falls off like a Gaussian,
    because no rule is better for that.
    """
    if density.support.bounded:
        x, w = tanh_sinh(0.02)
        factor, centre = density.support.factor.double(), density.support.centre.double()
        half = (1 - x.square()).sqrt()[:, None]
    else:
        x = torch.linspace(-1, 1, 301, dtype=torch.float64)
        w = torch.full_like(x, 2 / 300)
        factor, centre = 8.5 * torch.linalg.cholesky(density.covariance.double()), density.mean.double()
        half = torch.ones_like(x)[:, None]
    u = torch.stack([x[:, None].expand(-1, len(x)), half * x], -1).reshape(-1, 2)  # [points, 2]
    share = (w[:, None] * half * w).reshape(-1)
    t = centre + (u.reshape(-1, *(1,) * (centre.dim() - 1), 1, 2) @ factor.mT).squeeze(-2)  # [points, ..., 2]
    area = factor.diagonal(dim1=-2, dim2=-1).prod(-1)
    values = function(t)
    batch = len(density.batch_shape)
    weighted = share.reshape(-1, *(1,) * (values.dim() - 1)) * values
    return weighted.sum(0) * area.reshape(area.shape + (1,) * (values.dim() - 1 - batch))


def over(density: Density, function: Callable[[Tensor], Tensor]) -> Tensor:
    return over_line(density, function) if density.dims == 1 else over_plane(density, function)
