"""Trees of outputs and steps of targets, read from the words and boxes that were drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("matplotlib")
from matplotlib.patches import PathPatch, Rectangle

from tsallis.analysis import BeamTree, Edge, TeacherForcedStep
from tsallis.report import output_steps, output_tree, style


def edge(parent: int, node: int, symbol: str, prob: float, total: float, end: bool = False) -> Edge:
    return Edge(parent, node, symbol, math.log(prob), math.log(total), end)


# "in" is certain, then "to" or "side", and "side" is an output as it stands, or goes on with "s".
TREE = BeamTree(
    (
        edge(0, 1, "▁in", 1.0, 1.0),
        edge(1, 2, "side", 0.25, 0.25),
        edge(1, 3, "to", 0.75, 0.75),
        edge(3, 4, "</s>", 1.0, 0.75, True),
        edge(2, 5, "</s>", 0.4, 0.1, True),
        edge(2, 6, "▁s", 0.6, 0.15),
        edge(6, 7, "</s>", 1.0, 0.15, True),
    ),
    1.0,
    "complete",
    None,
)
STEPS = (
    TeacherForcedStep("▁a", 1.0, 1, (("▁a", 1.0),)),
    TeacherForcedStep("cd", 0.125, 9, (("x", 0.5), ("y", 0.25), ("cd", 0.125), ("z", 0.0625))),
    TeacherForcedStep("</s>", 0.0, 1, (("b", 1.0),)),
)


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def boxes(ax: Any) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def inside(ax: Any) -> bool:
    """Whether every word is within the figure, by its rendered size."""
    figure = style.whole(ax)
    figure.canvas.draw()
    page = figure.bbox
    extents = [text.get_window_extent() for text in ax.texts]
    return all(e.x0 >= 0 and e.y0 >= 0 and e.x1 <= page.x1 and e.y1 <= page.y1 for e in extents)


def test_a_tree_joins_what_has_no_choice_and_ends_in_probabilities() -> None:
    ax = output_tree(TREE, title="inward")
    places = {text.get_text(): text.get_position() for text in ax.texts}
    assert set(texts(ax)) == {"in", "1", "to", ".750", "= .750", "side", ".250", "(end)", ".400", "= .100"} | {
        "s",
        ".600",
        "= .150",
    }
    assert places["in"][0] < places["to"][0] == places["side"][0] < places["(end)"][0] == places["s"][0]
    heights = [places[word][1] for word in ("to", "s", "(end)")]
    assert heights == sorted(heights)  # the most probable at the top, y goes down
    assert places["side"][1] == pytest.approx(sum(heights[1:]) / 2)
    assert len([patch for patch in ax.patches if isinstance(patch, PathPatch)]) == 5
    assert ax.get_title("left") == "inward" and inside(ax)


def test_steps_are_columns_with_the_target_marked() -> None:
    ax = output_steps(STEPS, words=2)
    assert texts(ax) == ["a", "x", "cd", "7 more", "b", "(end)"]  # the target has a place, however many are before it
    marked = [box for box in boxes(ax) if box.get_linewidth() == 1.0]
    assert len(marked) == 3 and len({box.get_x() for box in marked}) == 3
    assert [box.get_edgecolor()[0] > 0.5 for box in marked] == [False, False, True]
    shades = [sum(box.get_facecolor()[:3]) for box in boxes(ax)]
    assert shades[0] == shades[3] < shades[1] < shades[2] < shades[4] == pytest.approx(3.0)
    assert inside(ax)


def test_long_targets_go_on_below() -> None:
    steps = [TeacherForcedStep(f"word{i}", 1.0, 1, ((f"word{i}", 1.0),)) for i in range(40)]
    ax = output_steps(steps)
    rows = {text.get_position()[1] for text in ax.texts}
    assert 2 <= len(rows) <= 6 and texts(ax) == [f"word{i}" for i in range(40)]
    assert style.whole(ax).get_size_inches()[0] <= style.WIDTH and inside(ax)


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="the tree has no hypothesis"):
        output_tree(BeamTree((), 0.0, "none", None))
    for steps, words in (((), 5), (STEPS, 0)):
        with pytest.raises(ValueError, match=f"{len(steps)} steps, {words} words"):
            output_steps(steps, words=words)
