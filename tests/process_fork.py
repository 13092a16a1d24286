"""Run commands in forked children of this interpreter, which start fast because all modules are imported already."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PATIENCE = 60  # seconds
ALLOCATING = ("open", "write", "fsync", "replace", "mkdir")  # calls that need space, so they fail on a full disk
CALLS = (*ALLOCATING, "ftruncate", "unlink", "rmdir", "chmod")


@dataclass(frozen=True)
class Ended:
    """The exit status of a child (minus the signal number if a signal killed it) and its output."""

    status: int
    text: str  # standard output, with standard error unless it is captured separately
    errors: str = ""


class Child:
    """A child process that runs `work` and exits; with `stdin`, its standard error is captured separately."""

    def __init__(self, work: Callable[[], object], stdin: bytes | None = None) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115
        self.errors = self.output if stdin is None else tempfile.TemporaryFile()  # noqa: SIM115
        self.stdin = stdin
        self.status: int | None = None
        self.process = os.fork()
        if self.process == 0:
            self._work(work)

    def _work(self, work: Callable[[], object]) -> None:
        status = 1
        try:
            if self.stdin is not None:
                self._read(self.stdin)
            for stream, file in ((1, self.output), (2, self.errors)):
                os.dup2(file.fileno(), stream)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w") for n in (1, 2))
            work()
            status = 0
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(status)

    @staticmethod
    def _read(content: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        sys.stdin = os.fdopen(0, encoding="utf-8")

    def running(self) -> bool:
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if process else None
        return self.status is None

    def wait(self, seconds: float) -> bool:
        """Wait for at most this number of seconds, and return whether the child has ended."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.0005)
        return not self.running()

    def kill(self) -> None:
        if self.running():
            os.kill(self.process, signal.SIGKILL)

    def ended(self, seconds: float = PATIENCE) -> Ended:
        if not self.wait(seconds):
            self.kill()
            self.wait(PATIENCE)
            raise AssertionError(f"hangs: {_text(self.output)}")
        assert self.status is not None
        apart = self.errors is not self.output
        return Ended(self.status, _text(self.output), _text(self.errors) if apart else "")


def _text(file: IO[bytes]) -> str:
    with file as stream:
        stream.seek(0)
        return stream.read().decode()


def run_forked(work: Callable[[], object], stdin: bytes | None = None, seconds: float = PATIENCE) -> Ended:
    """Run `work` in a child to its end; fail if it takes longer than this number of seconds."""
    return Child(work, stdin).ended(seconds)


def command(*arguments: object) -> Callable[[], None]:
    """Return a function that runs a command line; its modules are imported here, once for all children."""
    import tsallis.search
    import tsallis.toolkit.tasks
    import tsallis.toolkit.training  # noqa: F401
    from tsallis.toolkit.cli import main

    def work() -> None:
        sys.argv = ["tsallis", *map(str, arguments)]
        main()

    return work


class Faults:
    """Counts the calls that change files below a folder, and makes one call fail.

    Args:
        folder: Folder to watch; calls for files elsewhere are not counted.
        at: Number of the call that fails, from 1; None if no call fails. A write that fails has written half.
        kind: "kill": the call kills the process; "full": this call and all later ones that need space fail;
            "broken": only this call fails.
    """

    def __init__(self, folder: Path, at: int | None = None, kind: str = "kill") -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.names: list[str] = []  # names of the calls
        self.files: list[str] = []  # their files, without the numbers and random parts of names
        self.handles: dict[int, str] = {}

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._faulty(name, getattr(os, name)))
        close = os.close

        def closing(handle: int) -> None:
            self.handles.pop(handle, None)
            close(handle)

        os.close = closing

    def _faulty(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(target: Any, *arguments: Any, **options: Any) -> Any:
            if not self._counts(name, target, arguments):
                return call(target, *arguments, **options)
            self.names.append(name)
            self.files.append(self._file(target))
            full = self.kind == "full" and self.at is not None and len(self.names) > self.at and name in ALLOCATING
            if len(self.names) == self.at or full:
                if name == "write":
                    call(target, arguments[0][: len(arguments[0]) // 2])
                if self.kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                number = errno.ENOSPC if name in ALLOCATING else errno.EIO
                raise OSError(number, os.strerror(number))
            result = call(target, *arguments, **options)
            if name == "open":
                self.handles[result] = self._file(target)
            return result

        return faulty

    def _file(self, target: Any) -> str:
        if isinstance(target, int):
            return self.handles[target]
        return re.sub(r"\d+", "0", re.sub(r"\.\w{8}\.tmp$", ".tmp", os.fspath(target)))

    def _counts(self, name: str, target: Any, arguments: tuple[Any, ...]) -> bool:
        if isinstance(target, int):
            return target in self.handles
        if not os.fspath(target).startswith(self.folder):
            return False
        return name != "open" or bool(arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
