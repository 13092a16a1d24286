"""Densities of continuous attention as they are drawn, with their supports, also over time (Martins et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tsallis.analysis.shapes import curve, intervals, numbers, one_of, outlines, parts_of
from tsallis.analysis.tables import Record
from tsallis.continuous import Density, Ellipse, Elliptical, Interval

POINTS = 161  # of the edge of a support in the plane
Points = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class DrawnDensity(Record):
    """A density as it is drawn: its moments, its support and its curve or outlines.

    Args:
        mean: one number on the line, two in the plane.
        deviation: the standard deviation along each axis.
        support: on the line the ends of each interval; none where it is unbounded, and in the plane.
        size: the part of the unit interval or square that the support covers, 1 where it is unbounded.
        curve: on the line, points and the density there; none in the plane.
        outlines: in the plane, the edge of the support, or of one and two standard deviations where it has none.
        bounded: whether the support has ends.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    support: Points
    size: float
    curve: Points
    outlines: tuple[Points, ...]
    bounded: bool


def draw_density(density: Density, index: int | tuple[int, ...] = ()) -> DrawnDensity:
    """Return one density of a batch as it is drawn.

    Args:
        density: on the line or in the plane.
        index: which one of the batch.

    Returns:
        Moments, support, and curve or outlines.

    Raises:
        ValueError: an index that names no density of the batch.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> drawn = draw_density(TruncatedParabola(torch.tensor([0.25, 0.5]), torch.tensor(0.01)), 1)
        >>> drawn.mean, [round(end, 3) for end in drawn.support[0]], round(drawn.size, 3)
        ((0.5,), [0.276, 0.724], 0.447)
    """
    one = one_of(density, index, density.dims)
    if one.dims == 2:
        parts = tuple(tuple(map(tuple, line.tolist())) for line in outlines(one, POINTS))
        bounded = all(isinstance(part.support, Ellipse) for part in parts_of(one))
        deviation = tuple(numbers(one.covariance).diagonal().sqrt().tolist())
        return DrawnDensity(tuple(one.mean.tolist()), deviation, (), area_of(one), (), parts, bounded)
    ends = intervals(one)
    t, p = curve(one)
    points = tuple(zip(t.tolist(), p.tolist(), strict=True))
    size = 1.0 if ends is None else sum(max(0.0, min(b, 1.0) - max(a, 0.0)) for a, b in ends)
    moments = (float(one.mean),), (float(one.variance) ** 0.5,)
    return DrawnDensity(*moments, tuple(ends or ()), size, points, (), ends is not None)


def area_of(density: Density) -> float:
    """Return the part of the unit square that a support covers, by a grid of cells."""
    if not isinstance(density, Elliptical) or not isinstance(density.support, Ellipse):
        return 1.0
    centres = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    grid = torch.cartesian_prod(centres, centres)
    return float(density.support.check(grid).double().mean())


def length_of(density: Density) -> float:
    """Return the part of the unit interval that a support covers."""
    if not isinstance(density.support, Interval):
        return 1.0
    lower, upper = float(density.support.lower), float(density.support.upper)
    return max(0.0, min(upper, 1.0) - max(lower, 0.0))


@dataclass(frozen=True)
class SignalDensity(Record):
    """A density over time: what one head reads of one channel's signal, for all series alike."""

    channel: str  # its name
    head: int  # its number, from 0
    density: DrawnDensity  # on the line from 0 to 1


def signal_densities(density: Density, channels: Sequence[str]) -> tuple[SignalDensity, ...]:
    """Return densities over time as records, one for each channel and head (Martins et al. 2020, sec. 3).

    Args:
        density: on the line, of batch shape [heads, channels], or [1, heads, channels].
        channels: their names.

    Returns:
        One record for each channel and head.

    Raises:
        ValueError: a density of another shape, or another number of names.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola(torch.rand(3, 2), torch.tensor(0.01))
        >>> densities = signal_densities(density, ["heart rate", "temperature"])
        >>> len(densities), densities[3].channel, densities[3].density.bounded
        (6, 'temperature', True)
    """
    *first, heads, count = (1, 1, *density.batch_shape)[-3:]
    if len(density.batch_shape) < 2 or first != [1] or count != len(channels):
        raise ValueError(f"density must have batch shape [heads, {len(channels)}], got {list(density.batch_shape)}")
    leading = (0,) * (len(density.batch_shape) - 2)
    return tuple(
        SignalDensity(name, head, draw_density(density, (*leading, head, number)))
        for number, name in enumerate(channels)
        for head in range(heads)
    )
