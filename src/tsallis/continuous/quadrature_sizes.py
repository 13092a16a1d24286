r"""Compute the number of nodes that a quadrature rule needs from bounds on functions in the complex plane.

A rule on [-1, 1] integrates the function times the part of the density that is not in the rule's weight. This
integrand is analytic within the Bernstein ellipse of parameter :math:`e^\eta`, whose half-height is
:math:`\sinh\eta`. If the integrand is at most :math:`M(\eta)` in the ellipse, its Chebyshev coefficients are at most
:math:`2 M e^{-k\eta}`. Let a rule of n points with positive weights that sum to 1 be exact up to degree N - 1 (N = 2n
for a Gauss rule). Then

.. math:: |\mathrm{error}| \le \frac{4\, M(\eta)}{1 - e^{-2\eta}}\, e^{-N\eta} \qquad\text{for every } \eta > 0.

A function has the sharpness :math:`\kappa` if :math:`|\psi(t + iy)| \le e^{(\kappa y)^2/2}` times its peak. On a
support of half-width a, :math:`\log M = (\kappa a \sinh\eta)^2 / 2`, so N grows like :math:`\kappa a`. A Gaussian has
the sharpness 1 / width. In the plane, the same bound holds along a radius, where a rule of n rings is exact up to
degree 4n - 1. It also holds for Fourier coefficients in the angle, where N is the number of angles.

The chosen number of nodes is the smallest with a bound below 1e-6 of the function's peak in float32, or 1e-12 in
float64. A function wider than the density varies only by about :math:`(\kappa a)^2` over the support. The tolerance
shrinks by this factor, so that derivatives in the variance are as accurate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from tsallis.continuous.quadrature import TAIL, Rule
from tsallis.ops.tracing import constant

LARGEST = 1024  # maximum number of points on the line
LARGEST_RADIAL, LARGEST_ANGULAR = 96, 384
TOLERANCE = {torch.float64: 1e-12}
SINGLE_TOLERANCE = 1e-6
STEPS = 16  # sharpnesses are rounded up to this many steps per octave, so that few bounds are computed
SPAN = math.sqrt(2 * TAIL)  # standard deviations at which a normal density is exp(-TAIL) of its peak
ETAS = tuple(0.004 * 1.2**k for k in range(42))  # each gives a bound; the smallest bound is used
_warnings: set[tuple[str, int]] = set()


class Error:
    """Error bound for a kind of rule.

    Attributes:
        exact: Number of polynomial degrees per point for which the rule is exact; 0 if it is exact for none.
        span: Half the length of the interval that the rule covers; one standard deviation if the interval is infinite.
    """

    exact: int = 0
    span: float = 1.0

    def log_error(self, points: int, sharpness: float) -> float:
        """Return the logarithm of the error bound, relative to the function's peak."""
        raise NotImplementedError


def _log_size(sharpness: float, y: float) -> float:
    """Return the logarithm of the bound on functions at height y above the real line."""
    return (sharpness * y) ** 2 / 2


def _finite_sharpness(sharpness: float, span: float) -> float:
    """Return the sharpness; if it is unknown, assume Gaussians a tenth as wide as the span."""
    return sharpness if math.isfinite(sharpness) else 10 / span


def _smallest_bound(log_size: list[float], order: int) -> float:
    """Return the smallest log-bound over the ellipses, given the log of the largest value on each ellipse."""
    return min(
        size - order * eta + math.log(4 / -math.expm1(-2 * eta)) for size, eta in zip(log_size, ETAS, strict=False)
    )


@dataclass(frozen=True)
class WeightedRule(Error):
    """Gauss rules whose weight is the density, on a support of half-width `span`.

    A rule runs along the line (`exact` is 2 degrees per point), a radius (4 per ring) or the angle (1 per point).
    """

    span: float
    exact: int = 2

    def log_error(self, points: int, sharpness: float) -> float:
        sizes = [_log_size(sharpness, self.span * math.sinh(eta)) for eta in ETAS]
        return _smallest_bound(sizes, self.exact * points)


