"""Draw scores of the papers and ours as pairs of dots, from committed results.

python docs/figures/beside.py docs/figures/beside.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import style
from matplotlib import rcParams
from render import fill

PAPER, HERE = "#b45309", "#0068a8"
LONG = "runs/inflection-all-{}-long-{}.json.metrics"
IMDB = "{{documents-cpu.csv[data=imdb, vectors=scaled.safetensors, attention={}, cut=1000].accuracy | .2p}}"
TRAINING = "{{training-cpu.csv[operation=training, name={}, owner=tsallis].to_softmax}}"
# Panels of rows: a label, the paper's score, and the template of our score on the same data.
PANELS: dict[str, list[tuple[str, float, str]]] = {
    "Inflection, accuracy in %": [
        ("softmax", 82.55, "{" + LONG.format("softmax", "s1") + ".macro_accuracy | .2p}"),
        ("1.5-entmax", 84.93, "{mean " + LONG.format("entmax", "s1,2,3") + ".macro_accuracy | .2p}"),
        ("sparsemax", 84.96, "{" + LONG.format("sparsemax", "s1") + ".macro_accuracy | .2p}"),
        ("1.5-entmax, three models", 86.55, "{runs/inflection-all-entmax-ensemble.json.metrics.macro_accuracy | .2p}"),
        ("1.5-entmax, more data", 94.44, "{runs/inflection-high-entmax-s1.json.metrics.macro_accuracy | .2p}"),
    ],
    "Reviews (IMDB), accuracy in %": [
        ("discrete softmax", 90.78, IMDB.format("discrete")),
        ("combined softmax", 90.98, IMDB.format("combined")),
    ],
    "Translation (KFTT), BLEU": [
        ("softmax", 21.57, "{runs/kftt-softmax-s1.json.metrics.bleu}"),
        ("fixed 1.5", 22.13, "{runs/kftt-entmax-s1.json.metrics.bleu}"),
        ("learned alphas", 21.74, "{runs/kftt-learned-s1.json.metrics.bleu}"),
    ],
    "Training speed, softmax: 1": [
        ("LSTM with 1.5-entmax", 0.90, TRAINING.format("LSTM 1.5-entmax")),
        ("1.5-entmax attention", 0.90, TRAINING.format("entmax-1.5 attention")),
        ("learned attention", 0.75, TRAINING.format("learned attention")),
    ],
}


def main(picture: str) -> None:
    rcParams["svg.fonttype"] = "none"  # keep letters as text, for a smaller file
    sizes = [len(rows) + 1.6 for rows in PANELS.values()]
    figure = style.blank(4.2, 0.23 * sum(sizes) + 0.3)
    axes = figure.subplots(len(PANELS), 1, height_ratios=sizes)
    ranges = [(80, 96), (80, 96), (0, 24), (0.7, 1.15)]
    for ax, limits, (title, rows) in zip(axes, ranges, PANELS.items(), strict=True):
        style.quiet(ax, ("bottom",))
        style.heading(ax, title)
        for row, (_, paper, template) in enumerate(rows):
            here = float(fill(template))
            ax.plot([paper, here], [row, row], color=style.FAINT, linewidth=1.2, zorder=1)
            ring = ax.plot(paper, row, "o", color=PAPER, markersize=6, fillstyle="none", label="paper")
            disc = ax.plot(here, row, "o", color=HERE, markersize=5, label="here")
        ax.set_yticks(range(len(rows)), [label for label, *_ in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(limits)
    figure.legend(handles=[*ring, *disc], fontsize=style.SIZE, frameon=False, loc="outside upper right", ncols=2)
    style.save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
