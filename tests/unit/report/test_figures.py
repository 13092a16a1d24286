"""Figures of attention, read from what was drawn: bars, curves, ellipses and words, not pixels."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from tsallis.continuous import (
    BetaGaussian,
    Gaussian,
    Laplace,
    Mixture,
    TruncatedParabola,
    TruncatedParaboloid,
    cell_masses,
)
from tsallis.errors import InputError
from tsallis.models import BiLSTMClassifier

pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection
from matplotlib.patches import Polygon

from tsallis import report
from tsallis.analysis import shapes
from tsallis.report import View, style, text_page

WORDS = ["the", "lamp", "that", "stood", "in", "the", "corner"]
WEIGHTS = torch.tensor([0.5, 0.0, 1e-9, 0.25, 0.0, 0.0, 0.25])
PARABOLA = TruncatedParabola(torch.tensor(0.4), torch.tensor(0.01))
HALF = math.sqrt(5) * 0.1  # of its support
COV = torch.tensor([[0.02, 0.008], [0.008, 0.012]])
PARABOLOID = TruncatedParaboloid(torch.tensor([0.6, 0.4]), COV)
MIXTURE = Mixture(torch.tensor([0.4, 0.6, 0.0]), TruncatedParabola(torch.tensor([0.2, 0.8, 0.5]), torch.tensor(1e-3)))


def lines(ax: Any, label: str) -> list[Any]:
    return [line for line in ax.lines if line.get_label() == label]


def segments(ax: Any, label: str) -> list[list[list[float]]]:
    return [
        segment.tolist()
        for collection in ax.collections
        if isinstance(collection, LineCollection) and collection.get_label() == label
        for segment in collection.get_segments()
    ]


def spans(ax: Any, label: str) -> list[tuple[float, float]]:
    return [(a[0], b[0]) for a, b in segments(ax, label)]


def words_of(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_bars_are_the_weights_and_zeros_have_none() -> None:
    ax = report.text_attention(WORDS, WEIGHTS, title="sparsemax")
    bars = ax.containers[0]
    assert [bar.get_height() for bar in bars] == pytest.approx([0.5, 1e-9, 0.25, 0.25])
    centres = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert centres == pytest.approx([(i + 0.5) / 7 for i in (0, 2, 3, 6)])
    # However small a weight is, it is marked below the axis.
    marked = spans(ax, "weights above zero")
    assert [int(7 * (a + b) / 2) for a, b in marked] == [0, 2, 3, 6]
    assert words_of(ax) == WORDS
    colours = [text.get_color() for text in ax.texts]
    assert colours == [style.INK if w > 0 else style.GREY for w in WEIGHTS.tolist()]
    assert ax.get_title("right") == "weights: 4 of 7 words"


def test_no_bars_where_there_is_no_weight() -> None:
    ax = report.text_attention(["a", "b"], [0.0, 0.0])
    assert not ax.containers and not spans(ax, "weights above zero")


def test_the_curve_is_the_density_and_stops_at_the_ends_of_its_support() -> None:
    ax = report.text_attention(WORDS, density=PARABOLA)
    (line,) = lines(ax, "density")
    t, y = (torch.as_tensor(v, dtype=torch.float64) for v in (line.get_xdata(), line.get_ydata()))
    shown = ~y.isnan()
    torch.testing.assert_close(y[shown], PARABOLA.pdf(t[shown]).double() / 7, rtol=1e-5, atol=1e-6)
    assert float(t[shown].min()) == pytest.approx(0.4 - HALF) and float(t[shown].max()) == pytest.approx(0.4 + HALF)
    assert float(torch.trapezoid(y[shown], t[shown])) * 7 == pytest.approx(1, abs=1e-4)
    assert spans(ax, "support") == [pytest.approx((0.4 - HALF, 0.4 + HALF))]
    ends = [line.get_xdata()[0] for line in lines(ax, "end of the support")]
    assert ends == pytest.approx([0.4 - HALF, 0.4 + HALF])
    (shade,) = [patch for patch in ax.patches if patch.get_label() == "support"]
    assert shade.get_x() == pytest.approx(0.4 - HALF) and shade.get_width() == pytest.approx(2 * HALF)
    assert ax.get_title("right") == "support: 0.18 to 0.62, 4 of 7 words"
    inside = cell_masses(PARABOLA, torch.linspace(0, 1, 8)) > 0
    assert [text.get_color() == style.INK for text in ax.texts] == inside.tolist()


def test_a_support_that_goes_on_outside_the_text_has_one_end() -> None:
    ax = report.text_attention(WORDS, density=TruncatedParabola(torch.tensor(0.1), torch.tensor(0.01)))
    assert [line.get_xdata()[0] for line in lines(ax, "end of the support")] == pytest.approx([0.1 + HALF])
    assert spans(ax, "support") == [pytest.approx((0, 0.1 + HALF))]
    assert "-0.12 to 0.32" in ax.get_title("right")


@pytest.mark.parametrize(
    "density",
    [
        Gaussian(torch.tensor(0.4), torch.tensor(0.01)),
        Laplace(torch.tensor(0.4), torch.tensor(0.01)),
        BetaGaussian(torch.tensor(0.4), torch.tensor(0.01), alpha=torch.tensor(1.0)),
    ],
)
def test_a_density_without_an_end_says_so(density: Any) -> None:
    ax = report.text_attention(WORDS, density=density)
    assert spans(ax, "support without an end") == [(0.0, 1.0)]
    assert not lines(ax, "end of the support") and not spans(ax, "support")
    assert ax.get_title("right") == "support: no end"
    (line,) = lines(ax, "density")
    peak = max(zip(line.get_ydata(), line.get_xdata(), strict=True))
    assert peak == pytest.approx((float(density.pdf(torch.tensor(0.4))) / 7, 0.4), rel=1e-5)


def test_a_mixture_has_the_union_of_the_supports_of_what_it_mixes() -> None:
    half = math.sqrt(5e-3)
    ax = report.text_attention(WORDS, density=MIXTURE)
    target = [(0.2 - half, 0.2 + half), (0.8 - half, 0.8 + half)]  # the third has weight zero
    for result, expected in zip(spans(ax, "support"), target, strict=True):
        assert result == pytest.approx(expected, abs=1e-6)
    (line,) = lines(ax, "density")
    between = [y for t, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if 0.4 < t < 0.6]
    assert between and all(math.isnan(y) for y in between)
    overlapping = Mixture(
        torch.tensor([0.5, 0.5]),
        [TruncatedParabola(torch.tensor(m), torch.tensor(1e-3)) for m in (0.4, 0.5)],
    )
    ax = report.text_attention(WORDS, density=overlapping)
    assert spans(ax, "support") == [pytest.approx((0.4 - half, 0.5 + half), abs=1e-6)]


def test_one_density_of_a_batch() -> None:
    batch = TruncatedParabola(torch.tensor([[0.2, 0.5], [0.7, 0.8]]), torch.tensor(1e-3))
    ax = report.text_attention(WORDS, density=batch, index=(1, 0))
    assert sum(spans(ax, "support")[0]) / 2 == pytest.approx(0.7)
    heads = TruncatedParabola(torch.tensor([0.2, 0.5]).view(2, 1, 1), torch.tensor(1e-3))
    assert sum(spans(report.text_attention(WORDS, density=heads, index=1), "support")[0]) / 2 == pytest.approx(0.5)
    alphas = BetaGaussian(torch.tensor([0.2, 0.5]), torch.tensor(1e-3), alpha=torch.tensor([1.0, 2.0]))
    assert report.text_attention(WORDS, density=alphas, index=0).get_title("right") == "support: no end"
    ax = report.text_attention(WORDS, density=alphas, index=1)
    assert spans(ax, "support") == [pytest.approx((0.5 - math.sqrt(5e-3), 0.5 + math.sqrt(5e-3)))]
    mixtures = Mixture(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), batch)
    assert sum(spans(report.text_attention(WORDS, density=mixtures, index=1), "support")[0]) / 2 == pytest.approx(0.8)


def test_tensors_of_any_kind() -> None:
    weights = WEIGHTS.to(torch.bfloat16).requires_grad_()
    density = TruncatedParabola(torch.tensor(0.4, requires_grad=True), torch.tensor(0.01, dtype=torch.float64))
    ax = report.text_attention(WORDS, weights, density)
    assert ax.containers[0][0].get_height() == 0.5
    assert report.text_attention(WORDS, WEIGHTS.numpy()).containers[0][0].get_height() == 0.5


def test_panels_share_words_and_a_scale_where_it_suits_them() -> None:
    small = [View("a", WEIGHTS), View("b", density=PARABOLA), View("c", WEIGHTS.sqrt() / 2)]
    axes = report.text_panels(WORDS, small).axes
    assert [words_of(ax) for ax in axes] == [[], [], WORDS]
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert [ax.get_title("left") for ax in axes] == ["a", "b", "c"]
    axes = report.text_panels(WORDS, [View("a", WEIGHTS), View("b", WEIGHTS / 50)]).axes
    assert axes[0].get_ylim()[1] == pytest.approx(50 * axes[1].get_ylim()[1])
    axes = report.text_panels(WORDS, [View("a", WEIGHTS), View("b", WEIGHTS / 50)], same_scale=True).axes
    assert axes[0].get_ylim() == axes[1].get_ylim()
    axes = report.text_panels(WORDS, small, columns=2).axes
    assert [words_of(ax) for ax in axes] == [[], WORDS, WORDS]  # under the lowest of each column


def test_of_many_words_those_that_get_most_are_named() -> None:
    weights = torch.full((250,), 1e-4)
    weights[100], weights[103], weights[40] = 0.5, 0.3, 0.2
    words = [f"w{i}" for i in range(250)]
    ax = report.text_attention(words, weights, layout="line")
    named = words_of(ax)
    assert "w100" in named and "w40" in named and "w103" not in named  # there is no room for it
    places = [int(name[1:]) for name in named]
    assert places == sorted(places) and min(b - a for a, b in itertools.pairwise(places)) >= 5
    assert spans(ax, "weights above zero") == [(0.0, 1.0)]


def test_a_page_has_each_word_once_and_what_it_gets_above_it() -> None:
    words = [f"word{i}" for i in range(120)]
    weights = torch.zeros(120)
    weights[[3, 50, 51, 119]] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    ax = report.text_attention(words, weights, PARABOLA)  # long enough for a page
    strips = ax.child_axes
    assert [word for strip in strips for word in words_of(strip)] == words
    assert [bar.get_height() for strip in strips for c in strip.containers for bar in c] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4]
    )
    masses = cell_masses(PARABOLA, torch.linspace(0, 1, 121)).tolist()
    offset = 0
    for strip in strips:
        size = len(strip.texts)
        own = masses[offset : offset + size]
        steps = [patch for patch in strip.patches if patch.get_label() == "masses"]
        assert len(steps) == any(own)
        if steps:
            assert steps[0].get_data().values.tolist() == pytest.approx(own, abs=1e-6)
        offset += size
    # The supports of all lines together: as many words as have a mass.
    ends = [line.get_xdata()[0] for strip in strips for line in lines(strip, "end of the support")]
    assert len(ends) == 2
    looked_at = [any(text.get_color() == style.INK for text in strip.texts) for strip in strips]
    assert False in looked_at and True in looked_at
    tall = max(strip.get_position().height for strip in strips)  # nothing is above the other lines
    assert [strip.get_position().height > tall / 2 for strip in strips] == looked_at


def test_places_in_a_line_go_by_the_share_of_a_word() -> None:
    line = text_page.Line(2, torch.tensor([0.0, 10.0, 40.0], dtype=torch.float64))
    t = torch.tensor([0.5, 0.625, 0.875, 1.0], dtype=torch.float64)
    assert text_page.to_line(t, line, 4).tolist() == [0.0, 5.0, 25.0, 40.0]


def test_several_pages_and_axes_of_ones_own() -> None:
    words = ["word"] * 60
    figure = report.text_panels(words, [View("a", torch.ones(60)), View("b", density=PARABOLA)], layout="page")
    assert [ax.get_title("left") for ax in figure.axes] == ["a", "b"]
    own = style.blank(6, 4).add_subplot()
    assert report.text_attention(words, torch.ones(60), ax=own) is own
    assert sum(len(strip.texts) for strip in own.child_axes) == 60


def test_words_are_drawn_as_they_are() -> None:
    words = ["$x^2$", "a_b", "two\nlines", "Donaudampfschifffahrtsgesellschaft", " ", "bell\a", "Съешь", "日本語"]
    ax = report.text_attention(words, torch.ones(8) / 8, title="$5 or $6")
    result = words_of(ax)
    assert result[:3] == ["$x^2$", "a_b", "two lines"]
    assert result[3] == "Donaudampfschifff…" and result[4] == "␣" and result[5] == "bell\N{REPLACEMENT CHARACTER}"
    assert result[6] == "Съешь" and len(result[7]) == 3
    texts = [*ax.texts, ax.title, ax._left_title, ax._right_title]
    drawn = [text for text in texts if text.get_text()]
    assert not any(text.get_parse_math() or text.get_usetex() for text in drawn)


def test_wide_characters_count_twice_and_marks_stay_with_their_letter() -> None:
    assert style.columns("日本語") == 6 and style.columns("é") == 1 and style.columns("e\u0301") == 1
    assert style.shorten("e\u0301" * 30) == "e\u0301" * 17 + "…"
    assert style.shorten("a" * 10**6) == "a" * 17 + "…"  # in time that grows with the word, not with its square


def test_characters_that_no_font_has(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(style, "families", lambda: ["DejaVu Sans"])  # as with an older matplotlib
    style._say_missing.cache_clear()
    with caplog.at_level("WARNING"):
        assert style.clean("a日本b") == f"a{style.BOX * 2}b"
        style.clean("日本")
    assert len(caplog.records) == 1 and "CJK" in caplog.text


@pytest.mark.parametrize(("text", "script"), [("Привет", None), ("مرحبا", None), ("नमते", "DEVANAGARI")])
def test_scripts_are_drawn_or_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, script: str | None
) -> None:
    """The font of matplotlib has Cyrillic and Arabic letters; for Devanagari another one must be installed."""
    monkeypatch.setattr(style, "families", lambda: ["DejaVu Sans"])
    style._say_missing.cache_clear()
    with caplog.at_level("WARNING"):
        drawn = style.clean(text)
    assert drawn == text if script is None else set(style.BOX) <= set(drawn)
    assert [script in record.getMessage() for record in caplog.records] == ([] if script is None else [True])


def test_fonts_of_other_scripts_stand_in_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fonts = ("Noto Sans Devanagari", "Amiri", "Noto Sans CJK JP")
    monkeypatch.setattr(style, "_installed_fonts", lambda names: tuple(name for name in names if name in fonts))
    assert set(style.families()) == set(fonts)


def picture(height: int = 30, width: int = 40) -> Tensor:
    return torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def images(ax: Any, label: str) -> list[Any]:
    return [image for image in ax.images if image.get_label() == label]


def test_cells_of_weight_zero_are_left_as_they_are() -> None:
    weights = torch.tensor([[0.0, 0.25, 0.25], [0.0, 0.5, 0.0]])
    ax = report.image_attention(picture(), weights)
    (shown,) = images(ax, "weights")
    alpha = torch.as_tensor(shown.get_array()[..., 3])
    assert (alpha > 0).tolist() == (weights > 0).tolist()
    assert shown.get_extent() == [0, 1, 1, 0]
    assert ax.get_aspect() == 30 / 40 and ax.get_ylim() == (1, 0)
    # The colours grow lighter, so that a print in grey keeps their order.
    colours = torch.as_tensor(shown.get_array()[..., :3]) @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert colours[1, 1] > colours[0, 1] == colours[0, 2]
    third = 1 / 3
    edges = {
        tuple(round(v, 6) for point in segment for v in point) for segment in segments(ax, "edge of what is above zero")
    }
    upright = {(third, 0, third, 0.5), (third, 0.5, third, 1), (2 * third, 0.5, 2 * third, 1)}
    level = {(2 * third, 0.5, 1, 0.5)}
    assert edges == {tuple(round(v, 6) for v in edge) for edge in upright | level}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["3 of 6 cells"]


def test_flat_weights_come_row_by_row() -> None:
    weights = torch.arange(6.0) / 15
    ax = report.image_attention(picture(), weights, grid=(2, 3))
    square = report.image_attention(picture(), weights.view(2, 3))
    assert torch.equal(*(torch.as_tensor(images(a, "weights")[0].get_array()) for a in (ax, square)))


def ellipses(ax: Any) -> list[tuple[str, Tensor]]:
    return [(patch.get_label(), torch.as_tensor(patch.get_xy())) for patch in ax.patches if isinstance(patch, Polygon)]


def distance(points: Tensor, mean: Tensor) -> Tensor:
    """Mahalanobis', squared."""
    apart = points - mean
    return (apart @ torch.linalg.inv(COV.double()) * apart).sum(-1)


