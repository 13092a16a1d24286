"""Collect the results of the study of long contexts in a CSV file, a table and a chart.

    python benchmarks/long_context.py long-context/*.json --out benchmarks/results/long-context-cpu.csv \
        --page docs/results-long-contexts.md --picture docs/figures/long-context.svg

`examples/long_context.py` writes the JSON files, one per task, kind of attention and seed. This script adds one row per
file to the CSV file and keeps the rows of other runs. Table and chart show means over all available seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from common import Row, write

from tsallis.toolkit.datasets.synthetic import SYNTHETIC_TASKS

# Name and colour of each kind of attention on pages.
VARIANTS = {
    "softmax": ("softmax", "#6b7280"),
    "ssmax": ("SSMax", "#b45309"),
    "entmax": ("1.5-entmax", "#0068a8"),
    "learned": ("learned alpha", "#0b7d62"),
    "asentmax": ("ASEntmax", "#a21caf"),
    "asentmax-head": ("ASEntmax, one scale per head", "#6d28d9"),
    "softmax-rope": ("softmax, RoPE", "#9ca3af"),
    "asentmax-rope": ("ASEntmax, RoPE", "#d8a3e0"),
    "asentmax-none": ("ASEntmax, no positions", "#e879f9"),
    "asentmax-learned": ("ASEntmax, learned alpha", "#701a75"),
}
IN_PICTURE = ("softmax", "ssmax", "entmax", "learned", "asentmax")
LENGTHS = (64, 1024, 16384)  # columns of the table
RUN = ("task", "variant", "seed")
BEGIN, END = "<!-- table of the study -->\n", "<!-- end of the table -->\n"


def row_of(result: dict[str, Any]) -> Row:
    """Return the row of a run: accuracies by length, alphas, times and software versions."""
    row: Row = {name: str(result[name]) for name in RUN}
    row |= {"updates": result["training"]["updates"], "loss": result["loss"]}
    row |= {f"accuracy_{test['length']}": test["accuracy"] for test in result["tests"]}
    row |= {f"whole_{test['length']}": test["whole"] for test in result["tests"]}
    row["alphas"] = json.dumps([[round(alpha, 4) for alpha in layer] for layer in result["alphas"]])
    made = ("train_seconds", "test_seconds", "commit", "tsallis", "torch", "python", "cpu", "cores", "threads")
    return row | {name: result[name] for name in made}


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file, or no rows if the file does not exist."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def rank(row: Row) -> tuple[int, int, int]:
    return [*SYNTHETIC_TASKS].index(row["task"]), [*VARIANTS].index(row["variant"]), int(row["seed"])


def add(path: Path, results: list[dict[str, Any]]) -> list[Row]:
    """Add rows of runs to a file, replace older rows of the same runs, and return all rows of the file."""
    new = {rank(row): row for row in map(row_of, results)}
    rows = {rank(row): row for row in read(path)} | new
    write(path, [rows[key] for key in sorted(rows)])
    return read(path)


def groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Group the rows of all seeds by task and variant."""
    result: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        result.setdefault((row["task"], row["variant"]), []).append(row)
    return result


def accuracies(seeds: list[Row], length: int) -> list[float]:
    return [float(row[f"accuracy_{length}"]) for row in seeds]


def accuracy(seeds: list[Row], length: int) -> float:
    return fmean(accuracies(seeds, length))


def page_table(rows: list[Row]) -> str:
    """Return the table of the documentation: mean percentage of correct targets by length."""
    lines = [["task", "attention", *(f"{length:,}" for length in LENGTHS)]]
    lines.append(["---"] * len(lines[0]))
    for (task, variant), seeds in groups(rows).items():
        percents = [f"{100 * accuracy(seeds, length):.1f}" for length in LENGTHS]
        lines.append([task, VARIANTS[variant][0], *percents])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(page: str, rows: list[Row]) -> str:
    """Return a page whose table is replaced by the table of these rows."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{page_table(rows)}\n{END}{rest.split(END)[1]}"


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy by length, with one panel per task and one line per kind of attention with NAPE."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "figures"))
    import style

    of, tasks = groups(rows), list(dict.fromkeys(row["task"] for row in rows))
    figure = style.blank(2.0 * len(tasks) + 1.2, 2.2)
    for number, task in enumerate(tasks):
        ax = figure.add_subplot(1, len(tasks), number + 1)
        style.quiet(ax, ("left", "bottom"))
        for variant in IN_PICTURE:
            seeds = of.get((task, variant), [])
            lengths = [int(name.split("_")[1]) for name in rows[0] if name.startswith("accuracy_")]
            if seeds:
                ys = [accuracy(seeds, length) for length in lengths]
                ax.plot(lengths, ys, color=VARIANTS[variant][1], linewidth=1.6)
                ends = [[end(accuracies(seeds, length)) for length in lengths] for end in (min, max)]
                ax.fill_between(lengths, *ends, color=VARIANTS[variant][1], alpha=0.12, linewidth=0)
        ax.set_xscale("log", base=2)
        ax.set_xticks([64, 1024, 16384], ["64", "1,024", "16,384"])
        ax.set_ylim(-0.03, 1.03)
        ax.set_xlabel("tokens", **style.lettering(style.SMALL, style.GREY))
        style.heading(ax, task)
        if not number:
            ax.set_ylabel("accuracy", **style.lettering(style.SMALL, style.GREY))
    style.name_lines(ax, [VARIANTS[variant] for variant in IN_PICTURE])
    style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="JSON file of a run")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to update")
    parser.add_argument("--page", type=Path, help="page whose table to replace")
    parser.add_argument("--picture", type=Path, help="output file of the chart (SVG)")
    options = parser.parse_args()
    rows = add(options.out, [json.loads(path.read_text(encoding="utf-8")) for path in options.runs])
    print(page_table(rows), end="")
    if options.page:
        options.page.write_text(with_table(options.page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
