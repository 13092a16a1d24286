"""The command `tsallis distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsallis.toolkit.cli.options import Device, Json, Which
from tsallis.toolkit.cli.output import check_folder, print_fields, print_json


def distill(
    teachers: Annotated[
        list[Path], typer.Argument(metavar="TEACHER...", help="A run folder; several make an ensemble.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the distributions.")],
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Store the probabilities of a run, or of an ensemble, for every symbol of its training data.

    training.teacher: FOLDER trains another run on them. The same command resumes an interrupted one.
    """
    from tsallis.toolkit.inference import open_run
    from tsallis.toolkit.tasks.prepared import training_data
    from tsallis.toolkit.tasks.registry import load_config
    from tsallis.toolkit.training.checkpoint import Checkpoints
    from tsallis.toolkit.training.file_names import CHECKPOINTS, CONFIG, PARAMETERS
    from tsallis.toolkit.training.teacher import write_teacher

    opened = open_run(teachers[0], checkpoint, device, teachers[1:])
    check_folder(out)
    data = training_data(load_config(teachers[0] / CONFIG), opened.run)
    digests = [Checkpoints(run / CHECKPOINTS).facts(checkpoint)["files"][PARAMETERS]["sha256"] for run in teachers]
    record = write_teacher(opened.run.model, data.train, data.vocabularies.tgt.fingerprint(), digests, out)
    entries, tokens = record.entries or 0, record.tokens or 0
    if as_json:
        print_json({"folder": str(out), "rows": record.rows, "tokens": tokens, "entries": entries})
    else:
        mean = f"{entries / max(tokens, 1):.1f}"
        print_fields(f"{out}: {tokens} symbols of {record.rows} rows, {mean} possible symbols each")
