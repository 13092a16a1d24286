"""Functions for caches: find the cache folder, name an entry, and lock an entry for one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tsallis.toolkit.data.io import lock_file


def cache_folder(folder: str | None) -> Path:
    """Return `folder`. If it is None, return the default: `tsallis` in `XDG_CACHE_HOME` or in `~/.cache`.

    Raises:
        RuntimeError: If the user's home folder is unknown.
    """
    if folder is not None:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsallis"


def key_of(made_from: dict[str, Any]) -> str:
    """Return the cache key of files and their processing options."""
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Wait for a file lock and hold the lock inside the block; yield False if the file system lacks locks."""
    with path.open("a") as stream:
        yield lock_file(stream.fileno(), wait=True)
