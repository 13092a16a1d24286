"""Records of trainings: numbers over the updates, and scores of several trainings against a setting."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from tsallis.analysis.tables import Record
from tsallis.analysis.weights import Floats

ON_DEV = "dev_"  # how the names of values on the development set begin
VALUES = ("logit_norm", "output_threshold", "tau", "output_support", "attention_support")


@dataclass(frozen=True, eq=False)
class HeadHistory(Record):
    """A number of each head over the updates of a training.

    Args:
        steps: updates done before each event.
        values: by kind of attention, [events, layers, heads].

    Example:
        >>> import numpy as np
        >>> history = HeadHistory((0, 10), {"encoder": np.array([[[1.5, 1.5]], [[1.2, 1.9]]])})
        >>> history.last()["encoder"].tolist()
        [[1.2, 1.9]]
    """

    steps: tuple[int, ...]
    values: dict[str, Floats]

    def last(self) -> dict[str, Floats]:
        """Return the last values of each kind [layers, heads]."""
        return {kind: values[-1] for kind, values in self.values.items()}


@dataclass(frozen=True)
class ValueHistory(Record):
    """Numbers of a model over the validations of a training.

    Args:
        steps: updates done before each validation.
        values: by name, one number a validation; None where a validation lacks it.
        seconds: of training before each validation, without those of validations; None where they are not known.
        select: the name of the score by which the training chose its best checkpoint; None where the log lacks it.

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
        """Return the last number of a name; None where there is none."""
        values = self.values.get(name, ())
        return values[-1] if values else None


@dataclass(frozen=True)
class SweepPoint(Record):
    """The runs of one value of the setting.

    Args:
        value: of the setting.
        runs: their names.
        seeds: of their trainings.
        scores: by name, the number of each run at its best validation; None where a run lacks it.
        steps: of each run's validations.
        curves: by name, the numbers of each run at all of its validations.

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
        """Return the mean of a score over the runs that have it; None where none has."""
        numbers = self._numbers(name)
        return statistics.fmean(numbers) if numbers else None

    def deviation(self, name: str) -> float | None:
        """Return the standard deviation of a score over seeds, with the divisor n - 1; None for fewer than two."""
        numbers = self._numbers(name)
        return statistics.stdev(numbers) if len(numbers) > 1 else None

    def _numbers(self, name: str) -> list[float]:
        return [number for number in self.scores.get(name, ()) if number is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and mean and deviation of each score."""
        spread = {name: {"mean": self.mean(name), "deviation": self.deviation(name)} for name in self.scores}
        return {**super().to_dict(), "spread": spread}


@dataclass(frozen=True)
class Sweep(Record):
    """Scores against a setting.

    Args:
        setting: its path in the configuration.
        score: the name of the one that selects a run's best validation.
        points: one for each value, ascending.
    """

    setting: str
    score: str
    points: tuple[SweepPoint, ...]
