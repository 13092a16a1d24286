"""Standardised densities on the line with a peak in the middle: Laplace, triangular, and those of a convex function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from tsallis.continuous import quadrature as rules
from tsallis.continuous import quadrature_sizes
from tsallis.continuous.densities.base import Shape, one_number
from tsallis.continuous.quadrature import Rule
from tsallis.ops.transforms import transforms_active


class Laplace:
    r"""The standardised Laplace density, :math:`\propto \exp(-\sqrt2 |u|)`; its scale is :math:`b`."""

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
        return self.peak - _root(2 * squared)

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
        make, best = quadrature_sizes.fewer(
            {rules.laplace_line: quadrature_sizes.Laguerre(), rules.laplace_narrow_line: quadrature_sizes.Roots()},
            sharpness,
            like.dtype,
        )
        return make(best if points is None else one_number(points)).to(like)


def _root(x: Tensor) -> Tensor:
    """Return a square root with a gradient of zero at zero."""
    zero = x == 0
    return torch.where(zero, 0, torch.where(zero, 1, x).sqrt())


def _slope(g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return g', differentiable where x is."""
    if transforms_active():
        return cast(Tensor, torch.func.grad(lambda x: g(x).sum())(x))
    graph = x.requires_grad and torch.is_grad_enabled()
    with torch.enable_grad():
        x = x if graph else x.detach().requires_grad_()
        y = g(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise ValueError(f"g must map a tensor to one of its shape, got {type(y).__name__}")
        if not y.requires_grad:
            raise ValueError("g must be differentiable by torch, got a result without a gradient")
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=graph)
    return slope


def _end(g: Callable[[Tensor], Tensor]) -> float:
    """Return half the width of the support at scale 1, where `a g'(a) - g(a) + g(0)` is a half."""
    zero = torch.zeros((), dtype=torch.float64, device="cpu")

    def excess(a: float) -> float:
        at = zero + a
        return float(at * _slope(g, at) - g(at) + g(zero)) - 0.5

    low, high = 0.0, 1.0
    while not excess(high) >= 0:
        low, high = high, 2 * high
        if high > 1e12:
            raise ValueError("a g'(a) - g(a) + g(0) = 1/2 has no solution: g must be convex, and strongly so")
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return (low + high) / 2


@rules.constant
def _slope_at(g: Callable[[Tensor], Tensor], x: float) -> float:
    return float(_slope(g, torch.tensor(x, dtype=torch.float64, device="cpu")))


def _profile(g: Callable[[Tensor], Tensor], end: float, x: Tensor) -> Tensor:
    """Return the density at scale 1, at distances up to `end`."""
    return (_slope_at(g, end) - _slope(g, x)).clamp(min=0)


@rules.constant
def _solve_profile(g: Callable[[Tensor], Tensor]) -> tuple[float, float, float, float]:
    """Return half the width of the support at scale 1, standard deviation, integral of the squared density, entropy."""
    end = _end(g)
    x, w = rules.gauss_legendre(256)
    x = (x + 1) * (end / 2)
    profile = _profile(g, end, x)
    w = w * profile / (w * profile).sum()
    std, squared_mass = (w * x.square()).sum().sqrt(), (w * profile).sum()
    return end, float(std), float(squared_mass), -float((w * profile.clamp(min=1e-300).log()).sum())


@rules.constant
def _location_rule(g: Callable[[Tensor], Tensor], points: int) -> Rule:
    """Standardised."""
    end, std, *_ = _solve_profile(g)
    nodes, weights = rules.split_line(points, end, lambda x: _profile(g, end, x))
    return Rule(nodes / std, weights)


class LocationScale:
    r"""The standardised density of a convex g: :math:`g'(a) - g'(|x|)` on :math:`|x| \le a` at scale 1 (eq. 13).

    Solves :math:`a g'(a) - g(a) + g(0) = 1/2` once, in float64.
    """

    dims = 1

    def __init__(self, g: Callable[[Tensor], Tensor]) -> None:
        self.g = g
        self.end, self.std, self.squared_mass, self.shannon = _solve_profile(g)

    def _profile(self, x: Tensor) -> Tensor:
        return _profile(self.g, self.end, x)

    def alpha(self, like: Tensor) -> float | Tensor:
        return 2.0

    def reach(self, like: Tensor) -> float | Tensor:
        return self.end / self.std

    def factor(self, scale: Tensor) -> Tensor:
        return scale * self.std

    def scale(self, factor: Tensor) -> Tensor:
        return factor / self.std

    def density(self, squared: Tensor) -> Tensor:
        distance = _root(squared) * self.std
        inside = distance < self.end
        profile = self._profile(torch.where(inside, distance, 0))
        return torch.where(inside, profile * self.std, 0).where(~squared.isnan(), squared)

    def log_density(self, squared: Tensor) -> Tensor:
        density = self.density(squared)
        inside = density > 0
        value = torch.where(inside, torch.where(inside, density, 1).log(), -math.inf)
        return value.where(~squared.isnan(), squared)

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        return (1 - self.squared_mass * self.std * torch.exp(-log_det)) / 2

    def entropy(self, log_det: Tensor) -> Tensor:
        return self.shannon - math.log(self.std) + log_det

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        """By bisection of the distribution function, which g gives: x g'(a) - g(x) + g(0)."""
        target = torch.rand(*shape, dtype=torch.float64, device="cpu") - 0.5
        with torch.no_grad():
            top = _slope_at(self.g, self.end)
            low, high = torch.zeros_like(target), torch.full_like(target, self.end)
            start = self.g(torch.zeros_like(target))
            for _ in range(60):
                middle = (low + high) / 2
                below = middle * top - self.g(middle) + start < target.abs()
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (torch.sign(target) * low / self.std).to(like)

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        if points is None:  # a smooth g is taken to be as good as a polynomial of degree 9
            points = quadrature_sizes.enough(quadrature_sizes.Halves(self.end / self.std, 8), sharpness, like.dtype)
        return _location_rule(self.g, one_number(points)).to(like)


class Triangular:
    r"""The standardised triangular density; its scale is :math:`b`, of the support :math:`|t - \mu| \le \sqrt b`."""

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
        return (1 - _root(squared) / self.end).clamp(min=0) / self.end

    def log_density(self, squared: Tensor) -> Tensor:
        x = -_root(squared) / self.end
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
            points = quadrature_sizes.enough(quadrature_sizes.Halves(self.end), sharpness, like.dtype)
        return triangular_line(one_number(points)).to(like)


@rules.constant
def triangular_line(points: int) -> Rule:
    """Return the rule of the triangular density of variance 1.

    >>> float(triangular_line(4).weights @ triangular_line(4).nodes**2)
    1.0
    """
    return rules.split_line(points, Triangular.end, lambda u: Triangular.end - u)
