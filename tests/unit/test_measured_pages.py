"""Tables of pages on what was measured are those of the committed rows."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[2]
Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    with (ROOT / "benchmarks" / "results" / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_table_of_alphas_is_that_of_the_rows() -> None:
    table = importlib.import_module("alphas").page_table(rows_of("multi30k-alphas-cpu.csv"))
    assert table in read_page("learned-alpha.md")


def test_the_tables_of_the_pretrained_encoder_are_those_of_the_rows() -> None:
    lines = [line for line in read_page("pretrained-encoder.md").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = rows_of("minilm-similarity.csv")
    names = [f"{float(row['alpha']):g}" for row in rows[:-1]] + [f"1.5, after {rows[-1]['steps']} steps"]
    numbers = [[f"{float(row[name]):.4f}" for name in ("density", "cosine", "spearman")] for row in rows]
    assert cells[1:9] == [[name, *row] for name, row in zip(names, numbers, strict=True)]
    variants: dict[str, list[Row]] = {}
    for row in rows_of("minilm-questions.csv"):
        variants.setdefault(row["variant"], []).append(row)
    assert cells[10:] == [
        [name, f"{fmean(float(row['density']) for row in rows):.2f}"]
        + [f"{100 * float(row['accuracy']):.1f}" for row in sorted(rows, key=lambda row: row["seed"])]
        for name, rows in variants.items()
    ]


def test_the_table_of_long_contexts_is_that_of_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study, rows, page = (
        importlib.import_module("long_context"),
        rows_of("long-context-cpu.csv"),
        read_page("long-contexts.md"),
    )
    assert study.with_table(page, rows) == page
    assert study.page_table(rows[1:]) not in page
    study.draw(rows, tmp_path / "long-context.svg")
    assert (tmp_path / "long-context.svg").stat().st_size > 1000
