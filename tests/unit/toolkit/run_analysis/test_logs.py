"""Histories of numbers from training logs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from analysis_samples import corpus, transformer
from tsallis.errors import InputError
from tsallis.toolkit.run_analysis import alpha_history, density_history, value_history


def log(folder: Path, *events: Any) -> Path:
    text = "".join(event if isinstance(event, str) else json.dumps(event) + "\n" for event in events)
    path = folder / "log.jsonl"
    path.write_text(text)
    return path


def test_alpha_history_includes_the_initial_alphas(tmp_path: Path) -> None:
    """The first event has the initial alphas and no step."""
    alphas = [[1.5, 1.4], [1.3, 1.2]]
    later = {"event": "epoch", "epoch": 1, "step": 7, "alpha_encoder": [[2.0, 1.4], [1.3, 1.2]]}
    log(tmp_path, {"event": "start", "alpha_encoder": alphas}, {"event": "update", "step": 3}, later)
    history = alpha_history(tmp_path)
    assert history.steps == (0, 7) and history.values["encoder"].shape == (2, 2, 2)
    assert history.last()["encoder"].tolist() == [[2.0, 1.4], [1.3, 1.2]]
    assert json.loads(json.dumps(history.to_dict()))["values"]["encoder"][0] == alphas


def test_density_history_reads_densities(tmp_path: Path) -> None:
    log(tmp_path, {"event": "start", "alpha_encoder": [[1.5]]}, {"event": "epoch", "step": 2, "density_encoder": [[1]]})
    assert density_history(tmp_path).steps == (2,)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["nothing\n"], "log.jsonl:1: not a JSON file"),
        ([{"event": "epoch", "step": 1}], "no values of alpha"),
        ([{"event": "epoch", "alpha_encoder": [[1.5]]}], "must have a step"),
        ([{"event": "epoch", "step": 1, "alpha_encoder": [1.5]}], r"\[layers, heads\]"),
        ([{"event": "epoch", "step": 1, "alpha_encoder": [["x"]]}], "numbers"),
        (
            [
                {"event": "epoch", "step": 1, "alpha_encoder": [[1.5]]},
                {"event": "epoch", "step": 2, "alpha_encoder": [[1.5], [2.0, 1.0]]},
            ],
            "numbers",
        ),
        (["[1]\n"], "expected a JSON object"),
    ],
)
def test_invalid_logs_raise(tmp_path: Path, events: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        alpha_history(log(tmp_path, *events))


def test_a_missing_log_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        alpha_history(tmp_path)


def test_value_history_reads_validations(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"event": "start", "tau": 0.1},
        {"event": "epoch", "step": 5, "loss": 3.0},
        {"event": "validation", "step": 7, "dev_loss": 2.0, "dev_bleu": 1.5, "logit_norm": 9, "alpha_encoder": [[1]]},
        {"event": "epoch", "step": 9, "dev_loss": 1.0, "dev_bleu": 2.5, "logit_norm": 11, "output_threshold": 0.5},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    history = value_history(tmp_path)
    assert history.steps == (7, 9) and set(history.values) == {"dev_loss", "dev_bleu", "logit_norm", "output_threshold"}
    assert history.values["output_threshold"] == (None, 0.5) and history.last("dev_bleu") == 2.5
    assert history.last("tau") is None and history.seconds is None


def test_seconds_add_up_over_epochs(tmp_path: Path) -> None:
    """A validation within an epoch counts from its start. If one time is missing, all times are unknown."""
    events = [("validation", 2, 3.0), ("epoch", 4, 7.0), ("validation", 6, 2.5), ("epoch", 8, 6.0)]
    for name, key in (("log", "dev_loss"), ("timing", "seconds")):
        records = [{"event": event, "step": step, key: number} for event, step, number in events]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert value_history(tmp_path).seconds == (3.0, 7.0, 9.5, 13.0)
    timing = (tmp_path / "timing.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "timing.jsonl").write_text("".join(timing[:-1]))
    assert value_history(tmp_path).seconds is None
    (tmp_path / "timing.jsonl").write_text('{"event": "epoch", "step": 4}\n')
    with pytest.raises(InputError, match="each event must have a step and numbers"):
        value_history(tmp_path)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"event": "epoch", "step": 1}, "expected a log with at least one validation"),
        ({"event": "epoch", "dev_loss": 1.0}, "must have a step and numbers"),
        ({"event": "epoch", "step": 1, "dev_loss": "low"}, "must have a step and numbers"),
    ],
)
def test_logs_without_valid_values_raise(tmp_path: Path, event: Any, message: str) -> None:
    log(tmp_path, event)
    with pytest.raises(InputError, match=message):
        value_history(tmp_path)


def test_threshold_of_a_softmax_output_is_nan() -> None:
    from tsallis.toolkit.evaluation.teacher_forcing import teacher_forced_scores

    assert math.isnan(teacher_forced_scores(transformer(output="softmax"), corpus(3)).threshold)
