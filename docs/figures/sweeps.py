"""Draw BLEU and words right against the settings of three sweeps, from committed manifests.

python docs/figures/sweeps.py benchmarks/results/runs docs/figures/paper-sweeps.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tsallis.report import save, style
from tsallis.report.panels import label

SWEEPS = {"output": "alpha of the output", "attention": "alpha of the attention", "tau": "threshold of alpha-ReLU"}
SHARED = {"attention": ["multi30k-output-1.5-s1.json"]}  # a point of two sweeps
SCORES = {"bleu": "BLEU", "symbol_accuracy": "words right"}


def main(folder: str, picture: str) -> None:
    figure = style.blank(6.8, 3.4)
    for row, (score, axis) in enumerate(SCORES.items()):
        shared = None
        for column, (sweep, name) in enumerate(SWEEPS.items()):
            points = []
            points_of_others = (Path(folder, name) for name in SHARED.get(sweep, []))
            for path in (*Path(folder).glob(f"multi30k-{sweep}-*-s1.json"), *points_of_others):
                metrics = json.loads(path.read_text(encoding="utf-8"))["metrics"]
                points.append((float(path.stem.split("-")[2]), metrics[score]))
            number = row * len(SWEEPS) + column + 1
            shared = ax = figure.add_subplot(len(SCORES), len(SWEEPS), number, sharey=shared)
            style.quiet(ax, ("left", "bottom"))
            ax.plot(*zip(*sorted(points), strict=True), color=style.WEIGHTS, marker="o", markersize=3, linewidth=1.1)
            label(ax, name if row else "", axis if column == 0 else "")
    save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
