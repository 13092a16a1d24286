"""The command `tsallis look`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tsallis.cli.input import beam_size_of, line_blocks, open_run
from tsallis.cli.options import Beam, FileArgument, Images, Language, RunArgument, Which
from tsallis.cli.output import print_fields


def look(
    run: RunArgument,
    file: FileArgument = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("looks"),
    kind: Annotated[Literal["png", "svg", "pdf"], typer.Option("--format", help="Of the figures.")] = "png",
    beam: Beam = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
) -> None:
    """Figures of what the model attends to, one for each line of input: weights, densities and their supports."""
    from tsallis.report import save

    loaded, task = open_run(run, checkpoint)
    size = beam or beam_size_of(loaded)
    out.mkdir(parents=True, exist_ok=True)
    for first, lines in line_blocks(loaded, task, file, gold=False, language=language, images=images):
        for number, figure in task.figures(loaded, lines, size):
            path = out / f"{first + number + 1}.{kind}"
            save(figure, path)
            print_fields(str(path))
