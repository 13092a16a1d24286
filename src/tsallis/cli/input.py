"""The lines that a command reads, of a file or of standard input."""

from __future__ import annotations

import contextlib
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tsallis.data.batching import Batch
    from tsallis.data.corpus import Corpus
    from tsallis.tasks.base import Lines, Task
    from tsallis.training import Run

BLOCK = 64  # lines of input that are answered before the next ones are read


def open_run(folder: Path, checkpoint: str = "best") -> tuple[Run, Task]:
    """Load a run and its task."""
    from tsallis.tasks.registry import task_of
    from tsallis.training.run_folder import TASK, load_run

    run = load_run(folder, checkpoint)
    return run, task_of(run.task, folder / TASK)


def beam_size_of(run: Run) -> int:
    """Return the beam size of a run's configuration."""
    from tsallis.tasks.registry import load_config

    return load_config(run.folder / "config.yaml").search.beam_size


def read_all(run: Run, task: Task, file: Path | None, gold: bool, **options: Any) -> Lines:
    """Read all lines of a file, or of standard input."""
    with _open_lines(task, file, gold) as (lines, name):
        return task.read(list(lines), name, run, gold, **task.check_options(run, options))


def line_blocks(run: Run, task: Task, file: Path | None, gold: bool, **options: Any) -> Iterator[tuple[int, Lines]]:
    """Read lines in blocks of 64, so that the first are answered before the last arrive.

    Yields the number of a block's first line, from 0, and the block.
    """
    with _open_lines(task, file, gold) as (lines, name):
        values, first = task.check_options(run, options), 0
        while block := list(islice(lines, BLOCK)):
            yield first, task.read(block, name, run, gold, first, **values)
            first += len(block)


def one_batch(corpus: Corpus) -> Iterator[Batch]:
    """Yield one batch of all rows, or nothing for an empty corpus."""
    if len(corpus):
        yield corpus.batch(range(len(corpus)))


@contextlib.contextmanager
def _open_lines(task: Task, file: Path | None, gold: bool) -> Iterator[tuple[Iterator[str], str]]:
    """Open a file, or standard input: its lines and the name that messages give it."""
    from tsallis.data.io import decode_lines, input_errors, open_file
    from tsallis.errors import InputError

    expected = task.columns[gold]
    if file is not None:
        with open_file(file) as stream, input_errors(file):
            yield decode_lines(stream, str(file), expected), str(file)
    elif sys.stdin is None:
        raise InputError("standard input is closed")
    else:
        yield decode_lines(sys.stdin.buffer, "standard input", expected), "standard input"
