"""Prepare, train and evaluate runs of tasks without the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tsallis.search import SearchOptions
from tsallis.toolkit.config import Config
from tsallis.toolkit.tasks.attention_weights import describe_attention
from tsallis.toolkit.tasks.prepared import PreparedRun, prepare
from tsallis.toolkit.tasks.registry import TASKS, load_config, task_of
from tsallis.toolkit.tasks.scoring import evaluate_outputs
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training import Run, Trainer, load_run
from tsallis.toolkit.training.run_folder import start_run


def config_of(content: dict[str, Any]) -> Config:
    """Write this content to a file and load the file as a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return load_config(path)


def untrained_run(folder: Path, data: dict[str, Any], model: dict[str, Any]) -> Run:
    """Return an untrained run on the data in a folder."""
    config = config_of({"version": 1, "data": {"folder": str(folder), **data}, "model": model})
    prepared = prepare(config)
    vocabularies = prepared.data.vocabularies.src, prepared.data.vocabularies.tgt
    return Run(folder, prepared.build().eval(), *vocabularies, prepared.task.facts(), {})


def start(prepared: PreparedRun, folder: Path) -> bool:
    """Write the run folder without logs and checkpoints; return whether it already contained the run."""
    folder.mkdir(exist_ok=True)
    symbols = prepared.data.vocabularies
    return start_run(folder, prepared.text, prepared.description, prepared.task.facts(), symbols.src, symbols.tgt)


def train(prepared: PreparedRun, folder: Path) -> Run:
    start(prepared, folder)
    data, measure = prepared.data, prepared.measure()
    Trainer(prepared.build(), data.train, data.dev.corpus, folder, prepared.settings, measure=measure).run()
    return load_run(folder)


def read_split(data: Any, split: str, **options: Any) -> list[Any]:
    return TASKS[data.task].read_split(data, split, **options)


def read_lines(run: Run, lines: Sequence[str], name: str, gold: bool, first: int = 0, **options: Any) -> Lines:
    task = task_of(run.task)
    return task.read(lines, name, run, gold, first, **task.check_options(run, options))


def encode(run: Run, examples: Sequence[Any]) -> Lines:
    task = task_of(run.task)
    return task.encode(examples, task.vocabularies(run))


def evaluate(run: Run, lines: Lines, beam_size: int) -> dict[str, Any]:
    return evaluate_outputs(task_of(run.task), run, lines, SearchOptions(beam_size=beam_size))[0]


def weights_of(
    run: Run, lines: Lines, heads: str | None = None, beam_size: int = 1
) -> Iterator[tuple[int, dict[str, Any]]]:
    return describe_attention(task_of(run.task), run, lines, heads, beam_size=beam_size)
