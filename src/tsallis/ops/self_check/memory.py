"""What a self-check measured, remembered in the user's cache folder: one JSON file for each kind of device.

A file is replaced in one step, and read with suspicion: what is not exactly what is written here is ignored. Nothing in
it is executed. A folder that can't be read or written is no error; the check then runs once in every process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsallis.ops.self_check.trial import Result
from tsallis.user_cache import user_cache

VERSION = 2  # of the files and of the comparisons: another one's are not read
Kind = Mapping[str, str]  # of a device: its name, versions and the kernels' sources
Results = dict[tuple[str, str], Result]  # by family and dtype


def digest(kind: Kind) -> str:
    """Return a short name of a kind of devices."""
    return hashlib.sha256(json.dumps(dict(kind), sort_keys=True).encode()).hexdigest()[:16]


def file_of(kind: Kind) -> Path:
    """Return the file of a kind of devices.

    Raises:
        RuntimeError: nobody knows the user's home.
    """
    return user_cache() / "self-check" / f"{digest(kind)}.json"


def load(kind: Kind) -> Results:
    """Return what is remembered of a kind of devices; nothing where there is no file, or another one."""
    try:
        content = json.loads(file_of(kind).read_text(encoding="utf-8"))
        return _parse(content, kind)
    except (OSError, RuntimeError, ValueError, RecursionError):
        return {}


def store(kind: Kind, results: Results) -> bool:
    """Add results to the file of a kind of devices; tell whether that was possible."""
    try:
        path = file_of(kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "kind": dict(kind),
            "results": [{"family": f, "dtype": d, **r._asdict()} for (f, d), r in {**load(kind), **results}.items()],
        }
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, RuntimeError):
        return False
    return True


def _parse(content: Any, kind: Kind) -> Results:
    if not isinstance(content, dict) or content.get("version") != VERSION or content.get("kind") != dict(kind):
        return {}
    results: Results = {}
    entries = content.get("results")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            return {}
        words = [entry.get(name) for name in ("family", "dtype", "kernel", "message")]
        numbers = [entry.get(name) for name in ("error", "limit")]
        if not all(isinstance(x, str) for x in words) or not all(type(x) in (int, float) for x in numbers):
            return {}
        family, dtype, kernel, message = (str(x) for x in words)
        error, limit = (float(x) for x in numbers if x is not None)
        results[family, dtype] = Result(kernel, error, limit, message)
    return results
