"""Runs and their tasks: a run rejects the `task.json` of another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from task_runs import config_of, start
from tsallis.errors import InputError
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import TASKS, task_of, task_of_run
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.run_folder import build_model

LANGUAGES = {"task": "strings", "train": "{language}-train", "dev": "{language}-train"}
TEXT = "ein Haus\nzwei neue H@@ ute\ndas rote Haus\n"
WORDS = {"task": "translation", "train": "text", "dev": "text", "subwords": {"kind": "word", "size": 13}}
DATA: dict[str, dict[str, Any]] = {
    "verbs": {"embedded": "english-verbs"},
    "all": {**LANGUAGES, "languages": "all"},
    "one": {**LANGUAGES, "languages": "aa"},
    "short": {**LANGUAGES, "languages": "aa", "max_length": 40},
    "words": WORDS,
    "parts": {**WORDS, "joiner": "@@"},
    "classes": {"task": "classification", "train": "labels", "dev": "labels", "min_count": 1},
    "texts": {"task": "language", "train": "text.de", "dev": "text.de", "length": 16},
    "rows": {"task": "language", "train": "text.de", "dev": "text.de", "length": 32},
    "copies": {"task": "language", "synthetic": {"name": "copy", "min_length": 4, "max_length": 16}},
}
MODELS = {"classification": {"d_model": 4}, "language": {"d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}}


def write_data(folder: Path) -> None:
    for language in ("aa", "bb"):
        (folder / f"{language}-train").write_text("".join(f"{x}{language}\t{language}{x}\tN\n" for x in "abcd"))
    for side in ("de", "en"):
        (folder / f"text.{side}").write_text(TEXT)
    (folder / "labels").write_text("good\ta fine film\nbad\ta dull film\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an untrained run for each kind of data."""
    folder = tmp_path_factory.mktemp("runs")
    write_data(folder)
    for name, data in DATA.items():
        source = {} if "embedded" in data or "synthetic" in data else {"folder": str(folder)}
        cache = {"cache": str(folder / "cache")} if data.get("task") == "translation" else {}
        model = MODELS.get(data.get("task", ""), {"d_model": 4, "layers": 1})
        config = config_of({"version": 1, "data": {**data, **source, **cache}, "model": model})
        prepared = prepare(config)
        start(prepared, folder / name)
        parameters, step = build_model(prepared.description).state_dict(), {"step": 1, "epoch": 1, "metrics": {}}
        Checkpoints(folder / name / "checkpoints").save(parameters, {}, step, best=True, finished=True)
    return folder


def mixed(runs: Path, own: str, other: str, folder: Path) -> Path:
    """Return a copy of a run with the `task.json` of another one."""
    copy = Path(shutil.copytree(runs / own, folder / own))
    shutil.copy(runs / other / "task.json", copy)
    return copy


@pytest.mark.parametrize("name", DATA)
def test_open_run_restores_the_task(runs: Path, name: str) -> None:
    opened = open_run(runs / name, device="cpu")
    run, task = opened.run, opened.task
    assert task == task_of(run.task) and task.facts() == json.loads((runs / name / "task.json").read_text())


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ("verbs", "words", "task is 'translation', but config.yaml sets 'strings'"),
        ("words", "verbs", "task is 'strings', but config.yaml sets 'translation'"),
        ("classes", "texts", "task is 'language', but config.yaml sets 'classification'"),
        ("all", "one", r"languages is \['aa'\], but the vocabulary has \['aa', 'bb'\]"),
        ("one", "all", r"languages is \['aa', 'bb'\], but config.yaml sets \['aa'\]"),
        ("one", "short", "max_length is 40, but config.yaml sets 256"),
        ("verbs", "one", r"languages is \['aa'\], but config.yaml sets None"),
        ("words", "parts", "joiner is '@@', but config.yaml sets None"),
        ("parts", "words", "joiner is None, but config.yaml sets '@@'"),
        ("texts", "rows", "length is 32, but config.yaml sets 16"),
        ("texts", "copies", "synthetic is 'copy', but config.yaml sets None"),
    ],
)
def test_the_task_of_another_run_is_refused(runs: Path, own: str, other: str, words: str, tmp_path: Path) -> None:
    copy = mixed(runs, own, other, tmp_path)
    with pytest.raises(InputError, match=f"{own}/task.json: {words}: restore the file of this run"):
        open_run(copy, device="cpu")
    with pytest.raises(InputError, match="restore the file of this run"):
        open_run(runs / own, device="cpu", ensemble_with=[copy])


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ("verbs", "classes", "the task classification does not support .*, the model class in model.json"),
        ("verbs", "one", r"languages is \['aa'\], but the vocabulary has \[\]"),
        ("all", "verbs", r"languages is \[\], but the vocabulary has \['aa', 'bb'\]"),
    ],
)
@pytest.mark.parametrize("config", [None, "version: 1\n"])
def test_task_must_match_model_and_vocabulary_without_config(
    runs: Path, own: str, other: str, words: str, config: str | None, tmp_path: Path
) -> None:
    copy = mixed(runs, own, other, tmp_path)
    (copy / "config.yaml").unlink()
    if config is not None:
        (copy / "config.yaml").write_text(config)
    with pytest.raises(InputError, match=words):
        task_of_run(load_run(copy))


def test_an_empty_task_file_gives_the_default_task(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "verbs", tmp_path / "old"))
    (copy / "task.json").write_text("{}")
    assert task_of_run(load_run(copy)) == task_of({})


def test_resuming_with_the_task_of_another_run_raises(runs: Path, tmp_path: Path) -> None:
    copy = mixed(runs, "one", "short", tmp_path)
    data = {**DATA["one"], "folder": str(runs)}
    config = config_of({"version": 1, "data": data, "model": {"d_model": 4, "layers": 1}})
    assert prepare(config, runs / "one").task.facts()["max_length"] == 256
    with pytest.raises(InputError, match=r"max_length is 40, but config\.yaml sets 256"):
        prepare(config, copy)


def test_settings_page_names_every_task() -> None:
    page = (Path(__file__).parents[4] / "docs" / "settings.md").read_text(encoding="utf-8")
    (sentence,) = [part for part in page.split("\n\n") if part.startswith("`data.task` sets the task")]
    assert all(f"`{name}`" in sentence for name in TASKS)
