"""Which outputs a model holds possible: the tree of a search's hypotheses, and the symbols at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tsallis.analysis.outputs import TeacherForcedStep
from tsallis.analysis.tree import BeamTree, Edge
from tsallis.analysis.words import WORD_START
from tsallis.report import style
from tsallis.report.style import FAINT, GREY, INK, POINTS, SMALL, WIDTH
from tsallis.symbols import EOS, SPECIALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, GAP, MARGIN = 26.0, 20.0, 6.0  # points from leaf to leaf of a tree, from a word to its branches, around
CELL, PAD = 13.0, 5.0  # points of a word's height, and beside it
HEADS = 4.0  # points between bands of steps
IMPOSSIBLE = style.DENSITY  # of a target that is impossible


def output_tree(tree: BeamTree, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Draw the hypotheses of a search as a tree, with the probability of each branch (Peters et al. 2019, fig. 1).

    Symbols without a choice between them share a branch; the most probable branch is at the top, and behind each output
    stands its probability.

    Args:
        tree: the result of :func:`tsallis.analysis.beam_tree`.
        title: above, at the left.
        ax: to draw in; by default a figure of its own, as large as the tree needs.

    Returns:
        The axes.

    Raises:
        ValueError: a tree without hypotheses.

    Example:
        >>> from tsallis.analysis import BeamTree, Edge
        >>> edges = Edge(0, 1, "a", -0.5, -0.5, False), Edge(1, 2, "</s>", 0.0, -0.5, True)
        >>> [text.get_text() for text in output_tree(BeamTree(edges, 0.607, "bounded", -2.0)).texts]
        ['a', '.607', '= .607']
    """
    if not tree.edges:
        raise ValueError("there is nothing to draw: the tree has no hypothesis")
    plan = _TreePlan(tree)
    ax = _canvas(plan.right + MARGIN, plan.rows * LINE + 2 * MARGIN, title, ax)
    for (x, y), (to_x, to_y) in plan.branches:
        _curve(ax, x, y, to_x, to_y)
    for x, y, word, prob, output in plan.words:
        ax.text(x, y, word, va="center", **style.lettering(SMALL + 1))
        ax.text(x, y - 9.5, prob, va="center", **style.lettering(SMALL - 1.5, GREY))
        if output:
            width = style.text_width(word, SMALL + 1)
            ax.text(x + width + 8, y, f"= {output}", va="center", **style.lettering(SMALL, GREY))
    ax.plot([MARGIN], [plan.root], marker="o", markersize=3, color=GREY)
    return ax


def output_steps(
    steps: Sequence[TeacherForcedStep], *, words: int = 5, title: str = "", ax: Axes | None = None
) -> Axes:
    """Draw the symbols that a model holds possible at each step of a target (Peters et al. 2019, fig. 2).

    A step is a column: the darker a symbol, the more probable. The target's own has an outline; where it is impossible,
    it stands last, in red. Below stands how many more are possible. All others have probability zero.

    Args:
        steps: of one target, as :func:`tsallis.analysis.teacher_forced_supports` yields them.
        words: of a step, at most.
        title: above, at the left.
        ax: to draw in; by default a figure of its own, as large as the steps need.

    Returns:
        The axes.

    Raises:
        ValueError: no steps, or no words of them.

    Example:
        >>> from tsallis.analysis import TeacherForcedStep
        >>> sure = TeacherForcedStep("▁a", 1.0, 1, (("▁a", 1.0),))
        >>> wrong = TeacherForcedStep("s", 0.0, 7, (("b", 0.75), ("c", 0.125)))
        >>> [text.get_text() for text in output_steps([sure, wrong], words=2).texts]
        ['a', 'b', 'c', 's', '5 more']
    """
    if not steps or words < 1:
        raise ValueError(f"there is nothing to draw: {len(steps)} steps, {words} words of each")
    columns = [_column(step, words) for step in steps]
    bands = _bands([max(style.text_width(text, SMALL) + 2 * PAD for text, *_ in column) for column in columns])
    height = 0.0
    places = []
    for band in bands:
        places += [(number, x, width, height) for number, x, width in band]
        height += max(len(columns[number]) for number, *_ in band) * CELL + HEADS
    width = max(x + wide for _, x, wide, _ in places)
    ax = _canvas(width + 2 * MARGIN, height + 2 * MARGIN, title, ax)
    for number, x, wide, top in places:
        for row, cell in enumerate(columns[number]):
            _draw_cell(ax, (x + MARGIN, top + MARGIN + row * CELL, wide), *cell)
    return ax


