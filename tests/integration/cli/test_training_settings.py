"""Settings of a training, as the command takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.cli.conftest import Run
from integration.cli.runs import inflection


def last_line(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text().splitlines()[-1]))


def test_optimizer_schedule_and_curves(tsallis: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: of the extra tensorboard")
    config = inflection(tmp_path / "data")
    settings = {
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "schedule": "plateau",
        "plateau_patience": 1,
        "select": "levenshtein",
        "tensorboard": "true",
        "epochs": 3,
    }
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    run = tmp_path / "run"
    text = tsallis("train", config, *overrides, "--run-dir", run).stdout
    event = last_line(run / "log.jsonl")
    assert event["select"] == "levenshtein" and "dev levenshtein" in text
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert "Going on" in tsallis("train", config, *overrides, "--run-dir", run).stdout
    assert last_line(run / "log.jsonl") == event


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optimizer=sgd", "training.optimizer: input should be 'adam' or 'adamw', found 'sgd'"),
        ("weight_decay=-1", "training.weight_decay: input should be greater than or equal to 0, found -1"),
        ("schedule=cosine", "training.schedule: input should be 'constant'"),
        ("plateau_factor=2", "training.plateau_factor: input should be less than 1, found 2"),
        ("select=bleu", "training.select: expected one of accuracy, levenshtein, loss, "),
    ],
)
def test_bad_values_end_in_one_line(tsallis: Run, tmp_path: Path, setting: str, words: str) -> None:
    config = inflection(tmp_path / "data")
    done = tsallis("train", config, f"training.{setting}", "--run-dir", tmp_path / "run", status=2)
    assert words in done.stderr and done.stderr.count("\n") == 1
