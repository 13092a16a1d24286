"""Handling of SIGTERM, the signal of batch systems: the training stops after the current update."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

STATUS = 128 + signal.SIGTERM  # exit status of a command that SIGTERM stopped


@contextlib.contextmanager
def note_termination() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM was received; the signal does not end the process.

    Only the main thread can handle signals; in other threads the function always returns False.

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
    previous_handler = signal.signal(signal.SIGTERM, lambda number, frame: received.set())
    try:
        yield received.is_set
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
