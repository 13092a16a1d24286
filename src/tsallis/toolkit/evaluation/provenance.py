"""Origin of a result: commit of the code, versions, machine, and digests of files."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tsallis.toolkit.data.io import check_file, digest_file

PACKAGE = Path(__file__).parents[2]
_PATH_FOLDERS = re.compile(r"""(?<![\w.:/~-])/+(?:[^/,'"\[\]{}]+/+)*(?=[^/,'"\[\]{}\s])""")  # the folders of a path


def environment() -> dict[str, Any]:
    """Return the commit of the code, versions, processor and number of threads.

    Returns:
        "commit" (None outside a git checkout), "torch", "python", "cpu", "cores", "threads" and, with a GPU, "gpu".

    Example:
        >>> sorted(environment())[:4]
        ['commit', 'cores', 'cpu', 'python']
    """
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "commit": find_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **gpu,
    }


@cache
def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def find_commit() -> str | None:
    """Return the git commit of the package, plus "+changes" if files were changed; None outside a checkout."""
    root = PACKAGE.resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _git(root, "status", "--porcelain", "--", "src") else commit


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if git fails or is missing."""
    try:
        process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Return the command of this process, with each absolute path shortened to its last part.

    Args:
        arguments: Command and its arguments; default: those of this process.

    Example:
        >>> command_line(["/usr/bin/tsallis", "evaluate", "/home/ada/runs/best", "--beam-size", "5"])
        'tsallis evaluate best --beam-size 5'
        >>> command_line(["tsallis", "train", "a.yaml", "data.folder=/data/multi30k"])
        'tsallis train a.yaml data.folder=multi30k'
    """
    program, *program_arguments = sys.argv if arguments is None else arguments
    path = Path(program)
    name = path.parent.name if path.stem == "__main__" else path.name
    return shlex.join([name, *(shorten_path(text) for text in program_arguments)])


def shorten_path(text: str) -> str:
    """Return a text with each absolute path shortened to its last part.

    Example:
        >>> shorten_path("/home/ada/data"), shorten_path("data.folder=/home/ada/data"), shorten_path("runs/best")
        ('data', 'data.folder=data', 'runs/best')
        >>> shorten_path("data.train=[/home/ada/a.tsv, more/b.tsv]")
        'data.train=[a.tsv, more/b.tsv]'
    """
    return _PATH_FOLDERS.sub("", text)


def digest_files(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the number, total size and digest of files.

    The digest equals that of `sha256sum FILES | sha256sum` in their folder.

    Args:
        paths: Paths of the files, in any order.

    Returns:
        A dictionary with "files", "bytes" and "sha256".

    Raises:
        InputError: If a file can't be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.tsv"
        >>> _ = path.write_text("draw\\tdrew\\n")
        >>> digests = digest_files([path])
        >>> digests["files"], digests["bytes"], digests["sha256"][:8]
        (1, 10, '0b7ff8fd')
    """
    lines, size = [], 0
    for path in paths:
        check_file(path)
        lines.append((path.name, f"{digest_file(path)}  {path.name}\n"))
        size += path.stat().st_size
    text = "".join(line for _, line in sorted(lines))
    return {"files": len(lines), "bytes": size, "sha256": hashlib.sha256(text.encode()).hexdigest()}
