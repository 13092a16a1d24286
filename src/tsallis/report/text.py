"""Attention to the words of a text: bars of weights, curves of densities, and where either is above zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.analysis.shapes import Index, curve, intervals, one_of
from tsallis.continuous import Density
from tsallis.report import style, text_page
from tsallis.report.annotations import note, tallest, underline
from tsallis.report.style import DENSITY, FAINT, GREY, INK, POINTS, SMALL, WEIGHTS, WIDTH
from tsallis.report.views import View, check_weights, check_words, word_masses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONG = 48  # words from which on a text is set as a page
PITCH = 11.0  # points from one upright word to the next
ALIKE = 5.0  # how far apart values are that still share a scale
ROOM = 1.2  # inches of a panel, without the words


def text_attention(
    words: Sequence[str],
    weights: Any = None,
    density: Density | None = None,
    *,
    index: Index = (),
    title: str = "",
    layout: str = "auto",
    ax: Axes | None = None,
) -> Axes:
    r"""Draw words along the line from 0 to 1 with discrete weights as bars, a density as a curve, or both.

    Each of n words has a cell of width 1/n, over which the curve shows :math:`p(t)/n`: attention a word, on the scale
    of the weights. A thick line under the axis marks the words with a weight above zero, or the support of the density
    with its ends; it is dashed where the support is unbounded, as that of the Gaussian. Words without any weight or
    mass are grey. With `layout` "page" the cells are as wide as their words and run on in lines, with a step for the
    density's mass in each.

    Args:
        words: of the text; long ones are shortened.
        weights: [words]
        density: on the line from 0 to 1, such as :class:`tsallis.continuous.TruncatedParabola`; mixtures too.
        index: which density of a batch.
        title: above, at the left.
        layout: "line", "page" or "auto": a page for 48 words or more. On a line too short for all words, only those of
            the largest weights are written.
        ax: to draw in; by default a figure of its own, 8 inches wide.

    Returns:
        The axes; on a page their `child_axes` are the lines of text.

    Raises:
        ValueError: weights that are negative or not as many as words, a density that is not on the line, an index that
            names none, or neither weights nor density.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola(torch.tensor(0.4), torch.tensor(0.01))
        >>> ax = text_attention("the lamp is on the table".split(), density=density, title="sparsemax")
        >>> ax.get_title("left"), ax.get_title("right")
        ('sparsemax', 'support: 0.18 to 0.62, 3 of 6 words')
    """
    words, view = check_words(words), View(title, weights, density, index)
    _check(words, [view])
    if _as_page(layout, len(words), 1):
        return text_page.draw(words, view, ax)
    style.require()
    own = ax is None
    shown = _labels(words, [view], style.points_wide(ax) if ax is not None else _inside(WIDTH))
    if ax is None:
        ax = style.blank(WIDTH, ROOM + shown.height).add_subplot()
    _panel(ax, len(words), view)
    _write(ax, shown)
    if own:
        ax.set_ylabel("weight", **style.lettering(SMALL, GREY))
    return ax


def text_panels(
    words: Sequence[str],
    views: Sequence[View],
    *,
    columns: int | None = None,
    layout: str = "line",
    same_scale: bool | None = None,
    width: float = WIDTH,
) -> Figure:
    """Draw several attentions to the same words, one above the other over one row of words.

    Args:
        words: of the text.
        views: discrete softmax, continuous sparsemax, and so on.
        columns: panels beside each other; by default one, of pages two.
        layout: "line", or "page" for texts to be read, see :func:`text_attention`.
        same_scale: one scale for all panels; by default where the largest values are less than five times apart.
        width: in inches.

    Returns:
        The figure.

    Raises:
        ValueError: as for :func:`text_attention`, or no views.

    Example:
        >>> views = [View("softmax", [0.2, 0.5, 0.3]), View("sparsemax", [0.0, 0.8, 0.2])]
        >>> figure = text_panels(["a", "small", "test"], views)
        >>> [ax.get_title("right") for ax in figure.axes]
        ['weights: 3 of 3 words', 'weights: 2 of 3 words']
    """
    words, views = check_words(words), list(views)
    if not views:
        raise ValueError("there is nothing to draw: views is empty")
    _check(words, views)
    if _as_page(layout, len(words), len(views)):
        return text_page.draw_all(words, views, min(len(views), 2) if columns is None else columns, width)
    count = max(1, min(columns or 1, len(views)))
    rows = -(-len(views) // count)
    shown = _labels(words, views, _inside(width) / count)
    figure = style.blank(width, rows * ROOM + shown.height)
    tops = [tallest(len(words), view) for view in views]
    if same_scale or (same_scale is None and max(tops) < ALIKE * min(tops)):
        tops = [max(tops)] * len(tops)
    for number, view in enumerate(views):
        ax = figure.add_subplot(rows, count, number + 1)
        _panel(ax, len(words), view, tops[number])
        if number + count >= len(views):  # nothing below
            _write(ax, shown)
        if not number % count:
            ax.set_ylabel("weight", **style.lettering(SMALL, GREY))
    return figure


def _check(words: Sequence[str], views: Sequence[View]) -> None:
    for view in views:
        if view.weights is None and view.density is None:
            raise ValueError(f"there is nothing to draw in {view.title!r}: give weights, a density or both")
        if view.weights is not None:
            check_weights(view.weights, (len(words),), "word")
        if view.density is not None:
            one_of(view.density, view.index, 1)


def _as_page(layout: str, words: int, views: int) -> bool:
    if layout not in ("auto", "line", "page"):
        raise ValueError(f"layout must be 'auto', 'line' or 'page', got {layout!r}")
    return layout == "page" or (layout == "auto" and words >= LONG and views == 1)


def _inside(width: float) -> float:
    """Return points that are left for the axes of a figure of so many inches."""
    return (width - 0.75) * POINTS


def _panel(ax: Axes, count: int, view: View, top: float | None = None) -> None:
    """Draw bars and curve with what is above zero, without the words."""
    from matplotlib.ticker import MaxNLocator

    style.quiet(ax, ("bottom",))
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.05 * (top or tallest(count, view)))
    ax.set_xticks([])
    ax.yaxis.set_major_locator(MaxNLocator(3, min_n_ticks=2))
    ax.grid(axis="y", color=FAINT, linewidth=0.4)
    ax.set_axisbelow(True)
    both = view.weights is not None and view.density is not None
    if view.weights is not None:
        _draw_weights(ax, check_weights(view.weights, (count,), "word"))
    if view.density is not None:
        _draw_density(ax, one_of(view.density, view.index, 1), count, 7.0 if both else 3.0)
    style.heading(ax, view.title, note(view, count))


def _draw_weights(ax: Axes, weights: Tensor) -> None:
    """Draw a bar, and a mark under the axis however small it is, for each word with a weight; none for a zero."""
    count = len(weights)
    there = weights.nonzero().flatten()
    if not len(there):
        return
    centres = (there + 0.5) / count
    ax.bar(
        centres.tolist(),
        weights[there].tolist(),
        width=0.7 / count,
        color=WEIGHTS,
        alpha=0.85,
        zorder=2.4,
        label="weights",
    )
    if count < LONG:
        ends = [((int(i) + 0.1) / count, (int(i) + 0.9) / count) for i in there]
    else:  # gaps between neighbours would be narrower than a pixel
        ends = [(a / count, b / count) for a, b in _runs(there.tolist())]
    underline(ax, ends, 3.0, WEIGHTS, label="weights above zero")


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers together, each run by its first and the one behind its last."""
    runs: list[tuple[int, int]] = []
    for i in places:
        if runs and runs[-1][1] == i:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def _draw_density(ax: Axes, density: Density, count: int, drop: float) -> None:
    t, p = curve(density)
    ends = intervals(density)
    y = p / count
    if ends is not None:  # no line where there is nothing
        y = torch.where(_inside_of(t, ends), y, torch.nan)
    ax.fill_between(t.tolist(), y.tolist(), color=DENSITY, alpha=0.18, linewidth=0, zorder=2.2)
    ax.plot(t.tolist(), y.tolist(), color=DENSITY, linewidth=1.4, zorder=2.6, label="density")
    if ends is None:
        underline(ax, [(0.0, 1.0)], drop, DENSITY, dashed=True, label="support without an end")
        return
    underline(ax, [(max(lower, 0), min(upper, 1)) for lower, upper in ends], drop, DENSITY, label="support")
    for lower, upper in ends:
        ax.axvspan(max(lower, 0), min(upper, 1), color=DENSITY, alpha=0.07, linewidth=0, label="support")
        for end in (lower, upper):
            if 0 <= end <= 1:
                ax.axvline(end, color=DENSITY, linewidth=0.8, linestyle=(0, (2, 2)), label="end of the support")


