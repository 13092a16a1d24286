"""The standard output of a command whose results are files: the command continues when nobody reads it any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class OptionalOutput:
    """A text stream that goes nowhere once it can't be written to.

    Args:
        stream: Stream that is written to.
        note: Text that is then printed on standard error after the reason; None: nothing.

    >>> OptionalOutput(sys.stdout).write("a line\\n")
    a line
    7
    """

    def __init__(self, stream: Any, note: str | None = None) -> None:
        self.stream = stream
        self.note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self._try(lambda: self.stream.flush())

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self.stream = open(os.devnull, "w")  # noqa: SIM115
            if self.note is not None:
                reason = "closed" if isinstance(error, BrokenPipeError) else error.strerror
                print(f"tsallis: standard output: {reason}: {self.note}", file=sys.stderr, flush=True)
