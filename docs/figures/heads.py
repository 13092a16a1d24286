"""Draw the learned alphas and the divergence of heads from committed results (Correia et al. 2019, fig. 3 and 6).

python docs/figures/heads.py benchmarks/results docs/figures/paper-heads.svg
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import style
from matplotlib import rcParams

FILES = {"KFTT": "kftt-heads-xeon-cpu.csv", "Multi30k": "multi30k-heads-cpu.csv"}
Rows = list[dict[str, str]]
KINDS = ("encoder", "decoder", "cross")


def main(folder: str, picture: str) -> None:
    rcParams["svg.fonttype"] = "none"  # keep letters as text, for a smaller file
    figure = style.blank(6.8, 3.6)
    for row, (name, file) in enumerate(FILES.items()):
        with (Path(folder) / file).open(newline="", encoding="utf-8") as stream:
            heads = list(csv.DictReader(stream))
        draw_alphas(figure.add_subplot(2, 2, 2 * row + 1), heads, name)
        draw_divergences(figure.add_subplot(2, 2, 2 * row + 2), heads, name)
    style.save(figure, picture)


def draw_alphas(ax: Any, heads: Rows, name: str) -> None:
    """Draw a histogram of the learned alphas per kind of attention."""
    edges = np.linspace(1, 2, 21)
    for number, kind in enumerate(KINDS):
        alphas = [float(head["alpha"]) for head in heads if head["run"] == "learned" and head["kind"] == kind]
        counts, _ = np.histogram(alphas, edges)
        width = (edges[1] - edges[0]) / len(KINDS)
        ax.bar(edges[:-1] + number * width, counts, width, align="edge", color=style.KINDS[kind], label=kind)
    ax.set_xlim(1, 2)
    finish(ax, f"{name}: learned alphas", "alpha", "heads")


def draw_divergences(ax: Any, heads: Rows, name: str) -> None:
    """Draw the Jensen-Shannon divergence between the heads of each layer: disc for learned alphas, ring for softmax."""
    place = 0
    for kind in KINDS:
        for layer in sorted({head["layer"] for head in heads}):
            for run, fill in (("softmax", "none"), ("learned", "full")):
                found = (h for h in heads if (h["run"], h["kind"], h["layer"]) == (run, kind, layer))
                value = float(next(found)["layer_divergence"])
                ax.plot(place, value, "o", color=style.KINDS[kind], markersize=5, fillstyle=fill)
            place += 1
        place += 1
    ax.set_xticks([1, 5, 9], ["encoder", "decoder", "source"])
    ax.set_ylim(0, 0.36)
    finish(ax, f"{name}: divergence (ring: softmax)", "layers", "divergence")


def finish(ax: Any, title: str, x: str, y: str) -> None:
    style.quiet(ax, ("left", "bottom"))
    style.heading(ax, title)
    ax.set_xlabel(x, **style.lettering(style.SMALL, style.GREY))
    ax.set_ylabel(y, **style.lettering(style.SMALL, style.GREY))


if __name__ == "__main__":
    main(*sys.argv[1:])
