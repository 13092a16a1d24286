"""Figures of densities, read from what was drawn: bars of weights above zero, supports, centres over time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tsallis.analysis import DensityExample, DensitySummary, Histogram, SignalDensity, draw_density
from tsallis.continuous import Gaussian, TruncatedParabola, TruncatedParaboloid

pytest.importorskip("matplotlib")
from tsallis.report.density_figures import density_figures, signal_figures
from tsallis.report.paper_figures import draw_figures

LINE = draw_density(TruncatedParabola(torch.tensor(0.4), torch.tensor(0.005)))
PLANE = draw_density(TruncatedParaboloid(torch.tensor([0.5, 0.4]), 0.01 * torch.eye(2)))
WORDS = ("a", "fine", "film", "!")


def summary(name: str, **fields: Any) -> DensitySummary:
    example = DensityExample(0, "a fine film!", WORDS, "pos", "neg", 0.75, (0.0, 0.5, 0.5, 0.0), None, (), LINE, None)
    histogram = Histogram.of([0.4, 0.5, 0.5], 20)
    values: dict[str, Any] = {
        "task": "classification",
        "model": "classifier",
        "arguments": {},
        "corpus": "the dev split",
        "examples": 3,
        "accuracy": None,
        "zeros": 0.5,
        "zero_masses": 0.0,
        "size": 0.3,
        "centres": (histogram,),
        "sizes": histogram,
        "shown": (example,),
    }
    return DensitySummary(name=name, **values | fields)


def test_centres_supports_and_examples_of_words() -> None:
    figures = dict(density_figures([summary("run")]))
    assert list(figures) == ["densities", "density-examples"]
    centres, supports = figures["densities"].axes
    for ax in (centres, supports):
        assert sum(bar.get_height() for bar in ax.patches) == 3
    (ax,) = figures["density-examples"].axes
    assert [bar.get_height() for bar in ax.patches] == [0.5, 0.5]  # weights of zero have no bar
    curve, support = ax.lines
    assert list(support.get_xdata()) == pytest.approx([4 * end for end in LINE.support[0]])
    assert max(curve.get_ydata()) == pytest.approx(max(p for _, p in LINE.curve) / 4)
    assert [label.get_text() for label in ax.get_xticklabels()] == list(WORDS)


def test_images_have_two_axes_and_discrete_attention_has_no_figure() -> None:
    image = DensityExample(0, "where?", (), "", "here", 1.0, (0.5, 0.5), (1, 2), (), PLANE, None)
    histogram = Histogram.of([0.4], 20)
    figures = dict(density_figures([summary("run", centres=(histogram, histogram), shown=(image,))]))
    assert list(figures) == ["densities"] and len(figures["densities"].axes) == 3
    assert list(density_figures([summary("run", centres=(), sizes=None, shown=(image,))])) == []


def test_supports_over_time_are_lines_and_unbounded_ones_are_dashed() -> None:
    gaussian = draw_density(Gaussian(torch.tensor(0.5), torch.tensor(0.01)))
    signals = [SignalDensity("pulse", 0, LINE), SignalDensity("pulse", 1, gaussian), SignalDensity("age", 0, LINE)]
    ((name, figure),) = signal_figures(signals)
    (ax,) = figure.axes
    spans = [line for line in ax.lines if len(line.get_xdata()) == 2]
    centres = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert name == "densities-over-time" and len(spans) == len(centres) == 3
    assert [line.is_dashed() for line in spans] == [False, True, False]
    assert list(spans[0].get_xdata()) == pytest.approx(LINE.support[0])
    assert list(spans[1].get_xdata()) == pytest.approx([0.3, 0.7])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["pulse", "age"]
    assert list(signal_figures([])) == []


def test_figures_of_a_report_have_the_names_of_several_runs() -> None:
    names = [name for name, _ in draw_figures([], densities=[summary("one"), summary("two")])]
    assert names[::3] == [f"{kind}-{run}.pdf" for run in ("one", "two") for kind in ("densities", "density-examples")]
