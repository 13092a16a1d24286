"""Learning rates over a run."""

from __future__ import annotations

from typing import Any, Protocol

SCHEDULES = ("constant", "halve-on-worse", "plateau", "inverse-square-root", "linear")


class Schedule(Protocol):
    """A learning rate that depends on the step, on the losses of the development set, or on nothing."""

    def rate(self, step: int) -> float:
        """Return the rate of the update after `step` updates."""
        ...

    def after_validation(self, loss: float, best: bool) -> None:
        """Adapt the rate to the loss of the development set, and to whether its deciding score is the best so far."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the values that a resumed run needs."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Constant:
    """A constant learning rate.

    >>> Constant(0.001).rate(500)
    0.001
    """

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def rate(self, step: int) -> float:
        return self.learning_rate

    def after_validation(self, loss: float, best: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class HalveOnWorse:
    """Halved whenever the loss of the development set rises (Peters et al. 2019, sec. 4).

    >>> schedule = HalveOnWorse(0.001)
    >>> for loss in (2.0, 1.0, 1.5):
    ...     schedule.after_validation(loss, best=False)
    >>> schedule.rate(0)
    0.0005
    """

    def __init__(self, learning_rate: float, factor: float = 0.5) -> None:
        self.learning_rate, self.factor = learning_rate, factor
        self.previous: float | None = None

    def rate(self, step: int) -> float:
        return self.learning_rate

    def after_validation(self, loss: float, best: bool) -> None:
        if self.previous is not None and loss > self.previous:
            self.learning_rate *= self.factor
        self.previous = loss

    def state(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "previous": self.previous}

    def restore(self, state: dict[str, Any]) -> None:
        self.learning_rate, self.previous = state["learning_rate"], state["previous"]


class Plateau:
    """Lowered whenever so many validations in a row brought no better score, down to a least rate.

    >>> schedule = Plateau(0.001, patience=2)
    >>> rates = []
    >>> for best in (True, False, False, False):
    ...     schedule.after_validation(1.0, best)
    ...     rates.append(schedule.rate(0))
    >>> rates
    [0.001, 0.001, 0.0005, 0.0005]
    """

    def __init__(self, learning_rate: float, patience: int = 2, factor: float = 0.5, lowest: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"plateau_patience must be at least 1 validation, got {patience}")
        if not 0 < factor < 1:
            raise ValueError(f"plateau_factor must lie between 0 and 1, got {factor:g}")
        if not 0 <= lowest <= learning_rate:
            raise ValueError(
                f"lowest_learning_rate must lie between 0 and the learning rate {learning_rate:g}, got {lowest:g}"
            )
        self.learning_rate, self.patience, self.factor, self.lowest = learning_rate, patience, factor, lowest
        self.stale = 0

    def rate(self, step: int) -> float:
        return self.learning_rate

    def after_validation(self, loss: float, best: bool) -> None:
        self.stale = 0 if best else self.stale + 1
        if self.stale >= self.patience:  # above it where a stored schedule had more patience
            self.learning_rate, self.stale = max(self.learning_rate * self.factor, self.lowest), 0

    def state(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "stale": self.stale}

    def restore(self, state: dict[str, Any]) -> None:
        self.learning_rate, self.stale = state["learning_rate"], state["stale"]


class InverseSquareRoot(Constant):
    """Linear warm-up to the rate, then falling with the square root of the step.

    >>> schedule = InverseSquareRoot(0.001, warmup=100)
    >>> schedule.rate(49), schedule.rate(99), schedule.rate(399)
    (0.0005, 0.001, 0.0005)
    """

    def __init__(self, learning_rate: float, warmup: int) -> None:
        super().__init__(learning_rate)
        if warmup < 1:
            raise ValueError(f"warmup must be at least 1 step, got {warmup}")
        self.warmup = warmup

    def rate(self, step: int) -> float:
        update = step + 1
        factor: float = min(update / self.warmup, (self.warmup / update) ** 0.5)
        return self.learning_rate * factor


class Linear(Constant):
    """Linear warm-up to the rate, then linear to zero at the end of the run.

    >>> schedule = Linear(0.001, warmup=100, updates=300)
    >>> schedule.rate(49), schedule.rate(99), schedule.rate(199), schedule.rate(299)
    (0.0005, 0.001, 0.0005, 0.0)
    """

    def __init__(self, learning_rate: float, warmup: int, updates: int) -> None:
        super().__init__(learning_rate)
        if not 1 <= warmup < updates:
            raise ValueError(f"warmup must be at least 1 and below the {updates} updates of the run, got {warmup}")
        self.warmup, self.updates = warmup, updates

    def rate(self, step: int) -> float:
        update = step + 1
        factor: float = min(update / self.warmup, max(0.0, (self.updates - update) / (self.updates - self.warmup)))
        return self.learning_rate * factor


def make_schedule(
    name: str,
    learning_rate: float,
    warmup: int = 4000,
    updates: int | None = None,
    plateau_patience: int = 2,
    plateau_factor: float = 0.5,
    lowest_learning_rate: float = 0.0,
) -> Schedule:
    """Make one of `SCHEDULES`; "linear" needs the number of `updates` of the run.

    Raises:
        ValueError: an unknown name, or an argument that the schedule can't do with.
    """
    if name == "linear":
        if updates is None:
            raise ValueError("a linear schedule needs the number of updates of the run")
        return Linear(learning_rate, warmup, updates)
    if name == "constant":
        return Constant(learning_rate)
    if name == "halve-on-worse":
        return HalveOnWorse(learning_rate)
    if name == "plateau":
        return Plateau(learning_rate, plateau_patience, plateau_factor, lowest_learning_rate)
    if name == "inverse-square-root":
        return InverseSquareRoot(learning_rate, warmup)
    raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")
