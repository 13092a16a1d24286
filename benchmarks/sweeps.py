"""Rows of sweeps, from the numbers of their reports: the scores of each run at its best validation.

tsallis analyze runs/alpha-* --sweep --json alpha.json
python benchmarks/sweeps.py alpha.json tau.json --commit a67f850 --out benchmarks/results/multi30k-sweeps-cpu.csv
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import Row, machine, table, write

SCORES = {
    "dev_symbol_accuracy": "symbol_accuracy",
    "dev_bleu": "bleu",
    "dev_macro_accuracy": "accuracy",
    "dev_gold_in_support": "gold_in_support",
    "output_support": "supported",
    "attention_support": "attended",
    "tau": "tau",
}
PRINTED = ("setting", "value", "seed", *SCORES.values())


def rows_of(sweep: dict[str, Any]) -> list[Row]:
    """Return a row for each run of each value."""
    return [
        {
            "setting": sweep["setting"],
            "value": point["value"],
            "seed": seed,
            "step": point["steps"][number][-1],
            **{short: score(point, long, number) for long, short in SCORES.items()},
        }
        for point in sweep["points"]
        for number, seed in enumerate(point["seeds"])
    ]


def score(point: dict[str, Any], name: str, number: int) -> str:
    """Return a run's score; nothing where its task or its output has none."""
    value = point["scores"].get(name, [None] * len(point["seeds"]))[number]
    return "" if value is None else f"{value:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=Path, nargs="+", help="what `tsallis analyze --sweep --json` wrote")
    parser.add_argument("--commit", required=True, help="of the code that trained the runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sweeps = [json.loads(path.read_text(encoding="utf-8"))["sweep"] for path in options.numbers]
    made = {"commit": options.commit, **machine()}
    rows = [{**row, **made} for sweep in sweeps for row in rows_of(sweep)]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
