"""Runs of every task that were trained before names changed still open, give the same answers, and resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.cli.conftest import Run, json_lines

RUNS = Path(__file__).parents[2] / "fixtures" / "version1"
ANSWERS = ("translate", "run", "input.txt", "--json")
COMMANDS = {  # the commands that wrote the expected lines
    "strings": ANSWERS,
    "translation": ANSWERS,
    "classification": ANSWERS,
    "visual": ANSWERS,
    "language": ("score", "run", "input.txt", "--json"),
}


@pytest.fixture(params=sorted(path.name for path in RUNS.iterdir()))
def earlier(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    shutil.copytree(RUNS / request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return request.param


def test_earlier_runs_give_the_same_answers(earlier: str, tsallis: Run) -> None:
    lines = json_lines(tsallis(*COMMANDS[earlier]).stdout)
    before = json_lines(Path("expected.jsonl").read_text(encoding="utf-8"))
    assert len(before) == 3
    assert [_log_probs(line) for line in lines] == [
        {text: pytest.approx(log_prob, rel=1e-4, abs=1e-5) for text, log_prob in _log_probs(line).items()}
        for line in before
    ]


def _log_probs(line: dict[str, Any]) -> dict[str, float]:
    """Return the log-probability of each output, or that of the scored text."""
    return {output["text"]: output["log_prob"] for output in line.get("hypotheses", [{**line, "text": ""}])}


def test_earlier_runs_resume(earlier: str, tsallis: Run) -> None:
    before = Path("run/log.jsonl").read_text(encoding="utf-8")
    refused = tsallis("train", "config.yaml", "training.seed=7", status=2)
    assert "another configuration (new training.seed: 7; " in refused.stderr
    tsallis("train", "config.yaml", "training.updates=65", "training.epochs=40")
    log = Path("run/log.jsonl").read_text(encoding="utf-8")
    assert log.startswith(before)
    assert json.loads(log.splitlines()[-1])["step"] == 65
    tsallis(*COMMANDS[earlier])


def test_evaluate_names_lines_without_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tsallis: Run) -> None:
    shutil.copytree(RUNS / "translation", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    sources = Path("dev.de").read_text(encoding="utf-8").splitlines()
    Path("dev.de").write_text("\n".join(["", *sources[1:]]), encoding="utf-8")
    done = tsallis("evaluate", "run", "--split", "dev")
    assert "dev split: left out lines with an empty source (1)" in done.stderr
    assert f"on: dev split ({len(sources)} lines)\nexamples {len(sources) - 1:>35}" in done.stdout


def test_generate_respects_the_configured_max_length(tmp_path: Path, tsallis: Run) -> None:
    run = Path(shutil.copytree(RUNS / "language" / "run", tmp_path / "run"))
    config = (run / "config.yaml").read_text(encoding="utf-8")
    assert "max_length: null" in config
    (run / "config.yaml").write_text(config.replace("max_length: null", "max_length: 3"), encoding="utf-8")
    samples = "--num-samples", 50
    for options, most in ((samples, 3), ((*samples, "--max-length", 5), 5), (("--mode", "beam"), 3)):
        (line,) = tsallis("generate", run, "--prefix", "one", "--json", *options).stdout.splitlines()
        answer = json.loads(line)
        assert all(len(text["text"]) <= len("one") + most for text in answer.get("texts", [answer]))
        assert "texts" not in answer or not all(text["ended"] for text in answer["texts"])
