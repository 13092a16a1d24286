"""Define standardised densities with a score that falls linearly with the distance: Laplace and triangular."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.continuous import quadrature as rules
from tsallis.continuous import quadrature_sizes
from tsallis.continuous.densities.base import Shape, one_number
from tsallis.continuous.quadrature import Rule


class Laplace:
    r"""Standardised Laplace density, :math:`\propto \exp(-\sqrt2 |u|)`; its scale is :math:`b`."""

    dims = 1
    peak = -math.log(2) / 2

    def alpha(self, like: Tensor) -> float | Tensor:
        return 1.0

    def reach(self, like: Tensor) -> float | Tensor:
        return math.inf

    def factor(self, scale: Tensor) -> Tensor:
        return scale * math.sqrt(2)

    def scale(self, factor: Tensor) -> Tensor:
        return factor / math.sqrt(2)

    def log_density(self, squared: Tensor) -> Tensor:
        return self.peak - _safe_sqrt(2 * squared)

    def density(self, squared: Tensor) -> Tensor:
        return self.log_density(squared).exp()

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        return self.entropy(log_det)

    def entropy(self, log_det: Tensor) -> Tensor:
        return 1 - self.peak + log_det

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        u = torch.rand(*shape, dtype=torch.float64, device=like.device) * 2 - 1
        return (-torch.sign(u) * torch.log1p(-u.abs()) / math.sqrt(2)).to(like)

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        make, best = quadrature_sizes.cheapest_rule(
            {rules.laplace_line: quadrature_sizes.Laguerre(), rules.laplace_narrow_line: quadrature_sizes.Roots()},
            sharpness,
            like.dtype,
        )
        return make(best if points is None else one_number(points)).to(like)


def _safe_sqrt(x: Tensor) -> Tensor:
    """Return the square root; its gradient at zero is zero."""
    zero = x == 0
    return torch.where(zero, 0, torch.where(zero, 1, x).sqrt())


class Triangular:
    r"""Standardised triangular density; its scale is :math:`b`, its support :math:`|t - \mu| \le \sqrt b`."""

    dims = 1
    end = math.sqrt(6)

    def alpha(self, like: Tensor) -> float | Tensor:
        return 2.0

    def reach(self, like: Tensor) -> float | Tensor:
        return self.end

    def factor(self, scale: Tensor) -> Tensor:
        return (scale / 6).sqrt()

    def scale(self, factor: Tensor) -> Tensor:
        return 6 * factor.square()

    def density(self, squared: Tensor) -> Tensor:
        return (1 - _safe_sqrt(squared) / self.end).clamp(min=0) / self.end

    def log_density(self, squared: Tensor) -> Tensor:
        x = -_safe_sqrt(squared) / self.end
        inside = x > -1
        value = torch.where(inside, torch.log1p(torch.where(inside, x, 0)) - math.log(self.end), -math.inf)
        return value.where(~squared.isnan(), squared)

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        return (1 - 2 / (3 * self.end) * torch.exp(-log_det)) / 2

    def entropy(self, log_det: Tensor) -> Tensor:
        return 0.5 + math.log(self.end) + log_det

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        u = torch.rand(2, *shape, dtype=torch.float64, device=like.device)
        return ((u[0] - u[1]) * self.end).to(like)

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        if points is None:
            points = quadrature_sizes.needed_points(quadrature_sizes.Halves(self.end), sharpness, like.dtype)
        return triangular_line(one_number(points)).to(like)


@rules.constant
def triangular_line(points: int) -> Rule:
    """Return the quadrature rule of the triangular density of variance 1.

    >>> float(triangular_line(4).weights @ triangular_line(4).nodes**2)
    1.0
    """
    return rules.split_line(points, Triangular.end, lambda u: Triangular.end - u)