class _TreePlan:
    """The places of a tree's words and branches, in points; y goes down."""

    def __init__(self, tree: BeamTree) -> None:
        self.words: list[tuple[float, float, str, str, str]] = []  # x, y, word, its probability, that of an output
        self.branches: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self.rows, self.right, self._tree = 0, 0.0, tree
        self.root = self._fork(MARGIN, tree.children(0))

    def _fork(self, x: float, edges: Sequence[Edge]) -> float:
        """Place branches from a point; return its height."""
        heights = [self._branch(edge, x + GAP) for edge in edges]
        middle = (heights[0] + heights[-1]) / 2
        self.branches += [((x, middle), (x + GAP - 3, height)) for height in heights]
        return middle

    def _branch(self, edge: Edge, x: float) -> float:
        chain, following = self._tree.chain(edge)
        last = chain[-1]
        word = style.shorten("".join(_spell(step.symbol) for step in chain if not step.end).strip() or "(end)", 60)
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


def _column(step: TeacherForcedStep, words: int) -> list[tuple[str, float | None, bool]]:
    """Return the cells of a step: text, probability (None for a note), and whether it is the target."""
    shown = list(step.words[:words])
    if step.prob > 0 and step.gold not in [word for word, _ in shown]:
        shown[-1] = (step.gold, step.prob)
    cells: list[tuple[str, float | None, bool]] = [(_name(word), prob, word == step.gold) for word, prob in shown]
    if step.prob == 0:
        cells.append((_name(step.gold), 0.0, True))
    if step.support > len(shown):
        cells.append((f"{step.support - len(shown):,} more", None, False))
    return cells


def _name(symbol: str) -> str:
    return "(end)" if symbol == SPECIALS[EOS] else style.shorten(_spell(symbol).strip() or WORD_START)


def _bands(widths: Sequence[float]) -> list[list[tuple[int, float, float]]]:
    """Return bands of columns that are as wide as a figure at most: number, place and width of each column."""
    bands: list[list[tuple[int, float, float]]] = [[]]
    x = 0.0
    for number, width in enumerate(widths):
        if bands[-1] and x + width > WIDTH * POINTS - 2 * MARGIN:
            bands.append([])
            x = 0.0
        bands[-1].append((number, x, width))
        x += width
    return bands


def _draw_cell(ax: Axes, place: tuple[float, float, float], text: str, prob: float | None, target: bool) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    x, y, width = place
    missed = target and prob == 0
    if prob is not None:
        shade = [1 - 0.75 * min(prob, 1.0) * (1 - part) for part in to_rgb(style.WEIGHTS)]
        edge, line = (IMPOSSIBLE if missed else INK, 1.0) if target else (FAINT, 0.5)
        inner = x + 1, y + 1
        ax.add_patch(Rectangle(inner, width - 2, CELL - 2, facecolor=shade, edgecolor=edge, linewidth=line))
    letters = style.lettering(SMALL if prob is not None else SMALL - 1.5, GREY if prob is None else INK)
    ax.text(x + width / 2, y + CELL / 2, text, ha="center", va="center_baseline", **letters)


def _canvas(width: float, height: float, title: str, ax: Axes | None) -> Axes:
    """Return axes in points without a frame, y going down."""
    if ax is None:
        ax = style.blank(width / POINTS, height / POINTS + (0.25 if title else 0.0)).add_subplot()
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[])
    style.quiet(ax)
    style.heading(ax, title)
    return ax


def _curve(ax: Axes, x: float, y: float, to_x: float, to_y: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    middle = (x + to_x) / 2
    codes: Any = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    path = Path([(x, y), (middle, y), (middle, to_y), (to_x, to_y)], codes)
    ax.add_patch(PathPatch(path, facecolor="none", edgecolor=FAINT, linewidth=0.9))
