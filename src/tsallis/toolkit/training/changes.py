"""Settings that may change when a run is resumed: they leave the updates that were made as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.config import ON_RESUME, Config, Section, Settings
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.file_names import CHECKPOINTS, TRAINING
from tsallis.toolkit.training.schema import PositionRecord, TrainingRecord, check_record

ENDS = ("training.epochs", "training.updates", "training.patience")
BY_VALIDATIONS = ("halve-on-worse", "plateau")  # schedules that validations change


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
        """Raise if the resumed run would end differently from a fresh one with the new settings.

        Args:
            folder: The run folder.

        Raises:
            InputError: Names the setting and a value that would be right.
        """
        checkpoints = Checkpoints(folder / CHECKPOINTS)
        last = checkpoints.index().last
        ends = [path for path in ENDS if path in self.values]
        if not ends or last is None:  # nothing is trained yet
            return
        path = str(folder / CHECKPOINTS / last / TRAINING)
        position = check_record(checkpoints.load_training("last"), TrainingRecord, path).position
        try:
            self._check_numbers(position)
            self._check_validations(ends[0], position, bool(checkpoints.facts("last")["metrics"]))
        except InputError as error:
            raise InputError(f"{folder}: {error}; or choose another folder") from error

    def _check_numbers(self, position: PositionRecord) -> None:
        for path, made in (("training.epochs", position.epoch), ("training.updates", position.step)):
            _, now = self.values.get(path, (None, None))
            if now is not None and now <= made:
                raise InputError(f"{path}: {made} are made already: expected more, found {now}")
        if "training.updates" in self.values and self.settings.schedule == "linear":
            before, now = self.values["training.updates"]
            raise InputError(
                "training.updates: the learning rate of schedule linear depends on their number: expected "
                f"{before} as before, found {now}"
            )
        before, now = self.values.get("training.patience", (None, None))
        if now is not None and (before is None or now < before):
            raise InputError(f"training.patience: expected {before} as before, or more, found {now}")

    def _check_validations(self, path: str, position: PositionRecord, validated: bool) -> None:
        """Raise if the run was validated at its end, a longer run would not be, and updates depend on validations."""
        settings, counted = self.settings, "training.patience" in self.values or self.settings.patience is not None
        if not validated or not (counted or settings.schedule in BY_VALIDATIONS):
            return
        if settings.validate_updates is not None:
            name, every, due = "validate_updates", settings.validate_updates, position.step % settings.validate_updates
        else:
            name, every = "validate_every", settings.validate_every
            due = position.update or position.epoch % settings.validate_every
        if due:
            reason = "patience" if settings.schedule not in BY_VALIDATIONS else f"schedule {settings.schedule}"
            raise InputError(
                f"{path}: the run was validated at its end, after {position.step} updates, as a longer one with "
                f"training.{name}: {every} is not, and {reason} goes by validations: expected the same end as before"
            )


def find_changes(text: str, before: Config, now: Config) -> Changes | None:
    """Return the settings that differ; None if one of them may not change when a run is resumed.

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
