"""Settings that may change when a run is resumed: they leave the updates that were made as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.config import ON_RESUME, Config, Section, Settings
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.file_names import CHECKPOINTS


@dataclass(frozen=True)
class Changes:
    """The settings with which a run is resumed that differ from those in its folder.

    Args:
        before: The configuration in the run folder, as text.
        values: The old and the new value of each setting, by its path.
        settings: The new settings of the training.
    """

    before: str
    values: Mapping[str, tuple[Any, Any]]
    settings: Settings

    @property
    def lines(self) -> list[str]:
        """One line per change, to be printed."""
        return [f"{path}: {now}, {before} until now" for path, (before, now) in self.values.items()]

    def check(self, folder: Path) -> None:
        """Raise if a run can't end where the new settings end it.

        Args:
            folder: The run folder.

        Raises:
            InputError: Names the setting and a value that would be right.
        """
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        if checkpoints.index().last is None:  # nothing is trained yet
            return
        last = checkpoints.facts("last")
        for path, key in (("training.epochs", "epoch"), ("training.updates", "step")):
            before, now = self.values.get(path, (None, None))
            expected = None
            if path in self.values and key == "step" and self.settings.schedule == "linear":
                expected = f"the learning rate of schedule linear depends on their number: expected {before} as before"
            elif now is not None and now <= last[key]:
                expected = f"{last[key]} are made already: expected more"
            if expected is not None:
                raise InputError(f"{folder}: {path}: {expected}, found {now}; or choose another folder")


def find_changes(text: str, before: Config, now: Config) -> Changes | None:
    """Return the settings that differ, or None if one of them must not change when a run is resumed.

    Args:
        text: The configuration in the run folder, as text.
        before: The same configuration.
        now: The configuration with which the run is to be resumed.
    """
    changed = list(_differences(before, now.model_copy(update={"run_dir": before.run_dir})))
    values = {path: values for path, values, _ in changed}
    return Changes(text, values, now.training) if all(allowed for *_, allowed in changed) else None


def _differences(
    before: Section, now: Section, path: str = "", allowed: bool = False
) -> Iterator[tuple[str, tuple[Any, Any], bool]]:
    """Yield the path of each setting that differs, its values, and whether it may change."""
    for name, field in type(now).model_fields.items():
        old, new = getattr(before, name), getattr(now, name)
        may_change = allowed or ON_RESUME in field.metadata
        if isinstance(old, Section) and type(old) is type(new):
            yield from _differences(old, new, f"{path}{name}.", may_change)
        elif old != new:
            yield f"{path}{name}", (old, new), may_change
