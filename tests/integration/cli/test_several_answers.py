"""Cells with several references: an output may match any of them, and the first one is scored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def plurals(tsallis: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run on data with two plurals per word."""
    folder = tmp_path_factory.mktemp("plurals")
    words = [f"{a}{b}{c}{d}" for a in "kmps" for b in "aiu" for c in "dt" for d in "ai"]
    (folder / "words.tsv").write_text("".join(f"{w}\t{w}ti/{w}s\n" for w in words), encoding="utf-8")
    sizes = ["model.d_model=16", "model.layers=1", "training.updates=200", "model.monotonic=null"]
    run = folder / "run"
    tsallis("train", folder / "words.tsv", "data.answer_separator=/", *sizes, "--run-dir", run)
    return run


def test_any_reference_counts_as_correct(tsallis: Run, plurals: Path, tmp_path: Path) -> None:
    words = ["kada", "miti", "suda"]
    found = tsallis("translate", plurals, stdin="".join(f"{word}\n" for word in words)).stdout.splitlines()
    outputs = [line.split("\t")[0] for line in found]
    assert all(outputs)
    file = tmp_path / "several.tsv"
    cells = [f"zzz/{outputs[0]}", f"{outputs[1]}/zzz", "zzz/zz"]
    file.write_text("".join(f"{w}\t{cell}\n" for w, cell in zip(words, cells, strict=True)), encoding="utf-8")

    report = json.loads(tsallis("evaluate", plurals, file, "--json", "--out", tmp_path / "records.jsonl").stdout)
    assert report["accuracy"] == pytest.approx(2 / 3)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["output"]["right"] for record in records] == [True, True, False]
    assert [record["output"]["text"] for record in records] == outputs
    assert [record["reference"]["text"] for record in records] == ["zzz", outputs[1], "zzz"]
    assert [record["answers"] for record in records] == [cell.split("/") for cell in cells]

    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    tsallis("analyze", plurals, "--text", file, "-o", page, "--json", numbers)
    answers = json.loads(numbers.read_text(encoding="utf-8"))["runs"][0]["answers"]
    assert [(one["right"], one["reference"]) for one in answers] == [
        (True, f"zzz / {outputs[0]}"),
        (True, f"{outputs[1]} / zzz"),
        (False, "zzz / zz"),
    ]


def test_score_uses_the_first_reference(tsallis: Run, plurals: Path) -> None:
    alone = tsallis("score", plurals, stdin="kada\tkadas\n")
    both = tsallis("score", plurals, stdin="kada\tkadas/kadati\n")
    assert both.stdout == alone.stdout and math.isfinite(float(alone.stdout))
    assert "ignored right answers after the first (1)" in both.stderr and "ignored" not in alone.stderr
