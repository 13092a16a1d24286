"""Settings that a run may go on with in place of its own: they leave the updates that it has made as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.training.checkpoint import Checkpoints
from tsallis.training.file_names import CHECKPOINTS, TRAINING
from tsallis.training.schema import PositionRecord, TrainingRecord, check_record
from tsallis.training.settings import Settings

ENDS = ("training.epochs", "training.updates", "training.patience")
CHANGEABLE = (*ENDS, "training.checkpoint_every", "training.keep", "training.tensorboard", "search")
BY_VALIDATIONS = ("halve-on-worse", "plateau")  # schedules


@dataclass(frozen=True)
class Changes:
    """The settings of a run that are others than those it was started with.

    Args:
        before: the text of the configuration in the run folder.
        values: by the settings' paths: before, and now.
        settings: of the training from now on.
    """

    before: str
    values: Mapping[str, tuple[Any, Any]]
    settings: Settings

    @property
    def lines(self) -> list[str]:
        """The changes, for people."""
        return [f"{path}: {now}, {before} until now" for path, (before, now) in self.values.items()]

    def check(self, folder: Path) -> None:
        """Refuse another end of the run than one of the same settings from its start would come to.

        Args:
            folder: of the run.

        Raises:
            InputError: with the setting, and the value that would be right.
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
        """Refuse a run whose end was validated where a longer one is not, if the updates go by validations."""
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


def find_changes(text: str, before: Mapping[str, Any], now: Mapping[str, Any], settings: Settings) -> Changes | None:
    """Return what is other in a run's configuration; None where a run can't go on with that.

    Args:
        text: of the configuration in the run folder.
        before: its content, every default filled in.
        now: the content of the configuration to go on with.
        settings: of the training by it.
    """
    first, second = _flatten(before), _flatten(now)
    if first.keys() != second.keys():
        return None
    values = {path: (first[path], second[path]) for path in first if first[path] != second[path]}
    allowed = all(any(f"{path}.".startswith(f"{name}.") for name in CHANGEABLE) for path in values)
    return Changes(text, values, settings) if allowed else None


def _flatten(content: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the settings of nested sections by their paths."""
    settings: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            settings.update(_flatten(value, f"{path}{key}."))
        else:
            settings[f"{path}{key}"] = value
    return settings
