"""Attention of each target word to the source words: the alignments of a translator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.analysis.shapes import intervals, numbers, one_of
from tsallis.continuous import Density, cell_masses
from tsallis.report import style
from tsallis.report.style import FAINT, GREY, POINTS, SIZE, SMALL, WIDTH
from tsallis.report.views import View, check_weights, check_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

STEP = 15.0  # points of a row and of a column
EDGE = "#0b6e5f"  # of supports and means, seen on light and on dark


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
    there are no weights, the cells show the density's mass in each word.

    Args:
        weights: [tgt, src], or None with a density.
        src: source words.
        tgt: target words.
        density: on the line from 0 to 1, the last dimension of its batch shape being tgt.
        index: which density along the batch dimensions before that.
        title: above, at the left.
        largest: the weight that is darkest; by default the largest of all.
        ax: to draw in; by default a figure of its own, as large as the words need.

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
    if ax is None:
        wide, high = _size(src, tgt)
        ax = style.blank(max(wide + 0.2, 2.4), high + 0.35).add_subplot()
    _draw(ax, cells, rows, src, tgt, title, largest or float(cells.max()) or 1.0, True)
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
        columns: in a row; by default as many as are readable.
        width: in inches.

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
    wide, high = _size(src, tgt)
    if columns is None:
        columns = int((width - 0.6 - _names(tgt)) // max(wide - _names(tgt), 1.1))
    columns = max(1, min(columns, len(views)))
    lines = -(-len(views) // columns)
    side = (width - 0.8 - _names(tgt)) / columns
    row = (high - _names(src)) * min(1.6, max(1.0, side / (len(src) * STEP / POINTS)))
    figure = style.blank(width, lines * (row + _names(src) + 0.35))
    largest = max(float(panel.max()) for panel in cells) or 1.0
    axes = []
    for number, view in enumerate(views):
        ax = figure.add_subplot(lines, columns, number + 1)
        _draw(ax, cells[number], rows[number], src, tgt, view.title, largest, number % columns == 0)
        axes.append(ax)
    _bar(figure, axes, largest)
    return figure


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


def _names(words: Sequence[str]) -> float:
    """Inches of the longest word."""
    return (max(style.text_width(style.shorten(word), SMALL) for word in words) + 8) / POINTS


def _size(src: Sequence[str], tgt: Sequence[str]) -> tuple[float, float]:
    """Inches that rows, columns and words need, wide and high."""
    return len(src) * STEP / POINTS + _names(tgt), len(tgt) * STEP / POINTS + _names(src)


def _draw(
    ax: Axes,
    cells: Tensor,
    rows: list[Density] | None,
    src: Sequence[str],
    tgt: Sequence[str],
    title: str,
    largest: float,
    named: bool,
) -> None:
    """`named`: with the target words at the left."""
    import numpy as np

    style.quiet(ax, ("left", "right", "top", "bottom"))
    shown = np.ma.masked_equal(cells.numpy(), 0.0)
    # The smallest positive number has a colour, a zero has none.
    ax.imshow(shown, cmap=_colours(), vmin=0.0, vmax=largest, interpolation="nearest", aspect="auto", label="weights")
    letters, names = style.lettering(SMALL), [style.shorten(word) for word in src]
    lying = max(style.text_width(name, SMALL) for name in names) < STEP - 2  # as the letters of a word
    ax.set_xticks(range(len(src)), labels=names, rotation=0 if lying else 90, **letters)
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(tgt)), labels=[style.shorten(word) for word in tgt] if named else [], **letters)
    ax.tick_params(length=0, pad=3)
    ax.set_xticks([i + 0.5 for i in range(len(src) - 1)], minor=True)
    ax.set_yticks([i + 0.5 for i in range(len(tgt) - 1)], minor=True)
    ax.grid(which="minor", color=FAINT, linewidth=0.35)
    ax.tick_params(which="minor", length=0)
    ax.set(xlim=(-0.5, len(src) - 0.5), ylim=(len(tgt) - 0.5, -0.5))
    if rows is not None:
        _draw_rows(ax, rows, len(src))
    style.heading(ax, title, pad=6.0)


def _draw_rows(ax: Axes, rows: Sequence[Density], src: int) -> None:
    """Draw the mean as a line from row to row, the support as a bracket in each row."""
    from matplotlib.collections import LineCollection

    means = [float(row.mean) * src - 0.5 for row in rows]
    spans = []
    for number, row in enumerate(rows):
        for ends in intervals(row) or []:
            lower, upper = (end * src - 0.5 for end in ends)
            spans.append([(lower, number - 0.3), (lower, number + 0.3), (upper, number + 0.3), (upper, number - 0.3)])
    ax.add_collection(LineCollection(spans, colors=EDGE, linewidths=1.1, label="support"), autolim=False)
    ax.plot(means, range(len(rows)), color=EDGE, linewidth=1.1, marker="o", markersize=3.0, label="mean")
    ax.lines[-1].set_markeredgecolor("white")
    ax.lines[-1].set_markeredgewidth(0.6)


def _bar(figure: Figure, axes: Sequence[Axes], largest: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    scale = ScalarMappable(Normalize(0, largest), _colours())
    bar = figure.colorbar(scale, ax=list(axes), shrink=0.6, aspect=22, pad=0.015, ticks=MaxNLocator(4))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=GREY, labelfontfamily=style.families())
    bar.set_label("weight (blank: exactly 0)", **style.lettering(SIZE - 1, GREY))