def test_the_ellipse_is_the_edge_of_the_support() -> None:
    ax = report.image_attention(picture(), density=PARABOLOID)
    ((label, points),) = ellipses(ax)
    assert label == "support holds 100 %"
    # In the plane the support of alpha 2 reaches to sqrt(6) standard deviations.
    result = distance(points, torch.tensor([0.6, 0.4]).double())
    torch.testing.assert_close(result, torch.full_like(result, 6.0), rtol=1e-5, atol=0)


def test_contours_cover_the_support_and_nothing_else() -> None:
    small = TruncatedParaboloid(torch.tensor([0.6, 0.3]), COV / 4)
    ax = report.image_attention(picture(), density=small)
    from matplotlib.contour import QuadContourSet

    (contours,) = [collection for collection in ax.collections if isinstance(collection, QuadContourSet)]
    around = torch.cat([torch.as_tensor(path.vertices) for path in contours.get_paths() if len(path.vertices)])
    box = small.support.boundary(2000)
    for axis in (0, 1):  # to the fineness of the field
        assert float(around[:, axis].min()) == pytest.approx(float(box[:, axis].min()), abs=1 / 239)
        assert float(around[:, axis].max()) == pytest.approx(float(box[:, axis].max()), abs=1 / 239)
    assert contours.levels[-1] == pytest.approx(float(small.pdf(small.mean)), rel=1e-2)


