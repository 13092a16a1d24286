"""Write a table of all attention heads of runs: roles, sparsity and importance, from the numbers of a report.

tsallis analyze runs/learned runs/softmax --importance 100 --json numbers.json
python benchmarks/heads.py numbers.json --seed 1 --commit a67f850 --out benchmarks/results/multi30k-heads-cpu.csv

Without --seed, the names of the runs must end with their seeds, such as learned-s1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import Row, machine, table, write

DENSE = -1  # last bin of the density histogram: densities from 95 %
PRINTED = ("run", "kind", "layer", "head", "alpha", "density", "role", "tendency", "increase")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def contrast(pair: dict[str, Any] | None) -> list[float]:
    """Return the densities of a head on two sentences of equal length, a sparse and a dense one."""
    return [] if pair is None else [round(pair[side]["score"], 4) for side in ("sparse", "dense")]


def rows_of(run: dict[str, Any]) -> list[Row]:
    """Return one row per head; layers and heads are numbered from 1."""
    divergence = {(layer["kind"], layer["layer"]): layer["divergence"] for layer in run["diversity"]}
    pairs = {(pair["kind"], pair["layer"], pair["head"]): pair for pair in run["contrasts"]}
    return [
        {
            "run": run["name"],
            "kind": head["kind"],
            "layer": head["layer"] + 1,
            "head": head["head"] + 1,
            "alpha": number(head["alpha"]),
            "density": number(head["density"]),
            "dense_sentences": number(head["histogram"]["counts"][DENSE] / sum(head["histogram"]["counts"])),
            "role": head["role"] or "",
            "tendency": head["tendency"] or "",
            "question": number(head["scores"].get("question")),
            "scores": json.dumps(
                {name: round(score, 4) for name, score in head["scores"].items() if score is not None}
            ),
            "uniform": json.dumps(
                {name: round(score, 4) for name, score in head["uniform"].items() if score is not None}
            ),
            "increase": number(head["increase"]),
            "contrast": json.dumps(contrast(pairs.get((head["kind"], head["layer"], head["head"])))),
            "layer_divergence": number(divergence[head["kind"], head["layer"]]),
            "step": run["step"],
            "sentences": run["corpus"]["sentences"],
        }
        for head in run["heads"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=Path, help="output file of `tsallis analyze --json`")
    parser.add_argument("--seed", help="random seed of the trainings")
    parser.add_argument("--commit", required=True, help="commit of the code that analysed the runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = json.loads(options.numbers.read_text(encoding="utf-8"))["runs"]
    rows: list[Row] = []
    for run in runs:
        if options.seed is None:
            run["name"], _, seed = run["name"].rpartition("-s")
        made = {"seed": options.seed or seed, "commit": options.commit, **machine()}
        rows += [{**row, **made} for row in rows_of(run)]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
