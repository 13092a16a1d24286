"""Learning rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tsallis.toolkit.config import Settings


@dataclass
class Schedule:
    """Schedule with a constant learning rate; base class of all schedules.

    >>> Schedule(0.001).rate(500)
    0.001
    """

    stored: ClassVar[tuple[str, ...]] = ()  # names of the attributes that checkpoints store
    learning_rate: float

    def rate(self, step: int) -> float:
        """Return the learning rate of the update that follows the first `step` updates."""
        return self.learning_rate

    def after_validation(self, loss: float, best: bool) -> None:
        """Update the schedule after a validation with this loss; `best` is true if its score is the best so far."""

    def state(self) -> dict[str, Any]:
        """Return the values that checkpoints store."""
        return {name: getattr(self, name) for name in self.stored}

    def restore(self, state: dict[str, Any]) -> None:
        self.__dict__.update((name, state[name]) for name in self.stored)


@dataclass
class HalveOnWorse(Schedule):
    """Schedule that halves the learning rate when the validation loss rises (Peters et al. 2019, sec. 4).

    The rate stays at least `lowest`.

    >>> schedule = HalveOnWorse(0.001)
    >>> for loss in (2.0, 1.0, 1.5):
    ...     schedule.after_validation(loss, best=False)
    >>> schedule.rate(0)
    0.0005
    """

    stored = ("learning_rate", "previous")
    previous: float | None = None
    lowest: float = 0.0

    def after_validation(self, loss: float, best: bool) -> None:
        if self.previous is not None and loss > self.previous:
            self.learning_rate = max(self.learning_rate * 0.5, min(self.learning_rate, self.lowest))
        self.previous = loss


@dataclass
class Plateau(Schedule):
    """Schedule that lowers the learning rate after `patience` validations without a better score, down to `lowest`.

    >>> schedule = Plateau(0.001, patience=2)
    >>> rates = []
    >>> for best in (True, False, False, False):
    ...     schedule.after_validation(1.0, best)
    ...     rates.append(schedule.rate(0))
    >>> rates
    [0.001, 0.001, 0.0005, 0.0005]
    """

    stored = ("learning_rate", "stale")
    patience: int = 2
    factor: float = 0.5
    lowest: float = 0.0
    stale: int = 0

    def after_validation(self, loss: float, best: bool) -> None:
        self.stale = 0 if best else self.stale + 1
        if self.stale >= self.patience:  # use >=, because a resumed run may have less patience than before
            self.learning_rate, self.stale = max(self.learning_rate * self.factor, self.lowest), 0


@dataclass
class InverseSquareRoot(Schedule):
    """Schedule with linear warm-up, then decay with the inverse square root of the step.

    >>> schedule = InverseSquareRoot(0.001, warmup=100)
    >>> schedule.rate(49), schedule.rate(99), schedule.rate(399)
    (0.0005, 0.001, 0.0005)
    """

    warmup: int

    def rate(self, step: int) -> float:
        update = step + 1
        return self.learning_rate * min(update / self.warmup, (self.warmup / update) ** 0.5)


@dataclass
class Linear(Schedule):
    """Schedule with linear warm-up, then linear decay to 0 at the end of the run.

    >>> schedule = Linear(0.001, warmup=100, updates=300)
    >>> schedule.rate(49), schedule.rate(99), schedule.rate(199), schedule.rate(299)
    (0.0005, 0.001, 0.0005, 0.0)
    """

    warmup: int
    updates: int

    def rate(self, step: int) -> float:
        update = step + 1
        decay = max(0.0, (self.updates - update) / (self.updates - self.warmup))
        return self.learning_rate * min(update / self.warmup, decay)


def make_schedule(settings: Settings) -> Schedule:
    """Create the learning rate schedule that the settings name."""
    rate = settings.learning_rate
    if settings.schedule == "constant":
        return Schedule(rate)
    if settings.schedule == "halve-on-worse":
        return HalveOnWorse(rate, lowest=settings.lowest_learning_rate)
    if settings.schedule == "plateau":
        return Plateau(rate, settings.plateau_patience, settings.plateau_factor, settings.lowest_learning_rate)
    if settings.schedule == "inverse-square-root":
        return InverseSquareRoot(rate, settings.warmup)
    assert settings.updates is not None  # checked when the settings were created
    return Linear(rate, settings.warmup, settings.updates)
