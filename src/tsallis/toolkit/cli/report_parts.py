"""Compute the parts of a report: summaries of runs, attention of label models, and sweeps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tsallis.analysis import RunSummary
from tsallis.analysis.histories import Sweep
from tsallis.analysis.summary_records import ComparisonSummary, DensitySummary
from tsallis.errors import InputError
from tsallis.models.spellings import ambiguous_text
from tsallis.search import SearchOptions
from tsallis.toolkit.cli.input import input_name, read_text_lines
from tsallis.toolkit.config import flat_settings
from tsallis.toolkit.data import io
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.run_analysis import (
    Options,
    RunInput,
    SweepRun,
    summarize_densities,
    summarize_runs,
    sweep,
    value_history,
)
from tsallis.toolkit.run_analysis.summary import TrainingCounts, count_pieces
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.copying import copy_unknown
from tsallis.toolkit.tasks.registry import run_config
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training import Run
from tsallis.toolkit.training.file_names import CONFIG

COUNT_LIMIT = 200_000  # maximum number of training examples whose pieces are counted
Runs = Sequence[tuple[Run, Task]]


class _Answers(NamedTuple):
    """Answers of one run to lines without outputs. Every run gets these answers as targets."""

    run: Run
    name: str  # name of the run in the report
    rows: list[list[int]]  # symbols of each answer in the run's vocabulary


class Text(NamedTuple):
    """Lines that all runs read instead of a split."""

    name: str  # name of the file
    lines: list[str]

    @classmethod
    def read(cls, file: Path) -> Text:
        """Read a file or standard input once for all runs."""
        return cls(input_name(file), read_text_lines(file))


class Report(NamedTuple):
    """Content of the page and of the JSON file."""

    runs: Sequence[RunSummary] = ()
    comparisons: Sequence[ComparisonSummary] = ()
    densities: Sequence[DensitySummary] = ()
    sweep: Sweep | None = None


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders in the folder of a sweep; a run folder is returned as it is.

    Raises:
        InputError: If the folder has no runs.
    """
    runs = [folder] if (folder / CONFIG).exists() else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if not runs:
        raise InputError(f"{folder}: expected a run folder or a folder of runs, found neither")
    return runs


def read_sweep(runs: Sequence[Path]) -> Sweep:
    """Return the sweep of runs; only their configurations and logs are read.

    Raises:
        InputError: If the runs do not differ in exactly one setting.
    """
    settings = [flat_settings(run_config(run).model_dump(mode="json")) for run in runs]
    named = zip(io.distinct_names(runs), settings, map(value_history, runs), strict=True)
    return sweep([SweepRun(*run) for run in named])


def sweep_if_any(runs: Sequence[Path]) -> Sweep | None:
    """Return the sweep of several runs, or None if the runs are not a sweep."""
    try:
        return read_sweep(runs) if len(runs) > 1 else None
    except InputError:
        return None


def summarize_all(
    runs: Runs,
    split: str,
    text: Text | None,
    values: Mapping[str, Any],
    options: Options,
    count_training: bool = True,
) -> tuple[list[RunSummary], list[ComparisonSummary]]:
    """Summarize sequence models on the first run's data or on a text, with a progress bar.

    `values` are options of the task. If `count_training` is true, count pieces in the training data, for the scores of
    rare tokens.
    """
    _check_one_task(runs)
    inputs, answers = [], None
    first_run_name = io.distinct_names([run.folder for run, _ in runs])[0]
    data = run_config(runs[0][0].folder).data if text is None else None
    for run, task in runs:
        name, has_targets = f"the {split} split", True
        if text is not None:
            lines, has_targets = _read_text(run, task, text, values, options.limit)
            name = text.name
        else:
            lines = task.sentences(run, data, split, **values)
        run, lines = copy_unknown(task, run, lines)
        corpus, references = lines.corpus, [task.answers(reference) for reference in lines.references]
        if not has_targets:
            answers = answers or _search_answers(run, first_run_name, corpus, options)
            corpus, name = _with_answers(run, task, corpus, answers), f"{name} (targets: answers of {first_run_name})"
        counts = _count_training(run, task) if count_training else None
        inputs.append(RunInput(run, corpus, name, counts, answers and answers.name, references))
    with show_progress([run for run, _ in runs]) as advance:
        summaries, comparisons = summarize_runs(inputs, options, advance)
    for summary, (run, _) in zip(summaries, runs, strict=True):
        if summary.corpus.unknown:
            message = f"unknown symbols ({summary.corpus.unknown}) of {run.folder} are shown as <unk>"
            print(f"tsallis: {summary.corpus.name}: {message}", file=sys.stderr)
    return summaries, comparisons


