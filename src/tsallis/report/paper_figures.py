"""Figures of a report at the width of a paper's column: what runs' heads and outputs do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tsallis.analysis.alphas import alpha_histograms
from tsallis.analysis.densities import DensitySummary
from tsallis.analysis.density_shapes import SignalDensity
from tsallis.analysis.head_roles import ROLES
from tsallis.analysis.outputs import OutputStatistics
from tsallis.analysis.summary_records import HeadSummary, RunSummary
from tsallis.analysis.sweep import Sweep
from tsallis.analysis.tables import Histogram
from tsallis.report import style
from tsallis.report.density_figures import density_figures, signal_figures
from tsallis.report.output_figures import output_figures
from tsallis.report.panels import COLUMN, Panel, bars, file_endings, label, row
from tsallis.report.style import GREY, KINDS, SMALL
from tsallis.report.training_figures import sweep_figures, training_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = ("pdf", "svg", "png")
BARS = 40  # of a histogram, at most


def draw_figures(
    runs: Sequence[RunSummary],
    sweep: Sweep | None = None,
    densities: Sequence[DensitySummary] = (),
    signals: Sequence[SignalDensity] = (),
) -> Iterator[tuple[str, bytes]]:
    """Yield the figures of a report, each as PDF, SVG and PNG: the name of a file, and its content.

    Raises:
        InputError: if matplotlib is missing.
    """
    style.require()
    swept = [] if sweep is None else sweep_figures(sweep)
    of_runs = _figures(runs), output_figures(runs), training_figures(runs)
    parts = *of_runs, swept, density_figures(densities), signal_figures(signals)
    for name, figure in chain.from_iterable(parts):
        for ending in ENDINGS:
            yield f"{name}.{ending}", style.render(figure, ending)


def _figures(runs: Sequence[RunSummary]) -> Iterator[tuple[str, Figure]]:
    names = file_endings(runs)
    for run, name in zip(runs, names, strict=True):
        if run.heads:
            yield f"alpha-histograms{name}", row(_alpha_histograms(run))
            yield f"density-histograms{name}", row(_density_histograms(run))
            yield f"density-by-layer{name}", row(_densities_by_layer(run))
            yield f"diversity{name}", row([("", partial(_diversity, run))], COLUMN)
            yield f"head-roles{name}", row([("", partial(_head_roles, run))], COLUMN, 2.6)
        if run.outputs is not None:
            yield f"output-support{name}", row([("", partial(_support, run.outputs))], COLUMN)
            yield f"outputs{name}", row(_output_histograms(run.outputs))


def _kinds(run: RunSummary) -> list[str]:
    return list(dict.fromkeys(layer.kind for layer in run.layers))


def _of_kind(run: RunSummary, kind: str) -> list[HeadSummary]:
    return [head for head in run.heads if head.kind == kind]


def _alpha_histograms(run: RunSummary) -> list[Panel]:
    """Return histograms of the final alphas by kind (Correia et al. 2019, fig. 3 and 11)."""
    counts = alpha_histograms({kind: [head.alpha for head in _of_kind(run, kind)] for kind in _kinds(run)})
    return [(kind, partial(bars, own, KINDS[kind], "alpha", "heads")) for kind, own in counts.items()]


def _density_histograms(run: RunSummary) -> list[Panel]:
    """Return histograms of densities over heads and sentences by kind (Correia et al. 2019, fig. 4 and 12)."""
    panels: list[Panel] = []
    for kind in _kinds(run):
        heads = _of_kind(run, kind)
        counts = tuple(map(sum, zip(*(head.histogram.counts for head in heads), strict=True)))
        histogram = Histogram(heads[0].histogram.edges, counts)
        panels.append((kind, partial(bars, histogram, KINDS[kind], "density", "heads × sentences")))
    return panels


def _densities_by_layer(run: RunSummary) -> list[Panel]:
    """Return the sorted densities of each layer's heads by kind (Correia et al. 2019, fig. 5 and 14)."""

    def draw(kind: str, ax: Axes) -> None:
        heads = _of_kind(run, kind)
        layers = sorted({head.layer for head in heads})
        for layer in layers:
            densities = sorted(head.density for head in heads if head.layer == layer)
            width = 0.8 / len(densities)
            lefts = layer + 0.6 + width * np.arange(len(densities))
            ax.bar(lefts, densities, width * 0.9, align="edge", color=KINDS[kind])
        ax.set_xticks([layer + 1 for layer in layers])
        ax.set_ylim(0, 1)
        label(ax, "layer", "density")

    return [(kind, partial(draw, kind)) for kind in _kinds(run)]


