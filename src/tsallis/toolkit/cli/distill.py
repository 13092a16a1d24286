"""The command `tsallis distill`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tsallis.errors import InputError
from tsallis.toolkit.cli.options import Device, Json, Which
from tsallis.toolkit.cli.output import check_folder, print_fields, print_json


def distill(
    teachers: Annotated[
        list[Path], typer.Argument(metavar="TEACHER...", help="A run folder; several make an ensemble.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the distributions.")],
    sequence_level: Annotated[
        bool,
        typer.Option("--sequence-level", help="Replace the references by the teacher's best outputs (beam search)."),
    ] = False,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Number of stored probabilities per symbol, for softmax teachers (default: all)."),
    ] = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Store the probabilities of a run, or of an ensemble, for every symbol of its training data.

    To use them, train a run with training.teacher=FOLDER. The same command resumes an interrupted distillation.
    """
    from tsallis.search import SearchOptions
    from tsallis.toolkit.cli.report_parts import show_progress
    from tsallis.toolkit.inference import open_run
    from tsallis.toolkit.tasks.labels import LabelTask
    from tsallis.toolkit.tasks.prepared import training_data
    from tsallis.toolkit.tasks.registry import run_config
    from tsallis.toolkit.training.teacher import write_teacher

    check_folder(out)
    digests = [_read_digest(run, checkpoint) for run in teachers]
    opened = open_run(teachers[0], checkpoint, device, teachers[1:])
    for run, digest in zip(teachers, digests, strict=True):
        if _read_digest(run, checkpoint) != digest:
            raise InputError(
                f"{run}: its {checkpoint} checkpoint was replaced while it was read: run the same command again when "
                "its training has ended"
            )
    if isinstance(opened.task, LabelTask):
        raise InputError(f"{teachers[0]}: runs of the task {opened.task.name} can't be teachers: they predict labels")
    if not opened.run.model.output.normalized:
        raise InputError(f"{teachers[0]}: expected a teacher with entmax or softmax, found alpha-ReLU")
    config = run_config(teachers[0])
    if sequence_level and not opened.task.searched:
        raise InputError(f"{teachers[0]}: expected a task with outputs for --sequence-level, found {opened.task.name}")
    search = SearchOptions(n_best=1).with_defaults(config.search.options) if sequence_level else None
    data = training_data(config, opened.run)
    model, vocabulary = opened.run.model, data.vocabularies.tgt.fingerprint()
    with show_progress([opened.run]) as advance:
        record = write_teacher(
            model, data.train, vocabulary, digests, out, top_k=top_k, search=search, advance=partial(advance, 0, "rows")
        )
    rows, tokens, entries = (record[name] for name in ("rows", "tokens", "entries"))
    if as_json:
        print_json({"folder": str(out), "rows": rows, "tokens": tokens, "entries": entries})
    else:
        mean = f"{entries / max(tokens, 1):.1f}"
        print_fields(f"{out}: {tokens} symbols of {rows} rows, {mean} probabilities each")


def _read_digest(run: Path, checkpoint: str) -> str:
    """Return the digest of the parameters in a checkpoint of a run."""
    from tsallis.toolkit.training.checkpoint import Checkpoints
    from tsallis.toolkit.training.file_names import CHECKPOINTS, PARAMETERS
    from tsallis.toolkit.training.run_folder import check_run

    check_run(run)
    digest: str = Checkpoints(run / CHECKPOINTS).facts(checkpoint)["files"][PARAMETERS]["sha256"]
    return digest