def test_a_gaussian_has_broken_ellipses_and_no_end() -> None:
    ax = report.image_attention(picture(), density=Gaussian(torch.tensor([0.6, 0.4]), COV, dims=2))
    result = ellipses(ax)
    assert [label for label, _ in result] == ["1σ holds 39 %, no end", "2σ holds 86 %, no end"]
    for (_, points), sigmas in zip(result, (1, 2), strict=True):
        apart = distance(points, torch.tensor([0.6, 0.4]).double())
        torch.testing.assert_close(apart, torch.full_like(apart, sigmas**2), rtol=1e-5, atol=0)
    assert all(patch.get_linestyle() not in ("-", "solid") for patch in ax.patches if isinstance(patch, Polygon))
    assert [round(100 * (1 - math.exp(-(k**2) / 2))) for k in (1, 2)] == [39, 86]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == [label for label, _ in result]


def test_each_part_of_a_mixture_has_its_ellipse() -> None:
    means = torch.tensor([[0.3, 0.3], [0.7, 0.6]])
    parts = TruncatedParaboloid(means, COV / 10)
    result = ellipses(report.image_attention(picture(), density=Mixture(torch.tensor([0.5, 0.5]), parts)))
    assert [points[:-1].mean(0).tolist() for _, points in result] == [
        pytest.approx(m, abs=1e-5) for m in means.tolist()
    ]


