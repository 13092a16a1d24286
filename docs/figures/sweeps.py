"""Draw BLEU and words right against the settings of three sweeps, from committed manifests.

python docs/figures/sweeps.py benchmarks/results/runs docs/figures/paper-sweeps.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tsallis.report import save, style
from tsallis.report.panels import label

SWEEPS = {"output": "alpha of the output", "attention": "alpha of the attention", "tau": "threshold of alpha-ReLU"}
SHARED = {"attention": ["multi30k-output-1.5-s1.json"]}  # a point of two sweeps
SCORES = {"bleu": "BLEU", "symbol_accuracy": "words right"}


def main(folder: str, picture: str) -> None:
    points = {sweep: read_points(Path(folder), sweep) for sweep in SWEEPS}
    figure = style.blank(6.8, 3.4)
    for row, (score, axis) in enumerate(SCORES.items()):
        shared = None
        for column, (sweep, name) in enumerate(SWEEPS.items()):
            values = [(value, metrics[score]) for value, metrics in points[sweep]]
            number = row * len(SWEEPS) + column + 1
            shared = ax = figure.add_subplot(len(SCORES), len(SWEEPS), number, sharey=shared)
            style.quiet(ax, ("left", "bottom"))
            ax.plot(*zip(*values, strict=True), color=style.WEIGHTS, marker="o", markersize=3, linewidth=1.1)
            label(ax, name if row else "", axis if column == 0 else "")
    save(figure, picture)


def read_points(folder: Path, sweep: str) -> list[tuple[float, dict[str, Any]]]:
    """Return the values of a sweep in order, each with its metrics."""
    paths = [*folder.glob(f"multi30k-{sweep}-*-s1.json"), *(folder / name for name in SHARED.get(sweep, []))]
    by_value = {float(path.stem.split("-")[2]): json.loads(path.read_text(encoding="utf-8")) for path in paths}
    return [(value, by_value[value]["metrics"]) for value in sorted(by_value)]


if __name__ == "__main__":
    main(*sys.argv[1:])
