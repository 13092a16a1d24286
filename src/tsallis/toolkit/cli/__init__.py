"""Define the command `tsallis`, one file per subcommand.

Heavy imports are inside the commands, so that `--help` starts quickly.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import warnings
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

from tsallis.errors import IgnoredInputWarning, InputError, OptionError, describe, memory_for, one_line
from tsallis.toolkit.optional_output import OptionalOutput

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError:
    print("tsallis: the commands need extra packages: pip install 'tsallis[toolkit]'", file=sys.stderr)
    raise SystemExit(2) from None

from tsallis.toolkit.cli import (
    analyze,
    average,
    data,
    demo,
    distill,
    evaluate,
    generate,
    info,
    look,
    prove,
    score,
    serve,
    suggest,
    sweep,
    train,
    translate,
)
from tsallis.toolkit.cli.options import Command, flag
from tsallis.toolkit.cli.output import NOTES, print_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Commands(TyperGroup):
    """Group of all commands. Error messages about an option contain the flag of this option."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise InputError(error.spelled(flag)) from None
        except KeyboardInterrupt:  # typer itself would exit without a message
            raise typer.Abort from None


app = typer.Typer(
    cls=Commands,
    help="Train, use and inspect sequence models whose probabilities can be exactly zero.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def print_version(version: bool) -> None:
    if version:
        import tsallis

        print(f"tsallis {tsallis.__version__}")
        raise typer.Exit


Version = typer.Option("--version", is_eager=True, callback=print_version, help="Print the version and exit.")


@app.callback()
def options(version: Annotated[bool, Version] = False) -> None:
    del version  # the callback of this option has printed the version


def help_text(command: Callable[..., None]) -> str:
    """Convert a docstring to help text. Typer itself would keep line breaks and interpret brackets as markup."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs).replace("[", r"\[")


app.add_typer(data.app, name="data")
for command in (
    *(info.info, train.train, distill.distill, sweep.sweep, average.average, translate.translate, generate.generate),
    *(evaluate.evaluate, score.score, prove.prove, suggest.suggest, serve.serve, look.look, analyze.analyze, demo.demo),
):
    app.command(cls=Command, help=help_text(command))(command)


def main(command: Callable[[], object] = app) -> None:
    """Run a command; bad input prints one line on standard error and exits with status 2."""
    if sys.stderr is None:
        # Without this, the next file to be opened would become standard error.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with contextlib.redirect_stderr(cast(Any, OptionalOutput(sys.stderr))), _collect_notes():
        status = _status(command)
        if status not in (2, 130):  # after an error, print only the error
            print_notes()
    distributed = sys.modules.get("tsallis.toolkit.training.distributed")
    if distributed is not None:
        distributed.exit_process(status)
    raise SystemExit(status)


@contextlib.contextmanager
def _collect_notes() -> Iterator[None]:
    """Collect warnings about ignored input for :func:`print_notes`."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", IgnoredInputWarning)
        NOTES.clear()
        original_showwarning = warnings.showwarning

        def show(message: Any, category: type[Warning], *location: Any, **options: Any) -> None:
            if not issubclass(category, IgnoredInputWarning):
                original_showwarning(message, category, *location, **options)
            elif os.environ.get("RANK", "0") == "0":
                NOTES[one_line(f"tsallis: {message}")] = None

        warnings.showwarning = show
        yield


def _status(command: Callable[[], object]) -> object:
    """Run a command, print its error if there is one, and return the exit status."""
    status: object = 0
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed: keep it open, or redirect it to a file")
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with memory_for("the data of this command"):
            status = _run(command)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe; commands write their files before they print
    except (InputError, OSError) as error:
        _discard_output()
        if os.environ.get("LOCAL_RANK", "0") == "0" or not _is_common_error(error):
            rank = os.environ.get("RANK", "0")
            process = f" (process {rank})" if rank != "0" else ""
            print(one_line(f"tsallis{process}: {_explain(error)}"), file=sys.stderr, flush=True)
        status = 2
    return status


def _run(command: Callable[[], object]) -> object:
    """Return the exit status of a command; raise `InputError` for wrong arguments."""
    try:
        return app(prog_name="tsallis", standalone_mode=False) if command is app else command()
    except (typer.Abort, KeyboardInterrupt):
        print("tsallis: interrupted", file=sys.stderr)
        return 130
    except SystemExit as exit_error:
        if isinstance(exit_error.__context__, BrokenPipeError):  # typer converts a broken pipe to exit status 1
            raise exit_error.__context__ from None
        raise
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 2
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "tsallis"
        raise InputError(f"{_explain_usage(error)} (see {path} --help)") from error


def _explain_usage(error: Any) -> str:
    """Return the message for a wrong argument. For a numeric argument, include the value and the valid range."""
    text: str = error.format_message().removesuffix(".").replace("Value error, ", "")
    descriptor: Any = getattr(getattr(error, "param", None), "type_descriptor", None)
    kind = _number_kind(getattr(descriptor, "annotation", None))
    if kind is None or not hasattr(error.__cause__, "errors"):
        return text
    bounds = descriptor.parameter_info.min, descriptor.parameter_info.max
    least, most = (int(bound) if bound is not None and bound == int(bound) else bound for bound in bounds)
    span = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
    value = error.__cause__.errors(include_url=False)[0]["input"]
    return f"{text.partition(': ')[0]}: expected {kind}{span}, found {describe(value)}"


def _number_kind(annotation: Any) -> str | None:
    """Return the kind of number that an option takes; None if it takes no number."""
    types = get_args(annotation) or (annotation,)
    return "a whole number" if int in types else "a number" if float in types else None


def _explain(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'standard output'}: {error.strerror or error}"


def _discard_output() -> None:
    """Flush standard output, or discard it if that fails, so that Python prints no error at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def _is_common_error(error: Exception) -> bool:
    """Return whether every process raised this error. In this case, only the first process prints the error."""
    distributed = sys.modules.get("tsallis.toolkit.training.distributed")
    return distributed is not None and isinstance(error, distributed.CommonError)
