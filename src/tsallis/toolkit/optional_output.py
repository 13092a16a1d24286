"""The standard output of a command whose results lie elsewhere: the work goes on when nobody reads it any more."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, cast


class OptionalOutput:
    """A text stream that is given up once it can't be written to: what comes after goes nowhere.

    Args:
        stream: that is written to.
        note: what one line on standard error then says, behind the reason; None: nothing.

    Attributes:
        error: why it was given up; None as long as it is not.

    >>> OptionalOutput(sys.stdout).write("a line\\n")
    a line
    7
    """

    def __init__(self, stream: Any, note: str | None = None) -> None:
        self.stream, self.note = stream, note
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        try:
            if self.error is None:
                self.stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            if self.error is None:
                self.stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.error = error
        discard(self.stream)
        if self.note is not None:
            reason = "closed" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
            with contextlib.suppress(OSError):
                print(f"tsallis: standard output: {reason}: {self.note}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def optional_stdout(note: str | None = None) -> Iterator[OptionalOutput]:
    """Make standard output an :class:`OptionalOutput` while the context lasts, and yield it."""
    output = OptionalOutput(sys.stdout, note)
    with contextlib.redirect_stdout(cast("IO[str]", output)):
        yield output


@contextlib.contextmanager
def optional_stderr() -> Iterator[None]:
    """Make standard error an :class:`OptionalOutput` while the context lasts: it is never a result."""
    with contextlib.redirect_stderr(cast("IO[str]", OptionalOutput(sys.stderr))):
        yield


def discard(stream: Any) -> None:
    """Let what a stream still holds, and all that is written to it, go nowhere: or Python would complain at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file of the system's has no number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
