"""Draw the hypotheses of a search as a tree, and the possible symbols at each step of a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import style
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from style import FAINT, GREY, INK, POINTS, SMALL

from tsallis.analysis import BeamTree, Edge, TeacherForcedStep
from tsallis.analysis.words import WORD_START
from tsallis.symbols import EOS, SPECIALS

LINE, GAP, MARGIN = 26.0, 20.0, 6.0  # in points: height of a leaf, length of a branch, margin of the figure
CELL, PAD, HEADS = 13.0, 5.0, 4.0  # in points: height of a word, space beside it, space between rows of steps
MOST_WORDS = 5  # shown per step


def output_tree(tree: BeamTree) -> Any:
    """Draw the hypotheses of a search as a tree, with the probability of each branch (Peters et al. 2019, fig. 1).

    Consecutive symbols without an alternative share a branch. The most probable branch is at the top. Each output is
    followed by its probability.
    """
    plan = _TreePlan(tree)
    ax = _canvas(plan.right + MARGIN, plan.rows * LINE + 2 * MARGIN)
    for (x, y), (to_x, to_y) in plan.branches:
        middle = (x + to_x) / 2
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        path = Path([(x, y), (middle, y), (middle, to_y), (to_x, to_y)], codes)
        ax.add_patch(PathPatch(path, facecolor="none", edgecolor=FAINT, linewidth=0.9))
    for x, y, word, prob, output in plan.words:
        ax.text(x, y, word, va="center", **style.lettering(SMALL + 1))
        ax.text(x, y - 9.5, prob, va="center", **style.lettering(SMALL - 1.5, GREY))
        if output:
            width = style.text_width(word, SMALL + 1)
            ax.text(x + width + 8, y, f"= {output}", va="center", **style.lettering(SMALL, GREY))
    ax.plot([MARGIN], [plan.root], marker="o", markersize=3, color=GREY)
    return ax.figure


def output_steps(steps: Sequence[TeacherForcedStep]) -> Any:
    """Draw the symbols with non-zero probability at each step of a target (Peters et al. 2019, fig. 2).

    Each step is a column; darker symbols are more probable. The target's symbol has an outline. If its probability is
    zero, it comes last and has a red outline. A note counts the possible symbols that are not shown.
    """
    columns = [_column(step) for step in steps]
    x, top, places, band = 0.0, 0.0, [], 0
    for column in columns:
        width = max(style.text_width(text, SMALL) + 2 * PAD for text, *_ in column)
        if x and x + width > style.WIDTH * POINTS - 2 * MARGIN:
            x, top, band = 0.0, top + band * CELL + HEADS, 0
        places.append((x, top, width))
        x, band = x + width, max(band, len(column))
    ax = _canvas(max(x + width for x, _, width in places) + 2 * MARGIN, top + band * CELL + HEADS + 2 * MARGIN)
    for column, (x, top, width) in zip(columns, places, strict=True):
        for row, cell in enumerate(column):
            _draw_cell(ax, (x + MARGIN, top + MARGIN + row * CELL, width), *cell)
    return ax.figure


class _TreePlan:
    """The positions of a tree's words and branches, in points; y grows downwards."""

    def __init__(self, tree: BeamTree) -> None:
        self.words: list[tuple[float, float, str, str, str]] = []  # x, y, word, its probability, that of the output
        self.branches: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self.rows, self.right, self._tree = 0, 0.0, tree
        self.root = self._fork(MARGIN, tree.children(0))

    def _fork(self, x: float, edges: Sequence[Edge]) -> float:
        """Place the branches that start at x; return the y of their common start."""
        heights = [self._branch(edge, x + GAP) for edge in edges]
        middle = (heights[0] + heights[-1]) / 2
        self.branches += [((x, middle), (x + GAP - 3, height)) for height in heights]
        return middle

    def _branch(self, edge: Edge, x: float) -> float:
        chain, following = self._tree.chain(edge)
        last = chain[-1]
        word = "".join(_spell(step.symbol) for step in chain if not step.end).strip() or "(end)"
        prob = _probability(math.exp(sum(step.log_prob for step in chain)))
        width = max(style.text_width(word, SMALL + 1), style.text_width(prob, SMALL - 1.5))
        output = _probability(math.exp(last.total)) if last.end else ""
        if following:
            y = self._fork(x + width + 3, following)
        else:
            y = self.rows * LINE + LINE / 2 + MARGIN
            self.rows += 1
        self.words.append((x, y, word, prob, output))
        self.right = max(self.right, x + width + (12 + style.text_width(f"= {output}", SMALL) if output else 0.0))
        return y


def _spell(symbol: str) -> str:
    return f" {symbol[1:]}" if symbol.startswith(WORD_START) else symbol


def _probability(value: float) -> str:
    if value >= 0.9995:
        return "1" if value >= 0.999995 else ">.999"
    return f"{value:.0e}" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _column(step: TeacherForcedStep) -> list[tuple[str, float | None, bool]]:
    """Return the cells of a step: text, probability (None for a note), and whether it is the target."""
    shown = list(step.words[:MOST_WORDS])
    if step.prob > 0 and step.gold not in [word for word, _ in shown]:
        shown[-1] = (step.gold, step.prob)
    cells: list[tuple[str, float | None, bool]] = [(_name(word), prob, word == step.gold) for word, prob in shown]
    if step.prob == 0:
        cells.append((_name(step.gold), 0.0, True))
    if step.support > len(shown):
        cells.append((f"{step.support - len(shown):,} more", None, False))
    return cells


def _name(symbol: str) -> str:
    return "(end)" if symbol == SPECIALS[EOS] else _spell(symbol).strip() or WORD_START


def _draw_cell(ax: Axes, place: tuple[float, float, float], text: str, prob: float | None, target: bool) -> None:
    x, y, width = place
    if prob is not None:
        shade = [1 - 0.75 * min(prob, 1.0) * (1 - part) for part in to_rgb(style.WEIGHTS)]
        edge, line = (style.DENSITY if prob == 0 else INK, 1.0) if target else (FAINT, 0.5)
        inner = x + 1, y + 1
        ax.add_patch(Rectangle(inner, width - 2, CELL - 2, facecolor=shade, edgecolor=edge, linewidth=line))
    letters = style.lettering(SMALL if prob is not None else SMALL - 1.5, GREY if prob is None else INK)
    ax.text(x + width / 2, y + CELL / 2, text, ha="center", va="center_baseline", **letters)


def _canvas(width: float, height: float) -> Axes:
    """Return axes without a frame, in points; y grows downwards."""
    ax = style.blank(width / POINTS, height / POINTS).add_subplot()
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[])
    style.quiet(ax)
    return ax
