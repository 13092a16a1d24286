"""The example runs, and the page about it says what its results say."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from statistics import fmean

import pytest

from integration.cli.conftest import run_example

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "results-long-contexts.md"
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
    done = run_example("recall", "--quick", "--out", folder)
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


def test_the_page_has_the_means_of_the_rows() -> None:
    rows = [row for row in read(RESULTS) if row["pairs"] == "512"]
    for variant in VARIANTS:
        own = [row for row in rows if row["variant"] == variant]

        def of_heads(kind: str, own: Rows = own) -> float:
            return fmean(float(row[f"{kind}_{head}"]) for row in own for head in HEADS)

        accuracy = fmean(float(row["accuracy"]) for row in own)
        weight = fmean(max(float(row[f"mass_{head}"]) for head in HEADS) for row in own)
        percents = [f"{100 * value:.1f} %" for value in (accuracy, weight, of_heads("density"))]
        cells = [variant, *percents[:2], f"{of_heads('alpha'):.2f}", percents[2]]
        assert f"| {' | '.join(cells)} |\n" in PAGE.read_text(encoding="utf-8")


def test_the_page_names_what_was_run() -> None:
    text, row = PAGE.read_text(encoding="utf-8"), read(RESULTS)[0]
    assert f"{int(row['steps']):,} updates" in text
