"""The commands `tsallis data list` and `tsallis data get`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tsallis.errors import InputError, describe
from tsallis.toolkit.cli.options import Json
from tsallis.toolkit.cli.output import print_fields, print_json

app = typer.Typer(help="Known data sets: list them, fetch them.", no_args_is_help=True)


@app.command("list")
def data_list(
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Only those with it in their name, title or licence.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Only those with files of this language, as a data set names it: de, spanish.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets that can be fetched."""
    from tsallis.toolkit.datasets.registry import SOURCES

    matches = [
        source
        for source in SOURCES.values()
        if text is None or text.lower() in f"{source.name} {source.title} {source.licence}".lower()
        if language is None or language in source.languages()
    ]
    if not matches:
        conditions = [f"{describe(value)}" for value in (text, language) if value is not None]
        raise InputError(f"no data set matches {' and '.join(conditions)}; tsallis data list shows all of them")
    for source in matches:
        if as_json:
            print_json(source.to_dict())
        else:
            print("\n".join(source.describe()))


@app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `tsallis data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to; default: data/NAME.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Only these (sides, of a parallel corpus; files, where there are no languages): de,en."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch a data set: resumes; files are compared with their known digest, or with that of the first transfer."""
    from tsallis.toolkit.datasets.registry import get

    selection = languages.split(",") if languages else None
    for path in get(
        name, folder or Path("data") / name, selection, lambda text: print(f"fetching {text}", file=sys.stderr)
    ):
        if as_json:
            print_json({"data_set": name, "path": str(path)})
        else:
            print_fields(str(path))
