"""Prepare densities of continuous attention, including densities over time, for drawing (Martins et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tsallis.analysis.shapes import curve, intervals, numbers, one_of, outlines, parts_of
from tsallis.analysis.tables import Record
from tsallis.continuous import Density

POINTS = 161  # number of points on the edge of a support in the plane
Points = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class DrawnDensity(Record):
    """Data for drawing a density: moments, support, and curve or outlines.

    Args:
        mean: Mean: one number on the line, two in the plane.
        deviation: Standard deviation along each axis.
        support: On the line, the ends of each interval; empty if the support is unbounded. Empty in the plane.
        size: Share of the unit interval or square that the support covers; 1 if the support is unbounded.
        curve: On the line, points and the density at each point; empty in the plane.
        outlines: In the plane, the edge of the support. If it has no edge, ellipses at one and two standard deviations.
        bounded: Whether the support is bounded.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    support: Points
    size: float
    curve: Points
    outlines: tuple[Points, ...]
    bounded: bool


def draw_density(density: Density, index: int | tuple[int, ...] = ()) -> DrawnDensity:
    """Return the data for drawing one density of a batch.

    Args:
        density: Density on the line or in the plane.
        index: Index of the density in the batch.

    Returns:
        Moments, support, and curve or outlines.

    Raises:
        ValueError: The index does not select one density of the batch.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> drawn = draw_density(TruncatedParabola(torch.tensor([0.25, 0.5]), torch.tensor(0.01)), 1)
        >>> drawn.mean, [round(end, 3) for end in drawn.support[0]], round(drawn.size, 3)
        ((0.5,), [0.276, 0.724], 0.447)
    """
    single = one_of(density, index, density.dims)
    if single.dims == 2:
        parts = tuple(tuple(map(tuple, line.tolist())) for line in outlines(single, POINTS))
        bounded = all(getattr(part.support, "bounded", False) for part in parts_of(single))
        deviation = tuple(numbers(single.covariance).diagonal().sqrt().tolist())
        return DrawnDensity(tuple(single.mean.tolist()), deviation, (), area_of(single), (), parts, bounded)
    ends = intervals(single)
    t, p = curve(single)
    points = tuple(zip(t.tolist(), p.tolist(), strict=True))
    moments = (float(single.mean),), (float(single.variance) ** 0.5,)
    return DrawnDensity(*moments, tuple(ends or ()), length_of(single), points, (), ends is not None)


def area_of(density: Density) -> float:
    """Return the share of the unit square that a support covers, measured on a grid."""
    supports: list[Any] = [part.support for part in parts_of(density)]
    if not all(support.bounded for support in supports):
        return 1.0
    centres = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    grid = torch.cartesian_prod(centres, centres)
    inside = torch.stack([support.check(grid.to(support.centre)) for support in supports])
    return float(inside.any(0).double().mean())


def length_of(density: Density) -> float:
    """Return the share of the unit interval that a support covers."""
    ends = intervals(density)
    return 1.0 if ends is None else sum(max(0.0, min(b, 1.0) - max(a, 0.0)) for a, b in ends)


@dataclass(frozen=True)
class SignalDensity(Record):
    """Density over time: how one head reads the signal of one channel. The density is the same for all series."""

    channel: str  # name of the channel
    head: int  # number of the head, from 0
    density: DrawnDensity  # on the line from 0 to 1


def signal_densities(density: Density, channels: Sequence[str]) -> tuple[SignalDensity, ...]:
    """Return densities over time as records, one per channel and head (Martins et al. 2020, sec. 3).

    Args:
        density: Density on the line with batch shape [heads, channels] or [1, heads, channels].
        channels: Names of the channels.

    Returns:
        One record per channel and head.

    Raises:
        ValueError: The density has another shape, or the number of names is wrong.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola(torch.rand(3, 2), torch.tensor(0.01))
        >>> densities = signal_densities(density, ["heart rate", "temperature"])
        >>> len(densities), densities[3].channel, densities[3].density.bounded
        (6, 'temperature', True)
    """
    *first, heads, count = (1, 1, *density.batch_shape)[-3:]
    if len(density.batch_shape) not in (2, 3) or first != [1] or count != len(channels):
        raise ValueError(
            f"density must have batch shape [heads, {len(channels)}], whose last size is the number of channels, "
            f"got {list(density.batch_shape)}"
        )
    leading = (0,) * (len(density.batch_shape) - 2)
    return tuple(
        SignalDensity(name, head, draw_density(density, (*leading, head, number)))
        for number, name in enumerate(channels)
        for head in range(heads)
    )
