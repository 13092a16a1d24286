"""Files with names from earlier versions open as if they had the current names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tsallis.errors import InputError
from tsallis.toolkit.old_names import KEYS, TASKS, VALUES, with_new_names
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training.schema import TaskRecord, parse_record

FILES = "data: {train: a, dev: b}\n"
CONFIGURATIONS = {
    "competing_ends": FILES + "search: {beam_size: 3, competing_ends: true}\n",
    "validation_competing_ends": FILES + "training: {validation_competing_ends: true}\n",
}


def test_every_old_name_is_tested() -> None:
    assert CONFIGURATIONS.keys() == KEYS.keys()


@pytest.mark.parametrize("old", KEYS)
def test_old_names_in_configurations_are_accepted(tmp_path: Path, old: str) -> None:
    text = "version: 1\n" + CONFIGURATIONS[old]
    present = text.replace(old, KEYS[old]).replace("true", VALUES[True])
    configs = []
    for name, content in (("old", text), ("new", present)):
        (tmp_path / name).write_text(content)
        configs.append(load_config(tmp_path / name))
    assert configs[0] == configs[1]


def test_old_names_beside_new_names_are_not_replaced() -> None:
    content = {"search": {"competing_ends": True, "end_rule": "every"}}
    assert with_new_names(content) == content


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{competing_ends: 'no'}", "search.end_rule: input should be 'every' or 'competing', found 'no'"),
        ("{competing_ends: true, end_rule: every}", "search.competing_ends: unknown key"),
    ],
)
def test_invalid_values_under_old_names_are_rejected(tmp_path: Path, section: str, message: str) -> None:
    (tmp_path / "config").write_text(f"version: 1\n{FILES}search: {section}\n")
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "config")


@pytest.mark.parametrize("old", TASKS)
def test_old_task_names_are_accepted(tmp_path: Path, old: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: 1\ndata: {{task: {old}, train: a, dev: b}}\n")
    assert load_config(path).data.task == TASKS[old]
    record = parse_record(json.dumps({"task": old, "languages": ["eo"]}).encode(), TaskRecord, "task.json")
    assert task_of(record.model_dump()).facts()["languages"] == ["eo"]
