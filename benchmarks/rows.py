"""Add results of examples, which are JSON files, to a CSV file in `benchmarks/results`.

    python benchmarks/rows.py documents-cpu.csv runs/sst2-*.json

A result replaces the row with the same settings and seed; all other rows stay. Rows are sorted by their settings.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
MACHINE = {"torch": "origin.torch", "threads": "origin.threads", "cpu": "origin.cpu", "date": "date"}
VISUAL = {
    "attention": "options.attention",
    "transform": "options.transform",
    "density": "options.density",
    "blind": "options.blind",
    "seed": "options.seed",
    "accuracy": "accuracy",
    "dev_accuracy": "dev_accuracy",
    "attended": "attended",
    "epochs": "options.epochs",
    "learning_rate": "options.learning_rate",
    "dropout": "options.dropout",
    "d_model": "options.d_model",
    "parameters": "parameters",
}
# For each file, the path of each column's value in a result. The columns up to "seed" are the key of a row.
COLUMNS: dict[str, dict[str, str]] = {
    "documents-cpu.csv": {
        "data": "options.data",
        "vectors": "options.word_vectors",
        "attention": "options.attention",
        "transform": "options.transform",
        "num_basis": "options.num_basis",
        "cut": "options.cut",
        "seed": "options.seed",
        "accuracy": "accuracy",
        "dev_accuracy": "dev_accuracy",
        "attended": "attended",
        "freeze": "options.freeze",
        "epochs": "options.epochs",
        "dropout": "options.dropout",
        "learning_rate": "options.learning_rate",
        "precision": "options.precision",
        "parameters": "parameters",
        **MACHINE,
    },
    "shapes-cpu.csv": {
        **VISUAL,
        "count": "kinds.number.accuracy",
        "side": "kinds.yes/no.accuracy",
        "name": "kinds.other.accuracy",
        **MACHINE,
    },
    "daquar-features-cpu.csv": {
        **VISUAL,
        "number": "kinds.number.accuracy",
        "other": "kinds.other.accuracy",
        **MACHINE,
    },
}


def find_value(result: Mapping[str, Any], path: str) -> str:
    """Return the value at a path as text: a file name without its folders, a float with five digits."""
    value: Any = result
    for key in path.split("."):
        value = value[key]
    if isinstance(value, float):
        return f"{value:.5g}"
    return Path(value).name if isinstance(value, str) else "" if value is None else str(value)


def row_key(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings and the seed of a row."""
    names = list(row)
    return tuple(row[name] for name in names[: names.index("seed") + 1])


def merge(rows: Iterable[Mapping[str, str]], others: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return all rows in order; those in `others` replace rows with the same settings and seed."""
    by_key = {row_key(row): dict(row) for row in [*rows, *others]}
    return [by_key[key] for key in sorted(by_key)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", choices=sorted(COLUMNS), help="name of a file in benchmarks/results")
    parser.add_argument("results", nargs="+", type=Path, help="JSON files that an example wrote")
    options = parser.parse_args()
    path, columns = RESULTS / options.file, COLUMNS[options.file]
    rows: list[dict[str, str]] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in options.results]
    rows = merge(rows, [{name: find_value(result, key) for name, key in columns.items()} for result in results])
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
