"""Annotations shared by lines and pages of text: marks under the support, and notes of its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsallis.analysis.shapes import curve, intervals, one_of
from tsallis.report import style
from tsallis.report.style import POINTS
from tsallis.report.views import View, check_weights, word_masses

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tallest(count: int, view: View) -> float:
    """Return the largest weight, or value of the curve in weight a word."""
    height = 0.0
    if view.weights is not None:
        height = float(check_weights(view.weights, (count,), "word").max())
    if view.density is not None:
        height = max(height, float(curve(one_of(view.density, view.index, 1))[1].max()) / count)
    return height or 1.0


def note(view: View, count: int) -> str:
    """Describe the support of weights and density in numbers."""
    parts = []
    if view.weights is not None:
        support_size = int((check_weights(view.weights, (count,), "word") > 0).sum())
        parts.append(f"weights: {support_size} of {count} words")
    if view.density is not None:
        ends = intervals(one_of(view.density, view.index, 1))
        if ends is None:
            parts.append("support: no end")
        else:
            spans = " and ".join(f"{lower:.2f} to {upper:.2f}" for lower, upper in ends)
            support_size = int((word_masses(View(density=view.density, index=view.index), count) > 0).sum())
            parts.append(f"support: {spans}, {support_size} of {count} words")
    return " · ".join(parts)


def underline(
    ax: Axes, ends: Sequence[tuple[float, float]], drop: float, color: str, *, dashed: bool = False, label: str = ""
) -> None:
    """Draw thick lines so many points below the axis."""
    from matplotlib.collections import LineCollection
    from matplotlib.transforms import ScaledTranslation

    lower = ScaledTranslation(0, -drop / POINTS, style.whole(ax).dpi_scale_trans)
    lines = LineCollection(
        [[(a, 0), (b, 0)] for a, b in ends],
        colors=color,
        linewidths=1.2 if dashed else 2.4,
        linestyles=(0, (3, 2)) if dashed else "solid",
        capstyle="butt",
        transform=ax.get_xaxis_transform() + lower,
        clip_on=False,
        label=label,
    )
    ax.add_collection(lines, autolim=False)
