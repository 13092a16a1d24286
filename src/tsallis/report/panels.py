"""Panels of figures at the width of a paper's column: rows, stacks, names of axes, bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tsallis.analysis.densities import DensitySummary
from tsallis.analysis.summary_records import RunSummary
from tsallis.analysis.tables import Histogram
from tsallis.report import style
from tsallis.report.style import GREY, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.8  # inches: one column of a paper, and both
HEIGHT = 1.7  # inches of a row of panels
Panel = tuple[str, Callable[["Axes"], None]]  # its title, and what draws it in axes


def row(panels: Sequence[Panel], width: float | None = None, height: float = HEIGHT) -> Figure:
    """Draw panels beside each other."""
    return grid([panels], width or (COLUMN if len(panels) == 1 else PAGE), height)


def stack(panels: Sequence[Panel], width: float) -> Figure:
    """Draw panels below each other."""
    return grid([[panel] for panel in panels], width)


def grid(rows: Sequence[Sequence[Panel]], width: float = PAGE, height: float = HEIGHT) -> Figure:
    """Draw rows of panels below each other, as many in each."""
    figure = style.blank(width, height * len(rows))
    for number, (title, draw) in enumerate(chain.from_iterable(rows)):
        _draw(figure.add_subplot(len(rows), len(rows[0]), number + 1), title, draw)
    return figure


def _draw(ax: Axes, title: str, draw: Callable[[Axes], None]) -> None:
    style.quiet(ax, ("left", "bottom"))
    draw(ax)
    if title:
        style.heading(ax, title)


def label(ax: Axes, x: str, y: str) -> None:
    """Name the axes."""
    ax.set_xlabel(x, **style.lettering(SMALL, GREY))
    ax.set_ylabel(y, **style.lettering(SMALL, GREY))


def bars(histogram: Histogram, color: str, x: str, y: str, ax: Axes) -> None:
    """Draw the bars of a histogram."""
    edges = np.array(histogram.edges)
    ax.bar(edges[:-1], histogram.counts, np.diff(edges), align="edge", color=color, edgecolor="white", linewidth=0.4)
    label(ax, x, y)


def file_endings(runs: Sequence[RunSummary | DensitySummary]) -> list[str]:
    """Return what file names of each run end in: nothing, for one run alone."""
    if len(runs) == 1:
        return [""]
    names = ["".join(c if c.isalnum() or c in "-_." else "-" for c in run.name) for run in runs]
    return [f"-{name}" if names.count(name) == 1 else f"-{name}-{i + 1}" for i, name in enumerate(names)]