@dataclass(frozen=True)
class Normal(Error):
    """Gauss-Legendre rule for a normal density without its tails; the density is part of the integrand."""

    def log_error(self, points: int, sharpness: float) -> float:
        height = [SPAN * math.sinh(eta) for eta in ETAS]
        scale = math.log(2 * SPAN / math.sqrt(2 * math.pi))
        return _smallest_bound([scale + _log_size(sharpness, y) + y * y / 2 for y in height], 2 * points)


@dataclass(frozen=True)
class Hermite(Error):
    r"""Gauss-Hermite rule, whose remainder is :math:`n!\, \psi^{(2n)} / (2n)!`.

    By Cauchy's estimate the remainder is at most :math:`n! \exp((\kappa r)^2/2)\, r^{-2n}` for every r.
    """

    exact = 2

    def log_error(self, points: int, sharpness: float) -> float:
        return math.lgamma(points + 1) + _log_cauchy_bound(2 * points, sharpness)


@dataclass(frozen=True)
class Laguerre(Error):
    r"""Gauss-Laguerre rule on both sides of the peak, whose remainder is :math:`n!^2\, \psi^{(2n)} / (2n)!`."""

    exact = 2

    def log_error(self, points: int, sharpness: float) -> float:
        return 2 * math.lgamma(points + 1) + _log_cauchy_bound(2 * points, sharpness / math.sqrt(2))


def _log_cauchy_bound(order: int, sharpness: float) -> float:
    """Return the logarithm of the minimum over r of exp((sharpness r)² / 2) / r^order."""
    if order <= 0:
        return math.inf
    return order / 2 - order * math.log(math.sqrt(order) / sharpness)


@dataclass(frozen=True)
class Sines(Error):
    r"""Gauss-Legendre rule in f, with u = reach sin f and the weight :math:`\cos^p f`.

    On the line, f goes from -`end` to `end`; along a radius, f starts at 0 and the weight has the factor sin f. For
    integer p the weight is analytic. Otherwise the weight ends like a power of the distance, which adds an error of
    about :math:`(2n)^{-2p-2}`. Below p = 3 (above alpha 2), the rule crowds nodes at the ends, and this error is about
    :math:`(2n)^{-4p-4}`.
    """

    power: float
    end: float
    reach: float
    radial: bool = False

    @property
    def span(self) -> float:  # type: ignore[override]
        return self.reach * math.sin(self.end)

    def log_error(self, points: int, sharpness: float) -> float:
        p, sizes = self.power, []
        if self.radial:
            scale = math.log(self.end * (p + 1))
        else:
            scale = math.log(2 * self.end / math.sqrt(math.pi)) + math.lgamma(p / 2 + 1) - math.lgamma((p + 1) / 2)
        for eta in ETAS:
            x = math.sinh(eta) * self.end / (1 + self.radial)  # the largest imaginary part of f
            if x > 50:
                break
            log_weight = (p + self.radial) * (x + math.log1p(math.exp(-2 * x)) - math.log(2))
            sizes.append(scale + log_weight + _log_size(sharpness, self.reach * math.sinh(x)))
        return _smallest_bound(sizes, 2 * points)


@dataclass(frozen=True)
class Halves(Error):
    """Gauss-Legendre rule on each side of a peak, where the density is a polynomial of degree `weight`."""

    span: float
    weight: int = 1

    def log_error(self, points: int, sharpness: float) -> float:
        sizes = [math.log(2) + _log_size(sharpness, self.span / 2 * math.sinh(eta)) for eta in ETAS]
        return _smallest_bound(sizes, 2 * points - self.weight)


@dataclass(frozen=True)
class Roots(Error):
    """Gauss-Legendre rule in the square root of the distance from the peak of a Laplace density."""

    def log_error(self, points: int, sharpness: float) -> float:
        sizes = []
        for eta in ETAS:
            half_width, half_height = math.cosh(eta) / 2, math.sinh(eta) / 2
            if half_height > 1e3:
                break
            size = -math.inf
            for step in range(1, 32):
                angle = step * (math.pi / 32)
                x, y = 0.5 + half_width * math.cos(angle), half_height * math.sin(angle)
                weight = math.log(2 * TAIL * math.hypot(x, y)) - TAIL * (x * x - y * y)
                size = max(size, weight + _log_size(sharpness, math.sqrt(2) * TAIL * abs(x * y)))
            sizes.append(size)
        return _smallest_bound(sizes, 2 * points)


