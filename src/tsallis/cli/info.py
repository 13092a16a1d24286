"""The command `tsallis info`."""

from __future__ import annotations

from typing import Annotated

import typer


def info(
    check: Annotated[bool, typer.Option("--check", help="Compare every kernel with PyTorch's operations.")] = False,
) -> None:
    """Versions and the machine."""
    import platform

    import torch

    import tsallis
    from tsallis.ops import backend

    print(f"tsallis {tsallis.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"threads {torch.get_num_threads()}, CUDA {'yes' if torch.cuda.is_available() else 'no'}")
    print(f"backend {backend.explain()}")
    print(f"backend on a GPU {backend.explain_gpu()}")
    if check:
        _check()


def _check() -> None:
    """Print a line for each comparison as it comes, then the kinds of devices; exit with 1 where a kernel is wrong."""
    import json

    from tsallis.ops.self_check.survey import survey

    rows = []
    print(f"{'backend':8}{'dtype':10}{'family':14}{'error':>9}{'limit':>9}{'seconds':>9}  kernel")
    for row in survey():
        kernel, error, limit, message = row.result
        words = kernel if row.result.agrees else f"WRONG: {kernel} {message}".rstrip()
        numbers = f"{error:9.1e}{limit:9.1e}{row.seconds:9.2f}"
        print(f"{row.backend:8}{row.dtype:10}{row.family:14}{numbers}  {words}", flush=True)
        rows.append(row)
    for kind in {str(row.kind): row.kind for row in rows if row.kind}.values():
        print(json.dumps(kind))
    if not all(row.result.agrees for row in rows):
        raise typer.Exit(1)