def _diversity(run: RunSummary, ax: Axes) -> None:
    """Draw the Jensen-Shannon divergence of each layer's heads (Correia et al. 2019, fig. 6 and 13)."""
    markers = dict(zip(KINDS, "osD", strict=True))
    for kind in _kinds(run):
        points = [(layer.layer + 1, layer.divergence) for layer in run.diversity if layer.kind == kind]
        parts = [(x, y) for x, y in points if y is not None]
        xs, ys = [x for x, _ in parts], [y for _, y in parts]
        ax.plot(xs, ys, color=KINDS[kind], marker=markers[kind], markersize=3.5, linewidth=1.1)
    ax.set_xticks(sorted({layer.layer + 1 for layer in run.layers}))
    ax.set_ylim(bottom=0)
    label(ax, "layer", "divergence of heads")
    style.name_lines(ax, [(kind, KINDS[kind]) for kind in _kinds(run)])


def _head_roles(run: RunSummary, ax: Axes) -> None:
    """Draw the score of every head for each role, with the role's threshold (Correia et al. 2019, fig. 7, 8 and 9)."""
    names = [name for name in ROLES if any(head.scores[name] is not None for head in run.heads)]
    shifts = {kind: (number - 1) * 0.22 for number, kind in enumerate(KINDS)}
    for kind in _kinds(run):
        points = [
            (score, line + shifts[kind])
            for line, name in enumerate(names)
            for head in _of_kind(run, kind)
            if (score := head.scores[name]) is not None
        ]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        ax.scatter(xs, ys, s=9, color=KINDS[kind], alpha=0.75, linewidths=0)
    for line, name in enumerate(names):
        ax.plot([ROLES[name].threshold] * 2, [line - 0.4, line + 0.4], color=GREY, linewidth=0.9)
    ax.set_yticks(range(len(names)), labels=names, **style.lettering(SMALL))
    ax.set(xlim=(-0.02, 1.02), ylim=(max(len(names), 1) - 0.5, -0.5))
    label(ax, "mean weight (lines: thresholds)", "")
    style.name_lines(ax, [(kind, KINDS[kind]) for kind in _kinds(run)])


def _support(outputs: OutputStatistics, ax: Axes) -> None:
    """Draw how many symbols are possible at a step (Tezekbayev et al. 2022, fig. 5 and 6)."""
    counts = outputs.support_counts
    edges = [number - 0.5 for number in range(len(counts) + 1)]
    ax.stairs(counts, edges, fill=True, color=style.WEIGHTS, baseline=0.5)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    if len(counts) > 50:
        ax.set_xscale("symlog", linthresh=10)
    ax.set_xlim(left=0)
    label(ax, f"symbols above zero, of {outputs.symbols:,}", "steps")


def _output_histograms(outputs: OutputStatistics) -> list[Panel]:
    """Return histograms of sums, norms and thresholds of the output (Tezekbayev et al. 2022, fig. 7 and 9)."""
    pairs = (
        ("sum of the values", outputs.total),
        ("norm of the scores", outputs.norm),
        ("threshold", outputs.threshold),
    )
    return [
        (f"mean {values.mean:.3g}", partial(bars, values.histogram.coarser(BARS), style.WEIGHTS, name, "steps"))
        for name, values in pairs
        if values is not None and len(values.histogram.counts) > 1
    ]
