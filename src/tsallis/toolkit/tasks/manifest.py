"""Manifest of an evaluation: its scores, and the information to reproduce them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.config import Config
from tsallis.toolkit.evaluation.provenance import command_line, digest_files, environment, shorten_path
from tsallis.toolkit.tasks.registry import run_config, task_type
from tsallis.toolkit.tasks.types import SPLITS
from tsallis.toolkit.training.file_names import TIMING
from tsallis.toolkit.training.log import Log, totals
from tsallis.toolkit.training.run_folder import Run

FORMAT = 2  # version of the manifest format
PLACES = ("event", "epoch", "step", "seconds", "symbols")  # keys of timing.jsonl other than code and machine


def describe_result(
    run: Run,
    config: Config,
    metrics: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    others: Sequence[Path] = (),
    file: Path | None = None,
) -> dict[str, Any]:
    """Return the manifest of an evaluation.

    Args:
        run: Evaluated run, or the first run of an ensemble.
        config: Configuration of the run.
        metrics: Scores by name.
        evaluation: Options of the evaluation, such as split and beam size.
        others: Run folders of the other members of an ensemble.
        file: Evaluated file, if it was not a split of the configuration.

    Returns:
        A dictionary with "format", "command", "date", "run", "config", "data" (digests of each split's files and of
        `file`), "training" (seed, duration, code, versions and machines), "others" (name and training of an ensemble's
        other members), "evaluation" (options, code, versions and machine) and "metrics".

    Raises:
        InputError: If a file can't be read.
    """
    facts = {key: run.facts[key] for key in ("step", "epoch") if key in run.facts}
    data = {split: _digest(config, split) for split in SPLITS}
    if file is not None:
        data[f"file {file.name}" if file.name in data else file.name] = digest_files([file])
    members = [{"name": path.name, "training": _describe_training(path)} for path in others]
    return {
        "format": FORMAT,
        "command": command_line(),
        "date": datetime.date.today().isoformat(),
        "run": {"name": run.folder.resolve().name, **facts},
        "config": _shorten_paths(config.model_dump(mode="json")),
        "data": data,
        "training": _describe_training(run.folder),
        **({"others": members} if members else {}),
        "evaluation": {**_without_paths(evaluation), **environment()},
        "metrics": dict(metrics),
    }


def _digest(config: Config, split: str) -> dict[str, Any] | None:
    """Return the digest of a split's files, or None if there are no files."""
    try:
        paths = task_type(config).files(config.data, split)
    except InputError:
        return None
    return digest_files(paths) if paths and all(path.is_file() for path in paths) else None


def _describe_training(folder: Path) -> dict[str, Any]:
    """Return a training run's seed, duration, number of updates, number of symbols, and origins (code and machine)."""
    config, timing = run_config(folder), folder / TIMING
    events = Log(timing).events() if timing.exists() else []
    origins: list[dict[str, Any]] = []
    for event in events:
        origin = {key: value for key, value in event.items() if key not in PLACES}
        if origin and origin not in origins:
            origins.append(origin)
    return {
        "seed": config.training.seed,
        "seconds": round(_add_up(events, "seconds"), 1),
        "updates": max((event.get("step", 0) for event in events), default=0),
        "symbols": int(_add_up(events, "symbols")),
        "origins": origins,
    }


def _add_up(events: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the sum of a number over the training run; events without the number count as 0."""
    return [0.0, *totals([{key: 0, **event} for event in events], key)][-1]


def _without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None, with paths shortened to file names."""
    values = ((key, value.name if isinstance(value, Path) else value) for key, value in options.items())
    return {key: value for key, value in values if value is not None}


def _shorten_paths(value: Any) -> Any:
    """Return a configuration with each absolute path shortened to its last part."""
    if isinstance(value, dict):
        return {key: _shorten_paths(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shorten_paths(part) for part in value]
    return shorten_path(value) if isinstance(value, str) else value
