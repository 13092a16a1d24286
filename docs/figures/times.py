"""Draw the chart of README: the time of sparse operations relative to dense ones.

python docs/figures/times.py docs/figures/times.svg
"""

from __future__ import annotations

import csv
import math
import sys
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SHAPE = {"shape": "512x32000", "input": "normal"}
ATTENTION = {"group": "attention", "shape": "4x8x512x64", "causal": "False", "operation": "entmax-learned"}
# Title, file, column, and for each bar its name and the conditions of its row.
GROUPS = (
    (
        "1.5-entmax of 512 × 32,000 scores (softmax = 1)",
        "maps-cpu.csv",
        "both_to_dense",
        {n: {**SHAPE, "operation": "entmax15", "owner": n} for n in ("tsallis", "entmax")},
    ),
    (
        "1.5-entmax loss (cross-entropy = 1)",
        "losses-cpu.csv",
        "both_to_dense",
        {n: {**SHAPE, "operation": "entmax-loss-1.5", "owner": n} for n in ("tsallis", "entmax")},
    ),
    (
        "attention, 512 tokens (PyTorch's = 1)",
        "attention-cpu.csv",
        "time_ratio",
        {n: {**ATTENTION, "owner": n} for n in ("tsallis", "entmax")},
    ),
    (
        "beam search with certificates (CTranslate2 = 1)",
        "decoding-trained-cpu.csv",
        "to_peer",
        {"tsallis": {"name": "1.5-entmax", "owner": "tsallis", "beam": "5", "batch": "64"}},
    ),
)
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1b1b1b } .small { font-size: 12px; fill: #555 }
  .back { fill: #fff } .ours { fill: #0a7d4b } .theirs { fill: #9aa0a6 } .one { stroke: #555; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #eee } .small { fill: #b5b5b5 } .back { fill: #16181c } .ours { fill: #3fc48a }
    .one { stroke: #b5b5b5 }
  }"""
WIDTH, LEFT, DECADE = 420, 115, 90  # in pixels; LEFT is at ratio 0.1, and LEFT + DECADE at ratio 1


def find_ratio(file: str, column: str, wanted: dict[str, str]) -> float:
    with (RESULTS / file).open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if wanted.items() <= row.items()]
    (row,) = rows
    return float(row[column])


def draw() -> str:
    """Return the chart as SVG."""
    parts, y = [], 30
    one = LEFT + DECADE
    for title, file, column, bars in GROUPS:
        parts.append(f'<text x="12" y="{y}">{escape(title)}</text>')
        parts.append(f'<line class="one" x1="{one}" x2="{one}" y1="{y + 8}" y2="{y + 6 + 22 * len(bars)}"/>')
        for name, wanted in bars.items():
            y += 22
            ratio = find_ratio(file, column, wanted)
            end = one + DECADE * math.log10(ratio)
            kind, label = ("ours", "tsallis") if name == "tsallis" else ("theirs", "PyPI entmax")
            text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
            box = f'x="{min(one, end):.1f}" y="{y - 12}" width="{abs(end - one):.1f}"'
            parts.append(f'<rect class="{kind}" {box} height="14"/>')
            parts.append(f'<text class="small" x="24" y="{y}">{label}</text>')
            parts.append(f'<text class="small" x="{max(one, end) + 6:.1f}" y="{y}">{text}</text>')
        y += 30
    parts.append(
        f'<text class="small" x="12" y="{y}">Time on a CPU. Left of the dashed line: faster. Log scale.</text>'
    )
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 16}" viewBox="0 0 {WIDTH} {y + 16}">\n'
        f'  <style>{STYLE}\n  </style>\n  <rect class="back" width="100%" height="100%" rx="8"/>\n  {body}\n</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(), encoding="utf-8")
