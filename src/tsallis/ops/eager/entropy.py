"""Tsallis entropy in plain PyTorch, and the series by which it and its relatives have no singularity at alpha = 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha

SERIES_BELOW = 0.5  # |eps log p| below which second-order terms are summed as a series, of so many terms:
SERIES_TERMS = {torch.float64: 15, torch.float32: 9}
LARGEST = 80.0  # for e^x in float32: an x above it comes of probabilities below any normal number


def entropy(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""Compute Tsallis entropy [rows, 1], without a singularity at alpha = 1.

    `-(1/alpha) sum p log(p) (e^x - 1)/x` with `x = eps log p`.
    """
    inside = probs != 0
    log_p = torch.where(inside, probs, 1).log()
    x = ((alpha - 1) * log_p).clamp(max=LARGEST)
    return -(probs * log_p * _expm1_over(x)).sum(-1, keepdim=True) / alpha


def entropy_alpha_gradient(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""Return `dH_alpha(p)/d alpha` at fixed p [rows, 1], without a singularity at alpha = 1."""
    inside = probs != 0
    log_p = torch.where(inside, probs, 1).log()
    x = ((alpha - 1) * log_p).clamp(max=LARGEST)
    first = (probs * log_p * _expm1_over(x)).sum(-1, keepdim=True)
    second = (probs * log_p * log_p * expm1_over_slope(x)).sum(-1, keepdim=True)
    return first / (alpha * alpha) - second / alpha


def expm1_over_slope(x: Tensor) -> Tensor:
    """Return `((x - 1) e^x + 1) / x^2`, the derivative of `(e^x - 1) / x`: 1/2 at 0, differentiable there."""
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    return torch.where(
        near_zero,
        series(torch.where(near_zero, x, 0), lambda n: (n + 1) / math.factorial(n + 2)),
        (far * far.exp() - torch.expm1(far)) / (far * far),
    )


def series(x: Tensor, coefficient: Callable[[int], float]) -> Tensor:
    """Return `sum_n coefficient(n) x^n`, for |x| below `SERIES_BELOW`."""
    total = torch.zeros_like(x)
    for n in reversed(range(SERIES_TERMS.get(x.dtype, 9))):
        total = total * x + coefficient(n)
    return total


def _expm1_over(x: Tensor) -> Tensor:
    """Return `(e^x - 1) / x`, 1 at 0, differentiable there."""
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    return torch.where(
        near_zero, series(torch.where(near_zero, x, 0), lambda n: 1 / math.factorial(n + 1)), torch.expm1(far) / far
    )
