"""The command `tsallis average`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tsallis.errors import InputError, one_line
from tsallis.toolkit.cli.options import Json, RunArgument
from tsallis.toolkit.cli.output import print_fields, print_json


def average(
    run: RunArgument,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of checkpoints to average, from the last one backwards (default: all stored checkpoints).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Average the parameters of the last checkpoints; training.keep sets how many are stored."""
    from tsallis.toolkit.training.checkpoint import Checkpoints
    from tsallis.toolkit.training.file_names import CHECKPOINTS, MODEL
    from tsallis.toolkit.training.run_folder import locked

    if not (run / MODEL).exists():
        raise InputError(f"{run}: not a run folder (it has no {MODEL})")
    with locked(run):  # without a lock, a training in progress could overwrite the index
        names = Checkpoints(run / CHECKPOINTS).average(last)
    if last is None and len(names) == 1:
        print(
            one_line(f"tsallis: {run}: note: only one checkpoint is stored; training.keep=5 stores five"),
            file=sys.stderr,
        )
    if as_json:
        print_json({"checkpoint": "average", "of": names})
    else:
        print_fields(f"averaged {', '.join(names)}: load the result with --checkpoint average")
