"""Settings that may change when a run is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from task_runs import config_of
from tsallis.errors import InputError
from tsallis.toolkit.config import ON_RESUME
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.registry import TASKS, schema
from tsallis.toolkit.training import Checkpoints, Settings
from tsallis.toolkit.training.changes import Changes, find_changes
from tsallis.toolkit.training.schema import Position


def changes(settings: Settings, **values: tuple[Any, Any]) -> Changes:
    return Changes("", {f"training.{name}": pair for name, pair in values.items()}, settings)


def trained(folder: Path, **position: int) -> Path:
    training = {"optimizer": {"state": {}, "param_groups": []}, "schedule": {}, "processes": 1, "log": 0, "data": ""}
    training["position"] = Position(epoch=3, step=12, best_score=0.5, best_loss=1.0, **position).model_dump()
    facts = {"step": 12, "epoch": 3, "metrics": {"dev_loss": 1.0}}
    Checkpoints(folder / "checkpoints").save({"x": torch.zeros(1)}, training, facts, True, True)
    return folder


def test_only_some_settings_may_change() -> None:
    content = {"version": 1, "data": {"embedded": "english-verbs"}, "training": {"epochs": 3}}
    before = config_of({**content, "run_dir": "a"})
    content.update(training={"epochs": 5}, search={"beam_size": 2})
    now = config_of({**content, "run_dir": "b"})
    lowest = config_of({**content, "training": {"epochs": 5, "lowest_learning_rate": 1e-5}})
    assert find_changes("text", now, lowest) is not None
    found = find_changes("text", before, now)
    assert found == Changes("text", {"training.epochs": (3, 5), "search.beam_size": (5, 2)}, now.training)
    assert found.lines == ["training.epochs: changed from 3 to 5", "search.beam_size: changed from 5 to 2"]
    for other in (
        {"training": {"epochs": 5, "clip": 1.0}},
        {"training": {"epochs": 5, "src_embeddings": "glove.txt"}},
        {"model": {"layers": 1}},
        {"model": {"architecture": "transformer"}},
        {"data": {"embedded": "english-verbs", "max_length": 9}},
    ):
        assert find_changes("text", before, config_of({**content, **other})) is None


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_on_resume_settings_match_the_documented_list(task: type[Task]) -> None:
    fields = schema(task, next(iter(task.models))).model_fields
    training = {name for name, field in Settings.model_fields.items() if ON_RESUME in field.metadata}
    names = {"epochs", "updates", "patience", "checkpoint_every", "keep", "lowest_learning_rate", "tensorboard"}
    assert training == names
    assert {name for name, field in fields.items() if ON_RESUME in field.metadata} == {"search"}
    assert {
        name for name, field in fields["training"].annotation.model_fields.items() if ON_RESUME in field.metadata
    } == training  # type: ignore[union-attr]


def test_any_change_is_allowed_before_the_first_checkpoint(tmp_path: Path) -> None:
    changes(Settings(schedule="linear", updates=3, warmup=1), updates=(9, 3), epochs=(5, 1)).check(tmp_path)


@pytest.mark.parametrize(
    ("settings", "values", "words"),
    [
        ({}, {"epochs": (5, 3)}, "training.epochs must be above 3, because 3 are already done, got 3"),
        ({"updates": 12}, {"updates": (20, 12)}, "training.updates must be above 12, because 12 are .* got 12"),
        (
            {"schedule": "linear", "updates": 40, "warmup": 1},
            {"updates": (20, 40)},
            "training.updates must be 20 as before, because schedule: linear depends on it, got 40",
        ),
        ({"output_alpha": {"start": 1}, "updates": 40}, {"updates": (20, 40)}, "must be 20 .* output_alpha .* 40"),
    ],
)
def test_invalid_changes_of_epochs_and_updates_are_rejected(
    tmp_path: Path, settings: dict[str, Any], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=f"^{tmp_path}: .*{words}.* or choose another folder$"):
        changes(Settings(**settings), **values).check(trained(tmp_path))


@pytest.mark.parametrize(
    ("settings", "values", "position"),
    [
        ({}, {"epochs": (3, 5)}, {}),
        ({}, {"epochs": (9, 4)}, {}),
        ({"validate_every": 3}, {"epochs": (3, 5)}, {}),
        ({"validate_every": 2, "schedule": "constant"}, {"epochs": (3, 5)}, {}),
        ({"validate_every": 2}, {"keep": (1, 5)}, {}),
        ({"validate_updates": 4}, {"updates": (12, None)}, {"update": 2}),
        ({"schedule": "linear", "updates": 99, "warmup": 1}, {"epochs": (3, 5)}, {}),
        ({"patience": 2}, {"patience": (3, 2)}, {}),
        ({"patience": 9}, {"patience": (None, 9)}, {}),
        ({}, {"patience": (2, None)}, {}),
    ],
)
def test_valid_changes_on_resume_are_accepted(
    tmp_path: Path, settings: dict[str, Any], values: dict[str, Any], position: dict[str, int]
) -> None:
    changes(Settings(**settings), **values).check(trained(tmp_path, **position))
