"""The command `tsallis analyze`."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import beam_size_of, open_run
from tsallis.cli.options import Beam, Device, SplitLanguage, Which
from tsallis.cli.output import check_folder, check_writable, print_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.analysis import Options, RunSummary
    from tsallis.data.corpus import Corpus
    from tsallis.tasks.base import Task
    from tsallis.training import Run

INTERRUPTED = 130  # the exit status of a command that was stopped from the keyboard


def analyze(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, shown side by side.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    split: Annotated[
        str | None, typer.Option(help="train, dev or test of the first run's config; default: dev.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Lines in place of a split; where they have no outputs, the run's own answers are taken."),
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for the same figures as SVG, PDF and PNG.")] = None,
    records: Annotated[Path | None, typer.Option("--json", help="A file for all numbers.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Sentences that are analysed, the first ones.")] = 1000,
    sentences: Annotated[int, typer.Option(min=1, help="Sentences that the page shows with all weights.")] = 30,
    importance: Annotated[
        int, typer.Option(min=0, help="Sentences on which the loss without each head is measured.")
    ] = 0,
    beam: Beam = None,
    language: SplitLanguage = None,
    checkpoint: Which = "best",
    device: Device = "auto",
) -> None:
    """Return a page that shows what the heads and outputs of runs do: one HTML file, which needs no network."""
    from tsallis.analysis import Options
    from tsallis.errors import InputError

    if text and split is not None:
        raise InputError(f"--split is for the config's own data: {text} was given, too")
    for path in (out, records):
        check_writable(path)
    if figures is not None:
        check_folder(figures)
    loaded = [open_run(run, checkpoint, device) for run in runs]
    options = Options(limit, sentences, importance, beam_size=beam or beam_size_of(loaded[0][0]))
    try:
        summaries = _summarize(loaded, split or "dev", text, language, options)
        _write(summaries, out, figures, records)
    except KeyboardInterrupt:
        print("tsallis: interrupted, nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _summarize(
    runs: Sequence[tuple[Run, Task]], split: str, text: Path | None, language: str | None, options: Options
) -> list[RunSummary]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tsallis.analysis import summarize
    from tsallis.errors import InputError

    console = Console(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    summaries: list[RunSummary] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for run, task in runs:
            bar = progress.add_task(run.folder.name)

            def advance(stage: str, done: int, total: int, name: str = run.folder.name, bar: Any = bar) -> None:
                progress.update(bar, description=f"{name}: {stage}", completed=done, total=total)

            corpus, name = _read(run, task, runs[0][0], split, text, language, options)
            rows = [sentence.text.index for sentence in summaries[0].sentences] if summaries else None
            if summaries and summaries[0].corpus.available != len(corpus):
                raise InputError(
                    f"{run.folder}: reads {len(corpus)} sentences of {name}, "
                    f"{runs[0][0].folder} reads {summaries[0].corpus.available}"
                )
            summary = summarize(run, corpus, name, options, rows, advance)
            if summary.corpus.unknown:
                message = f"{name}: {summary.corpus.unknown} symbols are unknown to {run.folder} and stand as <unk>"
                print(f"tsallis: {message}", file=sys.stderr)
            summaries.append(summary)
    return summaries


def _read(
    run: Run, task: Task, first: Run, split: str, text: Path | None, language: str | None, options: Options
) -> tuple[Corpus, str]:
    """Return sentences with targets, as the run numbers them, and their name."""
    from tsallis.tasks.registry import load_config

    if text is not None:
        return _read_text(run, task, text, language, options)
    data = load_config(first.folder / "config.yaml").data
    return task.split(run, data, split, language=language).corpus, f"the {split} split"


def _read_text(run: Run, task: Task, path: Path, language: str | None, options: Options) -> tuple[Corpus, str]:
    """Read lines with outputs, or without: then the run's own answers are the targets."""
    from tsallis.data import io
    from tsallis.data.corpus import Corpus
    from tsallis.evaluation.metrics import search_corpus

    lines = list(io.read_lines(path))
    plain, with_outputs = (columns.count("<TAB>") for columns in task.columns)
    fields = next((line for line in lines if line.strip()), "").count("\t")
    values = task.check_options(run, {"language": language})
    read = task.read(lines[: options.limit], str(path), run, fields == with_outputs, **values)
    if fields == with_outputs or with_outputs == plain:
        return read.corpus, str(path)
    results = search_corpus(run.model, read.corpus, options.beam_size)
    answers = [list(result.best.tokens) if result.best else [] for result in results]
    return Corpus(read.corpus.src, answers), f"{path} (the run's own answers)"


def _write(summaries: Sequence[RunSummary], out: Path, figures: Path | None, records: Path | None) -> None:
    """Write all files once everything is computed, each in one step."""
    import tsallis
    from tsallis.data.io import write_atomic
    from tsallis.report.page import build_page

    files: dict[Path, str | bytes] = {}
    if records is not None:
        content = {"runs": [summary.to_dict() for summary in summaries]}
        files[records] = json.dumps(content, ensure_ascii=False, allow_nan=True)
    if figures is not None:
        from tsallis.report.paper_figures import draw_figures

        files |= {figures / name: blob for name, blob in draw_figures(summaries)}
    for path, blob in chain(files.items(), [(out, build_page(summaries, note=f"tsallis {tsallis.__version__}"))]):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, blob)
        print_fields(str(path))
