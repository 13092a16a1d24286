"""Draw the learned alphas during training, for three learning rates of alpha, from committed results.

python docs/figures/alphas.py benchmarks/results/multi30k-alphas-history-cpu.csv docs/figures/alphas.svg
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import style

SCALES = ("0.2", "1", "5")  # factors of alpha's learning rate
KINDS = ("encoder", "decoder", "cross")
SETTINGS = {"attention": "learned", "seed": "1", "updates": "5200", "dropout": "0.1"}


def main(rows_file: str, picture: str) -> None:
    with Path(rows_file).open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if SETTINGS.items() <= row.items()]
    figure = style.blank(6.8, 2.3)
    for number, scale in enumerate(SCALES):
        ax = figure.add_subplot(1, len(SCALES), number + 1)
        style.quiet(ax, ("left", "bottom"))
        events = [row for row in rows if row["alpha_lr_scale"] == scale]
        for kind in KINDS:
            alphas = np.array([np.ravel(json.loads(row[f"alpha_{kind}"])) for row in events])
            updates = [int(row["update"]) for row in events]
            ax.plot(updates, alphas, color=style.KINDS[kind], linewidth=0.5, alpha=0.4)
            ax.plot(updates, alphas.mean(1), color=style.KINDS[kind], linewidth=1.8)
        ax.set_ylim(0.98, 2.02)
        ax.set_xlabel("update", **style.lettering(style.SMALL, style.GREY))
        ax.set_ylabel("alpha", **style.lettering(style.SMALL, style.GREY))
        style.heading(ax, f"learning rate x {scale}")
    style.name_lines(ax, [(kind, style.KINDS[kind]) for kind in KINDS])
    style.save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