def test_panels_beside_the_image() -> None:
    views = [View("discrete", torch.ones(2, 2) / 4), View("continuous", density=PARABOLOID)]
    figure = report.image_panels(picture(), views, question="Is it $5?", answers=["yes", "no"])
    axes = figure.axes[:3]
    assert [ax.get_title("left") for ax in axes] == ["image", "discrete", "continuous"]
    assert [ax.get_xlabel() for ax in axes] == ["", "yes", "no"]
    assert figure.texts[0].get_text() == "Is it $5?"
    (shown,) = images(axes[0], "image")
    torch.testing.assert_close(torch.as_tensor(shown.get_array()), picture().double() / 255)  # in its colours
    shapes = [ax.get_position() for ax in axes]
    assert len({round(box.width, 6) for box in shapes}) == 1 and len({round(box.y0, 6) for box in shapes}) == 1


def test_images_of_any_kind() -> None:
    whole = report.image_attention(picture())
    real = report.image_attention((picture().double() / 255).numpy())
    flat = report.image_attention(torch.zeros(4, 5))
    shown = [torch.as_tensor(images(ax, "image")[0].get_array()) for ax in (whole, real, flat)]
    torch.testing.assert_close(shown[0], shown[1])
    assert shown[2].shape == (4, 5, 3)


