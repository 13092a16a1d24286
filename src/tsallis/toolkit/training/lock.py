"""Lock on a run folder. One process holds the lock and checks before each write that the folder was not moved."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.data.io import NONBLOCK, check_file, created_folder, lock_file
from tsallis.toolkit.training.file_names import LOCK


@dataclass(frozen=True)
class Lock:
    """Lock on a folder to which only this process writes."""

    folder: Path
    handle: int  # file descriptor of the open lock file

    def check(self) -> None:
        """Raise if the folder was moved or removed since it was locked.

        Raises:
            InputError: If the folder contains another lock file than the one of this process.
        """
        expected = os.fstat(self.handle)
        try:
            actual = os.stat(self.folder / LOCK, follow_symlinks=False)
        except OSError:
            actual = None
        if actual is None or (actual.st_dev, actual.st_ino) != (expected.st_dev, expected.st_ino):
            raise InputError(
                f"{self.folder}: the run folder (or its {LOCK}) was moved or removed while it was in use; "
                "restore it, then run the same command again to resume from the last checkpoint"
            )


@contextlib.contextmanager
def locked(folder: Path, work: str = "training") -> Iterator[Lock]:
    """Lock a folder until the block or the process ends. The folder is created if it is missing.

    The word `work` describes what another process that holds the lock does.

    If the block raises an InputError, the new lock file and the new folders are removed, but folders with other files
    are kept. A rejected command therefore leaves no files behind.

    Raises:
        InputError: If the folder can't be created, written to or locked, or if another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(created_folder(folder))
        except (OSError, ValueError) as error:
            raise _unusable_error(folder, error) from error
        yield stack.enter_context(_lock(folder, work))


@contextlib.contextmanager
def _lock(folder: Path, work: str) -> Iterator[Lock]:
    path = folder / LOCK
    try:
        # Keep the content of an existing file. Don't follow a link, because then another file would be locked.
        flags = os.O_RDWR | os.O_CREAT | NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
        try:
            handle, removable = os.open(path, flags | os.O_EXCL, 0o666), True
        except FileExistsError:
            handle, removable = os.open(path, flags, 0o666), False
    except (OSError, ValueError) as error:
        raise _unusable_error(folder, error) from error
    try:
        check_file(path)
        try:
            if not lock_file(handle, wait=False) and os.name == "posix":
                raise InputError(
                    f"{folder}: can't be used as a run folder: its file system does not support locks (flock)"
                )
        except BlockingIOError as error:
            removable = False  # another process has already locked the file that this process created
            raise InputError(f"{folder}: another process is {work} in this folder") from error
        except OSError as error:
            raise InputError(f"{folder}: can't be locked: {error.strerror or error}") from error
        lock = Lock(folder, handle)
        lock.check()  # the folder may have been moved before it was locked
        yield lock
    except (InputError, KeyboardInterrupt):
        with contextlib.suppress(OSError, InputError):
            if removable:
                Lock(folder, handle).check()  # if another folder is now at this path, raise and keep its lock file
                path.unlink()
        raise
    finally:
        os.close(handle)


def _unusable_error(folder: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{folder}: can't be used as a run folder: {reason}")


@contextlib.contextmanager
def writing(path: Path, lock: Lock | None = None) -> Iterator[None]:
    """Convert errors of writing in a run folder to one-line messages.

    Args:
        path: Path that the message names.
        lock: Lock on the folder. With None, the caller must check the folder.

    Raises:
        InputError: In place of any OSError, or if the folder was moved.
    """
    if lock is not None:
        lock.check()
    try:
        yield
    except OSError as error:
        if lock is not None:
            lock.check()
        raise InputError(
            f"{path}: can't be written: {error.strerror or error}; fix this, then run the same command again to resume"
        ) from error
