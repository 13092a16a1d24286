"""The command `tsallis look`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.input import line_blocks
from tsallis.toolkit.cli.options import Device, FileArgument, Images, Json, Language, RunArgument, Which, search_options
from tsallis.toolkit.cli.output import check_folder, print_fields, print_json
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.optional_output import optional_stdout

if TYPE_CHECKING:
    from tsallis.toolkit.cli.input import Block
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run


@search_options("beam_size")
def look(
    run: RunArgument,
    options: SearchOptions,
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
        typer.Option(help="Heads whose weights --weights prints: all, or names such as encoder.1.2,cross.3.1."),
    ] = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Figures of what the model attends to, one for each line of input: weights, densities and their supports.

    With --weights nothing is drawn: the output and its weights above zero are printed, as [row, column, weight], of the
    heads that --heads names. To draw single heads use tsallis analyze --text.
    """
    from tsallis.report import style

    if weights and (figures := [name for name, value in (("--out", out), ("--format", kind)) if value is not None]):
        raise InputError(f"{' and '.join(figures)} is for figures, --weights prints numbers: one of the two")
    if heads is not None and not weights:
        raise InputError("--heads is for --weights; the page of tsallis analyze --text draws single heads")
    folder = out or Path("looks")
    if not weights:
        style.require()
        check_folder(folder)
    opened = open_run(run, checkpoint, device)
    opened.check_command("look")
    loaded, task = opened.run, opened.task
    search = options.with_defaults(opened.search_options).arguments
    blocks = line_blocks(loaded, task, file, gold=False, language=language, images=images)
    if weights:
        from tsallis.toolkit.tasks.attention_weights import describe_attention

        for block in blocks:
            by_number = dict(describe_attention(task, loaded, block.lines, heads, **search))
            for number in range(block.lines.count):  # a line without an output attends to nothing
                content = by_number.get(number, {"text": None, "attention": []})
                print_json({"line": block.first + number + 1, **content})
            sys.stdout.flush()
        return
    with optional_stdout() as shown:  # all figures are drawn, whether their names are read or not
        for block in blocks:
            _draw(loaded, task, block, folder, kind or "png", search, as_json)
            sys.stdout.flush()
    if shown.error is not None:
        raise shown.error


def _draw(run: Run, task: Task, block: Block, out: Path, kind: str, search: dict[str, Any], as_json: bool) -> None:
    """Write the figures of a block of lines, and print their paths."""
    from tsallis.report import style
    from tsallis.toolkit.data.io import write_output
    from tsallis.toolkit.tasks.figures import figures

    for number, figure in figures(task, run, block.lines, **search):
        line = block.first + number + 1
        path = out / f"{line}.{kind}"
        write_output(path, style.render(figure, kind))
        if as_json:
            print_json({"line": line, "path": str(path)})
        else:
            print_fields(str(path))