def _check_one_task(runs: Runs) -> None:
    """Raise if runs have different tasks, because runs are compared on the same examples."""
    first, first_task = runs[0]
    for run, task in runs:
        if task.name != first_task.name:
            raise InputError(
                f"{run.folder}: expected a run of the task {first_task.name}, like {first.folder}, found {task.name}"
            )


def describe_labels(
    runs: Runs, split: str, text: Text | None, values: Mapping[str, Any], options: Options
) -> list[DensitySummary]:
    """Describe the attention of label models of one task on the same examples."""
    _check_one_task(runs)
    (first, _), rows = runs[0], None
    summaries: list[DensitySummary] = []
    names = io.distinct_names([run.folder for run, _ in runs])
    for (run, task), run_name in zip(runs, names, strict=True):
        name = f"the {split} split" if text is None else text.name
        if text is None:
            lines = task.split(run, run_config(first.folder).data, split, **values)
        else:
            lines, _ = _read_text(run, task, text, values, options.limit)
        if rows is not None and rows[-1] >= len(lines.corpus):
            raise InputError(
                f"{run.folder}: the run reads only {len(lines.corpus)} examples of {name}, fewer than {first.folder}"
            )
        with show_progress([run]) as advance:
            summary = summarize_densities(run, lines.corpus, name, lines.titles, options, rows, advance)
        rows = [example.index for example in summary.shown]
        summaries.append(replace(summary, name=run_name))
    return summaries


@contextlib.contextmanager
def show_progress(runs: Sequence[Run]) -> Iterator[Callable[[int, str, int, int], None]]:
    """Show one progress bar per run on a terminal; yield a function that advances a bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        names = io.distinct_names([run.folder for run in runs])
        bars = [progress.add_task(name, total=None) for name in names]

        def advance(number: int, stage: str, done: int, total: int) -> None:
            description = f"{names[number]}: {stage}"
            progress.update(bars[number], description=description, completed=done, total=total)

        yield advance


def _count_training(run: Run, task: Task) -> TrainingCounts | None:
    """Count the pieces of a run's training data, or return None if the data can't be read."""
    try:
        examples = task.read_split(run_config(run.folder).data, "train")[:COUNT_LIMIT]
    except InputError as error:
        print(f"tsallis: rare tokens get no score, because the training data can't be read: {error}", file=sys.stderr)
        return None
    corpus = task.encode(examples, task.vocabularies(run)).corpus
    return TrainingCounts(len(corpus), count_pieces(corpus, run.src_vocab, run.tgt_vocab))


def _read_text(run: Run, task: Task, text: Text, values: Mapping[str, Any], limit: int) -> tuple[Lines, bool]:
    """Read lines with or without outputs. Also return whether all needed targets exist."""
    has_outputs = _has_outputs(task, text.lines)
    encoded = task.read(text.lines[:limit], text.name, run, has_outputs, **task.check_options(run, values))
    if not len(encoded.corpus):
        raise InputError(f"{text.name}: expected lines of {task.formats[has_outputs]}, found none")
    encoded.ignored.warn(text.name)
    plain, with_outputs = (columns.count("<TAB>") for columns in task.formats)
    return encoded, has_outputs or with_outputs == plain


def _search_answers(run: Run, name: str, corpus: Corpus, options: Options) -> _Answers:
    search = SearchOptions(beam_size=options.beam_size, end_rule=options.end_rule)
    results = search_corpus(run.model, corpus, search, text=ambiguous_text(run.tgt_vocab))
    return _Answers(run, name, [list(result.best.tokens) if result.best else [] for result in results])


def _with_answers(run: Run, task: Task, corpus: Corpus, answers: _Answers) -> Corpus:
    """Replace the targets of a corpus by the answers of another run, encoded for this run."""
    vocabulary = answers.run.tgt_vocab
    if run.tgt_vocab == vocabulary:  # keep the symbols: encoding the text again could split it differently
        return Corpus(corpus.src, answers.rows)
    texts = [vocabulary.decode(row) for row in answers.rows]
    return Corpus(corpus.src, [task.spell(text, run) if text else [] for text in texts])


def _has_outputs(task: Task, lines: Sequence[str]) -> bool:
    """Return whether the first line that is not empty has a column for its output."""
    plain = task.formats[0].count("<TAB>") + 1
    first = next((line for _, line in io.number_lines(lines, io.Ignored(), plain, task.separators)), "")
    return first.count("\t") >= task.formats[1].count("<TAB>")
