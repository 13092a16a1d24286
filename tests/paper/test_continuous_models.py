"""The page on continuous attention in models says what its results say, and they say what was to be shown."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "continuous-models.md").read_text(encoding="utf-8")
Rows = list[dict[str, str]]


def results(name: str) -> Rows:
    with (ROOT / "benchmarks" / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(first: str) -> dict[str, list[str]]:
    """The cells of each row of the page's table whose header begins so, by the row's first cell."""
    lines = PAGE[PAGE.index(first) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {" / ".join(row[:2]) if first.startswith("| model") else row[0]: row[1:] for row in cells}


def test_reviews() -> None:
    """Martins et al. 2020, table 1: no variant more than 1.5 points below discrete softmax, which has at least 86 %."""
    rows = results("imdb-cpu.csv")
    result = {(r["attention"], r["transform"], r["num_basis"]): 100 * float(r["accuracy"]) for r in rows}
    assert len(result) == 14
    page = table("| attention | N = 32")
    names = {"continuous": "continuous {}", "combined": "discrete + continuous {}"}
    for (attention, transform, functions), accuracy in result.items():
        if attention == "discrete":
            cells = page[f"discrete {transform} (no functions)"]
            assert cells == ["", f"{accuracy:.1f}", ""]
        else:
            cells = page[names[attention].format(transform)]
            assert cells[("32", "64", "128").index(functions)] == f"{accuracy:.1f}"
    softmax = result["discrete", "softmax", ""]
    assert softmax >= 86 and min(result.values()) > softmax - 1.5
    sizes = {r["attention"]: r["parameters"] for r in rows}
    assert sizes["combined"] == sizes["discrete"]


@pytest.mark.parametrize(
    ("name", "attention", "density"),
    [
        ("discrete softmax", "discrete", ""),
        ("continuous softmax", "continuous", "gaussian"),
        ("continuous sparsemax", "continuous", "truncated paraboloid"),
    ],
)
def test_questions(name: str, attention: str, density: str) -> None:
    rows = [r for r in results("visual-cpu.csv") if (r["attention"], r["density"]) == (attention, density)]
    (easy,) = (r for r in rows if r["program"].startswith("tsallis train"))
    (photos,) = (r for r in rows if r["images"] == "photographs")
    cells = [f(r) for r in (easy, photos) for f in (lambda r: 100 * float(r["accuracy"]), lambda r: r["attended"])]
    accuracy, num_attended, other, shares = cells
    expected = [f"{accuracy:.1f}", f"{100 * float(num_attended):.0f} %", f"{other:.1f}", f"{100 * float(shares):.0f} %"]
    assert table("| attention | easy-VQA")[name] == expected


def test_stays_in_hospital() -> None:
    page = table("| model | attention")
    groups: dict[tuple[str, str, str], Rows] = {}
    for row in results("physionet2012-cpu.csv"):
        groups.setdefault((row["model"], row["d_model"], row["transform"]), []).append(row)
    assert all(len(rows) == 3 for rows in groups.values())
    names = {
        ("continuous", ""): "signals",
        ("discrete", "48"): "GRU on a grid",
        ("discrete", "8"): "GRU on a grid, 8 units",
    }
    scores = {}
    for (model, size, transform), rows in groups.items():
        cells = page[f"{names[model, size]} / {model} {transform}"]
        assert cells[1] == f"{int(rows[0]['parameters']):,}"
        for column, key in ((2, "auroc"), (3, "auprc")):
            values = [float(row[key]) for row in rows]
            assert cells[column] == f"{mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"
        scores[model, size, transform] = mean(float(row["auroc"]) for row in rows), int(rows[0]["parameters"])
    for transform in ("softmax", "sparsemax"):
        ours, theirs = scores["continuous", "", transform], scores["discrete", "48", transform]
        assert ours[0] >= theirs[0] and ours[1] < theirs[1]
