"""Training logs of runs: alphas, densities, scores and norms over the updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tsallis.analysis.histories import ON_DEV, VALUES, HeadHistory, ValueHistory
from tsallis.errors import InputError
from tsallis.toolkit.training.file_names import LOG, TIMING
from tsallis.toolkit.training.log import Log, totals


class NoValuesError(InputError):
    """A log has no values of the requested kind."""


def alpha_history(log: Path | str) -> HeadHistory:
    r"""Read the alpha of each head during training (Correia et al. 2019, fig. 2).

    Args:
        log: Path of a run's `log.jsonl` or folder. The "start" event counts as update 0.

    Returns:
        The alphas of each kind of attention [events, layers, heads].

    Raises:
        InputError: If the file is not a log.
        NoValuesError: If the log has no alphas. It is an `InputError`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> Log(path).write("start", alpha_encoder=[[1.5, 1.5]])
        >>> Log(path).write("epoch", step=10, alpha_encoder=[[1.2, 1.9]])
        >>> history = alpha_history(path)
        >>> history.steps, history.values["encoder"][:, 0, 1].tolist()
        ((0, 10), [1.5, 1.9])
    """
    return _history(log, "alpha")


def density_history(log: Path | str) -> HeadHistory:
    """Read the density of each head on the development set during training (Correia et al. 2019, sec. 5.1).

    Args:
        log: Path of a run's `log.jsonl` or folder.

    Returns:
        The densities of each kind of attention [events, layers, heads].

    Raises:
        InputError: If the file is not a log.
        NoValuesError: If the log has no densities. It is an `InputError`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> Log(path).write("epoch", step=10, density_encoder=[[0.5, 0.25]])
        >>> density_history(path).last()["encoder"].tolist()
        [[0.5, 0.25]]
    """
    return _history(log, "density")


def value_history(log: Path | str) -> ValueHistory:
    r"""Read the values that a run logged during training.

    The values include loss and scores on the development set, the mean norm :math:`\|z\|` of the output's scores, and
    the mean threshold :math:`\tau(z)` (Tezekbayev et al. 2022, fig. 7 and 8). They also include the mean numbers of
    possible output symbols and attended positions. Older logs have no thresholds. The fixed threshold of alpha-ReLU is
    "tau". The seconds of training (fig. 3) come from `timing.jsonl` next to the log.

    Args:
        log: Path of a run's `log.jsonl` or folder.

    Returns:
        The values at each validation.

    Raises:
        InputError: If the file is not a log.
        NoValuesError: If the log has no validations. It is an `InputError`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> for step in (3, 6):
        ...     Log(path).write("epoch", step=step, dev_loss=9 / step, logit_norm=float(step))
        >>> value_history(path)
        ValueHistory(steps=(3, 6), values={'dev_loss': (3.0, 1.5), 'logit_norm': (3.0, 6.0)}, seconds=None, select=None)
    """
    path, all_events = _read_log(log)
    events = [event for event in all_events if any(key.startswith(ON_DEV) for key in event)]
    if not events:
        raise NoValuesError(f"{path}: expected a log with at least one validation, found none")
    names = dict.fromkeys(key for event in events for key in event if key.startswith(ON_DEV) or key in VALUES)
    with _value_errors(path):
        steps = tuple(int(event["step"]) for event in events)
        values = {name: tuple(_number(event.get(name)) for event in events) for name in names}
    select = next((event["select"] for event in reversed(events) if isinstance(event.get("select"), str)), None)
    return ValueHistory(steps, values, _seconds(path.with_name(TIMING), events), select)


def _read_log(log: Path | str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the path and the events of a run's log."""
    path = Path(log)
    path = path / LOG if path.is_dir() else path
    return path, Log(path).events()


@contextlib.contextmanager
def _value_errors(path: Path) -> Iterator[None]:
    """Convert errors in the values of events to :class:`~tsallis.errors.InputError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: each event must have a step and numbers: {error}") from error


def _history(log: Path | str, name: str) -> HeadHistory:
    path, all_events = _read_log(log)
    events = [event for event in all_events if any(key.startswith(f"{name}_") for key in event)]
    if not events:
        raise NoValuesError(f"{path}: no values of {name} in this log: only the training of a Transformer writes them")
    kinds = [key for key in events[0] if key.startswith(f"{name}_")]
    with _value_errors(path):
        steps = tuple(0 if event["event"] == "start" else int(event["step"]) for event in events)
        values = {key.removeprefix(f"{name}_"): np.array([event[key] for event in events], np.float64) for key in kinds}
    if any(array.ndim != 3 for array in values.values()):
        raise InputError(f"{path}: {name} must be an array [layers, heads] of numbers in each event")
    return HeadHistory(steps, values)


def _seconds(path: Path, events: Sequence[dict[str, Any]]) -> tuple[float, ...] | None:
    """Return the seconds of training before each event, or None if a timing is missing."""
    if not path.exists():
        return None
    timings = Log(path).events()
    with _value_errors(path):
        sums = totals(timings, "seconds")
        by_event = {(timing["event"], timing["step"]): total for timing, total in zip(timings, sums, strict=True)}
    seconds = [by_event.get((event["event"], event["step"])) for event in events]
    return None if None in seconds else tuple(number for number in seconds if number is not None)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
