"""Settings that may change when a run is resumed, because they do not affect earlier updates."""

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
    """Changed settings of a resumed run.

    Args:
        before: Text of the configuration in the run folder.
        values: Old and new value of each changed setting, by path.
        settings: New settings of the training.
    """

    before: str
    values: Mapping[str, tuple[Any, Any]]
    settings: Settings

    @property
    def lines(self) -> list[str]:
        """Readable description of the changes, one line per setting."""
        return [f"{path}: changed from {before} to {now}" for path, (before, now) in self.values.items()]

    def check(self, folder: Path) -> None:
        """Raise if a run can't end at the new number of epochs or updates.

        Args:
            folder: Run folder.

        Raises:
            InputError: If the run has already passed the new end, or if its learning rates depend on the old end. The
                message names the setting and the accepted values.
        """
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        if checkpoints.index().last is None:  # nothing is trained yet
            return
        last = checkpoints.facts("last")
        for path, key in (("training.epochs", "epoch"), ("training.updates", "step")):
            if path not in self.values:
                continue
            before, now = self.values[path]
            dependent_settings = ["schedule: linear"] if self.settings.schedule == "linear" else []
            dependent_settings += ["output_alpha"] if self.settings.output_alpha is not None else []
            if key == "step" and dependent_settings:
                expected = f"must be {before} as before, because {dependent_settings[0]} depends on it"
            elif now is None or now > last[key]:
                continue
            else:
                expected = f"must be above {last[key]}, because {last[key]} are already done"
            raise InputError(f"{folder}: {path} {expected}, got {now}; change the setting or choose another folder")


def find_changes(text: str, before: Config, now: Config) -> Changes | None:
    """Return the changed settings, or None if one of these settings must not change when a run is resumed.

    Args:
        text: Text of the configuration in the run folder.
        before: Configuration in the run folder.
        now: New configuration.
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
