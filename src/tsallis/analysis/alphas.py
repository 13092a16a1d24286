"""Learned alphas: over a training, and how they are spread at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tsallis.analysis.tables import Histogram, Record
from tsallis.analysis.weights import Floats
from tsallis.data.io import read_bytes
from tsallis.errors import InputError
from tsallis.training.file_names import LOG

BINS = 20


@dataclass(frozen=True, eq=False)
class HeadHistory(Record):
    """A number of each head over the updates of a training.

    Args:
        steps: updates done before each event.
        values: by kind of attention, [events, layers, heads].

    Example:
        >>> history = HeadHistory((0, 10), {"encoder": np.array([[[1.5, 1.5]], [[1.2, 1.9]]])})
        >>> history.last()["encoder"].tolist()
        [[1.2, 1.9]]
    """

    steps: tuple[int, ...]
    values: dict[str, Floats]

    def last(self) -> dict[str, Floats]:
        """Return the last values of each kind [layers, heads]."""
        return {kind: values[-1] for kind, values in self.values.items()}


def alpha_history(log: Path | str) -> HeadHistory:
    r"""Read the alpha of each head over a training (Correia et al. 2019, fig. 2).

    Args:
        log: `log.jsonl` of a run, or the run's folder. Its "start" event stands for update 0.

    Returns:
        The alphas of each kind of attention [events, layers, heads].

    Raises:
        InputError: a file that is no log, or one without alphas.

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
        log: `log.jsonl` of a run, or the run's folder.

    Returns:
        The densities of each kind of attention [events, layers, heads].

    Raises:
        InputError: a file that is no log, or one without densities.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> _ = path.write_text(json.dumps({"event": "epoch", "step": 10, "density_encoder": [[0.5, 0.25]]}))
        >>> density_history(path).last()["encoder"].tolist()
        [[0.5, 0.25]]
    """
    return _history(Path(log), "density")


def alpha_histograms(alphas: Mapping[str, Any], bins: int = BINS) -> dict[str, Histogram]:
    """Count alphas of each kind in bins from 1 to 2, or to the largest (Correia et al. 2019, fig. 3 and 11).

    Args:
        alphas: numbers of any shape by kind: the result of a model's `alphas()`, or of :meth:`HeadHistory.last`.
        bins: the number of bins.

    Returns:
        The histogram of each kind, with the same edges for all.

    Raises:
        ValueError: an alpha below 1.

    Example:
        >>> alpha_histograms({"encoder": [[1.0, 1.1], [1.9, 2.0]]}, bins=2)["encoder"]
        Histogram(edges=(1.0, 1.5, 2.0), counts=(2, 2))
    """
    arrays = {kind: np.asarray(values, np.float64) for kind, values in alphas.items()}
    high = max([2.0, *(float(values.max()) for values in arrays.values() if values.size)])
    return {kind: Histogram.of(values, bins, 1.0, high) for kind, values in arrays.items()}


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
        InputError: a file that can't be read, or that is none.
    """
    try:
        lines = read_bytes(path).decode("utf-8").split("\n")
        events = [json.loads(line) for line in lines if line]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: expected one JSON object a line: {error}") from error
    return [event for event in events if isinstance(event, dict)]
