"""Test that the committed results of models with continuous attention support the claims of the documentation."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, str]]


def results(name: str) -> Rows:
    with (ROOT / "benchmarks" / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_imdb_accuracies_are_close_to_discrete_softmax() -> None:
    """Martins et al. 2020, table 1: all variants reach discrete softmax (86 % or more) to within 1.5 points."""
    rows = results("imdb-cpu.csv")
    accuracy = {(r["attention"], r["transform"], r["num_basis"]): 100 * float(r["accuracy"]) for r in rows}
    assert len(accuracy) == 14
    softmax = accuracy["discrete", "softmax", ""]
    assert softmax >= 86 and min(accuracy.values()) > softmax - 1.5
    sizes = {r["attention"]: r["parameters"] for r in rows}
    assert sizes["combined"] == sizes["discrete"]


def test_physionet_auroc_is_at_least_that_of_the_grid() -> None:
    """Continuous attention to irregular signals must be as good as a grid with more parameters (mean of 3 seeds)."""
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in results("physionet2012-cpu.csv"):
        groups.setdefault((row["model"], row["d_model"], row["transform"]), []).append(row)
    assert all(len(rows) == 3 for rows in groups.values())
    scores = {
        key: (mean(float(row["auroc"]) for row in rows), int(rows[0]["parameters"])) for key, rows in groups.items()
    }
    for transform in ("softmax", "sparsemax"):
        ours, theirs = scores["continuous", "", transform], scores["discrete", "48", transform]
        assert ours[0] >= theirs[0] and ours[1] < theirs[1]
