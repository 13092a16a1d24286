"""Choose the output with the best expected score over the probable outputs (minimum Bayes risk)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Utility = Callable[[str, str], float]
ROUNDING = 1e-6  # by which a utility may exceed its range


@dataclass(frozen=True)
class RiskChoice:
    """Text with the largest expected utility.

    Args:
        index: Index of the text.
        expected_utility: Weighted mean of the text's utility over all references.
        proved: Whether the choice would stay the best for any missing references.

    Example:
        >>> RiskChoice(0, expected_utility=0.8, proved=True).index
        0
    """

    index: int
    expected_utility: float
    proved: bool


def minimum_risk(
    texts: Sequence[str], weights: Sequence[float], utility: Utility, missing: float = 0.0
) -> RiskChoice | None:
    r"""Choose the text whose expected utility is largest, with every text as a candidate and as a reference.

    .. math:: \hat y = \arg\max_{c \in C} \sum_{r \in C} p(r \mid x) \, u(c, r)

    (Kumar and Byrne 2004, eq. 1; Eikema and Aziz 2020 with samples.) If the list of texts is complete, the sum is
    over all outputs. If references of total weight `missing` are absent, the choice is proved the best
    listed text if it leads by at least `missing`: utilities are between 0 and 1. A single listed text is never proved.

    References are processed in the order of their weights, and candidates that can't win any more are dropped. This
    does not change the choice.

    Args:
        texts: Candidates and references; a text may occur several times, as in samples.
        weights: Weights of the texts, at least 0.
        utility: Function from a candidate and a reference to a score from 0 to 1.
        missing: Weight of absent references; infinite if it is unknown.

    Returns:
        The choice (ties: the largest weight, then the first), or None if all weights are 0.

    Raises:
        ValueError: The number of weights is wrong, a weight is negative or not finite, `missing` is negative, or a
            utility is not between 0 and 1.

    Example:
        >>> right = lambda text, reference: sum(a == b for a, b in zip(text, reference)) / 4
        >>> minimum_risk(["walk", "talk", "took"], [0.36, 0.34, 0.3], right).index  # the one in the middle
        1
    """
    if len(texts) != len(weights):
        raise ValueError(f"weights must have one weight per text, got {len(weights)} weights for {len(texts)} texts")
    if wrong := [weight for weight in weights if not 0 <= weight < math.inf]:
        raise ValueError(f"weights must be finite and at least 0, got {wrong[0]:g}")
    if not missing >= 0:
        raise ValueError(f"missing must be at least 0, got {missing:g}")
    index: dict[str, int] = {}
    sums: dict[str, float] = {}
    for number, (text, weight) in enumerate(zip(texts, weights, strict=True)):
        index.setdefault(text, number)
        sums[text] = sums.get(text, 0.0) + weight
    total = math.fsum(sums.values())
    if total == 0:
        return None
    references = sorted(sums, key=lambda text: (-sums[text], index[text]))
    gains = dict.fromkeys(references, 0.0)  # sum of utilities per candidate over the references so far
    remaining_weight = total
    for reference in references:
        remaining_weight = max(remaining_weight - sums[reference], 0.0)
        for text in gains:
            gains[text] += sums[reference] * _compute_utility(utility, text, reference)
        # Keep candidates that could win with the missing weight: the proof needs them.
        threshold = max(gains.values()) - remaining_weight - missing - 1e-12 * total
        gains = {text: gain for text, gain in gains.items() if gain >= threshold}
    threshold = max(gains.values()) - 1e-12 * total
    best = next(text for text, gain in gains.items() if gain >= threshold)
    lead = min((gains[best] - gain for text, gain in gains.items() if text != best), default=math.inf)
    return RiskChoice(index[best], min(gains[best] / total, 1.0), not missing or (len(sums) > 1 and lead >= missing))


def _compute_utility(utility: Utility, text: str, reference: str) -> float:
    """Return a utility from 0 to 1."""
    score = utility(text, reference)
    if not -ROUNDING <= score <= 1 + ROUNDING:
        raise ValueError(f"utilities must be from 0 to 1, got {score:g} for {text!r} and {reference!r}")
    return min(max(score, 0.0), 1.0)
