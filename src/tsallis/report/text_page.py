"""A long text set in lines, each word in a cell of its own width with what it gets above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tsallis.analysis.shapes import intervals, one_of
from tsallis.report import style
from tsallis.report.annotations import note, underline
from tsallis.report.style import DENSITY, FAINT, GREY, INK, POINTS, WEIGHTS, WIDTH
from tsallis.report.views import View, check_weights, word_masses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS = 8.0  # points
SPACE = 4.0  # points between words
BARE, CURVE = 17.0, 22.0  # points of a line with nothing above it, and of what is above the others
HEAD, MARGIN = 26.0, 14.0  # points above the first line, and around everything


class Line(NamedTuple):
    """Words `first` to `first + len(edges) - 2` of the text."""

    first: int
    edges: Tensor  # [words + 1], points from the left


def flow(words: Sequence[str], width: float) -> list[Line]:
    """Return words in lines of at most so many points.

    >>> [(line.first, len(line.edges) - 1) for line in flow(["word"] * 5, 60.0)]
    [(0, 2), (2, 2), (4, 1)]
    """
    lines: list[list[float]] = []
    starts: list[int] = []
    for i, word in enumerate(words):
        wide = style.text_width(style.shorten(word), LETTERS) + SPACE
        if not lines or lines[-1][-1] + wide > width:
            lines.append([0.0])
            starts.append(i)
        lines[-1].append(lines[-1][-1] + wide)
    return [Line(first, torch.tensor(edges, dtype=torch.float64)) for first, edges in zip(starts, lines, strict=True)]


def draw(words: Sequence[str], view: View, ax: Axes | None) -> Axes:
    """Draw one page, in axes or in a figure of its own."""
    if ax is None:
        return draw_all(words, [view], 1, WIDTH).axes[0]
    lines = flow(words, style.points_wide(ax))
    heights = _heights(words, [view], lines)
    height = float(ax.bbox.height) / style.whole(ax).dpi * POINTS
    _page(ax, words, view, lines, heights, max(height, sum(heights)))
    return ax


def draw_all(words: Sequence[str], views: Sequence[View], columns: int, width: float) -> Figure:
    """Draw pages beside each other, set alike."""
    columns = max(1, min(columns, len(views)))
    rows = -(-len(views) // columns)
    wide = (width * POINTS - (columns + 1) * MARGIN) / columns
    lines = flow(words, wide)
    heights = _heights(words, views, lines)
    tall = sum(heights)
    total = rows * (tall + HEAD) + MARGIN
    figure = style.blank(width, total / POINTS, constrained=False)
    for number, view in enumerate(views):
        row, column = divmod(number, columns)
        left = (MARGIN + column * (wide + MARGIN)) / (width * POINTS)
        bottom = 1 - (row + 1) * (tall + HEAD) / total
        ax = figure.add_axes((left, bottom, wide / (width * POINTS), tall / total))
        _page(ax, words, view, lines, heights, tall)
    return figure


def _heights(words: Sequence[str], views: Sequence[View], lines: Sequence[Line]) -> list[float]:
    """Return points of each line; those that nothing looks at are closer together."""
    masses = torch.stack([word_masses(view, len(words)) for view in views]).amax(0)
    return [BARE + CURVE * bool(masses[line.first : line.first + len(line.edges) - 1].any()) for line in lines]


def _page(
    ax: Axes, words: Sequence[str], view: View, lines: Sequence[Line], heights: Sequence[float], total: float
) -> None:
    """`heights` of lines and the `total` of the axes in points."""
    count = len(words)
    masses = word_masses(view, count)
    ax.set_axis_off()
    top = float(masses.max()) or 1.0
    width = max(max(float(line.edges[-1]) for line in lines), style.points_wide(ax))
    style.heading(ax, view.title, f"{note(view, count)} · largest {top:.2g}", pad=8.0)
    above = 0.0
    for line, height in zip(lines, heights, strict=True):
        axes_height = max(height - BARE, 0.5)
        strip = ax.inset_axes((0, 1 - (above + axes_height) / total, 1, axes_height / total))
        above += height
        style.quiet(strip)
        strip.set(xlim=(0, width), ylim=(0, top * 1.02), xticks=[], yticks=[])
        strip.patch.set_visible(False)
        strip.plot([0, float(line.edges[-1])], [0, 0], color=FAINT, linewidth=0.6)
        _fill(strip, view, line, count)
        for k, (left, right) in enumerate(zip(line.edges[:-1].tolist(), line.edges[1:].tolist(), strict=True)):
            i = line.first + k
            strip.annotate(
                style.shorten(words[i]),
                ((left + right) / 2, 0),
                xytext=(0, -13.0),
                textcoords="offset points",
                ha="center",
                va="baseline",
                annotation_clip=False,
                **style.lettering(LETTERS, INK if masses[i] > 0 else GREY),
            )


def _fill(strip: Axes, view: View, line: Line, count: int) -> None:
    size = len(line.edges) - 1
    own = slice(line.first, line.first + size)
    if view.weights is not None:
        weights = check_weights(view.weights, (count,), "word")[own]
        there = weights.nonzero().flatten()
        left, right = line.edges[:-1][there] + SPACE / 2, line.edges[1:][there] - SPACE / 2
        if len(there):
            centres, wide = ((left + right) / 2).tolist(), (right - left).tolist()
            strip.bar(centres, weights[there].tolist(), width=wide, color=WEIGHTS, alpha=0.85, label="weights")
            ends = list(zip(left.tolist(), right.tolist(), strict=True))
            underline(strip, ends, 2.2, WEIGHTS, label="weights above zero")
    if view.density is None:
        return
    density = one_of(view.density, view.index, 1)
    bounds = (line.first / count, (line.first + size) / count)
    masses = word_masses(View(density=view.density, index=view.index), count)[own]
    if masses.any():  # words are of different widths: a curve over them would have a kink at each
        strip.stairs(masses.tolist(), line.edges.tolist(), fill=True, color=DENSITY, alpha=0.3, label="masses")
        strip.stairs(masses.tolist(), line.edges.tolist(), color=DENSITY, linewidth=1.0, baseline=None)
    drop = 4.6 if view.weights is not None else 2.2
    spans = intervals(density)
    for lower, upper in [bounds] if spans is None else spans:
        if upper <= bounds[0] or lower >= bounds[1]:
            continue
        inside = torch.tensor([max(lower, bounds[0]), min(upper, bounds[1])], dtype=torch.float64)
        a, b = to_line(inside, line, count).tolist()
        underline(strip, [(a, b)], drop, DENSITY, dashed=spans is None, label="support")
        for end, x_end in ((lower, a), (upper, b)):
            if spans is not None and bounds[0] <= end <= bounds[1]:
                strip.axvline(x_end, color=DENSITY, linewidth=0.8, linestyle=(0, (2, 2)), label="end of the support")


def to_line(t: Tensor, line: Line, count: int) -> Tensor:
    """Map positions in the text, from 0 to 1, to points along a line, in proportion within each word."""
    words = t * count - line.first
    cell = words.floor().clamp(0, len(line.edges) - 2).long()
    return line.edges[cell] + (words - cell) * (line.edges[cell + 1] - line.edges[cell])