def _inside_of(t: Tensor, spans: Sequence[tuple[float, float]]) -> Tensor:
    """Tell which positions are in one of some closed intervals."""
    inside = torch.zeros_like(t, dtype=torch.bool)
    for lower, upper in spans:
        inside |= (t >= lower) & (t <= upper)
    return inside


class _Labels:
    """Words under a line: which of them, how they are turned, and the height they take."""

    def __init__(self, words: Sequence[str], reached: Tensor, chosen: Sequence[int], angle: int) -> None:
        self.items = [(i, style.shorten(words[i]), bool(reached[i])) for i in chosen]
        self.count, self.angle = len(words), angle
        longest = max(style.text_width(text, SMALL) for _, text, _ in self.items)
        slope = {0: 0.0, 45: 0.72, 90: 1.0}[angle]
        self.height = (longest * slope + 14) / POINTS  # inches


def _labels(words: Sequence[str], views: Sequence[View], width: float) -> _Labels:
    """Label as many words as fit in the width: horizontal, slanted, upright, or else those with the most mass."""
    count = len(words)
    masses = torch.stack([word_masses(view, count) for view in views]).amax(0)
    cell = width / count
    everything = range(count)
    if max(style.text_width(style.shorten(word), SMALL) for word in words) <= cell - 3:
        return _Labels(words, masses > 0, everything, 0)
    if cell >= PITCH:
        return _Labels(words, masses > 0, everything, 45 if cell >= 1.6 * PITCH else 90)
    chosen: list[int] = []
    for i in masses.argsort(descending=True, stable=True).tolist():
        if masses[i] > 0 and all(abs(i - j) * cell >= PITCH for j in chosen):
            chosen.append(i)
    return _Labels(words, masses > 0, sorted(chosen) or [0], 90)


def _write(ax: Axes, labels: _Labels) -> None:
    flat = labels.angle == 0
    for i, text, reached in labels.items:
        ax.annotate(
            text,
            ((i + 0.5) / labels.count, 0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(0, -18) if flat else (3 if labels.angle == 45 else 0, -11),
            textcoords="offset points",
            rotation=labels.angle,
            rotation_mode="anchor" if labels.angle == 45 else "default",
            ha="center" if labels.angle != 45 else "right",
            va={0: "baseline", 45: "center_baseline", 90: "top"}[labels.angle],
            annotation_clip=False,
            **style.lettering(SMALL if not flat else style.SIZE - 0.5, INK if reached else GREY),
        )
