"""The output of least risk: the one that is best on average, over all that the model holds probable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Utility = Callable[[str, str], float]


@dataclass(frozen=True)
class RiskChoice:
    """The text of least risk among some.

    Args:
        index: of the text.
        expected_utility: the mean of its utility over the texts, each counting as much as its weight.
        proved: whether no weight that is missing could make another of the texts the better one.

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

    (Kumar and Byrne 2004, eq. 1; Eikema and Aziz 2020 with samples.) The sum is over all outputs where the texts are a
    complete list. Where outputs of the probability `missing` are not among them, the choice is proved if it leads by
    as much: a utility is between 0 and 1.

    References count in the order of their weights, and a candidate leaves once the rest can't make it the best: the
    choice is the same.

    Args:
        texts: candidates and references; the same text may stand there several times, as in samples.
        weights: of each text, at least 0.
        utility: of a text where another one is right, from 0 to 1.
        missing: the weight of references that are not there.

    Returns:
        The choice, of equal ones the heaviest or first; None without any weight.

    Raises:
        ValueError: not one weight a text, a weight that is negative or not finite.

    Example:
        >>> right = lambda text, reference: sum(a == b for a, b in zip(text, reference)) / 4
        >>> minimum_risk(["walk", "talk", "took"], [0.36, 0.34, 0.3], right).index  # the one in the middle
        1
    """
    if len(texts) != len(weights) or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"there must be one finite weight a text, at least 0, got {len(weights)} for {len(texts)}")
    index: dict[str, int] = {}
    sums: dict[str, float] = {}
    for number, (text, weight) in enumerate(zip(texts, weights, strict=True)):
        index.setdefault(text, number)
        sums[text] = sums.get(text, 0.0) + weight
    total = math.fsum(sums.values())
    if total == 0:
        return None
    references = sorted(sums, key=lambda text: (-sums[text], index[text]))
    gains = dict.fromkeys(references, 0.0)  # of candidates, over the references so far
    rest = total
    for reference in references:
        rest = max(rest - sums[reference], 0.0)
        for text in gains:
            gains[text] += sums[reference] * utility(text, reference)
        # Also of those that can't win any more the best must stay, for the proof, as far as what is missing goes.
        least = max(gains.values()) - rest - missing - 1e-12 * total
        gains = {text: gain for text, gain in gains.items() if gain >= least}
    best = max(gains, key=gains.__getitem__)
    proved = all(gains[best] - gain >= missing for text, gain in gains.items() if text != best)
    return RiskChoice(index[best], min(gains[best] / total, 1.0), proved)
