"""The command `tsallis info`."""

from __future__ import annotations

from typing import Annotated

import typer

from tsallis.errors import InputError
from tsallis.toolkit.cli.options import Json
from tsallis.toolkit.cli.output import print_json


def info(
    check: Annotated[bool, typer.Option("--check", help="Also compare every kernel with a float64 reference.")] = False,
    as_json: Json = False,
) -> None:
    """Print versions, the number of threads and the backend in use."""
    import platform

    import torch

    import tsallis
    from tsallis.ops import choice

    facts = {
        "tsallis": tsallis.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "backend": choice.explain(),
        "backend_gpu": choice.explain_gpu(),
    }
    if as_json:
        print_json(facts)
    else:
        print(f"tsallis {facts['tsallis']}, torch {facts['torch']}, Python {facts['python']}")
        print(f"threads {facts['threads']}, CUDA {'yes' if facts['cuda'] else 'no'}")
        print(f"backend {facts['backend']}")
        print(f"backend on a GPU {facts['backend_gpu']}")
    if check:
        _check(as_json)


def _check(as_json: bool) -> None:
    """Print each comparison as soon as it is done; exit with status 1 if a kernel is wrong."""
    import sys

    from tsallis.toolkit.cli.self_check import survey

    all_agree, count = True, 0
    if not as_json:
        print(f"{'backend':8}{'device':8}{'dtype':10}{'family':14}{'error':>9}{'limit':>9}{'seconds':>9}  case")
    for row in survey():
        all_agree, count = all_agree and row.agrees, count + 1
        if as_json:
            print_json({**row._asdict(), "agrees": row.agrees})
        else:
            words = row.case if row.agrees else f"WRONG: {row.case} {row.message}".rstrip()
            numbers = f"{row.error:9.1e}{row.limit:9.1e}{row.seconds:9.2f}"
            print(f"{row.backend:8}{row.device:8}{row.dtype:10}{row.family:14}{numbers}  {words}")
        sys.stdout.flush()
    if not count:
        raise InputError("no kernels to compare: TSALLIS_BACKEND excludes them, or they are not available here")
    if not all_agree:
        raise typer.Exit(1)
