"""Training logs of runs: alphas, densities, scores and norms over the updates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tsallis.analysis.histories import ON_DEV, VALUES, HeadHistory, ValueHistory
from tsallis.errors import InputError
from tsallis.toolkit.data.io import read_bytes
from tsallis.toolkit.training.file_names import LOG, TIMING
from tsallis.toolkit.training.log import totals


def alpha_history(log: Path | str) -> HeadHistory:
    r"""Read the alpha of each head over a training (Correia et al. 2019, fig. 2).

    Args:
        log: Path of a run's `log.jsonl` or folder. The "start" event counts as update 0.

    Returns:
        The alphas of each kind of attention [events, layers, heads].

    Raises:
        InputError: If the file is not a log, or has no alphas.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> start = {"event": "start", "alpha_encoder": [[1.5, 1.5]]}
        >>> later = {"event": "epoch", "step": 10, "alpha_encoder": [[1.2, 1.9]]}
        >>> _ = path.write_text("\n".join(json.dumps(event) for event in (start, later)))
        >>> history = alpha_history(path)
        >>> history.steps, history.values["encoder"][:, 0, 1].tolist()
        ((0, 10), [1.5, 1.9])
    """
    return _history(Path(log), "alpha")


def density_history(log: Path | str) -> HeadHistory:
    """Read the density of each head on the development set over a training (Correia et al. 2019, sec. 5.1).

    Args:
        log: Path of a run's `log.jsonl` or folder.

    Returns:
        The densities of each kind of attention [events, layers, heads].

    Raises:
        InputError: If the file is not a log, or has no densities.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> _ = path.write_text(json.dumps({"event": "epoch", "step": 10, "density_encoder": [[0.5, 0.25]]}))
        >>> density_history(path).last()["encoder"].tolist()
        [[0.5, 0.25]]
    """
    return _history(Path(log), "density")


def value_history(log: Path | str) -> ValueHistory:
    r"""Read the logged values of a run over its training.

    They include loss and scores on the development set, the mean norm :math:`\|z\|` of the output's scores, the mean
    threshold :math:`\tau(z)` (Tezekbayev et al. 2022, fig. 7 and 8), and the numbers of symbols and positions above
    zero. Older logs have no thresholds. The fixed threshold of alpha-ReLU is "tau". The seconds of training (fig. 3)
    come from `timing.jsonl` next to the log.

    Args:
        log: Path of a run's `log.jsonl` or folder.

    Returns:
        The values at each validation.

    Raises:
        InputError: If the file is not a log, or has no validations.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> events = [{"event": "epoch", "step": s, "dev_loss": 9 / s, "logit_norm": float(s)} for s in (3, 6)]
        >>> _ = path.write_text("".join(json.dumps(event) + "\n" for event in events))
        >>> value_history(path)
        ValueHistory(steps=(3, 6), values={'dev_loss': (3.0, 1.5), 'logit_norm': (3.0, 6.0)}, seconds=None, select=None)
    """
    path = Path(log)
    path = path / LOG if path.is_dir() else path
    events = [event for event in read_log(path) if any(key.startswith(ON_DEV) for key in event)]
    if not events:
        raise InputError(f"{path}: no validation in this log")
    names = dict.fromkeys(key for event in events for key in event if key.startswith(ON_DEV) or key in VALUES)
    try:
        steps = tuple(int(event["step"]) for event in events)
        values = {name: tuple(_number(event.get(name)) for event in events) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: validations must have a step and numbers: {error}") from error
    select = next((event["select"] for event in reversed(events) if isinstance(event.get("select"), str)), None)
    return ValueHistory(steps, values, _seconds(path.with_name(TIMING), events), select)


def _history(path: Path, name: str) -> HeadHistory:
    path = path / LOG if path.is_dir() else path
    events = [event for event in read_log(path) if any(_is_of(key, name) for key in event)]
    if not events:
        raise InputError(f"{path}: no values of {name} in this log: they are there if a Transformer was trained")
    kinds = [key for key in events[0] if _is_of(key, name)]
    try:
        steps = tuple(0 if event.get("event") == "start" else int(event["step"]) for event in events)
        values = {key.removeprefix(f"{name}_"): np.array([event[key] for event in events], np.float64) for key in kinds}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: events must have a step and numbers [layers, heads] of {name}: {error}") from error
    if any(array.ndim != 3 for array in values.values()):
        raise InputError(f"{path}: {name} must be numbers [layers, heads] in each event")
    return HeadHistory(steps, values)


def _is_of(key: str, name: str) -> bool:
    return key.startswith(f"{name}_")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the events of a run's log.

    Raises:
        InputError: If the file can't be read, or is not a log.
    """
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
        events = [json.loads(line) for line in lines if line]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: expected one JSON object a line: {error}") from error
    return [event for event in events if isinstance(event, dict)]


def _seconds(path: Path, events: Sequence[dict[str, Any]]) -> tuple[float, ...] | None:
    """Return the seconds of training before each event, or None if a timing is missing."""
    if not path.exists():
        return None
    timings = read_log(path)
    try:
        sums = totals(timings, "seconds")
        by_event = {(timing["event"], timing["step"]): total for timing, total in zip(timings, sums, strict=True)}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: events must have a step and seconds: {error}") from error
    seconds = [by_event.get((event.get("event"), event["step"])) for event in events]
    return None if None in seconds else tuple(number for number in seconds if number is not None)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
