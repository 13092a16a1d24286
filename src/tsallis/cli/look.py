"""The command `tsallis look`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tsallis.cli.input import line_blocks
from tsallis.cli.options import Beam, Device, FileArgument, Images, Json, Language, RunArgument, Which
from tsallis.cli.output import check_folder, print_fields, print_json
from tsallis.inference import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from tsallis.cli.input import Block
    from tsallis.tasks.base import Task
    from tsallis.training import Run


def look(
    run: RunArgument,
    file: FileArgument = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures; default: looks.")] = None,
    kind: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option("--format", help="Of the figures; default: png.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Numbers in the place of figures: a JSON object a line, non-zeros alone.")
    ] = False,
    heads: Annotated[
        str | None,
        typer.Option(help="all, or heads such as encoder.1.2,cross.3.1; default: one figure of the last layer's."),
    ] = None,
    beam: Beam = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Figures of what the model attends to, one for each line of input: weights, densities and their supports.

    With --heads each head is a panel of its own; heads of several kinds of attention are a figure for each kind. With
    --weights nothing is drawn: the output and its weights above zero are printed, as [row, column, weight].
    """
    from tsallis.errors import InputError
    from tsallis.optional_output import optional_stdout
    from tsallis.report import style

    if weights and (figures := [name for name, value in (("--out", out), ("--format", kind)) if value is not None]):
        raise InputError(f"{' and '.join(figures)} is for figures, --weights prints numbers: one of the two")
    folder = out or Path("looks")
    if not weights:
        style.require()
        check_folder(folder)
    opened = open_run(run, checkpoint, device)
    opened.check_command("look")
    loaded, task = opened.run, opened.task
    search = {**opened.search.beam(beam), **opened.search.limits}
    blocks = line_blocks(loaded, task, file, gold=False, language=language, images=images)
    if weights:
        for block in blocks:
            _print_weights(loaded, task, block, heads, search)
        return
    with optional_stdout() as shown:  # all figures are drawn, whether their names are read or not
        for block in blocks:
            _draw(loaded, task, block, folder, kind or "png", heads, search, as_json)
            sys.stdout.flush()
    if shown.error is not None:
        raise shown.error


def _print_weights(run: Run, task: Task, block: Block, heads: str | None, search: dict[str, Any]) -> None:
    """Print an object for each line of a block; one without an output attends to nothing."""
    from tsallis.tasks.attention_weights import describe_attention

    by_number = dict(describe_attention(task, run, block.lines, heads, **search))
    for number in range(block.lines.count):
        content = by_number.get(number, {"text": None, "attention": []})
        print_json({"line": block.first + number + 1, **content})
    sys.stdout.flush()


def _draw(
    run: Run, task: Task, block: Block, out: Path, kind: str, heads: str | None, search: dict[str, Any], as_json: bool
) -> None:
    """Write the figures of a block of lines, and print their paths."""
    from tsallis.report import save
    from tsallis.tasks.figures import figures, head_figures

    numbered: Iterator[tuple[int, str | None, Figure]]
    if heads is None:
        numbered = ((number, None, figure) for number, figure in figures(task, run, block.lines, **search))
    else:
        numbered = head_figures(task, run, block.lines, heads, **search)
    for number, part, figure in numbered:
        line = block.first + number + 1
        path = out / f"{line}{f'-{part}' if part else ''}.{kind}"
        save(figure, path)
        if as_json:
            print_json({"line": line, "part": part, "path": str(path)})
        else:
            print_fields(str(path))
