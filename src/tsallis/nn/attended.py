"""Find the factor of all scores at which queries attend to a given number of keys on average."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import InputError

TOLERANCE = 0.01  # relative error at which the calibration stops
PASSES = 20  # maximum number of passes of the calibration
STEP = 1.0  # first change of the factor's logarithm in the calibration
UNMET = 0.1  # relative error of the mean that is worth a warning


def calibrate(
    scale: Callable[[float], None], measure: Callable[[Any], Tensor], batches: Iterable[Any], attended: float
) -> float:
    """Find the factor of all scores at which queries attend to the requested number of keys, by bisection.

    Args:
        scale: Function that multiplies all scores by a factor.
        measure: Function that runs the model on a batch and returns sums over the queries [3]: attended keys, visible
            keys, number of queries.
        batches: Batches that can be read several times.
        attended: Target of the mean number of attended keys.

    Returns:
        The mean number of attended keys.

    Raises:
        ValueError: The queries see fewer keys, or none, or the batches can be read only once.
    """
    if isinstance(batches, Iterator):
        raise InputError(f"batches must be readable several times, such as a list, got a {type(batches).__name__}")

    def total() -> list[float]:
        sums: list[float] = sum((measure(batch).double().cpu() for batch in batches), torch.zeros(3)).tolist()
        return sums

    keys, visible, queries = total()
    if not queries:
        raise ValueError("batches must contain queries, got none")
    if visible < attended * queries:
        mean = visible / queries
        raise ValueError(f"attended must be at most {mean:.4g}, the mean number of visible keys, got {attended:g}")
    low, high, position = -math.inf, math.inf, 0.0  # logarithms of factors: too small, too large, current
    for _ in range(PASSES):
        error = math.log(keys / (attended * queries))
        if abs(error) < TOLERANCE:
            break
        low, high = (position, high) if error > 0 else (low, position)
        middle = (low + high) / 2 if math.isfinite(high - low) else position + math.copysign(STEP, error)
        scale(math.exp(middle - position))
        position = middle
        keys, _, queries = total()
    reached: float = keys / queries
    if abs(reached / attended - 1) > UNMET:
        warnings.warn(f"queries attend to {reached:.4g} keys on average, not to {attended:g}", stacklevel=3)
    return reached
