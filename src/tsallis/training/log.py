"""The log of a run: one JSON object a line, as many lines as the run's position says, however often it was killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Log:
    """Appends events; `position` is a place to rewind to.

    >>> import tempfile
    >>> log = Log(Path(tempfile.mkdtemp()) / "log.jsonl")
    >>> log.write("epoch", loss=1.5)
    >>> before = log.position
    >>> log.write("epoch", loss=1.0)
    >>> log.rewind(before)
    >>> [event["loss"] for event in log.events()]
    [1.5]
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    @property
    def position(self) -> int:
        return self.path.stat().st_size

    def write(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, **values}) + "\n"
        with self.path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(line)

    def rewind(self, position: int) -> None:
        """Forget what was written after `position`: a resumed run writes it again."""
        os.truncate(self.path, min(position, self.position))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").split("\n") if line]
