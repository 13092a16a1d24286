"""The command `tsallis evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tsallis.cli.input import open_run, read_all
from tsallis.cli.options import Beam, Json, RunArgument, SplitImages, SplitLanguage, Which
from tsallis.cli.output import score_table


def evaluate(
    run: RunArgument,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: the config's split.")] = None,
    split: Annotated[
        str | None, typer.Option(help="train, dev or test of the config, in place of FILE; default: test.")
    ] = None,
    beam: Beam = None,
    language: SplitLanguage = None,
    images: SplitImages = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Scores, loss, certificates and sparsity on lines with known outputs.

    Of forms: accuracy and distance; of those of several languages also their means over languages, and each language's.
    Of translations: BLEU, chrF and TER with their signatures, and how often the empty
    string is more probable than the answer.
    """
    from tsallis.errors import InputError
    from tsallis.tasks.registry import load_config

    if file and split is not None:
        raise InputError(f"--split is for the config's own data: {file} was given, too")
    loaded, task = open_run(run, checkpoint)
    config = load_config(loaded.folder / "config.yaml")
    options = {"language": language, "images": images}
    if file:
        lines = read_all(loaded, task, file, gold=True, **options)
    else:
        lines = task.split(loaded, config.data, split or "test", **options)
    report = task.evaluate(loaded, lines, beam or config.search.beam_size)
    if as_json:
        labels = {name: str(value) for name, value in options.items() if value is not None}
        print(json.dumps({"run": str(run), "on": str(file) if file else split or "test", **labels, **report}))
    else:
        print(score_table(report))