SRC, TGT = ["das", "ist", "ein", "Haus"], ["that", "is", "a", "house", "."]
MATRIX = torch.tensor(
    [[1.0, 0, 0, 0], [0, 0.75, 0.25, 0], [0, 1e-9, 1 - 1e-9, 0], [0.0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]]
)


def test_zeros_of_a_matrix_are_blank() -> None:
    ax = report.attention_matrix(MATRIX, SRC, TGT)
    shown = ax.images[0].get_array()
    assert (~shown.mask).tolist() == (MATRIX > 0).tolist()
    torch.testing.assert_close(torch.as_tensor(shown.filled(0)), MATRIX.double())
    assert [label.get_text() for label in ax.get_xticklabels()] == SRC
    assert [label.get_text() for label in ax.get_yticklabels()] == TGT
    assert ax.get_ylim() == (4.5, -0.5)  # the first word is at the top
    cmap = ax.images[0].get_cmap()
    grey = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), cmap(x / 20), strict=False)) for x in range(21)]
    assert grey == sorted(grey, reverse=True) and grey[0] < 0.95  # darker and darker, never white


def test_rows_of_densities() -> None:
    means = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    rows = TruncatedParabola(means, torch.tensor(1e-3))
    ax = report.attention_matrix(None, SRC, TGT, density=rows)
    (line,) = lines(ax, "mean")
    assert line.get_xdata() == pytest.approx((means * 4 - 0.5).tolist()) and list(line.get_ydata()) == [0, 1, 2, 3, 4]
    half = math.sqrt(5e-3)
    brackets = segments(ax, "support")
    for row, bracket in enumerate(brackets):
        lower, upper = (float(means[row]) + sign * half for sign in (-1, 1))
        assert [x for x, _ in bracket] == pytest.approx([4 * e - 0.5 for e in (lower, lower, upper, upper)])
        assert {round(y) for _, y in bracket} == {row}
    masses = cell_masses(rows, torch.linspace(0, 1, 5))
    torch.testing.assert_close(torch.as_tensor(ax.images[0].get_array().filled(0)), masses.double(), rtol=0, atol=1e-6)
    heads = Gaussian(means.expand(2, 5), torch.tensor(1e-3))
    ax = report.attention_matrix(MATRIX, SRC, TGT, density=heads, index=1)
    assert not segments(ax, "support") and len(lines(ax, "mean")) == 1


