"""SIGTERM while a training runs."""

from __future__ import annotations

import signal
import threading

from tsallis.toolkit.training.termination import STATUS, note_termination


def test_a_signal_is_noted_and_the_handler_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with note_termination() as is_terminated:
        assert not is_terminated()
        signal.raise_signal(signal.SIGTERM)
        assert is_terminated()
    assert signal.getsignal(signal.SIGTERM) is before and STATUS == 143


def test_another_thread_notes_none() -> None:
    noted: list[bool] = []

    def work() -> None:
        with note_termination() as is_terminated:
            noted.append(is_terminated())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False]
