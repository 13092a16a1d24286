"""Attention of each target word to the source words: the alignments of a translator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.analysis.shapes import intervals, numbers, one_of
from tsallis.analysis.words import spelling
from tsallis.continuous import Density, cell_masses
from tsallis.report import style
from tsallis.report.style import FAINT, GREY, HEADING, POINTS, SMALL, WIDTH
from tsallis.report.views import View, check_weights, check_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

STEP = 15.0  # points of a row and of a column
NARROWEST, READABLE, WIDEST = 9.5, 12.0, 24.0  # where many words share a width, by default, and where there are few
FEW = 2.4  # inches of a panel in which few words may be wider than `STEP`
EDGE, GAP = 0.1, 0.28  # inches around a figure, and between panels
SCALE, SCALE_HIGH = 1.7, 0.45  # inches of the scale of colours, with its letters
LINE = 1.25 * HEADING / POINTS  # inches of a line of a title
PAD = 6.0  # points below a title
BROADEST = 3.2  # inches that a title has at most before it is broken into more than two lines
MARK = "#0b6e5f"  # of supports and means, seen on light and on dark


def attention_matrix(
    weights: Any,
    src: Sequence[str],
    tgt: Sequence[str],
    *,
    density: Density | None = None,
    index: int | tuple[int, ...] = (),
    title: str = "",
    largest: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw weights of source words (columns) at each target word (rows), darker where larger, blank where exactly zero.

    With a density for each row its mean is drawn as a line from row to row and its support as a bracket in each row; if
    there are no weights, the cells show the density's mass in each word. The mark `▁` at the beginning of a word is
    left out.

    Args:
        weights: [tgt, src], or None with a density.
        src: source words.
        tgt: target words.
        density: on the line from 0 to 1, the last dimension of its batch shape being tgt.
        index: which density along the batch dimensions before that.
        title: above, at the left; over several lines where it is long.
        largest: the weight that is darkest; by default the largest of all.
        ax: to draw in; by default a figure of its own, as large as the words and the title need, with a scale.

    Returns:
        The axes.

    Raises:
        ValueError: weights or densities that are not as many as the words, or negative.

    Example:
        >>> ax = attention_matrix([[1.0, 0.0], [0.25, 0.75]], ["das", "Haus"], ["the", "house"])
        >>> ax.images[0].get_array().tolist()
        [[1.0, None], [0.25, 0.75]]
    """
    src, tgt = check_words(src), check_words(tgt)
    rows = None if density is None else _rows(density, index, len(tgt))
    cells = _cells(weights, rows, len(tgt), len(src))
    largest = largest or float(cells.max()) or 1.0
    if ax is not None:
        _draw(ax, cells, rows, src, tgt, title, largest, STEP, style.points_wide(ax))
        return ax
    plan = _Plan(src, tgt, [title], 1, EDGE * 2 + _names(tgt) + max(FEW, len(src) * STEP / POINTS))
    figure = style.blank(plan.width, plan.height, constrained=False)
    ax = figure.add_axes(plan.box(0))
    _draw(ax, cells, rows, src, tgt, title, largest, plan.step, plan.room)
    _scale(figure, plan, largest)
    return ax


def matrix_panels(
    views: Sequence[View],
    src: Sequence[str],
    tgt: Sequence[str],
    *,
    columns: int | None = None,
    width: float = WIDTH,
) -> Figure:
    """Draw several attentions of one pair of sentences beside each other, on one scale of colours.

    Args:
        views: with weights [tgt, src], a density whose batch shape ends in tgt, or both.
        src: source words.
        tgt: target words.
        columns: in a row; by default as many as are readable, and as many in each row.
        width: inches that the figure has at most, unless the words of one row of panels need more.

    Returns:
        The figure.

    Raises:
        ValueError: as for :func:`attention_matrix`, or no views.

    Example:
        >>> views = [View("softmax", [[0.6, 0.4]]), View("sparsemax", [[1.0, 0.0]])]
        >>> figure = matrix_panels(views, ["ein", "Haus"], ["house"])
        >>> [ax.get_title("left") for ax in figure.axes[:2]]
        ['softmax', 'sparsemax']
    """
    src, tgt, views = check_words(src), check_words(tgt), list(views)
    if not views:
        raise ValueError("there is nothing to draw: views is empty")
    rows = [None if view.density is None else _rows(view.density, view.index, len(tgt)) for view in views]
    cells = [_cells(view.weights, row, len(tgt), len(src)) for view, row in zip(views, rows, strict=True)]
    titles = [view.title for view in views]
    plan = _Plan(src, tgt, titles, columns, width)
    figure = style.blank(plan.width, plan.height, constrained=False)
    largest = max(float(panel.max()) for panel in cells) or 1.0
    for number, view in enumerate(views):
        ax = figure.add_axes(plan.box(number))
        named = number % plan.columns == 0
        _draw(ax, cells[number], rows[number], src, tgt, view.title, largest, plan.step, plan.room, named)
    _scale(figure, plan, largest)
    return figure


