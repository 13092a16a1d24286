"""The study of long contexts writes one file per run, and skips runs whose file exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.cli.conftest import run_example

pytestmark = pytest.mark.slow


def study(folder: Path, *variants: str) -> str:
    options = ["--tasks", "flip-flop", "--seeds", "1", "--updates", "2", "--lengths", "64", "200", "--out", folder]
    return run_example("long_context", "--variants", *variants, *options).stderr


def test_study_skips_finished_runs_and_records_settings(tmp_path: Path) -> None:
    study(tmp_path, "asentmax-rope")
    (first,) = tmp_path.iterdir()
    assert first.name == "flip-flop-asentmax-rope-s1.json"
    text = first.read_text(encoding="utf-8")
    printed = study(tmp_path, "asentmax-rope", "learned")
    second = tmp_path / "flip-flop-learned-s1.json"
    assert "asentmax" not in printed and second.stem in printed
    assert first.read_text(encoding="utf-8") == text and sorted(tmp_path.iterdir()) == [first, second]
    result = json.loads(second.read_text(encoding="utf-8"))
    assert result["model"]["alpha"] == "learned"
    assert result["training"] | {"updates": 2, "max_length": 64} == result["training"]
    assert result["torch"] and result["cpu"] and result["threads"] == 1 and "commit" in result
    assert [test["length"] for test in result["tests"]] == [64, 200]
    for test in result["tests"]:
        assert test["examples"] == 256 and 0 <= test["whole"] <= test["accuracy"] <= 1
