"""Convert search options from their Python names to command-line flags."""

from __future__ import annotations

from tsallis.toolkit.cli.options import flag


def flags(**options: object) -> list[object]:
    """Return the command-line arguments that set the options; True gives a flag without a value."""
    return [
        part for name, value in options.items() for part in ((flag(name),) if value is True else (flag(name), value))
    ]