def test_matrices_share_their_colours() -> None:
    views = [View("a", MATRIX), View("b", MATRIX / 2), View("c", MATRIX)]
    axes = report.matrix_panels(views, SRC, TGT).axes[:3]
    assert {ax.images[0].get_clim() for ax in axes} == {(0, 1)}
    named = [[label.get_text() for label in ax.get_yticklabels()] for ax in axes]
    assert named == [TGT, [""] * 5, [""] * 5]
    assert [ax.get_title("left") for ax in axes] == ["a", "b", "c"]


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_what_a_classifier_looks_at(attention: str) -> None:
    torch.manual_seed(1)
    model = BiLSTMClassifier(20, 2, d_model=8, attention=attention, transform="sparsemax", num_basis=8)
    src, lengths = torch.randint(4, 20, (2, 7)), torch.tensor([7, 4])
    look = model.attention(src, lengths)
    ax = report.text_panels(WORDS[:4], [View.of(look, 1, 4, "one")]).axes[0]
    if look.weights is not None:
        heights = [bar.get_height() for bar in ax.containers[0]]
        assert heights == pytest.approx([w for w in look.weights[1, :4].tolist() if w > 0])
    if look.density is not None:
        ((a, b),) = spans(ax, "support")
        ends = (max(float(look.lower[1]), 0), min(float(look.upper[1]), 1))
        assert (a, b) == pytest.approx(ends, abs=1e-6)


