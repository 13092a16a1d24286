"""A line of text that is typed key by key in a terminal, with what may follow below it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tsallis.inference import Suggestions

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "tab",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "tab",
    b"\t": "tab",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x03": "leave",
    b"\x04": "leave",
}
# What other keys send: after [, or two on some consoles, come parameters and a last character from @ to ~.
UNKNOWN = re.compile(rb"\x1b(?:\[\[?[0-?]*[ -/]*[@-~]?|O[ -~]?|[ -~])?")
UNFINISHED = re.compile(rb"\x1b(?:\[\[?[0-?]*[ -/]*|O)")
MOST_ROWS = 12


class Editor:
    """A text that grows by keys and by suggestions.

    Args:
        title: that stands before the text.
        suggest: returns what may follow a text.
        keys: characters, and names of keys.
        screen: where the text and the suggestions are shown.
    """

    def __init__(self, title: str, suggest: Callable[[str], Suggestions], keys: Iterator[str], screen: TextIO) -> None:
        self.title = title
        self.suggest = suggest
        self.keys = keys
        self.screen = screen
        self.text, self.choice = "", 0

    def run(self) -> str | None:
        """Return the text when it is ended; None where its writer leaves."""
        answer = self.suggest(self.text)
        self._show(answer)
        for key in self.keys:
            if key in ("enter", "leave"):
                self._clear()
                ended = key == "enter"
                self.screen.write(f"{self.title}: {_visible(self.text)}\r\n" if ended else "\r\n")
                self.screen.flush()
                return self.text if ended else None
            if key in ("up", "down"):
                count = max(len(answer.next), 1)
                self.choice = (self.choice + (1 if key == "down" else -1)) % count
            else:
                self.text, self.choice = self._edit(key, answer), 0
                answer = self.suggest(self.text)
            self._show(answer)
        return None

    def _edit(self, key: str, answer: Suggestions) -> str:
        """Return the text after a key: Tab takes the certain part, and where there is none the chosen suggestion."""
        if key == "backspace":
            return self.text[:-1]
        if key != "tab":
            return self.text + key
        if answer.text != self.text and not self.choice:
            return answer.text
        return answer.next[self.choice].text if answer.next else self.text

    def _show(self, answer: Suggestions) -> None:
        width = shutil.get_terminal_size().columns - 1
        rest = answer.text[len(self.text) :] if answer.text.startswith(self.text) else ""
        head = f"{self.title}: {_visible(self.text)}"
        first = max(0, self.choice + 1 - MOST_ROWS)
        rows = [
            f"{'>' if i == self.choice else ' '} {way.prob:8.4f}  {_visible(way.text)}{'  (end)' if way.ends else ''}"
            for i, way in enumerate(answer.next)
        ][first : first + MOST_ROWS]
        if answer.support > len(rows):
            rows.append(f"  {answer.support} in all")
        if not answer.possible:
            rows = ["  impossible"]
        self._clear()
        below = "".join(f"\r\n{row[:width]}" for row in rows)
        up = f"\x1b[{len(rows)}A" if rows else ""
        preview = f"\x1b[2m{_visible(rest)}\x1b[0m" if rest and len(head) + len(rest) < width else ""
        self.screen.write(f"{head[-width:]}{preview}{below}{up}\r\x1b[{min(len(head), width)}C")
        self.screen.flush()

    def _clear(self) -> None:
        self.screen.write("\r\x1b[J")


def _visible(text: str) -> str:
    from tsallis.errors import without_controls

    return without_controls(text)


def read_keys(handle: int) -> Iterator[str]:
    """Yield characters and the names of keys from a terminal, until it ends; of no sequence that is unknown."""
    pending = b""
    while blob := os.read(handle, 1024):
        pending += blob
        while pending:
            key, length = _first_key(pending)
            if length == 0:
                break  # a character or a sequence whose bytes are not all there
            pending = pending[length:]
            if key is not None:
                yield key


def _first_key(pending: bytes) -> tuple[str | None, int]:
    """Return the first key of some bytes, or None for an unknown one, and how many bytes it has."""
    for sequence, name in SEQUENCES.items():
        if pending.startswith(sequence):
            return name, len(sequence)
    if match := UNKNOWN.match(pending):  # another sequence, or Escape
        return None, 0 if UNFINISHED.fullmatch(pending) else match.end()
    if pending[0] < 0x20:
        return None, 1
    length = 1 if pending[0] < 0x80 else 2 if pending[0] < 0xE0 else 3 if pending[0] < 0xF0 else 4
    if len(pending) < length:
        return None, 0
    return pending[:length].decode("utf-8", errors="replace"), length


@contextlib.contextmanager
def terminal_keys() -> Iterator[Iterator[str]]:
    """Give the keys of the terminal one by one, and leave it as it was.

    Raises:
        InputError: where terminals have no such mode.
    """
    from tsallis.errors import InputError

    try:
        import termios
        import tty
    except ModuleNotFoundError:
        raise InputError("keys are read from Unix terminals alone: give lines, in a file or through a pipe") from None
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setraw(handle)
        yield read_keys(handle)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
