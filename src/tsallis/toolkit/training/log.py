"""Log of a run: one JSON object per line. A resumed run removes the lines that were written after its checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.data.io import NONBLOCK, check_file, read_bytes, sync_folder, write_all
from tsallis.toolkit.training.lock import Lock, writing
from tsallis.toolkit.training.schema import Event, parse_record

WRITE = os.O_WRONLY | NONBLOCK | getattr(os, "O_BINARY", 0)  # flags for opening the log


class Log:
    """Log of a run: a file with one JSON object per line. The file can be cut back to an earlier position.

    Args:
        path: Path of the file. The first :meth:`write` or :meth:`rewind` creates the file; the folder must exist.
        lock: Lock on the run folder, for a training process.

    Example:
        >>> import tempfile
        >>> log = Log(Path(tempfile.mkdtemp()) / "log.jsonl")
        >>> log.write("epoch", loss=1.5)
        >>> before = log.position
        >>> log.write("epoch", loss=1.0)
        >>> log.rewind(before)
        >>> [event["loss"] for event in log.events()]
        [1.5]
    """

    def __init__(self, path: Path | str, lock: Lock | None = None) -> None:
        self.path, self.lock = Path(path), lock

    @property
    def position(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, event: str, **values: Any) -> None:
        """Append a line and flush it to the disk.

        Raises:
            InputError: If the file can't be written. The file then contains no part of the line.
        """
        self._truncate_and_append(self.position, json.dumps({"event": event, **values}).encode() + b"\n")

    def rewind(self, position: int) -> None:
        """Remove the lines after `position`, because a resumed run writes them again.

        Raises:
            InputError: If the file is shorter than `position`, or the part before `position` contains an invalid event.
        """
        self.check(position)
        self._truncate_and_append(position)

    def check(self, position: int) -> None:
        """Check that the file can be cut back to a position. The file is not changed.

        Raises:
            InputError: See :meth:`rewind`, or if the path is not a writable file.
        """
        if os.path.lexists(self.path):
            check_file(self.path)
            with writing(self.path, self.lock):
                os.close(os.open(self.path, WRITE))
        size = self.position
        if size < position:
            raise InputError(
                f"{self.path}: expected at least {position} bytes, as at the last checkpoint, found {size}; restore "
                "the file"
            )
        if position:
            self._lines(position)

    def rewind_to_step(self, step: int) -> None:
        """Remove the events of later steps and an incomplete last line.

        Raises:
            InputError: See :meth:`position_of`.
        """
        self._truncate_and_append(self.position_of(step))

    def position_of(self, step: int) -> int:
        """Return the position after the last event whose step is not above `step`.

        Raises:
            InputError: If the file is missing, can't be written, or contains an invalid line.
        """
        if not self.path.exists():
            raise InputError(f"{self.path}: missing; restore the file, or create an empty file")
        self.check(0)
        position = 0
        for line, event in self._lines():
            if event.step > step:
                break
            position += len(line)
        return position

    def _truncate_and_append(self, position: int, line: bytes = b"") -> None:
        """Cut the file off at `position` and append a line."""
        is_new = not self.path.exists()
        with writing(self.path, self.lock):
            handle = os.open(self.path, WRITE | os.O_CREAT, 0o666)
            try:
                os.ftruncate(handle, position)
                os.lseek(handle, position, os.SEEK_SET)
                try:
                    write_all(handle, line)
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, position)
                    raise
            finally:
                os.close(handle)
            if is_new:
                sync_folder(self.path.parent)

    def events(self) -> list[dict[str, Any]]:
        """Return all events.

        Raises:
            InputError: If a line is not a valid event. The message contains its line number.
        """
        return [event.model_dump(exclude_unset=True) for _, event in self._lines()]

    def _lines(self, position: int | None = None) -> list[tuple[bytes, Event]]:
        """Return the lines up to a position, each with its event. An incomplete last line is left out."""
        blob = read_bytes(self.path)[:position]
        lines = [line + b"\n" for line in blob.split(b"\n")[:-1]]
        if position is not None and sum(map(len, lines)) != position:
            raise InputError(
                f"{self.path}: the file has changed since the last checkpoint (no line ends at byte {position}); "
                "restore it"
            )
        return [(line, parse_record(line, Event, f"{self.path}:{i}")) for i, line in enumerate(lines, start=1)]


def totals(events: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """Return the running total of a number: for each event, the sum since the start of the training run.

    An event contains only the sum since the start of its epoch.

    Example:
        >>> events = [("validation", 2.0), ("epoch", 5.0), ("validation", 1.0)]
        >>> totals([{"event": event, "seconds": number} for event, number in events], "seconds")
        [2.0, 5.0, 6.0]
    """
    before, sums = 0.0, []
    for event in events:
        sums.append(before + float(event[key]))
        if event["event"] == "epoch":
            before = sums[-1]
    return sums
