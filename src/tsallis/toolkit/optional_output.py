"""Standard output that its reader may close. Commands that write results to files then continue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class OptionalOutput:
    """Text stream that discards its text after the first failed write.

    Args:
        stream: Stream to write to.
        note: Text to print on standard error, after the reason, when a write fails for the first time; None: print
            nothing.

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
        """Write a text and return its length."""
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write buffered text to the stream."""
        self._try(lambda: self.stream.flush())

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self.stream = open(os.devnull, "w")  # noqa: SIM115
            if self.note is not None:
                reason = "closed" if isinstance(error, BrokenPipeError) else error.strerror
                print(f"tsallis: can't write to standard output ({reason}); {self.note}", file=sys.stderr, flush=True)
