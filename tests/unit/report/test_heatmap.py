"""The layout of figures of alignments, as it is rendered: nothing is cut, and no text lies on another."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from tsallis import report
from tsallis.continuous import TruncatedParabola
from tsallis.report import View, style

WORDS = [
    "▁am",
    "▁Sonntag",
    ",",
    "▁dem",
    "▁sieben",
    "undzwanzigsten",
    "▁S",
    "epte",
    "mber",
    "▁Mai",
    "▁",
    "日本語",
    "▁$x$",
]
MEAN = "Attention to the source: mean of 4 heads of decoder layer 2 of 2"


def words(count: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(count)]


def weights(tgt: int, src: int) -> torch.Tensor:
    return torch.rand(tgt, src, generator=torch.Generator().manual_seed(0)).softmax(-1)


def heads(kind: str, layers: int, count: int) -> list[str]:
    return [f"{kind} layer {n + 1} head {m + 1}, alpha 1.{n}{m}" for n in range(layers) for m in range(count)]


def texts(figure: Any) -> list[Any]:
    """Return every text of a figure that is not empty."""
    every = []
    for ax in figure.axes:
        every += [ax.title, ax._left_title, *ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label]
    return [text for text in every if text.get_text().strip() and text.get_visible()]


def check_layout(figure: Any) -> None:
    """Check that texts and panels lie within the figure and beside each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    boxes += [(f"panel {n}", ax.get_window_extent()) for n, ax in enumerate(figure.axes)]
    for name, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, f"{name!r} is cut"
    for (name, a), (other, b) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, f"{name!r} lies on {other!r}"


def titles(figure: Any) -> list[str]:
    return [" ".join(ax.get_title("left").split()) for ax in figure.axes if ax.images]


@pytest.mark.parametrize("title", ["", "Attention to the source", MEAN])
@pytest.mark.parametrize(("tgt", "src"), [(1, 1), (3, 2), (9, 14), (2, 40), (40, 40)])
def test_a_matrix_is_as_large_as_its_words_and_its_title(tgt: int, src: int, title: str) -> None:
    figure = style.whole(report.attention_matrix(weights(tgt, src), words(src), words(tgt), title=title))
    check_layout(figure)
    assert titles(figure) == [title]


@pytest.mark.parametrize(
    ("names", "tgt", "src"),
    [
        (heads("cross", 2, 4), 3, 2),
        (heads("encoder", 3, 4), 1, 1),
        (heads("decoder", 3, 4), 9, 14),
        (heads("cross", 3, 4), 12, 40),
        (heads("cross", 1, 1), 3, 2),
        (["softmax", "sparsemax", "1.5-entmax"], 7, 70),
        ([MEAN, "", "a"], 4, 5),
    ],
)
def test_panels_are_told_apart_by_their_titles(names: list[str], tgt: int, src: int) -> None:
    figure = report.matrix_panels([View(name, weights(tgt, src)) for name in names], words(src), words(tgt))
    check_layout(figure)
    assert titles(figure) == names


@pytest.mark.parametrize("columns", [1, 3, 12])
@pytest.mark.parametrize("width", [3.3, 8.0])
def test_panels_have_room_in_as_many_columns_as_are_asked_for(columns: int, width: float) -> None:
    views = [View(name, weights(4, 6)) for name in heads("encoder", 3, 4)]
    figure = report.matrix_panels(views, words(6), words(4), columns=columns, width=width)
    check_layout(figure)
    first = [ax.get_position().x0 for ax in figure.axes[:-1]]
    assert len({round(x, 6) for x in first}) == columns
    assert columns > 1 or figure.get_size_inches()[0] <= width


def test_rows_of_panels_are_equally_long() -> None:
    """Four heads of each layer below each other, though a fifth panel would fit."""
    figure = report.matrix_panels([View(name, weights(3, 2)) for name in heads("cross", 3, 4)], words(2), words(3))
    bottoms = [round(ax.get_position().y0, 6) for ax in figure.axes[:-1]]
    assert [bottoms.count(bottom) for bottom in dict.fromkeys(bottoms)] == [4, 4, 4]


def test_densities_are_laid_out_as_weights_are() -> None:
    rows = TruncatedParabola(torch.linspace(0.1, 0.9, 4), torch.tensor(0.01))
    check_layout(style.whole(report.attention_matrix(None, words(5), words(4), density=rows, title=MEAN)))
    check_layout(report.matrix_panels([View("a", density=rows), View("b", weights(4, 5))], words(5), words(4)))


def test_a_title_is_broken_between_words_but_not_before_a_number() -> None:
    assert style.title_lines("cross layer 1 head 2, alpha 1.5", 100) == "cross layer 1\nhead 2, alpha 1.5"
    assert style.title_lines("cross layer 1 head 2, alpha 1.5", 1000) == "cross layer 1 head 2, alpha 1.5"
    assert style.title_lines("", 100) == ""
    top, cut = style.title_lines(f"a {'b' * 100}", 100).split("\n")
    assert top == "a" and cut.endswith("bb…") and style.text_width(cut, style.HEADING) <= 101


def test_in_axes_of_a_figure_a_title_is_broken_at_their_width() -> None:
    figure = style.blank(6.0, 3.0)
    axes = [figure.add_subplot(1, 2, number + 1) for number in range(2)]
    for ax in axes:
        report.attention_matrix(weights(4, 5), words(5), words(4), title=MEAN, ax=ax)
    check_layout(figure)
    assert titles(figure) == [MEAN, MEAN] and len(figure.axes) == 2  # the scale is theirs who make the figure


def test_the_mark_of_a_word_is_left_out_and_alone_it_stays() -> None:
    ax = report.attention_matrix(weights(2, 3), ["▁low", "er", "▁"], ["▁", "▁▁a"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["low", "er", "▁"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["▁", "▁a"]


@pytest.mark.parametrize("several", [False, True])
def test_a_scale_says_what_the_colours_are(several: bool) -> None:
    matrix = weights(3, 4)
    ax = report.attention_matrix(matrix, words(4), words(3), largest=0.8)
    figure = style.whole(ax)
    if several:
        matrix[0, 0] = 0.8
        figure = report.matrix_panels([View("a", matrix), View("b", matrix / 2)], words(4), words(3))
    *panels, scale = figure.axes
    assert scale.get_xlim() == pytest.approx((0, 0.8)) and scale.get_xlabel() == "weight (blank: exactly 0)"
    assert all(panel.images[0].get_clim() == pytest.approx((0, 0.8)) for panel in panels)
