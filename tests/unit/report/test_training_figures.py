"""Figures of trainings, read from the lines that were drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from tsallis.analysis import HeadHistory, SweepRun, ValueHistory, sweep
from tsallis.report.training_figures import sweep_figures, training_figures

TIMED = ValueHistory(
    (10, 20),
    {"dev_loss": (3.0, 2.0), "dev_bleu": (1.0, 5.0), "logit_norm": (7.0, 7.0), "tau": (0.5, 0.75)},
    (60.0, 150.0),
)
OTHER = ValueHistory((5, 10), {"dev_loss": (4.0, None), "dev_bleu": (2.0, 2.5), "output_support": (9.0, 4.0)})


def summary(name: str, values: ValueHistory | None, alphas: HeadHistory | None = None) -> Any:
    return SimpleNamespace(name=name, values=values, alphas=alphas, densities=None)


def lines(ax: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines]


def names(ax: Any) -> tuple[str, str]:
    return ax.get_xlabel(), ax.get_ylabel()


def test_scores_are_drawn_over_updates_and_over_time() -> None:
    figures = dict(training_figures([summary("one", TIMED)]))
    assert list(figures) == ["scores-over-training", "outputs-over-training"]
    loss, loss_timed, bleu, _ = figures["scores-over-training"].axes
    assert [names(ax) for ax in (loss, loss_timed)] == [
        ("update", "loss a symbol"),
        ("minutes of training", "loss a symbol"),
    ]
    assert lines(loss) == [([10, 20], [3.0, 2.0])] and lines(loss_timed) == [([1.0, 2.5], [3.0, 2.0])]
    assert names(bleu) == ("update", "BLEU")
    threshold, _ = figures["outputs-over-training"].axes  # the norm stays the same, and is left out
    assert names(threshold) == ("update", "threshold") and lines(threshold) == [([10, 20], [0.5, 0.75])]


def test_several_runs_share_axes_and_lack_time_if_one_does() -> None:
    figures = dict(training_figures([summary("one", TIMED), summary("two", OTHER), summary("three", None)]))
    loss, _bleu = figures["scores-over-training"].axes
    assert lines(loss) == [([10, 20], [3.0, 2.0]), ([5], [4.0])]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["one", "two"]
    assert len({line.get_color() for line in loss.lines}) == 2
    threshold, support = figures["outputs-over-training"].axes
    assert len(threshold.lines) == len(support.lines) == 1
    assert support.lines[0].get_color() == loss.lines[1].get_color()  # a run has one colour everywhere


def test_alphas_of_each_head_and_runs_without_a_log() -> None:
    alphas = HeadHistory((0, 10), {"encoder": np.array([[[1.5, 1.5]], [[1.2, 1.8]]])})
    ((name, figure),) = training_figures([summary("one", None, alphas)])
    (ax,) = figure.axes
    assert name == "alpha-over-training" and [y for _, y in lines(ax)] == [[1.5, 1.2], [1.5, 1.8]]


def test_a_sweep_is_drawn_against_its_setting_and_over_updates() -> None:
    scores = {1.0: (20.0, 21.0), 1.5: (25.0,)}
    runs = [
        SweepRun(
            f"{alpha}-{seed}",
            {"training.seed": seed, "model.output_alpha": alpha},
            ValueHistory((10, 20), {"dev_loss": (2.0, 1.0), "dev_bleu": (10.0, score)}),
        )
        for alpha, values in scores.items()
        for seed, score in enumerate(values)
    ]
    figures = dict(sweep_figures(sweep(runs)))
    (ax,), (curves,) = (figures[name].axes for name in ("sweep", "sweep-over-training"))
    assert names(ax) == ("output alpha", "BLEU") and lines(ax)[0] == ([1.0, 1.5], [20.5, 25.0])
    assert ax.collections[-1].get_offsets().tolist() == [[1.0, 20.0], [1.0, 21.0], [1.5, 25.0]]
    assert lines(curves) == [([10, 20], [10.0, score]) for score in (20.0, 21.0, 25.0)]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["1", "1.5"]
