"""Writing files so that a half-written one is never taken for a whole one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Put `data` at `path` in one step: readers see the old file or the new one, never a part of it.

    Text is written as UTF-8. The temporary file lies beside the target (a rename is atomic only inside one file
    system) and is flushed to the disk before it takes the target's name.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_atomic(folder / "a.txt", "whole")
    >>> (folder / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    blob = data.encode("utf-8") if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(blob)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; a run folder is shared like any other file of its user.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
