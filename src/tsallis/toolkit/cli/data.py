"""The commands `tsallis data list` and `tsallis data get`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tsallis.errors import InputError, describe
from tsallis.toolkit.cli.options import Command, Json
from tsallis.toolkit.cli.output import print_fields, print_json

app = typer.Typer(help="List and download data sets.", no_args_is_help=True)


@app.command("list", cls=Command)
def data_list(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="List only data sets whose name, title or licence contains this text."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="List only data sets with files in this language, for example de or spanish.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets that can be downloaded."""
    from tsallis.toolkit.datasets.registry import SOURCES

    matches = [
        source
        for source in SOURCES.values()
        if text is None or text.lower() in f"{source.name} {source.title} {source.licence}".lower()
        if language is None or language in source.languages()
    ]
    if not matches:
        conditions = [describe(value) for value in (text, language) if value is not None]
        raise InputError(f"no data set matches {' and '.join(conditions)}; `tsallis data list` shows all data sets")
    for source in matches:
        if as_json:
            print_json(source.to_dict())
        else:
            print("\n".join(source.describe()))


@app.command("get", cls=Command)
def data_get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the data set; `tsallis data list` prints all names.")
    ],
    folder: Annotated[Path | None, typer.Option(help="Write the files to this folder (default: data/NAME).")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Download only these languages or files, separated by commas, for example de,en."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a data set.

    An interrupted download resumes. Each file must match its published digest or, without one, its first download.
    """
    from tsallis.toolkit.datasets.registry import get

    selection = None if languages is None else [language.strip() for language in languages.split(",")]
    for path in get(
        name, folder or Path("data") / name, selection, lambda text: print(f"fetching {text}", file=sys.stderr)
    ):
        if as_json:
            print_json({"data_set": name, "path": str(path)})
        else:
            print_fields(str(path))
