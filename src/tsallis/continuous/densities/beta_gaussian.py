"""Define the standardised beta-Gaussian for any alpha >= 1 and any number of dimensions, smooth in alpha."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.continuous import quadrature as rules
from tsallis.continuous import quadrature_sizes
from tsallis.continuous.densities.base import Shape, cholesky, log_det, one_number
from tsallis.continuous.quadrature import Rule, expm1_ratio, log1p_ratio
from tsallis.ops.dtypes import product
from tsallis.ops.transforms import outside_tracers, physical, recording


def _expand_to_matrix(x: Tensor, dims: int) -> Tensor:
    return x if dims == 1 else x[..., None, None]


# Below this alpha, Gauss-Jacobi needs as many points as Gauss-Hermite, and the sine rules need fewer.
NEARLY_GAUSSIAN = 1.02


class Constants(NamedTuple):
    """Constants of a beta-Gaussian in n dimensions; they are smooth in alpha, also at 1."""

    alpha: Tensor
    eps: Tensor  # alpha - 1
    peak: Tensor  # logarithm of the standardised density at 0
    bend: Tensor  # squared reach times eps: (n + 2) eps + 2


def _log_gamma_half_step(alpha: Tensor, eps: Tensor) -> Tensor:
    r"""Return :math:`\log\Gamma(x + 1/2) - \log\Gamma(x) - \frac12 \log(x / \alpha)` at x = alpha / eps.

    Large x use the asymptotic series.
    """
    inverse = eps / alpha
    near = inverse < 0.05
    y = torch.where(near, inverse, 0)
    coefficients = (-1 / 8, 1 / 192, -1 / 640, 17 / 14336, -31 / 18432)
    series = sum(c * y ** (2 * i + 1) for i, c in enumerate(coefficients))
    x = 1 / torch.where(near, 0.5, inverse)
    direct = torch.lgamma(x + 0.5) - torch.lgamma(x) - torch.log(x) / 2
    return torch.where(near, series, direct) + torch.log(alpha) / 2


def beta_constants(alpha: Tensor, dims: int) -> Constants:
    """Compute the constants for alphas >= 1, in float64."""
    eps = alpha - 1
    bend = (dims + 2) * eps + 2
    growth = torch.zeros_like(alpha) if dims % 2 == 0 else _log_gamma_half_step(alpha, eps)
    for j in range(1, dims // 2 + 1):
        growth = growth + torch.log1p((j + dims % 2 / 2) * eps)
    peak = growth - dims / 2 * torch.log(math.pi * bend)
    return Constants(alpha, eps, peak, bend)


@rules.constant
def _beta_numbers(alpha: float, dims: int) -> tuple[float, float]:
    constants = beta_constants(torch.tensor(alpha, dtype=torch.float64, device="cpu"), dims)
    return float(constants.peak), float(constants.bend)


class BetaGaussian:
    r"""Standardised beta-Gaussian, :math:`\propto (1 - |u|^2/c^2)_+^{1/(\alpha-1)}`; the normal density at alpha 1."""

    def __init__(self, alpha: float | Tensor, dims: int) -> None:
        self.dims = dims
        self.alphas: float | Tensor = alpha if isinstance(alpha, Tensor) else float(alpha)
        self.number = None if isinstance(alpha, Tensor) else float(alpha)

    def constants(self, like: Tensor) -> Constants:
        """Return the constants in float64."""
        if isinstance(self.alphas, Tensor):
            return beta_constants(self.alphas.to(device=like.device, dtype=torch.float64), self.dims)
        peak, bend = _beta_numbers(self.alphas, self.dims)
        numbers = torch.tensor((self.alphas, self.alphas - 1, peak, bend), dtype=torch.float64, device=like.device)
        return Constants(*numbers.unbind())

    def alpha(self, like: Tensor) -> float | Tensor:
        return self.alphas

    def reach(self, like: Tensor) -> float | Tensor:
        if not isinstance(self.alphas, Tensor):
            return math.sqrt(rules.squared_reach(self.alphas, self.dims))
        c = self.constants(like)
        finite = c.eps > 0
        return torch.where(finite, c.bend / torch.where(finite, c.eps, 1), math.inf).sqrt().to(like)

    def factor(self, scale: Tensor) -> Tensor:
        return self.factor_of_root(cholesky(scale, self.dims))

    def factor_of_root(self, root: Tensor) -> Tensor:
        """Return the factor for the square root or Cholesky factor of a scale."""
        c, n = self.constants(root), self.dims
        inner = c.eps * c.peak + n / 2 * c.eps * torch.log(c.bend) + math.log(2) - c.eps * log_det(root, n)
        log_ratio = inner * 2 / (2 + n * c.eps) - torch.log(c.bend)  # log of covariance / scale
        return root * _expand_to_matrix(torch.exp(log_ratio / 2).to(root), n)

    def scale(self, factor: Tensor) -> Tensor:
        c, n = self.constants(factor), self.dims
        log_ratio = c.eps * (c.peak - log_det(factor, n)) + torch.log(2 / c.bend)
        root = factor * _expand_to_matrix(torch.exp(-log_ratio / 2).to(factor), n)
        return root.square() if n == 1 else product(root, root.mT)

    def _argument(self, squared: Tensor) -> tuple[Constants, Tensor, Tensor]:
        """Return three values: the constants; `-|u|²/c²`, 0 outside the support; and the mask of points outside.

        NaN counts as inside and stays NaN.
        """
        c = Constants(*(x.to(squared) for x in self.constants(squared)))
        x = -squared * (c.eps / c.bend)
        outside = (x <= -1) | (squared == math.inf)  # at alpha 1 only infinite distances are outside
        return c, torch.where(outside, 0, x), outside

    def _log_inside(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-density (arbitrary outside the support), and the mask of points outside."""
        c, x, outside = self._argument(squared)
        return c.peak - torch.where(outside, 0, squared) / c.bend * log1p_ratio(x), outside

    def log_density(self, squared: Tensor) -> Tensor:
        value, outside = self._log_inside(squared)
        return torch.where(outside, -math.inf, value)

    def density(self, squared: Tensor) -> Tensor:
        if self.number == 2:
            peak, bend = _beta_numbers(2.0, self.dims)
            return math.exp(peak) * (1 - squared / bend).clamp(min=0)
        value, outside = self._log_inside(squared)
        return torch.where(outside, 0, torch.exp(value))

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        c, n = self.constants(log_det), self.dims
        ratio = n / (2 * c.alpha)
        w = c.peak - log_det - ratio * log1p_ratio(c.eps * ratio)
        return (-w / c.alpha * expm1_ratio(c.eps * w)).to(log_det)

    def entropy(self, log_det: Tensor) -> Tensor:
        c, n = self.constants(log_det), self.dims
        # Compute power * (digamma(x + n/2) - digamma(x)), x = power + 1, in steps of 1, and a step of 1/2 if n is odd.
        total = sum((1 / (1 + (j + n % 2 / 2) * c.eps) for j in range(1, n // 2 + 1)), torch.zeros_like(c.eps))
        if n % 2:
            near = c.eps / c.alpha < 0.05
            y = torch.where(near, c.eps / c.alpha, 0)
            series = (1 / 2 + y / 8 - y**3 / 64 + y**5 / 128 - 17 / 2048 * y**7 + 31 / 2048 * y**9) / c.alpha
            eps = torch.where(near, 1, c.eps)
            x = c.alpha / eps
            total = total + torch.where(near, series, (torch.digamma(x + 0.5) - torch.digamma(x)) / eps)
        return (total - c.peak + log_det).to(log_det)

    def marginal(self) -> BetaGaussian:
        """Return the marginal density of one coordinate in the plane; its exponent is larger by 1/2."""
        if self.dims != 2:
            raise NotImplementedError(f"marginal densities are supported only in 2 dimensions, got {self.dims}")
        eps = self.alphas - 1
        return BetaGaussian(1 + eps / (1 + eps / 2), 1)

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        n = self.dims
        if self.number == 1:
            return torch.randn(*shape, *(() if n == 1 else (n,)), dtype=like.dtype, device=like.device)
        c = self.constants(like)
        event = (*shape, 1) if n == 1 else (*shape, n)
        step = torch.randn(event, dtype=torch.float64, device=like.device)
        if n == 2:  # sample the squared radius by inverting its distribution function
            log_u = torch.log1p(-torch.rand(*shape, dtype=torch.float64, device=like.device))
            squared = -c.bend / c.alpha * log_u * expm1_ratio(c.eps / c.alpha * log_u)
            points: Tensor = (step / step.norm(dim=-1, keepdim=True) * squared.sqrt().unsqueeze(-1)).to(like)
            return points
        # |u|² / c² has a Beta(n/2, 1/eps + 1) distribution: sample it as a ratio of gamma variables. The second gamma
        # variable tends to 1 / eps.
        power = 1 / c.eps.clamp(min=1e-12)
        gamma = torch._standard_gamma((power + 1).expand(tuple(shape)).contiguous())
        squared = step.square().sum(-1)
        u = step * (c.bend / (c.eps * squared + 2 * gamma / power)).sqrt().unsqueeze(-1)
        return u.to(like).squeeze(-1) if n == 1 else u.to(like)

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        if self.dims > 2:
            raise NotImplementedError(f"quadrature supports 1 or 2 dimensions, got {self.dims}")
        if self.number == 1:
            return _normal_rule(self.dims, sharpness, points, like)
        if self.dims == 1:
            error, _ = self._error_and_span(like)
            count = (
                self._crowded_count(quadrature_sizes.needed_points(error, sharpness, like.dtype))
                if points is None
                else one_number(points)
            )
            return (
                rules.beta_line(count, self.number)
                if self._uses_jacobi
                else rules.sine_line(count, self._float64_alpha(like))
            ).to(like)
        if points is None:
            rings, angles = quadrature_sizes.on_disk(*self._error_and_span(like), sharpness, like.dtype)
            points = self._crowded_count(rings), angles
        rings, angles = points if isinstance(points, tuple) else (points, 2 * points)
        if self._uses_jacobi:
            return rules.beta_disk(rings, angles, self.number).to(like)
        return rules.sine_disk(rings, angles, self._float64_alpha(like)).to(like)

    @property
    def _uses_jacobi(self) -> bool:
        return self.number is not None and self.number >= NEARLY_GAUSSIAN

    def _error_and_span(self, like: Tensor) -> tuple[quadrature_sizes.Error, float]:
        """Return the error bound of the rule on the line or along a radius, and half the rule's span."""
        if self._uses_jacobi:
            assert self.number is not None
            span = min(math.sqrt(rules.squared_reach(self.number, self.dims)), quadrature_sizes.SPAN)
            return quadrature_sizes.WeightedRule(span, 2 * self.dims), span
        eps = self._alpha_bounds()[0] - 1
        # Round eps down to steps, so that bounds are rarely recomputed; below 1e-6, alpha counts as 1.
        eps = 2.0 ** (math.floor(math.log2(eps) * 8) / 8) if eps > 1e-6 else 1e-6
        power = (eps + 2) / eps
        end = math.pi / 2
        if 1 / power <= rules.FULL_SUPPORT:
            end = math.asin(math.sqrt(-math.expm1(-2 * rules.TAIL / power)))
        error = quadrature_sizes.Sines(power, end, math.sqrt(rules.squared_reach(1 + eps, self.dims)), self.dims == 2)
        return error, error.span

    def _crowded_count(self, count: int) -> int:
        """Increase the number of nodes if the rule crowds nodes at the ends, to keep the middle dense."""
        return math.ceil(count * math.pi / 2) if not self._uses_jacobi and self._alpha_bounds()[1] > 2 else count

    def _float64_alpha(self, like: Tensor) -> Tensor:
        """Return alpha in float64."""
        return torch.as_tensor(self.alphas, dtype=torch.float64, device=like.device)

    def _alpha_bounds(self) -> tuple[float, float]:
        """Return the smallest and largest alpha, or (1, 1) if the values can't be read."""
        if not isinstance(self.alphas, Tensor):
            return self.alphas, self.alphas
        if recording() or not self.alphas.numel() or physical(self.alphas).is_meta:
            return 1.0, 1.0
        alphas = physical(self.alphas)
        with outside_tracers():
            least, largest = (float(x) for x in alphas.aminmax())
        return (least, largest) if 1 <= least < math.inf else (1.0, 1.0)


def _normal_rule(dims: int, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
    make, best = quadrature_sizes.cheapest_rule(
        {rules.gauss_hermite: quadrature_sizes.Hermite(), rules.gaussian_line: quadrature_sizes.Normal()},
        sharpness,
        like.dtype,
    )
    points = best if points is None else points
    count = max(points) if isinstance(points, tuple) else points
    return (make(count) if dims == 1 else rules.plane_of(make, count)).to(like)
