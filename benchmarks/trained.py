"""Open a trained run with a split of its data, for benchmarks of trained models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.file_names import CONFIG


def open_split(folder: Path, split: str, *overrides: str) -> tuple[Any, Any, Any]:
    """Return the configuration of a run, the run, and a split of its data."""
    config, run = load_config(folder / CONFIG, overrides), load_run(folder)
    return config, run, task_of(run.task).split(run, config.data, split).corpus
