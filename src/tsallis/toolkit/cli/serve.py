"""The command `tsallis serve`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsallis.errors import InputError
from tsallis.search.options import MAX_COUNT
from tsallis.toolkit.cli.input import input_name, read_text_lines
from tsallis.toolkit.cli.options import Device, Which
from tsallis.toolkit.cli.output import print_fields
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.serve.limits import Limits

if TYPE_CHECKING:
    from tsallis.toolkit.serve.answers import ServedRun
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

MAX_EXAMPLES = 20  # maximum number of examples per run
DEV_EXAMPLES = 5


def serve(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders. The page starts with the first of these runs.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on (127.0.0.1: only this machine can connect; 0.0.0.0: any machine).")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on (0: any free port).")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Extra host name to accept in requests, for example lab.example.org; may be repeated."),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="File with example inputs, one per line (-: standard input; default: lines of the development set)."
        ),
    ] = None,
    body: Annotated[int, typer.Option(min=100, max=1 << 30, help="Maximum size of a request, in bytes.")] = Limits.body,
    symbols: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum number of source symbols.")
    ] = Limits.symbols,
    batch: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="Maximum number of sources per request and per search.")
    ] = Limits.sources,
    outputs: Annotated[
        int,
        typer.Option(min=1, max=MAX_COUNT, help="Maximum value of n_best, beam_size and num_samples in a request."),
    ] = Limits.outputs,
    time: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Maximum computing time per request, in seconds.")
    ] = Limits.seconds,
    patience: Annotated[
        float,
        typer.Option(min=0.1, max=3600, help="Maximum time that a request waits in addition to --time, in seconds."),
    ] = Limits.patience,
    checkpoint: Which = "best",
    device: Device = "auto",
) -> None:
    """Start a web page and a JSON API that answer with trained models.

    The page and the API offer searches with certificates, completions, single steps and attention weights. The command
    prints the address of the page, and runs until Ctrl-C or SIGTERM.
    """
    try:
        from tsallis.toolkit.serve.app import build_app
        from tsallis.toolkit.serve.server import Server, bind, is_loopback, url_of
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise InputError("tsallis serve needs Starlette and uvicorn: pip install 'tsallis[serve]'") from error
    limits = Limits(body, symbols, batch, outputs, time, patience)
    with bind(host, port) as opened:
        served = _load(runs, checkpoint, device, limits, examples)
        app = build_app(served, limits, allow_host or ())
        _announce(served, url_of(opened), is_loopback(opened))
        Server(app).answer(opened)


def _announce(served: list[ServedRun], url: str, is_local: bool) -> None:
    """Print the address of the page, and a warning if other machines can reach it."""
    if not is_local:
        message = f"everyone who can reach {url} can use the runs, without encryption"
        name = f"to open the page by the name of this machine, add --allow-host {socket.gethostname()}"
        print(f"tsallis: warning: {message}; {name}", file=sys.stderr)
    try:
        print_fields(f"{', '.join(run.name for run in served)}: {url} (Ctrl-C ends)")
        sys.stdout.flush()
    except BrokenPipeError as error:  # nobody can use the server without its address
        raise InputError("standard output is closed, so the server's address can't be printed") from error


def _load(folders: list[Path], checkpoint: str, device: str, limits: Limits, examples: Path | None) -> list[ServedRun]:
    """Load runs, each with a short unique name and the examples that it can read."""
    from tsallis.toolkit.serve.answers import ServedRun

    lines = read_text_lines(examples) if examples else []

    served = []
    for name, folder in zip(_names(folders), folders, strict=True):
        opened = open_run(folder, checkpoint, device)
        opened.check_command("serve")
        run, task = opened.run, opened.task
        run_lines = lines if examples else _dev_lines(run, task)
        readable = tuple(line for line in run_lines if _is_readable(run, task, line))
        served_run = ServedRun(name, run, task, opened.search_options, limits, checkpoint, readable[:MAX_EXAMPLES])
        _ = served_run.facts  # read now, so that a bad folder is reported before the server starts
        served.append(served_run)
    if lines and not any(served_run.examples for served_run in served):
        raise InputError(
            f"{input_name(examples)}: no run can read any of these lines: expected the format "
            f"{served[0].task.formats[0]}"
        )
    return served


def _dev_lines(run: Run, task: Task) -> list[str]:
    """Return some inputs of a run's development set; an empty list if files can't be read."""
    from tsallis.toolkit.tasks.registry import run_config

    try:
        titles = task.split(run, run_config(run.folder).data, "dev").titles if task.searched else []
    except InputError:
        return []
    step = max(1, len(titles) // DEV_EXAMPLES)
    return [task.input_line(title) for title in titles[::step][:DEV_EXAMPLES]]


def _is_readable(run: Run, task: Task, line: str) -> bool:
    """Return whether a run can read a line as a source."""
    try:
        return bool(task.read([line], "examples", run, False).numbers)
    except InputError:
        return False


def _names(folders: list[Path]) -> list[str]:
    """Return the shortest unique ending of each path.

    Raises:
        InputError: If a folder is given twice.
    """
    from tsallis.toolkit.data.io import distinct_names

    paths = [folder.resolve() for folder in folders]
    for path, folder in zip(paths, folders, strict=True):
        if paths.count(path) > 1:
            raise InputError(f"{folder}: this run was given twice: pass each run once")
    return distinct_names(paths)
