"""Writing files so that a half-written one is never taken for a whole one, and reading none that is no file."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tsallis.errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # of a file system without any
# Not there on every system: a fifo opened without it waits for whoever writes into it.
NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Put `data` at `path` in one step: readers see the old file or the new one, never a part of it.

    Text is written as UTF-8. The temporary file lies beside the target (a rename is atomic only inside one file
    system) and is flushed to the disk before it takes the target's name. The folder must be there.

    Raises:
        OSError: whatever the system says; what was at `path` is then still there, and nothing beside it.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_atomic(folder / "a.txt", "whole")
    >>> (folder / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        try:
            write_all(handle, data.encode("utf-8") if isinstance(data, str) else data)
            os.fsync(handle)
        finally:
            os.close(handle)
        # mkstemp makes files private; a run folder is shared like any other file of its user.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_all(handle: int, blob: bytes) -> None:
    """Write all of `blob`; the system may take it in parts."""
    rest = memoryview(blob)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, where the system can: what comes after happens after it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # as of all folders on Windows
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def is_leftover(path: Path, names: Iterable[str]) -> bool:
    """Return whether `path` is what :func:`write_atomic` leaves when it is killed while it writes one of `names`."""
    match = re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}\.tmp", path.name)
    return match is not None and match[1] in names and is_regular(path)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed writes of files of those names left in a folder."""
    for path in list(folder.iterdir()):
        if is_leftover(path, names):
            path.unlink()


def is_regular(path: Path) -> bool:
    """Return whether there is a file of this very name: no link, folder, fifo or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of this very name, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def check_file(path: Path | str) -> None:
    """Refuse what has no end or would be waited for, such as a fifo or a device.

    Raises:
        InputError: nothing at `path`, or something other than a file or a link to one.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "fifo" if stat.S_ISFIFO(mode) else "device or socket"
        raise InputError(f"{path}: can't be read: expected a file, found a {kind}")


def read_file(path: Path | str, limit: int | None = None) -> bytes:
    """Return what a file holds.

    Args:
        path: of the file, or of a link to one.
        limit: bytes it may have.

    Raises:
        InputError: what :func:`check_file` refuses, a file that can't be read, or one that is too large.
    """
    check_file(path)
    try:
        handle = os.open(path, os.O_RDONLY | NONBLOCK | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as stream:
            blob = stream.read() if limit is None else stream.read(limit + 1)
    except (OSError, MemoryError) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'out of memory'}") from error
    if limit is not None and len(blob) > limit:
        raise InputError(f"{path}: has more than {limit} bytes, more than any file of its kind needs")
    return blob


def lock_file(handle: int, wait: bool) -> bool:
    """Lock an open file for this process alone; return False where there are no locks.

    The lock goes with the process, however it ends.

    Raises:
        BlockingIOError: another process holds it, and `wait` is not set.
        OSError: anything else that went wrong.
    """
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise
    return True
