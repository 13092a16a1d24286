"""Numbers of a run over its updates and its time: scores, the norm of its output's scores, the mean threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis.analysis.alphas import read_log
from tsallis.analysis.tables import Record
from tsallis.errors import InputError
from tsallis.training.file_names import LOG, TIMING
from tsallis.training.log import totals

VALUES = ("logit_norm", "output_threshold", "tau", "output_support", "attention_support")
SCORES = "dev_"  # how the names of values on the development set begin


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


def value_history(log: Path | str) -> ValueHistory:
    r"""Read the numbers of a run over its training.

    Among them are loss and scores on the development set, the mean norm :math:`\|z\|` of the output's scores and the
    mean threshold :math:`\tau(z)` (Tezekbayev et al. 2022, fig. 7 and 8), and how many symbols and positions are above
    zero. Logs written before thresholds were measured have none; alpha-ReLU's own is "tau". The seconds of training
    (fig. 3) are those of `timing.jsonl` beside the log.

    Args:
        log: `log.jsonl` of a run, or the run's folder.

    Returns:
        The numbers at each validation.

    Raises:
        InputError: a file that is no log, or one without validations.

    Example:
        >>> import json, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> events = [{"event": "epoch", "step": s, "dev_loss": 9 / s, "logit_norm": float(s)} for s in (3, 6)]
        >>> _ = path.write_text("".join(json.dumps(event) + "\n" for event in events))
        >>> value_history(path)
        ValueHistory(steps=(3, 6), values={'dev_loss': (3.0, 1.5), 'logit_norm': (3.0, 6.0)}, seconds=None, select=None)
    """
    path = Path(log)
    path = path / LOG if path.is_dir() else path
    events = [event for event in read_log(path) if any(key.startswith(SCORES) for key in event)]
    if not events:
        raise InputError(f"{path}: no validation in this log")
    names = dict.fromkeys(key for event in events for key in event if key.startswith(SCORES) or key in VALUES)
    try:
        steps = tuple(int(event["step"]) for event in events)
        values = {name: tuple(_number(event.get(name)) for event in events) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: validations must have a step and numbers: {error}") from error
    select = next((event["select"] for event in reversed(events) if isinstance(event.get("select"), str)), None)
    return ValueHistory(steps, values, _seconds(path.with_name(TIMING), events), select)


def _seconds(path: Path, events: Sequence[dict[str, Any]]) -> tuple[float, ...] | None:
    """Return the seconds of training before each event; None where a timing of one is missing."""
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
