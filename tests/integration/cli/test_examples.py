"""The example runs, and the page about it says what its results say."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.cli.conftest import environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "learned-alpha.md"
RESULTS = ROOT / "docs" / "figures" / "recall.csv"
FIGURES = ["recall-accuracy.svg", "recall-heads.svg", "recall-weights.svg"]
FIXED = {"softmax": 1, "1.5-entmax": 1.5, "sparsemax": 2}
VARIANTS = [*FIXED, "learned", "learned from 1.1", "learned slowly"]
PAIRS = [16, 32, 64, 128, 256, 512]
HEADS = [f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
KINDS = ["mass", "density", "alpha", "start"]

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check(rows: Rows, seeds: int) -> None:
    columns = ["variant", "seed", "steps", "pairs", "accuracy", *(f"{kind}_{head}" for kind in KINDS for head in HEADS)]
    assert list(rows[0]) == [*columns, "torch", "tsallis", "hardware"]
    assert [(row["variant"], int(row["seed"]), int(row["pairs"])) for row in rows] == [
        (variant, seed, pairs) for variant in VARIANTS for seed in range(seeds) for pairs in PAIRS
    ]
    for row in rows:
        assert row["torch"] and row["tsallis"] and row["hardware"]
        assert 0 <= float(row["accuracy"]) <= 1 and int(row["steps"]) > 0
        for head in HEADS:
            mass, density, alpha, start = (float(row[f"{kind}_{head}"]) for kind in KINDS)
            assert 0 <= mass <= 1 and 0 < density <= 1 and 1 <= alpha <= 2 and 1 <= start <= 2
            if row["variant"] in FIXED:
                assert alpha == start == FIXED[row["variant"]]
            else:
                assert alpha != start and (start == 1.1 or row["variant"] != "learned from 1.1")
            if row["variant"] == "softmax":
                assert density == 1


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall") / "figures"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "recall.py", "--quick", "--out", folder],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert importlib.util.find_spec("matplotlib") or "they need matplotlib" in done.stderr
    return folder


def test_recall_writes_a_row_for_each_variant_and_length(quick: Path) -> None:
    check(read(quick / "recall.csv"), seeds=1)


def test_recall_draws_its_figures(quick: Path) -> None:
    if not importlib.util.find_spec("matplotlib"):
        assert not list(quick.glob("*.svg"))
        pytest.skip("needs matplotlib: without it no figures are drawn")
    for name in FIGURES:
        text = (quick / name).read_text(encoding="utf-8")
        assert text.startswith("<?xml") and "<dc:date>" not in text and len(text) < 60_000


def test_the_results_are_whole() -> None:
    check(read(RESULTS), seeds=3)
    for name in FIGURES:
        assert (RESULTS.parent / name).stat().st_size < 60_000
        assert f"(figures/{name})" in PAGE.read_text(encoding="utf-8")


def tables() -> list[list[list[str]]]:
    """Cells of the page's tables, without the line below the header."""
    blocks = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.M)
    cut = [[[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()] for block in blocks]
    return [[row for row in table if not set("".join(row)) <= set("-: ")] for table in cut]


def cell(values: list[float], digits: str = ".1f", unit: float = 100) -> str:
    """Mean and range, in percent if nothing else is said."""
    low, mean, high = (format(unit * x, digits) for x in (min(values), math.fsum(values) / len(values), max(values)))
    return f"{mean} ({low}–{high})"


@pytest.mark.parametrize("number", [0, 1], ids=["accuracy", "mass"])
def test_the_pages_tables_are_those_of_the_results(number: int) -> None:
    rows, table = read(RESULTS), tables()[number]

    def value(row: dict[str, str]) -> float:
        return max(float(row[f"mass_{head}"]) for head in HEADS) if number else float(row["accuracy"])

    assert table[0][1:] == [str(pairs) for pairs in PAIRS]
    assert [line[0] for line in table[1:]] == VARIANTS
    for variant, *cells in table[1:]:
        for pairs, shown in zip(PAIRS, cells, strict=True):
            own = [value(row) for row in rows if row["variant"] == variant and row["pairs"] == str(pairs)]
            assert shown == cell(own), (variant, pairs)


def test_the_pages_table_of_heads_is_that_of_the_results() -> None:
    rows, table = read(RESULTS), tables()[2]

    def values(variant: str, kind: str, pairs: int, heads: list[str]) -> list[float]:
        own = [row for row in rows if row["variant"] == variant and row["pairs"] == str(pairs)]
        return [float(row[f"{kind}_{head}"]) for row in own for head in heads]

    assert table[0][1:] == ["alpha, layer 1", "alpha, layer 2", "density, 16 pairs", "density, 512 pairs"]
    assert [line[0] for line in table[1:]] == VARIANTS
    for variant, *cells in table[1:]:
        alphas = [cell(values(variant, "alpha", 16, heads), ".2f", 1) for heads in (HEADS[:4], HEADS[4:])]
        assert cells == alphas + [cell(values(variant, "density", pairs, HEADS)) for pairs in (16, 512)], variant


def test_the_page_names_what_was_run() -> None:
    text, row = PAGE.read_text(encoding="utf-8"), read(RESULTS)[0]
    assert f"torch {row['torch'].split('+')[0]}" in text and row["hardware"].split(",")[0] in text
    assert f"{int(row['steps'])} steps" in text
