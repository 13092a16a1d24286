"""Entmax as a graph of PyTorch's operations that is the same for all numbers: for exporters to other formats."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.thresholds import nonzero_eps

STEPS = 40  # of the bisection: the bracket is then narrower than the rounding of float32
WIDEST = 20.0  # of the bracket: enough for exp(20) classes


def entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    r"""Return probabilities of rows [rows, d], `alpha` a number or [rows, 1].

    With the maximum at 0, :math:`p_k = [1 + \epsilon (z_k - c)]_+^{1/\epsilon}` falls in `c` from at least 1 in total
    at `c = 0` to at most 1. With :math:`c = (1 - e^{-\epsilon y})/\epsilon` the largest is :math:`e^{-y}`, whatever
    alpha is; `y` is found by bisection.
    """
    top = scores.amax(-1, keepdim=True)
    empty = top == -torch.inf
    softmax = torch.softmax(scores, -1).masked_fill(empty, 0)
    if isinstance(alpha, float) and alpha == 1.0:
        return softmax
    z = scores - top.masked_fill(empty, 0)
    eps = nonzero_eps(alpha)
    low = torch.zeros_like(top).masked_fill(empty, 0)
    high = torch.full_like(low, WIDEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = _power(z, middle, eps).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    probs = _power(z, (low + high) / 2, eps)
    total = probs.sum(-1, keepdim=True)
    probs = probs / torch.where(total == 0, 1.0, total)
    return torch.where(alpha == 1, softmax, probs) if isinstance(alpha, Tensor) else probs


def _power(z: Tensor, y: Tensor, eps: float | Tensor) -> Tensor:
    c = torch.expm1(-eps * y) / -eps
    base = (1 + eps * (z - c)).clamp(min=0)
    if isinstance(eps, float) and eps in (0.5, 1.0):
        return base * base if eps == 0.5 else base
    return base ** (1 / eps)
