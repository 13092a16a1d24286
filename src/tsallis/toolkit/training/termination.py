"""SIGTERM, with which a batch system ends a training: it is noted, and obeyed after the update under way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

STATUS = 128 + signal.SIGTERM  # of a command that ended so


@contextlib.contextmanager
def note_termination() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM has come, which ends the process no more.

    Only the main thread can note signals: in another one the function returns False.

    Example:
        >>> with note_termination() as is_terminated:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     is_terminated()
        True
    """
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.set())
    try:
        yield received.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
