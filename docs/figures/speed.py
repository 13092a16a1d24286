"""Draw the times of functions beside those of PyTorch's dense ones, from committed rows.

python docs/figures/speed.py docs/figures/speed.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import style
from matplotlib import rcParams
from render import fill

MAPS = "{maps-cpu.csv[shape=%s, operation=entmax15, owner=tsallis, input=normal].both_to_dense}"
SEARCH = "{decoding-trained-cpu.csv[name=1.5-entmax, owner=tsallis, beam=5, batch=64].to_peer}"
LOSS = "{losses-cpu.csv[shape=512x32000, operation=entmax-loss-1.5, owner=tsallis, input=normal].both_to_dense}"
ATTENTION = (
    "{attention-cpu.csv[group=attention, shape=4x8x512x64, causal=False, operation=%s, owner=tsallis].time_ratio}"
)
ROWS = {
    "1.5-entmax, 128 scores": MAPS % "8192x128",
    "1.5-entmax, 32,000 scores": MAPS % "512x32000",
    "1.5-entmax loss, 32,000 classes": LOSS,
    "output layer and loss": "{linear-cpu.csv[input=trained, operation=linear-entmax-loss-1.5].time_ratio}",
    "attention, alpha 1.5, 512 tokens": ATTENTION % "entmax-1.5",
    "attention, learned alphas, 512 tokens": ATTENTION % "entmax-learned",
    "search with certificate, beam 5": SEARCH,
}


def main(picture: str) -> None:
    rcParams["svg.fonttype"] = "none"  # letters as text: a smaller file
    figure = style.blank(4.6, 0.26 * len(ROWS) + 0.6)
    ax = figure.add_subplot()
    style.quiet(ax, ("bottom",))
    times = [float(fill(template)) for template in ROWS.values()]
    ax.barh(range(len(ROWS)), times, 0.6, color=style.WEIGHTS)
    for place, time in enumerate(times):
        ax.text(time + 0.01, place, f"{time:.2f}", va="center", **style.lettering(style.SMALL))
    ax.axvline(1, color=style.DENSITY, linewidth=1)
    ax.set_yticks(range(len(ROWS)), list(ROWS))
    ax.set_ylim(len(ROWS) - 0.5, -0.5)
    ax.set_xlim(0, 1.15)
    ax.set_xlabel("time; the dense function takes 1", **style.lettering(style.SMALL, style.GREY))
    style.save(figure, picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
