"""The command `tsallis look`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.analyze import report_runs
from tsallis.toolkit.cli.input import line_blocks
from tsallis.toolkit.cli.options import Device, FileArgument, Images, Language, RunArgument, Which, search_options
from tsallis.toolkit.cli.output import check_writable, print_json
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from tsallis.toolkit.inference import TextRun


@search_options("beam_size")
def look(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the page to this file (default: look.html).")
    ] = None,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Print the weights above zero, one JSON object per line, instead of writing a page."
        ),
    ] = False,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Heads to print with --weights: all, or names separated by commas, for example encoder.1.2,cross.3.1."
        ),
    ] = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
) -> None:
    """Write a page that shows what the model attends to in each line of input.

    The page is the report of `tsallis analyze` on all lines of FILE. If lines have no outputs, the model's answers are
    used as outputs.
    """
    if weights and out is not None:
        raise InputError(f"use either --out or --weights, not both: --weights writes no page, got --out {out}")
    if heads is not None and not weights:
        raise InputError(f"--heads {heads} needs --weights: the page always shows every head")
    if not weights:
        out = out or Path("look.html")
        check_writable(out, inputs=[file, images], runs=[run])
    opened = open_run(run, checkpoint, device)
    opened.check_command("look")
    if heads is not None:
        _check_heads(opened, heads)
    if out is not None:
        report_runs([opened], options, out, text=file or Path("-"), language=language, images=images)
    else:
        _print_weights(opened, file, heads, options, language=language, images=images)


def _check_heads(opened: TextRun, heads: str) -> None:
    """Raise if the attention of a run has no named heads, as in models of labels."""
    from tsallis.analysis import read_model

    run = opened.run
    try:
        read_model(run.model, run.src_vocab, run.tgt_vocab)
    except ValueError:
        raise InputError(
            f"{run.folder}: --heads {heads} can't be used with this run of the task {opened.task.name}: its attention "
            "has no named heads; leave --heads out"
        ) from None


def _print_weights(
    opened: TextRun, file: Path | None, heads: str | None, options: SearchOptions, **values: Any
) -> None:
    """Print one JSON object per line of a file. For a line without an output, the attention is empty."""
    from tsallis.toolkit.tasks.attention_weights import describe_attention

    search = options.with_defaults(opened.search_options).arguments
    for block in line_blocks(opened.run, opened.task, file, gold=False, **values):
        by_number = dict(describe_attention(opened.task, block.run, block.lines, heads, **search))
        for number in range(block.lines.count):
            content = by_number.get(number, {"text": None, "attention": []})
            print_json({"line": block.first + number + 1, **content})
        sys.stdout.flush()
