"""Control the mean number of keys that a query attends to, by one factor of all scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from torch import Tensor

from tsallis.errors import check_real

START, END = 0.1, 0.6  # shares of the updates between which the number of attended keys falls
RATE = 0.02  # largest change of the factor's logarithm per update and unit of error
UPDATES = 20  # number that, divided by the number of updates, gives the rate of short trainings
FULL = 0.995  # share of visible keys above which a smaller factor changes nothing
TOLERANCE = 0.01  # relative error at which the calibration stops
PASSES = 20  # maximum number of passes of the calibration
STEP = 1.0  # first change of the factor's logarithm in the calibration
UNMET = 0.1  # relative error of the mean that is worth a warning


def check_attended(attended: float) -> float:
    """Return the requested mean number of attended keys, a finite number of at least 1."""
    return check_real("attended", attended, 1)


def scale_change(sums: Tensor, attended: float, step: int, updates: int) -> float:
    r"""Return the factor of the scores after an update, which moves the attended keys towards their target.

    .. math:: \exp\big(e \min(\rho, 1 / r)\big), \qquad e = \log (\mathrm{mean} / \mathrm{attended})

    The error :math:`e` is limited to [-1, 1]; :math:`r` is the number of updates until 60 % of all updates, and
    :math:`\rho` is a rate. The target thus falls gradually: a sudden fall would make the factor overshoot. The result
    depends on the current state alone, so a resumed training needs no state of a controller.

    Args:
        sums: Sums over the queries of the update [3]: attended keys, visible keys, number of queries.
        attended: Target of the mean number of attended keys.
        step: Number of finished updates.
        updates: Number of updates of the training.

    Returns:
        The factor; 1 in the first 10 % of the updates, and if all visible keys are attended but too few.
    """
    keys, visible, queries = sums.tolist()
    if step < START * updates or not keys:
        return 1.0
    error = math.log(keys / (attended * queries))
    if error < 0 and keys >= FULL * visible:
        return 1.0
    rate = min(max(RATE, UPDATES / updates), 1 / max(END * updates - step, 1))
    return math.exp(rate * min(max(error, -1.0), 1.0))


def calibrate(scale: Callable[[float], None], measure: Callable[[], Tensor], attended: float) -> float:
    """Find the factor of all scores at which queries attend to the requested number of keys, by bisection.

    Args:
        scale: Function that multiplies all scores by a factor.
        measure: Function that runs the model and returns the sums of :func:`scale_change`.
        attended: Target of the mean number of attended keys.

    Returns:
        The mean number of attended keys.

    Raises:
        ValueError: The queries see fewer keys, or none.
    """
    keys, visible, queries = measure().tolist()
    if not queries or visible < attended * queries:
        mean = visible / max(queries, 1)
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
        keys, _, queries = measure().tolist()
    return warn_unmet(keys / queries, attended)


def warn_unmet(mean: float, attended: float) -> float:
    """Return the mean number of attended keys; warn if it differs from its target by more than 10 %."""
    if abs(mean / attended - 1) > UNMET:
        warnings.warn(f"queries attend to {mean:.4g} keys on average, not to {attended:g}", stacklevel=4)
    return mean
