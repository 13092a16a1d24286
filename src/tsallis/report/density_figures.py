"""Figures of densities over words, images and time at the width of a paper's column (Martins et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tsallis.analysis.densities import DensityExample, DensitySummary
from tsallis.analysis.density_shapes import SignalDensity
from tsallis.report import style
from tsallis.report.panels import COLUMN, PAGE, Panel, bars, file_endings, label, row, stack
from tsallis.report.style import DENSITY, SMALL, WEIGHTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLES = 3  # in a figure
WORDS = 40  # of an example whose words are named
AXES = {1: ("position in the text",), 2: ("across the image", "down the image")}
CHANNEL = 0.22  # inches of one channel of a time series


def density_figures(summaries: Sequence[DensitySummary]) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of runs that answer with labels: where densities lie, how wide they are, examples."""
    for run, ending in zip(summaries, file_endings(summaries), strict=True):
        panels: list[Panel] = [
            ("centres", partial(bars, histogram, WEIGHTS, axis, "examples"))
            for histogram, axis in zip(run.centres, AXES.get(len(run.centres), ()), strict=True)
        ]
        if run.sizes is not None:
            panels.append(("supports", partial(bars, run.sizes, WEIGHTS, "part that the support covers", "examples")))
        if panels:
            yield f"densities{ending}", row(panels, PAGE)
        examples = [example for example in run.shown if example.words][:EXAMPLES]
        if examples:
            titles = [style.shorten(f"{example.answer or 'no answer'}: {example.title}", 60) for example in examples]
            panels = [(title, partial(_words, example)) for title, example in zip(titles, examples, strict=True)]
            yield f"density-examples{ending}", stack(panels, PAGE)


def _words(example: DensityExample, ax: Axes) -> None:
    """Draw weights as bars, the density for each word as a curve, and its support below."""
    count = len(example.words)
    if example.weights:
        shown = [(i + 0.5, weight) for i, weight in enumerate(example.weights) if weight > 0]
        ax.bar([x for x, _ in shown], [weight for _, weight in shown], 0.9, color=WEIGHTS)
    if example.density is not None:
        t, p = np.array(example.density.curve).T
        ax.plot(t * count, p / count, color=DENSITY, linewidth=1.1)
        for start, end in example.density.support:
            ax.plot([max(start, 0) * count, min(end, 1) * count], [0, 0], color=DENSITY, linewidth=3, clip_on=False)
    ax.set_xlim(0, count)
    ax.set_ylim(bottom=0)
    if count <= WORDS:
        words = [style.shorten(style.clean(word)) for word in example.words]
        ax.set_xticks(np.arange(count) + 0.5, labels=words, rotation=90, **style.lettering(SMALL))
    label(ax, "", "weight")


def signal_figures(signals: Sequence[SignalDensity]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of densities over time: a row for each channel, a line for each head's support."""
    if not signals:
        return
    channels = list(dict.fromkeys(signal.channel for signal in signals))
    heads = max(signal.head for signal in signals) + 1
    height = max(1.2, CHANNEL * len(channels) * max(1.0, heads / 3) + 0.6)
    yield "densities-over-time", row([("", partial(_signals, signals, channels, heads))], COLUMN, height)


def _signals(signals: Sequence[SignalDensity], channels: Sequence[str], heads: int, ax: Axes) -> None:
    for signal in signals:
        y = channels.index(signal.channel) + (signal.head + 0.5) / heads - 0.5
        (centre,), (deviation,) = signal.density.mean, signal.density.deviation
        bounded = signal.density.bounded
        for start, end in signal.density.support if bounded else ((centre - 2 * deviation, centre + 2 * deviation),):
            style_of_line = "-" if bounded else (0, (2, 1.5))
            ax.plot([max(start, 0), min(end, 1)], [y, y], color=DENSITY, linewidth=1.1, linestyle=style_of_line)
        ax.plot([min(max(centre, 0), 1)], [y], "o", color=WEIGHTS, markersize=2.2)
    ax.set_yticks(range(len(channels)), labels=[style.shorten(name) for name in channels], **style.lettering(SMALL))
    ax.set(xlim=(0, 1), ylim=(len(channels) - 0.5, -0.5))
    label(ax, "time, from start to end (dashed: two standard deviations)", "")
