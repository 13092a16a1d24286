"""Helpers shared by caches: the folder, a lock for one process at a time, and digests of files by content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.data.io import lock_file, read_json, write_atomic

SETTLING_SECONDS = 2.0  # seconds after which a file's times tell a change: some file systems count in whole seconds


def cache_folder(folder: str | None) -> Path:
    """Return `folder`, or by default the folder `tsallis` in the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        RuntimeError: The user's home is not known.
    """
    if folder is not None:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsallis"


def key_of(made_from: dict[str, Any]) -> str:
    """Return the name of what is made from some files in some way."""
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Wait until no other process holds the lock; False where there are no locks."""
    with path.open("a") as stream:
        yield lock_file(stream.fileno(), wait=True)


def fingerprint(path: Path, cache: Path) -> str:
    """Return the SHA-256 of a file; remembered in the cache for as long as the file's size, place and times stay."""
    remembered = cache / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.stamp.json"
    try:
        before = _stamp(path)
        with contextlib.suppress(InputError):
            content = read_json(remembered)
            if content.get("stamp") == before and isinstance(content.get("sha256"), str):
                return str(content["sha256"])
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        after = _stamp(path)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    if after == before and time.time_ns() - max(before[2:]) > SETTLING_SECONDS * 1e9:
        write_atomic(remembered, json.dumps({"stamp": before, "sha256": digest.hexdigest()}))
    return digest.hexdigest()


def _stamp(path: Path) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
