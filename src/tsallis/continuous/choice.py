"""How many nodes a rule needs, by how narrow the functions are beside the density."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch

LARGEST = 512  # points on the line
LARGEST_RADIAL, LARGEST_ANGULAR = 96, 192
DEFAULT_RATIO = 0.1  # where numbers can't be looked at, or nothing is known about the function
_warned: set[str] = set()


@dataclass(frozen=True)
class Need:
    """Points that keep the error, relative to the largest value of a Gaussian function, below 1e-5, 1e-6 and 1e-12.

    Each is `offset + slope / ratio`, with `ratio` the function's standard deviation by what the rule spans; measured.
    """

    coarse: tuple[float, float]
    single: tuple[float, float]
    double: tuple[float, float]

    def points(self, ratio: float, dtype: torch.dtype) -> int:
        offset, slope = self.double if dtype == torch.float64 else self.single
        return _rounded(offset + slope / ratio)

    def least(self, ratio: float) -> float:
        """Below this the error is above 1e-5."""
        return self.coarse[0] + self.coarse[1] / ratio


JACOBI = Need((4, 2.2), (6, 2.6), (8, 3.8))
SINE = Need((20, 3.4), (24, 4.1), (34, 5.8))
HERMITE_WIDE = Need((6, 6), (8, 8), (10, 18))  # for functions at least as wide as the density
GAUSSIAN = Need((20, 19), (22, 23), (30, 31))
LAPLACE = Need((12, 15), (12, 22), (10, 42))
SPLIT = Need((4, 1.0), (6, 1.25), (7, 1.8))
RADIAL = Need((2, 1.0), (2.5, 1.15), (5, 1.75))
SINE_RADIAL = Need((8, 1.0), (10, 1.25), (15, 1.8))
ANGULAR = Need((4, 1.5), (4.5, 1.8), (10, 3.9))


def _rounded(points: float) -> int:
    """Up to one of a few numbers, so that few rules are ever made."""
    n = math.ceil(points)
    step = 1 if n <= 32 else 4 if n <= 128 else 32
    return -(-n // step) * step


def line_points(need: Need, ratio: float, degree: int, dtype: torch.dtype) -> int:
    """Points on the line for functions of this ratio that are polynomials up to this degree where it is infinite."""
    return max(_within(need, ratio, dtype, LARGEST), degree // 2 + 1)


def disk_points(radial: Need, ratio: float, degree: int, dtype: torch.dtype) -> tuple[int, int]:
    """Radial and angular points."""
    rings = max(_within(radial, ratio, dtype, LARGEST_RADIAL), degree // 4 + 1)
    return rings, max(_within(ANGULAR, ratio, dtype, LARGEST_ANGULAR), degree + 1)


def _within(need: Need, ratio: float, dtype: torch.dtype, largest: int) -> int:
    if ratio != ratio or ratio <= 0:  # a NaN somewhere: its row is lost, the others are not
        ratio = DEFAULT_RATIO
    if need.least(ratio) > largest:
        warn_once(ratio)
    return min(need.points(ratio, dtype), largest)


def warn_once(ratio: float) -> None:
    if "narrow" not in _warned:
        _warned.add("narrow")
        warnings.warn(
            f"basis functions are so narrow beside the density (ratio {ratio:.2g}) that the largest quadrature rule "
            "leaves errors above 1e-5; widen them, or keep the variances down",
            stacklevel=2,
        )