def _round_up(n: int) -> int:
    """Round a number of points up to one of a few values, so that few rules are computed."""
    step = 1 if n <= 32 else 4 if n <= 128 else 32
    return -(-n // step) * step


def _round_up_to_step(x: float) -> float:
    return 2.0 ** (math.ceil(math.log2(x) * STEPS) / STEPS) if x > 0 else 0.0


def min_points(error: Error, sharpness: float, dtype: torch.dtype) -> int:
    """Return the smallest number of points whose bound is below the tolerance of the dtype.

    >>> rule = WeightedRule(1.0)
    >>> min_points(rule, 10.0, torch.float32)
    31
    """
    bound = _round_up_to_step(_finite_sharpness(sharpness, error.span))
    tolerance = TOLERANCE.get(dtype, SINGLE_TOLERANCE)
    if torch.compiler.is_compiling():
        return _untraced_points(type(error).__name__, tuple(vars(error).values()), bound, tolerance)
    return points_for(error, bound, tolerance)


@constant
def _untraced_points(kind: str, parameters: tuple[float, ...], sharpness: float, tolerance: float) -> int:
    """Call :func:`points_for` with plain numbers, so that a tracer does not trace into this function."""
    error: Error = globals()[kind](*parameters)
    return points_for(error, sharpness, tolerance)


@lru_cache(maxsize=4096)
def points_for(error: Error, sharpness: float, tolerance: float) -> int:
    """Return the smallest number of points whose bound is below a tolerance."""
    if error.exact:
        size = sharpness * error.span
        if size == 0:
            return 1
        tolerance *= min(1.0, max(size, 1e-4)) ** 2
    log_tolerance, low, high = math.log(tolerance), 0, 8
    while error.log_error(high, sharpness) > log_tolerance:
        low, high = high, 2 * high
        if high > 1 << 20:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if error.log_error(middle, sharpness) > log_tolerance else (low, middle)
    return high


def needed_points(
    error: Error, sharpness: float, dtype: torch.dtype, largest: int = LARGEST, unit: str = "points"
) -> int:
    """Return the number of points needed; if it exceeds `largest`, warn and return `largest`."""
    count = min_points(error, sharpness, dtype)
    if count > largest:
        _warn(error.log_error(largest, _finite_sharpness(sharpness, error.span)), count, largest, unit)
    return min(_round_up(count), largest)


def cheapest_rule(
    rules: Mapping[Callable[[int], Rule], Error], sharpness: float, dtype: torch.dtype
) -> tuple[Callable[[int], Rule], int]:
    """Return the rule that needs the fewest points, and their number; use the last rule if the sharpness is unknown."""
    *_, make = rules
    if math.isfinite(sharpness):
        make = min(rules, key=lambda make: min_points(rules[make], sharpness, dtype))
    return make, needed_points(rules[make], sharpness, dtype)


def on_disk(radial: Error, span: float, sharpness: float, dtype: torch.dtype) -> tuple[int, int]:
    """Return the numbers of radial and angular points of a rule on a disk."""
    return (
        needed_points(radial, sharpness, dtype, LARGEST_RADIAL, "rings"),
        needed_points(WeightedRule(span, 1), sharpness, dtype, LARGEST_ANGULAR, "angles"),
    )


def _warn(log_error: float, count: int, largest: int, unit: str) -> None:
    """Warn about the remaining error, once per order of magnitude."""
    size = math.ceil(min(0.0, log_error / math.log(10)))
    if (unit, size) not in _warnings:
        _warnings.add((unit, size))
        warnings.warn(
            f"the basis functions are much narrower than the density. With {largest} {unit}, the default "
            f"maximum, the error can reach 1e{size:+03d} times the peak of a function; {count} would be enough. "
            "Pass points=, widen the functions, or reduce the variances.",
            stacklevel=2,
        )