def every_figure() -> dict[str, Any]:
    gauss = Gaussian(torch.tensor([0.6, 0.4]), COV, dims=2)
    words = [*WORDS[:-3], "$x$", "Съешь", "日本語"]
    views = [View("discrete", WEIGHTS), View("continuous $2$", density=PARABOLA), View("both", WEIGHTS, MIXTURE)]
    pictures = [View("cells", torch.eye(3)), View("softmax", density=gauss), View("sparsemax", density=PARABOLOID)]
    rows = TruncatedParabola(torch.linspace(0, 1, 5), torch.tensor(0.01))
    return {
        "text": report.text_attention(words, WEIGHTS, PARABOLA, title="both"),
        "panels": report.text_panels(words, views, columns=2),
        "page": report.text_attention(words * 9, density=MIXTURE),
        "line": report.text_attention(words * 30, torch.ones(210), layout="line"),
        "image": report.image_attention(picture(), density=gauss),
        "question": report.image_panels(picture(), pictures, question="What?" * 20, answers=["a", "b", "c" * 40]),
        "matrix": report.attention_matrix(MATRIX, SRC, TGT, density=rows),
        "matrices": report.matrix_panels([View("a", MATRIX), View("b", density=rows)], SRC, TGT),
    }


def test_each_figure_is_rendered_without_a_warning(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib import image, rcParams

    before = dict(rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, figure in every_figure().items():
            report.save(figure, tmp_path / f"{name}.png", dpi=50)
            height, width, _ = image.imread(tmp_path / f"{name}.png").shape
            inches = style.whole(figure).get_size_inches()
            assert (width, height) == pytest.approx(tuple(50 * inches), abs=1)
        report.save(figure, tmp_path / "deep" / "last.pdf")
        report.save(figure, tmp_path / "last.SVG")
    assert (tmp_path / "deep" / "last.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "last.SVG").read_text(encoding="utf-8")
    assert dict(rcParams) == before and not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]
    assert matplotlib.rcParams is rcParams


def test_no_word_runs_into_the_next() -> None:
    figure = report.text_panels([f"word{i}" for i in range(30)], [View("a", torch.ones(30))])
    figure.draw_without_rendering()
    (ax,) = figure.axes
    places = sorted(text.get_window_extent().x0 for text in ax.texts)
    assert min(b - a for a, b in itertools.pairwise(places)) > 8
    box = report.text_attention(WORDS * 9, torch.ones(63))
    style.whole(box).draw_without_rendering()
    for strip in box.child_axes:
        extents = [text.get_window_extent() for text in strip.texts]
        assert all(a.x1 <= b.x0 + 1 for a, b in itertools.pairwise(extents))


def test_figures_are_made_in_threads(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def make(number: int) -> None:
        try:
            report.save(report.text_attention(WORDS, WEIGHTS, PARABOLA), tmp_path / f"{number}.png", dpi=40)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.png.gz"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        report.save(report.text_attention(["a"], [1.0]), tmp_path / name)
    assert not list(tmp_path.iterdir())


WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: report.text_attention("words", [1.0]), TypeError, "one string: 'words'"),
    (lambda: report.text_attention([], []), ValueError, "empty"),
    (lambda: report.text_attention(WORDS), ValueError, "nothing to draw"),
    (lambda: report.text_attention(WORDS, [0.5, 0.5]), ValueError, r"\[7\].*\[2\]"),
    (lambda: report.text_attention(["a", "b"], [0.5, -0.5]), ValueError, "-0.5"),
    (lambda: report.text_attention(["a", "b"], [0.5, math.nan]), ValueError, "nan"),
    (lambda: report.text_attention(WORDS, density=PARABOLOID), ValueError, "2 dimensions"),
    (lambda: report.text_attention(WORDS, density=MIXTURE, index=3), ValueError, r"\[3\]"),
    (lambda: report.text_attention(WORDS, WEIGHTS, layout="pages"), ValueError, "'pages'"),
    (lambda: report.text_panels(WORDS, []), ValueError, "views is empty"),
    (lambda: report.image_attention(picture(), density=PARABOLA), ValueError, "in the plane"),
    (lambda: report.image_attention(torch.zeros(3, 30, 40)), ValueError, r"\[3, 30, 40\]"),
    (lambda: report.image_attention(picture().double()), ValueError, "from 0 to 1"),
    (lambda: report.image_attention(picture(), torch.ones(6)), ValueError, "grid"),
    (lambda: report.image_attention(picture(), torch.ones(6), grid=(2, 2)), ValueError, "2 x 2"),
    (lambda: report.image_panels(picture(), [View("a")], answers=["b", "c"]), ValueError, "2 for 1"),
    (lambda: report.attention_matrix(None, SRC, TGT), ValueError, "nothing to draw"),
    (lambda: report.attention_matrix(MATRIX.T, SRC, TGT), ValueError, r"\[5, 4\].*\[4, 5\]"),
    (lambda: report.attention_matrix(-MATRIX, SRC, TGT), ValueError, "at least zero"),
    (lambda: report.attention_matrix(None, SRC, TGT, density=PARABOLA), ValueError, r"\[5\].*\[\]"),
]


@pytest.mark.parametrize(("make", "kind", "words"), WRONG)
def test_what_can_not_be_drawn(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def test_a_batch_needs_an_index() -> None:
    batch = TruncatedParabola(torch.tensor([0.2, 0.5]), torch.tensor(1e-3))
    with pytest.raises(ValueError, match=r"batch of shape \[2\], got \[\]"):
        report.text_attention(WORDS, density=batch)
    with pytest.raises(ValueError, match=r"got \[2\]"):
        shapes.one_of(batch, 2, 1)


@pytest.mark.parametrize("call", ["text_attention(['a'], [1.0])", "attention_matrix([[1.0]], ['a'], ['b'])"])
def test_matplotlib_is_loaded_for_a_figure_and_asked_for_where_it_is_missing(call: str) -> None:
    code = (
        "import sys\nfrom tsallis import report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "sys.modules['matplotlib'] = None\n"
        "from tsallis.errors import InputError\n"
        f"try:\n    report.{call}\n"
        "except InputError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().endswith("pip install 'tsallis[report]'")
