"""The page on Hugging Face models: its blocks run in their order, and print what their comments say."""

from __future__ import annotations

import csv
import re

import pytest

pytest.importorskip("transformers")  # before what imports it
pytest.importorskip("accelerate")

from pages import DOCS, run_blocks

PAGE = DOCS / "how-to" / "hugging-face.md"


def test_every_block_runs_and_prints_what_it_says() -> None:
    assert run_blocks(PAGE) > 10


def test_the_measured_table_is_that_of_the_results() -> None:
    with (PAGE.parents[2] / "benchmarks" / "results" / "sparse-minilm.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["alpha"] != "1.75"]
    lines = re.findall(r"^\| [\d.]+(?:, after 150 steps)? \| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    expected = [[f"{float(row[name]):.4f}" for name in ("density", "cosine", "spearman")] for row in rows]
    assert [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines] == expected
