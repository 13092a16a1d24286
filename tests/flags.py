"""The flags of commands for options of searches by their names in Python."""

from __future__ import annotations

from tsallis.toolkit.cli.options import flag


def flags(**options: object) -> list[object]:
    """Return the arguments of a command that set options; True is a flag without a value."""
    return [
        part for name, value in options.items() for part in ((flag(name),) if value is True else (flag(name), value))
    ]