class _Plan:
    """The layout of a figure in inches: square cells, all words, and titles that have room for all their lines."""

    def __init__(
        self, src: Sequence[str], tgt: Sequence[str], titles: Sequence[str], columns: int | None, width: float
    ) -> None:
        self.names = _names(tgt)
        breadth = max(_breadth(title) for title in titles)
        if columns is None:
            fitting = int((width - 2 * EDGE - self.names + GAP) // (max(len(src) * READABLE / POINTS, breadth) + GAP))
            columns = math.ceil(len(titles) / math.ceil(len(titles) / max(1, min(fitting, len(titles)))))
        self.columns = max(1, min(columns, len(titles)))
        self.rows = math.ceil(len(titles) / self.columns)
        free = (width - 2 * EDGE - self.names + GAP) / self.columns - GAP  # inches of a panel
        largest = min(WIDEST, max(STEP, FEW * POINTS / len(src)))
        self.step = min(largest, max(NARROWEST, free * POINTS / len(src)))
        self.wide, self.high = len(src) * self.step / POINTS, len(tgt) * self.step / POINTS
        longest = max(style.text_width(word, HEADING) for title in titles for word in style.title_words(title))
        self.pitch = max(self.wide, min(BROADEST, longest / POINTS + 0.02), min(breadth, free)) + GAP
        self.room = (self.pitch - GAP) * POINTS  # points of a title
        needed = 2 * EDGE + self.names + self.columns * self.pitch - GAP
        self.width = max(needed, 2 * EDGE + self.names + SCALE)
        lines = max(style.title_lines(title, self.room).count("\n") + 1 if title.strip() else 0 for title in titles)
        self.above = lines * LINE + PAD / POINTS * (lines > 0) + _names_high(src, self.step)
        self.scale_above = self.rows > 1  # of a tall figure the top is seen first
        self.height = self.rows * (self.above + self.high) + (self.rows - 1) * GAP + SCALE_HIGH + 2 * EDGE

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of a panel, as shares of the figure's."""
        row, column = divmod(number, self.columns)
        left = EDGE + self.names + column * self.pitch
        top = EDGE + SCALE_HIGH * self.scale_above + row * (self.above + self.high + GAP) + self.above
        return self._shares(left, top, self.wide, self.high)

    def scale(self) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of the scale of colours, above or below all panels."""
        top = EDGE if self.scale_above else self.height - SCALE_HIGH
        return self._shares(EDGE + self.names, top, SCALE - 0.15, 0.09)

    def _shares(self, left: float, top: float, wide: float, high: float) -> tuple[float, float, float, float]:
        bottom = self.height - top - high
        return left / self.width, bottom / self.height, wide / self.width, high / self.height


def _rows(density: Density, index: int | tuple[int, ...], count: int) -> list[Density]:
    """Return the density of each target word."""
    before = (index,) if isinstance(index, int) else tuple(index)
    batch = tuple(density.batch_shape)
    if len(batch) != len(before) + 1 or batch[-1] != count:
        raise ValueError(
            f"the batch shape of the density must be [{count}], one for each target word, behind "
            f"{len(before)} dimensions of index, got {list(batch)}"
        )
    return [one_of(density, (*before, row), 1) for row in range(count)]


def _cells(weights: Any, rows: list[Density] | None, tgt: int, src: int) -> Tensor:
    """Return the weights [tgt, src]."""
    if weights is not None:
        matrix = numbers(weights)
        if tuple(matrix.shape) != (tgt, src):
            raise ValueError(f"weights must be [{tgt}, {src}] for these words, got shape {list(matrix.shape)}")
        return check_weights(matrix, (tgt, src), "pair of words")
    if rows is None:
        raise ValueError("there is nothing to draw: give weights, a density or both")
    edges = torch.linspace(0, 1, src + 1, dtype=torch.float64)
    return torch.stack([cell_masses(row, edges) for row in rows])


def _colours() -> ListedColormap:
    return style.shades("magma_r", 0.06, 0.92)


def _labels(words: Sequence[str]) -> list[str]:
    """Return words as they are drawn: without the mark of their beginning, which the mark alone keeps."""
    return [style.shorten(spelling(word) or word) for word in words]


def _names(words: Sequence[str]) -> float:
    """Return the inches of the longest word."""
    return (max(style.text_width(name, SMALL) for name in _labels(words)) + 8) / POINTS


def _are_lying(names: Sequence[str], step: float) -> bool:
    """Tell whether all names of columns fit side by side, as the letters of a word do."""
    return max(style.text_width(name, SMALL) for name in names) < step - 2


def _names_high(words: Sequence[str], step: float) -> float:
    """Return the inches of the names of columns, lying or upright."""
    return (1.3 * SMALL + 6) / POINTS if _are_lying(_labels(words), step) else _names(words)


def _breadth(title: str) -> float:
    """Return the inches in which a title takes one line or, if it has several words, two; at most `BROADEST`."""
    words = style.title_words(title)
    halves = [(" ".join(words[:n]), " ".join(words[n:])) for n in range(1, max(2, len(words)))]
    narrowest = min(max(style.text_width(half, HEADING) for half in pair) for pair in halves)
    return min(BROADEST, narrowest / POINTS + 0.02)


def _draw(
    ax: Axes,
    cells: Tensor,
    rows: list[Density] | None,
    src: Sequence[str],
    tgt: Sequence[str],
    title: str,
    largest: float,
    step: float,
    room: float,
    named: bool = True,
) -> None:
    """Draw one panel.

    `step`: points of a column; `room`: points of a line of the title; `named`: with the target words at the left.
    """
    import numpy as np

    style.quiet(ax, ("left", "right", "top", "bottom"))
    shown = np.ma.masked_equal(cells.numpy(), 0.0)
    # The smallest positive number has a colour, a zero has none.
    ax.imshow(shown, cmap=_colours(), vmin=0.0, vmax=largest, interpolation="nearest", aspect="auto", label="weights")
    letters, names = style.lettering(SMALL), _labels(src)
    ax.set_xticks(range(len(src)), labels=names, rotation=0 if _are_lying(names, step) else 90, **letters)
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(tgt)), labels=_labels(tgt) if named else [], **letters)
    ax.tick_params(length=0, pad=3)
    ax.set_xticks([i + 0.5 for i in range(len(src) - 1)], minor=True)
    ax.set_yticks([i + 0.5 for i in range(len(tgt) - 1)], minor=True)
    ax.grid(which="minor", color=FAINT, linewidth=0.35)
    ax.tick_params(which="minor", length=0)
    ax.set(xlim=(-0.5, len(src) - 0.5), ylim=(len(tgt) - 0.5, -0.5))
    if rows is not None:
        _draw_rows(ax, rows, len(src))
    style.heading(ax, title, pad=PAD, width=room, wrap=True)


def _draw_rows(ax: Axes, rows: Sequence[Density], src: int) -> None:
    """Draw the mean as a line from row to row, the support as a bracket in each row."""
    from matplotlib.collections import LineCollection

    means = [float(row.mean) * src - 0.5 for row in rows]
    spans = []
    for number, row in enumerate(rows):
        for ends in intervals(row) or []:
            lower, upper = (end * src - 0.5 for end in ends)
            spans.append([(lower, number - 0.3), (lower, number + 0.3), (upper, number + 0.3), (upper, number - 0.3)])
    ax.add_collection(LineCollection(spans, colors=MARK, linewidths=1.1, label="support"), autolim=False)
    ax.plot(means, range(len(rows)), color=MARK, linewidth=1.1, marker="o", markersize=3.0, label="mean")
    ax.lines[-1].set_markeredgecolor("white")
    ax.lines[-1].set_markeredgewidth(0.6)


def _scale(figure: Figure, plan: _Plan, largest: float) -> None:
    """Draw the scale of colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    colours = ScalarMappable(Normalize(0, largest), _colours())
    bar = figure.colorbar(colours, cax=figure.add_axes(plan.scale()), orientation="horizontal", ticks=MaxNLocator(4))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, pad=2, labelsize=SMALL, labelcolor=GREY, labelfontfamily=style.families())
    bar.ax.set_xlabel("weight (blank: exactly 0)", labelpad=1, loc="left", **style.lettering(SMALL, GREY))
