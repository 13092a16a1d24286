"""Compute log-probabilities from scores; they are finite even if a probability underflows.

With `eps = alpha - 1`, `log p = log1p(eps w) / eps` with

    w = (z - max z) + (max p)^eps / eps - 1 / eps

and `w = log p` at alpha = 1. The largest probability is at least one over the number of scores, so nothing cancels for
any offset of the scores and any alpha near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha

# If (alpha - 1) (score - threshold) is at most this, the score equals the threshold up to float64's rounding.
EDGE = 2.0**-46
NEAR_ZERO, TERMS = 1e-2, 9  # below NEAR_ZERO, compute quotients as a series with TERMS terms


def log_probs(scores: Tensor, probs: Tensor, alpha: Alpha) -> Tensor:
    """Return the log-probabilities of entmax [..., d] in float64; -inf outside the support.

    The result is differentiable to every order in the scores and in alpha (a float or [..., 1]), also at alpha = 1.
    """
    eps = alpha - 1
    best_index = scores.argmax(-1, keepdim=True)
    top, largest = scores.gather(-1, best_index), probs.gather(-1, best_index)
    # For a probability near 1, use log(1 - sum of all other probabilities): rounding has removed digits of the
    # probability itself.
    other_mass = probs.scatter(-1, best_index, 0).sum(-1, keepdim=True)
    near_one = largest > 0.5
    log_largest = torch.where(
        near_one, torch.where(near_one, -other_mass, 0).log1p(), torch.where(largest == 0, 1, largest).log()
    )
    offset = log_largest * _quotient(torch.expm1, eps, log_largest, lambda n: 1 / math.factorial(n + 1))
    w = scores - torch.where(top == -torch.inf, 0, top) + offset
    # A NaN makes its whole row NaN.
    inside = ((scores > -torch.inf) | largest.isnan()) & ~(1 + eps * w <= EDGE)
    w = torch.where(inside, w, 0)
    result = torch.where(inside, w * _quotient(torch.log1p, eps, w, lambda n: (-1) ** n / (n + 1)), -torch.inf)
    if isinstance(alpha, float) and alpha <= 2:
        return result
    # Above alpha 2, take logarithms of the probabilities: the distance to the threshold is rounded too much.
    support = probs != 0
    steep = torch.where(support, torch.where(support, probs, 1).log(), -torch.inf)
    return steep if isinstance(alpha, float) else torch.where(alpha > 2, steep, result)


def alpha_relu_log_probs(scores: Tensor, alpha: float, tau: float) -> Tensor:
    """Return the logarithms of alpha-ReLU values in float64; -inf for zeros."""
    eps = alpha - 1
    u = eps * scores - tau
    outside = u <= 0  # NaN counts as inside
    return torch.where(outside, -torch.inf, torch.where(outside, 1, u).log() / eps)


def indistinct(scores: Tensor) -> Tensor:
    """Return a mask of the rows whose largest score is so large that the dtype has no fractions (2^23 in float32).

    Scores of this size that differ by less than 1 may be rounded to the same number, and rounding can change a
    probability by a factor of e.
    """
    top = scores.amax(-1)
    return (top > -torch.inf) & (top.abs() >= largest_distinct(scores.dtype))


def largest_distinct(dtype: torch.dtype) -> float:
    """Return the magnitude from which a dtype can represent only integers."""
    return 1 / torch.finfo(dtype).eps


def _quotient(function: Callable[[Tensor], Tensor], eps: Alpha, w: Tensor, coefficient: Callable[[int], float]) -> Any:
    """Return `function(x) / x` at `x = eps w`; near 0, use the differentiable series `sum_n coefficient(n) x^n`."""
    if isinstance(eps, float) and eps == 0:
        return coefficient(0)
    x = eps * w
    near_zero = x.abs() < NEAR_ZERO
    near, far = torch.where(near_zero, x, 0), torch.where(near_zero, 1, x)
    total = torch.zeros_like(x)
    for n in reversed(range(TERMS)):
        total = total * near + coefficient(n)
    return torch.where(near_zero, total, function(far) / far)
