"""The commands `tsallis data list` and `tsallis data get`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tsallis.cli.output import print_fields

app = typer.Typer(help="Known data sets: list them, fetch them.", no_args_is_help=True)


@app.command("list")
def data_list() -> None:
    """Return the data sets that can be fetched."""
    from tsallis.datasets.registry import SOURCES

    for source in SOURCES.values():
        print("\n".join(source.describe()))


@app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `tsallis data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to; default: data/NAME.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Only these (sides, of a parallel corpus; files, where there are no languages): de,en."),
    ] = None,
) -> None:
    """Fetch a data set: resumes; files are compared with their known digest, or with that of the first transfer."""
    from tsallis.datasets.registry import get

    chosen = languages.split(",") if languages else None
    for path in get(
        name, folder or Path("data") / name, chosen, lambda text: print(f"fetching {text}", file=sys.stderr)
    ):
        print_fields(str(path))
