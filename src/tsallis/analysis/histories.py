"""Define records of trainings: values over the updates, and scores of several runs by a setting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from tsallis.analysis.tables import Record
from tsallis.analysis.weights import Floats

ON_DEV = "dev_"  # prefix of the names of values on the development set
VALUES = ("logit_norm", "output_threshold", "tau", "output_support", "attention_support")


@dataclass(frozen=True, eq=False)
class HeadHistory(Record):
    """One value per head over the updates of a training.

    Args:
        steps: Number of updates before each event.
        values: Values [events, layers, heads] by kind of attention.

    Example:
        >>> import numpy as np
        >>> history = HeadHistory((0, 10), {"encoder": np.array([[[1.5, 1.5]], [[1.2, 1.9]]])})
        >>> history.last()["encoder"].tolist()
        [[1.2, 1.9]]
    """

    steps: tuple[int, ...]
    values: dict[str, Floats]

    def last(self) -> dict[str, Floats]:
        """Return the last values [layers, heads] by kind of attention."""
        return {kind: values[-1] for kind, values in self.values.items()}


@dataclass(frozen=True)
class ValueHistory(Record):
    """Values of a model over the validations of a training.

    Args:
        steps: Number of updates before each validation.
        values: One value per validation, by name; None if a validation lacks the value.
        seconds: Training time before each validation, without the time of validations; None if it is unknown.
        select: Name of the score that selected the best checkpoint; None if the log lacks it.

    Example:
        >>> history = ValueHistory((10, 20), {"dev_loss": (2.5, 1.5)})
        >>> history.last("dev_loss")
        1.5
    """

    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    seconds: tuple[float, ...] | None = None
    select: str | None = None

    def last(self, name: str) -> float | None:
        """Return the last value with this name, or None."""
        values = self.values.get(name, ())
        return values[-1] if values else None


@dataclass(frozen=True)
class SweepPoint(Record):
    """Runs with one value of the setting.

    Args:
        value: Value of the setting.
        runs: Names of the runs.
        seeds: Random seed of each run.
        scores: Score of each run at its best validation, by name; None if a run lacks the score.
        steps: Steps of the validations of each run.
        curves: Scores of each run at all its validations, by name.

    Example:
        >>> scores = {"dev_bleu": (30.0, 31.0)}
        >>> point = SweepPoint(1.5, ("a", "b"), (1, 2), scores, ((10,), (10,)), {"dev_bleu": ((30.0,), (31.0,))})
        >>> point.mean("dev_bleu"), round(point.deviation("dev_bleu"), 3)
        (30.5, 0.707)
    """

    value: float
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    scores: dict[str, tuple[float | None, ...]]
    steps: tuple[tuple[int, ...], ...]
    curves: dict[str, tuple[tuple[float | None, ...], ...]]

    def mean(self, name: str) -> float | None:
        """Return the mean of a score over the runs that have it, or None."""
        numbers = self._numbers(name)
        return statistics.fmean(numbers) if numbers else None

    def deviation(self, name: str) -> float | None:
        """Return the standard deviation of a score over seeds, with divisor n - 1; None for fewer than two scores."""
        numbers = self._numbers(name)
        return statistics.stdev(numbers) if len(numbers) > 1 else None

    def _numbers(self, name: str) -> list[float]:
        return [number for number in self.scores.get(name, ()) if number is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the mean and the deviation of each score."""
        spread = {name: {"mean": self.mean(name), "deviation": self.deviation(name)} for name in self.scores}
        return {**super().to_dict(), "spread": spread}


@dataclass(frozen=True)
class Sweep(Record):
    """Scores of runs by the value of one setting.

    Args:
        setting: Path of the setting in the configuration.
        score: Name of the score that selects the best validation of a run.
        points: One point per value of the setting, ascending.
    """

    setting: str
    score: str
    points: tuple[SweepPoint, ...]
