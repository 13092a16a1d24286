"""Compute Tsallis entropy and its derivatives, with series that avoid the singularity at alpha = 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha

SERIES_BELOW = 0.5  # use a series if |eps log p| is below this
SERIES_TERMS = {torch.float64: 15, torch.float32: 9}  # number of terms
# Maximum of x = eps log p by dtype: larger values belong to subnormal probabilities.
LARGEST = {torch.float64: 708.0, torch.float32: 87.0}


def entropy(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""Compute Tsallis entropy [rows, 1], without a singularity at alpha = 1.

    The entropy is `-(1/alpha) sum p log(p) (e^x - 1)/x` with `x = eps log p`.
    """
    log_p, x = _logarithms(probs, alpha)
    return -(log_p * _scaled_expm1_over(probs, log_p, x)).sum(-1, keepdim=True) / alpha


def entropy_alpha_gradient(probs: Tensor, alpha: Alpha) -> Tensor:
    r"""Return the derivative `dH_alpha(p)/d alpha` [rows, 1] with p fixed; it has no singularity at alpha = 1."""
    log_p, x = _logarithms(probs, alpha)
    first = (log_p * _scaled_expm1_over(probs, log_p, x)).sum(-1, keepdim=True)
    second = (log_p * log_p * _scaled_slope(probs, log_p, x)).sum(-1, keepdim=True)
    return first / (alpha * alpha) - second / alpha


def _logarithms(probs: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
    """Return `log p` (0 if p is 0) and `x = eps log p`."""
    log_p = torch.where(probs != 0, probs, 1).log()
    return log_p, ((alpha - 1) * log_p).clamp(max=LARGEST.get(probs.dtype, 87.0))


def expm1_over_slope(x: Tensor) -> Tensor:
    """Return the derivative of `(e^x - 1) / x`: `((x - 1) e^x + 1) / x^2`, or 1/2 at 0; it is differentiable at 0."""
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


def _scaled_expm1_over(probs: Tensor, log_p: Tensor, x: Tensor) -> Tensor:
    """Return `p (e^x - 1) / x`, differentiable at x = 0; e^x can't overflow, because p e^x = p^alpha is used."""
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    sums = series(torch.where(near_zero, x, 0), lambda n: 1 / math.factorial(n + 1))
    return torch.where(near_zero, probs * sums, (_scaled_exp(probs, log_p, far) - probs) / far)


def _scaled_slope(probs: Tensor, log_p: Tensor, x: Tensor) -> Tensor:
    """Return p times the derivative of `(e^x - 1) / x`, which is p / 2 at x = 0; it is differentiable at 0."""
    near_zero = x.abs() < SERIES_BELOW
    far = torch.where(near_zero, 1, x)
    power = _scaled_exp(probs, log_p, far)
    return torch.where(
        near_zero, probs * expm1_over_slope(torch.where(near_zero, x, 0)), ((far - 1) * power + probs) / (far * far)
    )


def _scaled_exp(probs: Tensor, log_p: Tensor, x: Tensor) -> Tensor:
    return torch.where(probs != 0, (log_p + x).exp(), 0)
