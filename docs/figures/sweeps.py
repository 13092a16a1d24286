"""Draw BLEU and next-symbol accuracy against the values of three sweeps, from committed manifests.

python docs/figures/sweeps.py benchmarks/results/runs docs/figures/paper-sweeps.svg
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import style

SWEEPS = {"output": "alpha of the output", "attention": "alpha of the attention", "tau": "threshold of alpha-ReLU"}
SHARED = {"attention": "output-1.5"}  # a run that belongs to two sweeps
SCORES = {"bleu": "BLEU", "symbol_accuracy": "next-symbol accuracy"}
Points = dict[float, list[dict[str, Any]]]  # metrics of the seeds for each value


def main(folder: str, picture: str) -> None:
    points = {sweep: read_points(Path(folder), sweep) for sweep in SWEEPS}
    figure = style.blank(6.8, 3.4)
    for row, (score, axis) in enumerate(SCORES.items()):
        shared = None
        for column, (sweep, name) in enumerate(SWEEPS.items()):
            number = row * len(SWEEPS) + column + 1
            shared = ax = figure.add_subplot(len(SCORES), len(SWEEPS), number, sharey=shared)
            style.quiet(ax, ("left", "bottom"))
            draw(points[sweep], score, ax)
            ax.set_xlabel(name if row else "", **style.lettering(style.SMALL, style.GREY))
            ax.set_ylabel(axis if column == 0 else "", **style.lettering(style.SMALL, style.GREY))
    style.save(figure, picture)


def draw(points: Points, score: str, ax: Any) -> None:
    """Draw a line through the mean score of each value, and one dot per seed."""
    seeds = [(value, metrics[score]) for value, runs in points.items() for metrics in runs]
    means = [(value, fmean(metrics[score] for metrics in runs)) for value, runs in points.items()]
    ax.plot(*zip(*means, strict=True), color=style.WEIGHTS, linewidth=1.1)
    ax.plot(*zip(*seeds, strict=True), color=style.WEIGHTS, linestyle="", marker="o", markersize=3, alpha=0.6)


def read_points(folder: Path, sweep: str) -> Points:
    """Return the values of a sweep in ascending order, with the metrics of their seeds."""
    by_value: defaultdict[float, list[dict[str, Any]]] = defaultdict(list)
    patterns = [f"{sweep}-[0-9]*", SHARED.get(sweep, "")]
    for path in (path for pattern in patterns if pattern for path in folder.glob(f"multi30k-{pattern}-s?.json")):
        by_value[float(path.stem.split("-")[2])].append(json.loads(path.read_text(encoding="utf-8"))["metrics"])
    return dict(sorted(by_value.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
