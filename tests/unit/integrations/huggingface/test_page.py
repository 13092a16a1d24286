"""The page on Hugging Face models: its blocks run in their order, and print what their comments say."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before what imports it
pytest.importorskip("accelerate")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "hugging-face.md"


def test_every_block_runs_and_prints_what_it_says() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(blocks) > 10
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(PAGE), "exec"), namespace)
        expected = re.findall(r"^print\(.*\)  # (.*)$", block, re.M)
        lines = [line for line in printed.getvalue().splitlines() if not line.startswith("{")]  # Trainer's own
        assert lines == expected, block


def test_the_measured_table_is_that_of_the_results() -> None:
    with (PAGE.parents[2] / "benchmarks" / "results" / "sparse-minilm.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["alpha"] != "1.75"]
    lines = re.findall(r"^\| [\d.]+(?:, after 150 steps)? \| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    expected = [[f"{float(row[name]):.4f}" for name in ("density", "cosine", "spearman")] for row in rows]
    assert [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines] == expected
