"""Define the arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from typer.core import TyperCommand

from tsallis.errors import InputError
from tsallis.search.options import MODES, OPTIONS, TYPES, Mode, SearchOptions

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Input file (- or no file: standard input).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line of output.")]
OnError = Annotated[
    Literal["stop", "skip"] | None,
    typer.Option(
        help="What to do after a bad line. stop (default for files): exit with an error. skip (default for standard "
        "input): print an empty answer, continue, and exit with status 1 at the end."
    ),
]
Language = Annotated[str | None, typer.Option(help="Language of the lines if the run has several languages.")]
Images = Annotated[
    Path | None, typer.Option(help="Images that the lines refer to (default: the images of the test split).")
]
SplitLanguage = Annotated[
    str | None,
    typer.Option(help="Language of the lines, if the run has several languages. With a split: use only this language."),
]
SplitImages = Annotated[
    Path | None, typer.Option("--images", help="Images that the lines refer to (default: the images of the split).")
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="RUN2",
        help="Another run for an ensemble, which averages the probabilities of all its runs; may be repeated.",
    ),
]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, or auto (a GPU if there is one).")]
Which = Annotated[
    str, typer.Option("--checkpoint", help="Checkpoint to load: best, last, or average (made by `tsallis average`).")
]

SHORTHANDS: tuple[Mode, ...] = ("exact", "all")  # modes that have their own flag
KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Command(TyperCommand):
    """Command that refuses an option given more than once; otherwise, only its last value would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        occurrences: Any = self.make_parser(ctx).parse_args([*args])[2]  # one item per occurrence
        for option in occurrences:
            single = option.param_type_name == "option" and not (option.multiple or option.is_flag)
            if single and occurrences.count(option) > 1:
                ctx.fail(f"{option.opts[0]} can be given only once")
        return super().parse_args(ctx, args)


def flag(name: str) -> str:
    """Return the flag of an option.

    >>> flag("n_best")
    '--n-best'
    """
    return f"--{name.replace('_', '-')}"


def typed_flags(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return the flags of these options that are on the command line, even with their default values."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [flag(name) for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def search_options(
    *names: str, modes: Sequence[Mode] = MODES, help: Mapping[str, str] | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's `SearchOptions` parameter by one flag per option.

    Args:
        names: Fields of :class:`tsallis.search.SearchOptions` that become flags.
        modes: Search modes of the command; the first is the default.
        help: Help texts that replace those of the fields.
        defaults: Default values of options.
    """
    helps = {name: info.help for name, info in OPTIONS.items()} | dict(help or {})

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        options = next(name for name, kind in hints.items() if kind is SearchOptions)
        parameters = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name == options:
                parameters += [_parameter(name, helps[name], modes, defaults.get(name)) for name in names]
                parameters += [_shorthand(mode) for mode in SHORTHANDS if "mode" in names and mode in modes]
            else:
                parameters.append(parameter.replace(annotation=hints[parameter.name], kind=KEYWORD))

        @functools.wraps(command)
        def wrapped(**values: Any) -> None:
            shorthands = [mode for mode in SHORTHANDS if values.pop(mode, False)]
            search_values = {name: values.pop(name) for name in names}
            search_values["mode"] = _mode(search_values.get("mode"), shorthands) or modes[0]
            command(**{options: SearchOptions(**search_values)}, **values)

        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


def _parameter(name: str, help: str, modes: Sequence[Mode], default: Any) -> inspect.Parameter:
    """Return the command parameter of a search option."""
    info, kind = OPTIONS[name], TYPES[name]
    usable = [mode for mode in modes if mode in info.modes]
    if usable != list(modes):
        help = f"{help} Only with --mode {' or '.join(usable)}."
    if name == "mode":
        choices: Any = Literal
        kind = choices[tuple(modes)]
    span = {}
    if kind in (int, float) and not info.inside:  # ranges in typer always include their limits
        span["min"] = kind(info.minimum)
    if span and math.isfinite(info.maximum):
        span["max"] = kind(info.maximum)
    option = typer.Option(flag(name), help=help, rich_help_panel="Search", **span)
    if kind is bool:
        return inspect.Parameter(name, KEYWORD, default=False, annotation=Annotated[bool, option])
    return inspect.Parameter(name, KEYWORD, default=default, annotation=Annotated[kind | None, option])


def _shorthand(mode: Mode) -> inspect.Parameter:
    """Return the command parameter of a flag such as --exact."""
    option = typer.Option(flag(mode), help=f"Short for --mode {mode}.", rich_help_panel="Search")
    return inspect.Parameter(mode, KEYWORD, default=False, annotation=Annotated[bool, option])


def _mode(mode: Mode | None, shorthands: list[Mode]) -> Mode | None:
    """Return the search mode that the flags select, or None.

    Raises:
        InputError: If two flags select a mode.
    """
    flags = [*([f"--mode {mode}"] if mode else []), *map(flag, shorthands)]
    if len(flags) > 1:
        raise InputError(f"use only one of {', '.join(flags)}: each sets the search mode")
    return shorthands[0] if shorthands else mode
