"""Logarithms of probabilities from scores: finite where a probability itself is too small for a number.

A row is written in differences from its largest score, `log p = log1p(eps w) / eps` with `eps = alpha - 1` and

    w = (z - max z) + (max p)^eps / eps - 1 / eps

which is `log p` itself at alpha = 1. The largest probability is at least one over the number of scores, so nothing
cancels, wherever the scores lie and however near alpha is to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha

# A score that is no further than this above the threshold, in (alpha - 1) z, equals it up to the rounding of float64.
EDGE = 2.0**-46
NEAR_ZERO, TERMS = 1e-2, 9  # where a series stands for a quotient, and of how many terms


def log_probs(scores: Tensor, probs: Tensor, alpha: Alpha) -> Tensor:
    """Return the logarithms of entmax's probabilities [..., d] of scores, all in float64; -inf outside the support.

    Differentiable to every order in the scores and in alpha, a float or [..., 1], at alpha = 1 too.
    """
    eps = alpha - 1
    place = scores.argmax(-1, keepdim=True)
    top, largest = scores.gather(-1, place), probs.gather(-1, place)
    # Near 1 the logarithm of a rounded probability has few digits, that of what the others leave has all.
    others = probs.scatter(-1, place, 0).sum(-1, keepdim=True)
    near_one = largest > 0.5
    log_largest = torch.where(
        near_one, torch.where(near_one, -others, 0).log1p(), torch.where(largest == 0, 1, largest).log()
    )
    offset = log_largest * _quotient(torch.expm1, eps * log_largest, lambda n: 1 / math.factorial(n + 1))
    w = scores - torch.where(top == -torch.inf, 0, top) + offset
    # A NaN is all over its row.
    inside = ((scores > -torch.inf) | largest.isnan()) & ~(1 + eps * w <= EDGE)
    w = torch.where(inside, w, 0)
    result = torch.where(inside, w * _quotient(torch.log1p, eps * w, lambda n: (-1) ** n / (n + 1)), -torch.inf)
    if isinstance(alpha, float) and alpha <= 2:
        return result
    # Above 2 a probability is large beside the rounding of its threshold's distance.
    support = probs != 0
    steep = torch.where(support, torch.where(support, probs, 1).log(), -torch.inf)
    return steep if isinstance(alpha, float) else torch.where(alpha > 2, steep, result)


def alpha_relu_log_probs(scores: Tensor, alpha: float, tau: float) -> Tensor:
    """Return the logarithms of alpha-ReLU's values of scores in float64; -inf where a value is zero."""
    eps = alpha - 1
    u = eps * scores - tau
    outside = u <= 0  # a NaN stays inside
    return torch.where(outside, -torch.inf, torch.where(outside, 1, u).log() / eps)


def indistinct(scores: Tensor) -> Tensor:
    """Return which rows [...] have a largest score at which the dtype of the scores [..., d] has no fractions.

    There scores that differ by less than 1 can be one number, and the rounding of a score alone can change a
    probability by a factor of e: from 2^23 in float32.
    """
    top = scores.amax(-1)
    return (top > -torch.inf) & (top.abs() >= largest_distinct(scores.dtype))


def largest_distinct(dtype: torch.dtype) -> float:
    """Return the size from which a dtype holds whole numbers alone."""
    return 1 / torch.finfo(dtype).eps


def _quotient(function: Callable[[Tensor], Tensor], x: Tensor, coefficient: Callable[[int], float]) -> Tensor:
    """Return `function(x) / x`, near 0 the series `sum_n coefficient(n) x^n`: 1 at 0, differentiable there."""
    near_zero = x.abs() < NEAR_ZERO
    near, far = torch.where(near_zero, x, 0), torch.where(near_zero, 1, x)
    total = torch.zeros_like(x)
    for n in reversed(range(TERMS)):
        total = total * near + coefficient(n)
    return torch.where(near_zero, total, function(far) / far)
