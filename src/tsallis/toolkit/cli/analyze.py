"""The command `tsallis analyze`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.analysis_options import Options
from tsallis.toolkit.cli.input import input_name
from tsallis.toolkit.cli.options import Device, SplitLanguage, Which, search_options, typed_flags
from tsallis.toolkit.cli.output import check_writable, print_fields
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from tsallis.toolkit.cli.report_parts import Report
    from tsallis.toolkit.inference import TextRun

INTERRUPTED = 130  # exit status after Ctrl-C
SWEEP_PARAMETERS = ("runs", "out", "records", "sweep")  # parameters of --sweep, which runs no model

TextFile = Annotated[
    Path | None,
    typer.Option(
        help="Analyse the lines of this file instead of a split (-: standard input). If the lines have no outputs, "
        "the first run generates them."
    ),
]
Searched = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of outputs to compare with the references; the page lists the wrong ones (default: 200).",
    ),
]
Sweep = Annotated[
    bool,
    typer.Option(
        "--sweep",
        help="Only plot the scores of the runs against the setting in which they differ; no model is run.",
    ),
]


@search_options("beam_size")
def analyze(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders to show side by side; with --sweep also folders of sweeps."),
    ],
    search: SearchOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="Write the page to this file.")] = Path("report.html"),
    split: Annotated[
        str | None,
        typer.Option(help="Split to analyse, from the data of the first run: train, dev or test (default: dev)."),
    ] = None,
    text: TextFile = None,
    records: Annotated[Path | None, typer.Option("--json", help="Also write all numbers to this file.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Number of sentences to analyse, from the start of the data.")
    ] = Options.limit,
    sentences: Annotated[
        int, typer.Option(min=1, help="Number of sentences for which the page shows all attention weights.")
    ] = Options.sentences,
    importance: Annotated[
        int,
        typer.Option(min=0, help="Number of sentences used to measure how much the loss rises without each head."),
    ] = 0,
    searched: Searched = None,
    sweep: Sweep = False,
    language: SplitLanguage = None,
    checkpoint: Which = "best",
    device: Device = "auto",
) -> None:
    """Write a report on attention heads and outputs as one HTML file, which needs no network.

    Searches use the end rule of the first run's configuration, and its beam size by default.
    """
    from tsallis.toolkit.cli.report_parts import Report, read_sweep, runs_in

    if text and split is not None:
        raise InputError(f"use either --split or --text, not both: got {split} and {input_name(text)}")
    if sweep:
        runs = [run for folder in runs for run in runs_in(folder)]
    check_writable(out, records, inputs=[text], runs=runs)
    if sweep:
        names = [x.name for x in context.command.params if x.name and x.name not in SWEEP_PARAMETERS]
        if flags := typed_flags(context, names):
            raise InputError(f"--sweep only reads training logs: leave out {', '.join(flags)}")
        _write(Report(sweep=read_sweep(runs)), out, records)
        return
    opened = [open_run(run, checkpoint, device) for run in runs]
    for text_run in opened:
        text_run.check_command("analyze")
    options: dict[str, int] = {"limit": limit, "sentences": sentences, "importance": importance}
    options |= {} if searched is None else {"searched": searched}
    report_runs(opened, search, out, split, text, records, options, language=language)


def report_runs(
    opened: Sequence[TextRun],
    search: SearchOptions,
    out: Path,
    split: str | None = None,
    text: Path | None = None,
    records: Path | None = None,
    limits: Mapping[str, Any] | None = None,
    **values: Any,
) -> None:
    """Analyse runs and write the page.

    Args:
        opened: Runs.
        search: Search options from the command line.
        out: Path of the page.
        split: Split of the first run's data; default: dev.
        text: Path of lines to read instead of a split.
        records: Path of a file for all numbers.
        limits: Fields of :class:`tsallis.toolkit.run_analysis.Options`. By default, every line of `text` is read, and
            rare pieces get no scores, because these need the training data.
        values: Options of the task, such as `language`; None if not given.
    """
    from tsallis.toolkit.cli.report_parts import Report, Text, describe_labels, summarize_all, sweep_if_any
    from tsallis.toolkit.run_analysis.densities import is_label_run
    from tsallis.toolkit.run_analysis.summary import has_importance

    loaded = [(text_run.run, text_run.task) for text_run in opened]
    folders = [text_run.run.folder for text_run in opened]
    lines = None if text is None else Text.read(text)
    text_limits = {} if lines is None else dict.fromkeys(("limit", "sentences"), max(1, len(lines.lines)))
    beam = search.with_defaults(opened[0].search_options.without_limits).arguments
    options = Options(**(limits or text_limits), **beam)
    try:
        if any(is_label_run(run) for run, _ in loaded):
            sequence_options = {
                "--beam-size": search.beam_size,
                "--importance": options.importance,
                "--searched": (limits or {}).get("searched"),
            }
            if names := [name for name, value in sequence_options.items() if value]:
                raise InputError(
                    f"{folders[0]}: runs of the task {loaded[0][1].name} predict labels without a search: "
                    f"leave out {', '.join(names)}"
                )
            report = Report(densities=describe_labels(loaded, split or "dev", lines, values, options))
        else:
            unused = {"--searched": (limits or {}).get("searched"), "--beam-size": search.beam_size}
            if not all(task.searched for _, task in loaded) and (names := [n for n, v in unused.items() if v]):
                raise InputError(f"{folders[0]}: the task {loaded[0][1].name} uses no search: leave out {names[0]}")
            if options.importance and (unusable := next((run for run, _ in loaded if not has_importance(run)), None)):
                kind = type(unusable.model).__name__
                raise InputError(f"{unusable.folder}: --importance needs a Transformer, found {kind}: leave it out")
            # Default to dev: training data can be far too large for a report.
            report = Report(*summarize_all(loaded, split or "dev", lines, values, options, limits is not None))
        _write(report._replace(sweep=sweep_if_any(folders)), out, records)
    except KeyboardInterrupt:
        print("tsallis: interrupted, nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _write(report: Report, out: Path, records: Path | None) -> None:
    """Compute the content of all files, then write each file in one step."""
    import tsallis
    from tsallis.report.page import build_page, sentences_that_fit
    from tsallis.toolkit.data.io import json_text, write_output

    files: dict[Path, str] = {}
    if records is not None:
        content = {name: _to_dicts(part) for name, part in report._asdict().items()}
        files[records] = json_text(content)
    page = build_page(**report._asdict(), note=f"tsallis {tsallis.__version__}")
    count = len(report.runs[0].sentences) if report.runs else 0
    if (most := sentences_that_fit(report.runs)) < count:
        message = f"the page shows only {most} of {count} sentences, because a page with all would be too large"
        print(f"tsallis: {out}: {message}", file=sys.stderr)
    files[out] = page
    check_writable(*files)
    for path, text in files.items():
        write_output(path, text)
    for path in files:  # print last: all files exist even if standard output is closed
        print_fields(str(path))


def _to_dicts(part: Any) -> Any:
    return [_to_dicts(record) for record in part] if isinstance(part, list | tuple) else part and part.to_dict()
