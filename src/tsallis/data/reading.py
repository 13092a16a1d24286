"""Reading what may be missing or damaged: an error names the file and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tsallis.errors import InputError

PACKED = ("", ".xz", ".gz")  # what the name of a text file may have behind it


def find_packed(path: Path | str, endings: Sequence[str] = PACKED) -> Path | None:
    """The file of that name, or that name with one of the endings behind it."""
    path = Path(path)
    return next((found for ending in endings if (found := path.with_name(path.name + ending)).is_file()), None)


def read_bytes(path: Path | str) -> bytes:
    """What a file holds; one that can't be read is an :class:`~tsallis.errors.InputError`."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error


def read_json(path: Path | str) -> dict[str, Any]:
    """The JSON object in a file; anything else is an :class:`~tsallis.errors.InputError`."""
    blob = read_bytes(path)
    try:
        content = json.loads(blob.decode("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content
