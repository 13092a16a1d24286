"""The tables of README and docs match the committed rows."""

from __future__ import annotations

import csv
import importlib
import json
import re
import runpy
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest

from repository_tools import load_program

pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# A page

<!-- table: speed -->
<!-- end -->

Ours is faster.
"""
RENDERED = """# A page

<!-- table: speed -->
| owner | seconds | fastest | right |
|---|---|---|---|
| ours | 0.50 | 3.0 | 1,500 (75 %) |
| theirs | 1.50 | 3.0 | 1,500 (75 %) |
<!-- end -->

Ours is faster.
"""
TEMPLATES = """
page.md:
  tables:
    speed:
      each: {owner: [ours, theirs]}
      columns:
        owner: $owner
        seconds: "{speed.csv[owner=$owner].seconds | .2f}"
        fastest: "{max speed.csv[owner=ours or theirs].ratio | .1f}"
        right: "{runs/model.json.metrics.right | ,d} ({runs/model.json.metrics.accuracy | .0%})"
"""


@pytest.fixture(scope="module")
def render() -> ModuleType:
    return load_program("benchmarks/render")


@pytest.fixture
def folder(tmp_path: Path, render: ModuleType) -> Path:
    """Create a page, its templates, and the rows of both."""
    (tmp_path / "results" / "runs").mkdir(parents=True)
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "page.yaml").write_text(TEMPLATES)
    (tmp_path / "results" / "speed.csv").write_text("owner,seconds,ratio\nours,0.5,3\ntheirs,1.5,1\n")
    manifest = {"metrics": {"right": 1500, "accuracy": 0.75}}
    (tmp_path / "results" / "runs" / "model.json").write_text(json.dumps(manifest))
    render.read_rows.cache_clear()
    return tmp_path


def check(render: ModuleType, folder: Path, write: bool = False) -> list[str]:
    render.read_rows.cache_clear()
    wrong: list[str] = render.render(not write, folder, folder / "pages", folder / "results")
    return wrong


def test_the_pages_match_the_rows(render: ModuleType) -> None:
    assert render.render(check=True) == []


def test_a_rendered_page_passes_the_check(render: ModuleType, folder: Path) -> None:
    assert check(render, folder) == ["page.md:4: not what the rows say; `make results` writes it anew"]
    assert (folder / "page.md").read_text() == PAGE
    assert check(render, folder, write=True) == []
    assert (folder / "page.md").read_text() == RENDERED
    assert check(render, folder) == []


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


MISMATCHES = [
    ("page.md", "| ours | 0.50", "| ours | 0.40", "page.md:6: not what the rows say"),
    ("page.md", "<!-- table: speed -->", "<!-- table: size -->", "page.md: there is no template of the table size"),
    ("results/speed.csv", "theirs,1.5", "others,1.5", "page.md: {speed.csv[owner=theirs].seconds | .2f}: no rows"),
    ("results/speed.csv", "theirs,1.5", "ours,1.5", "page.md: {speed.csv[owner=ours].seconds | .2f}: 2 rows"),
    ("results/speed.csv", "ours,0.5,", "ours,,", "speed.csv[owner=ours].seconds | .2f}: there is no seconds"),
    ("results/runs/model.json", "right", "wrong", "runs/model.json.metrics.right | ,d}: there is no right"),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), MISMATCHES)
def test_mismatches_with_the_rows_are_reported(
    render: ModuleType, folder: Path, file: str, old: str, new: str, message: str
) -> None:
    check(render, folder, write=True)
    change(folder / file, old, new)
    (line,) = check(render, folder)
    assert message in line


@pytest.mark.parametrize("name", ["speed.csv", "runs/model.json"])
def test_missing_files_are_reported(render: ModuleType, folder: Path, name: str) -> None:
    check(render, folder, write=True)
    (folder / "results" / name).unlink()
    assert check(render, folder) == [f"page.md: {name}: is not there"]


def test_figures_aggregate_manifests_of_several_runs(render: ModuleType, folder: Path) -> None:
    runs = folder / "results" / "runs"
    for number, right in (("1", 10), ("2", 30), ("12", 1000)):
        (runs / f"seed-{number}.json").write_text(json.dumps({"metrics": {"right": right}}))
    figures = "{mean runs/seed-1,2.json.metrics.right | .1f}, {max runs/seed-1,2,12.json.metrics.right | ,d}"
    assert render.fill(figures, folder / "results") == "20.0, 1,000"
    assert render.fill("{count runs/seed-1,2.json}", folder / "results") == "2"
    (runs / "seed-2.json").unlink()
    render.read_rows.cache_clear()
    with pytest.raises(render.Mismatch, match=r"runs/seed-2\.json: is not there"):
        render.fill(figures, folder / "results")


EXPONENTS = [
    (3.6, ".1e", "3.6e0"),
    (0, ".1e", "0.0e0"),
    (3.6e7, ".1e", "3.6e7"),
    (3.6e10, ".1e", "3.6e10"),
    (3.6e-7, ".1e", "3.6e-7"),
    (3.6e-10, ".1e", "3.6e-10"),
    (2.5, None, "2.5"),
]


@pytest.mark.parametrize(("value", "spec", "text"), EXPONENTS)
def test_exponents_have_no_plus_or_leading_zeros(render: ModuleType, value: float, spec: str | None, text: str) -> None:
    assert render.format_figure(value, spec) == text


def test_every_manifest_says_how_to_repeat_its_result() -> None:
    for path in (ROOT / "benchmarks" / "results" / "runs").glob("*.json"):
        check_manifest(path.read_text(encoding="utf-8"))


def check_manifest(text: str) -> None:
    manifest = json.loads(text)
    assert manifest["format"] in (1, 2) and manifest["command"].startswith("tsallis evaluate ")
    assert manifest["metrics"]["samples"] > 0 and manifest["training"]["seed"] == manifest["config"]["training"]["seed"]
    assert manifest["training"]["updates"] > 0 and manifest["training"]["seconds"] > 0
    assert re.fullmatch(r"[0-9a-f]{40}", manifest["evaluation"]["commit"]), "of code with changes"
    splits = {"train", "dev", manifest["evaluation"].get("split", "dev")}
    made_here = any(manifest["config"]["data"].get(source) for source in ("embedded", "synthetic"))
    assert all(manifest["data"][split] for split in splits) or made_here
    assert not re.search(r"[\" =]/", text), "an absolute path"


def rows_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "results" / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_the_long_context_table_matches_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study, rows = importlib.import_module("long_context"), rows_of("long-context-cpu.csv")
    page = (ROOT / "docs" / "results-long-contexts.md").read_text(encoding="utf-8")
    assert study.with_table(page, rows) == page
    assert study.page_table(rows[1:]) not in page
    study.draw(rows, tmp_path / "long-context.svg")
    assert (tmp_path / "long-context.svg").stat().st_size > 1000


def test_the_chart_of_times_matches_the_rows() -> None:
    chart = runpy.run_path(str(ROOT / "docs" / "figures" / "times.py"))["draw"]()
    assert (ROOT / "docs" / "figures" / "times.svg").read_text(encoding="utf-8") == chart


def test_the_pretrained_encoder_tables_match_the_rows() -> None:
    page = (ROOT / "docs" / "pretrained-encoder.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    growth, accuracies = cells[1:9], cells[10:]
    rows = rows_of("minilm-similarity.csv")
    names = [f"{float(row['alpha']):g}" for row in rows[:-1]] + [f"1.5, after {rows[-1]['steps']} steps"]
    numbers = [[f"{float(row[name]):.4f}" for name in ("density", "cosine", "spearman")] for row in rows]
    assert growth == [[name, *row] for name, row in zip(names, numbers, strict=True)]
    variants: dict[str, list[dict[str, str]]] = {}
    for row in rows_of("minilm-questions.csv"):
        variants.setdefault(row["variant"], []).append(row)
    assert accuracies == [
        [name.replace("led to", "raised to"), f"{fmean(float(row['density']) for row in rows):.2f}"]
        + [f"{100 * float(row['accuracy']):.1f}" for row in sorted(rows, key=lambda row: row["seed"])]
        for name, rows in variants.items()
    ]
