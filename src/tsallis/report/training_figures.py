"""Figures of trainings: what heads, scores and outputs did over updates and time, and scores against a setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tsallis.analysis.alphas import HeadHistory
from tsallis.analysis.curves import SCORES, ValueHistory
from tsallis.analysis.summary_records import RunSummary
from tsallis.analysis.sweep import Sweep
from tsallis.evaluation.score_names import find_score
from tsallis.report import style
from tsallis.report.panels import COLUMN, Panel, file_endings, grid, label, row, stack

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS = f"{SCORES}loss"
SHARES = f"{SCORES}symbol_accuracy"
# What the axes of values say; those of other scores have their titles.
AXES = {
    SHARES: "symbols that are right",
    "logit_norm": "norm of the scores",
    "output_threshold": "threshold",
    "output_support": "symbols above zero",
}
MINUTE = 60.0  # seconds
Line = tuple[Sequence[float], Sequence["float | None"], Any]  # places, values and colour


def training_figures(runs: Sequence[RunSummary]) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of the trainings of runs: alphas and densities of each, scores and outputs of all."""
    for run, name in zip(runs, file_endings(runs), strict=True):
        for title, history in (("alpha", run.alphas), ("density", run.densities)):
            if history is not None:
                yield f"{title}-over-training{name}", stack(_head_curves(history, title), COLUMN)
    histories = [(run.name, run.values) for run in runs if run.values is not None]
    if histories:
        first = histories[0][1].values
        score = next((name for name in first if name.startswith(SCORES) and name != LOSS), LOSS)
        groups = {
            "scores": [LOSS, score, SHARES],
            "outputs": [name for name in AXES if not name.startswith(SCORES)],
        }
        for title, names in groups.items():
            rows = [_curves(histories, name) for name in dict.fromkeys(names) if _varies(histories, name)]
            if rows:
                yield f"{title}-over-training", grid(rows)


def sweep_figures(swept: Sweep) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a sweep: its score against the setting, and over the updates."""
    yield "sweep", row([("", partial(_sweep, swept))], COLUMN)
    yield "sweep-over-training", row([("", partial(_sweep_curves, swept))], COLUMN)


def _head_curves(history: HeadHistory, name: str) -> list[Panel]:
    """Return the lines of each head over the updates, by kind (Correia et al. 2019, fig. 2)."""

    def draw(values: Any, ax: Axes) -> None:
        layers = values.shape[1]
        shade = style.layer_shades(layers)
        for layer in range(layers):
            ax.plot(history.steps, values[:, layer], color=shade[layer], linewidth=0.9)
        low, high = (1.0, 2.0) if name == "alpha" else (0.0, 1.0)
        ax.set_ylim(low - 0.02, max(high, float(values.max())) + 0.02)
        label(ax, "update", name)
        if layers > 1:
            style.name_lines(ax, [(f"layer {i + 1}", shade[i]) for i in range(layers)])

    return [(kind, partial(draw, values)) for kind, values in history.values.items()]


def _varies(histories: Sequence[tuple[str, ValueHistory]], name: str) -> bool:
    """Tell whether a value is another at some validation of a run."""
    return len({x for _, history in histories for x in _values(history, name) if x is not None}) > 1


def _values(history: ValueHistory, name: str) -> tuple[float | None, ...]:
    """Return a value at each validation; alpha-ReLU's own threshold is a threshold, too."""
    tau = history.values.get("tau", ()) if name == "output_threshold" else ()
    return history.values.get(name, tau)


def _curves(histories: Sequence[tuple[str, ValueHistory]], name: str) -> list[Panel]:
    """Return the lines of runs over updates, and over time where all know it (Tezekbayev et al. 2022, fig. 2, 3, 7)."""
    shades = dict(zip((run for run, _ in histories), style.layer_shades(len(histories)), strict=True))
    lines = [(run, history, values) for run, history in histories if (values := _values(history, name))]
    axis = _axis(name)
    updates = [(history.steps, values, shades[run]) for run, history, values in lines]
    timed = all(history.seconds is not None for _, history in histories)
    legend = [(run, shades[run]) for run, _, _ in lines] if len(histories) > 1 else []
    panels: list[Panel] = [("", partial(_lines, updates, "update", axis, [] if timed else legend))]
    if timed:
        minutes = [([s / MINUTE for s in history.seconds or ()], values, shades[run]) for run, history, values in lines]
        panels.append(("", partial(_lines, minutes, "minutes of training", axis, legend)))
    return panels


def _lines(lines: Sequence[Line], x: str, y: str, legend: Sequence[tuple[str, Any]], ax: Axes) -> None:
    for places, values, color in lines:
        points = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        xs, ys = [place for place, _ in points], [value for _, value in points]
        ax.plot(xs, ys, color=color, marker="o", markersize=2.2, linewidth=1.0)
    label(ax, x, y)
    if legend:
        style.name_lines(ax, legend)


def _sweep(swept: Sweep, ax: Axes) -> None:
    """Draw the score of each run, and mean and deviation of each value (Tezekbayev et al. 2022, fig. 8)."""
    points = [point for point in swept.points if point.mean(swept.score) is not None]
    xs, means = [point.value for point in points], [point.mean(swept.score) or 0.0 for point in points]
    deviations = [point.deviation(swept.score) or 0.0 for point in points]
    ax.errorbar(
        xs,
        means,
        deviations if any(deviations) else None,
        color=style.WEIGHTS,
        linewidth=1.1,
        elinewidth=0.9,
        capsize=2,
    )
    dots = [(point.value, score) for point in points for score in point.scores[swept.score] if score is not None]
    ax.scatter([x for x, _ in dots], [y for _, y in dots], s=8, color=style.WEIGHTS, linewidths=0, zorder=3)
    label(ax, swept.setting.replace("model.", "").replace("_", " "), _axis(swept.score))


def _sweep_curves(swept: Sweep, ax: Axes) -> None:
    """Draw the score of every run over the updates, in the shade of its value (Tezekbayev et al. 2022, fig. 8)."""
    shades = style.layer_shades(len(swept.points))
    lines = [
        (steps, values, shade)
        for point, shade in zip(swept.points, shades, strict=True)
        for steps, values in zip(point.steps, point.curves[swept.score], strict=True)
    ]
    legend = [(f"{point.value:g}", shade) for point, shade in zip(swept.points, shades, strict=True)]
    _lines(lines, "update", _axis(swept.score), legend, ax)


def _axis(name: str) -> str:
    score = find_score(name.removeprefix(SCORES))
    return AXES.get(name) or (score.title if score else name.removeprefix(SCORES).replace("_", " "))
