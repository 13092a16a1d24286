"""Find a task by the name that configurations and run folders use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tsallis.errors import InputError, describe
from tsallis.toolkit.config import Config, apply_overrides, check_content, make_schema, read_content
from tsallis.toolkit.data.io import find_packed
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.classification import Classification
from tsallis.toolkit.tasks.data_file import describe_file
from tsallis.toolkit.tasks.language import Language
from tsallis.toolkit.tasks.strings import Strings
from tsallis.toolkit.tasks.translation import Translation
from tsallis.toolkit.tasks.types import SPLITS
from tsallis.toolkit.tasks.vqa import Visual
from tsallis.toolkit.training.file_names import CHECKPOINTS, CONFIG, LOCK, LOG, MODEL, START, TASK, TIMING
from tsallis.toolkit.training.run_folder import SYMBOLS, Run

DEFAULT = Strings.name  # task of a configuration without the key `task`
TASKS: dict[str, type[Task]] = {task.name: task for task in (Strings, Translation, Classification, Visual, Language)}


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    r"""Read and check the configuration of a run.

    Args:
        path: Path of a YAML file.
        overrides: Overrides `key=value`, such as `model.output=sparsemax`.

    Returns:
        The configuration with all defaults.

    Raises:
        InputError: If the file can't be read or has errors. One message lists all errors with their paths.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "verbs.yaml"
        >>> _ = path.write_text("version: 1\ndata: {embedded: english-verbs}\n")
        >>> config = load_config(path, ["training.epochs=3"])
        >>> config.data.task, config.model.architecture, config.training.epochs
        ('strings', 'rnn', 3)
    """
    content = read_content(path, overrides)
    return check_content(content, str(path), _choose_schema(content, str(path)), overrides)


def config_of_file(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration for training on a file of columns; see :func:`load_config` for the overrides.

    Raises:
        InputError: If the file can't be read, or an override is wrong.
    """
    content = describe_file(path, overrides)
    apply_overrides(content, overrides)
    return check_content(content, str(path), _choose_schema(content, str(path)), overrides)


def _choose_schema(content: Mapping[str, Any], name: str) -> type[Config]:
    task, model = _find_task_type(content.get("data"), f"{name}: data"), content.get("model")
    architecture = model.get("architecture") if isinstance(model, Mapping) else None
    is_known = isinstance(architecture, str) and architecture in task.models
    return schema(task, architecture if is_known else next(iter(task.models)))


@cache
def schema(task: type[Task], architecture: str) -> type[Config]:
    """Return the configuration schema of a task and a model architecture."""
    return make_schema(task.Config, task.models, architecture, task.search_defaults)


def task_type(config: Config) -> type[Task]:
    """Return the task class of a configuration."""
    return TASKS[config.data.task]


def task_of(facts: Mapping[str, Any], path: Path | str = TASK) -> Task:
    """Return the task from the content of `task.json`; errors name `path`."""
    return _find_task_type(facts, str(path)).restore(facts, path)


def run_config(folder: Path) -> Config:
    """Read and check the configuration in a run folder."""
    return load_config(folder / CONFIG)


def files_of_run(folder: Path) -> Iterator[Path]:
    """Yield the files of a run folder, and the data files that its configuration names."""
    symbols = (f"{side}.{ending}" for side in ("src", "tgt") for ending in SYMBOLS)
    for name in (CONFIG, MODEL, TASK, START, LOG, TIMING, LOCK, *symbols):
        yield folder / name
    yield from (folder / CHECKPOINTS).rglob("*")
    if (config := _stored_config(folder)) is not None:
        for split in SPLITS:
            with contextlib.suppress(InputError):  # no file for this split
                yield from task_type(config).files(config.data, split)


def missing_test_data(config: Config) -> str | None:
    """Return why the test data can't be found, or None; training does not need them."""
    if config.data.test is None:
        return None
    try:
        files = task_type(config).files(config.data, "test")
    except InputError as error:
        return f"data.test: {error}"
    return next((f"data.test: {file}: no such file" for file in files if find_packed(file) is None), None)


def task_of_run(run: Run) -> Task:
    """Return the task of a loaded run.

    Raises:
        InputError: If `task.json` does not match `config.yaml`, the model or the vocabularies.
    """
    path = run.folder / TASK
    task = task_of(run.task, path)
    if (config := _stored_config(run.folder)) is not None:
        task_type(config).check_facts(run.task, config.data, path)
    task.check_run(run)
    return task


def _stored_config(folder: Path) -> Config | None:
    """Return the configuration in a run folder, or None if it is missing or invalid."""
    try:
        return run_config(folder)
    except InputError:
        return None  # commands that need the configuration read it again and raise the error


def _find_task_type(facts: Any, origin: str) -> type[Task]:
    name = facts.get("task", DEFAULT) if isinstance(facts, Mapping) else DEFAULT
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"{origin}: unknown task {describe(name)}, expected one of {', '.join(TASKS)}")
    return TASKS[name]
