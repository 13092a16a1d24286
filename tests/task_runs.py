"""Runs of tasks without a command: from a configuration to data, and from lines to numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tsallis.config import Config
from tsallis.tasks.base import Lines
from tsallis.tasks.prepared import PreparedRun
from tsallis.tasks.registry import TASKS, check_config, task_of, task_type
from tsallis.training import Run


def prepare(config: Config, folder: Path | None = None) -> PreparedRun:
    return task_type(config).prepare(config, folder)


def untrained_run(folder: Path, data: dict[str, Any], model: dict[str, Any]) -> Run:
    """Return a run that was not trained, of the data in a folder."""
    config = check_config({"version": 1, "data": {"folder": str(folder), **data}, "model": model}, "test")
    prepared = prepare(config)
    vocabularies = prepared.data.vocabularies.src, prepared.data.vocabularies.tgt
    return Run(folder, prepared.build().eval(), *vocabularies, prepared.task.facts(), {})


def read_split(data: Any, split: str, **options: Any) -> list[Any]:
    return TASKS[data.task].read_split(data, split, **options)


def read_lines(run: Run, lines: Sequence[str], name: str, gold: bool, first: int = 0, **options: Any) -> Lines:
    task = task_of(run.task)
    return task.read(lines, name, run, gold, first, **task.check_options(run, options))


def encode(run: Run, examples: Sequence[Any]) -> Lines:
    task = task_of(run.task)
    return task.encode(examples, task.vocabularies(run))


def evaluate(run: Run, lines: Lines, beam_size: int) -> dict[str, Any]:
    return task_of(run.task).evaluate(run, lines, beam_size)


def figures(run: Run, lines: Lines, beam_size: int = 1) -> Iterator[tuple[int, Any]]:
    return task_of(run.task).figures(run, lines, beam_size)


def head_figures(run: Run, lines: Lines, heads: str, beam_size: int = 1) -> Iterator[tuple[int, Any, Any]]:
    return task_of(run.task).head_figures(run, lines, heads, beam_size)


def weights_of(
    run: Run, lines: Lines, heads: str | None = None, beam_size: int = 1
) -> Iterator[tuple[int, dict[str, Any]]]:
    return task_of(run.task).describe_attention(run, lines, heads, beam_size)
