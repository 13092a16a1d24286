"""Entmax as a graph of PyTorch's operations that is the same for all numbers: for exporters to other formats."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.thresholds import nonzero_eps

STEPS = 40  # of the bisection: the bracket is then narrower than the rounding of float32
WIDEST = 20.0  # of the bracket: enough for exp(20) classes
NEWTON_STEPS = 12  # above alpha 2: from its largest value, the smallest probability falls to its own in fewer


def entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    r"""Return probabilities of rows [rows, d], `alpha` a number or [rows, 1].

    With the maximum at 0, :math:`p_k = [1 + \epsilon (z_k - c)]_+^{1/\epsilon}` falls in `c` from at least 1 in total
    at `c = 0` to at most 1. With :math:`c = (1 - e^{-\epsilon y})/\epsilon` the largest is :math:`e^{-y}`, whatever
    alpha is; `y` is found by bisection. Above alpha 2, see :mod:`tsallis.ops.eager.steep`.
    """
    top = scores.amax(-1, keepdim=True)
    empty = top == -torch.inf
    softmax = torch.softmax(scores, -1).masked_fill(empty, 0)
    if isinstance(alpha, float) and alpha == 1.0:
        return softmax
    top = top.masked_fill(empty, 0)
    if isinstance(alpha, float) and alpha > 2:
        return _steep(scores, top, alpha - 1)
    z = scores - top
    eps = nonzero_eps(alpha)
    low = torch.zeros_like(top)
    high = torch.full_like(low, WIDEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = _power(z, middle, eps).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    probs = _normalised(_power(z, (low + high) / 2, eps))
    if not isinstance(alpha, Tensor):
        return probs
    steep = alpha > 2
    probs = torch.where(steep, _steep(scores, top, torch.where(steep, alpha - 1, 2)), probs)
    return torch.where(alpha == 1, softmax, probs)


def _power(z: Tensor, y: Tensor, eps: float | Tensor) -> Tensor:
    c = torch.expm1(-eps * y) / -eps
    base = (1 + eps * (z - c)).clamp(min=0)
    if isinstance(eps, float) and eps in (0.5, 1.0):
        return base * base if eps == 0.5 else base
    return base ** (1 / eps)


def _normalised(probs: Tensor) -> Tensor:
    total = probs.sum(-1, keepdim=True)
    return probs / torch.where(total == 0, 1.0, total)


def _steep(scores: Tensor, top: Tensor, eps: float | Tensor) -> Tensor:
    """Return probabilities for alpha above 2: the least score of the support by bisection, then its probability."""
    low, high = top - 1 / eps, top
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = _steep_power(scores - middle, eps).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    least = torch.where(scores >= high, scores, torch.inf).amin(-1, keepdim=True)
    # Numbers near 0 are closer to each other than the ends of the bracket: one score may lie between them.
    between = torch.where(scores < high, scores, -torch.inf).amax(-1, keepdim=True)
    inside = _steep_power(scores - between, eps).sum(-1, keepdim=True) < 1
    least = torch.where(inside, between, least)
    above, ties = scores > least, scores == least
    same = ties.to(scores.dtype).sum(-1, keepdim=True).clamp(min=1)
    x = torch.where(above, eps * (scores - least), 1)
    tiny = torch.finfo(scores.dtype).tiny
    q = (1 - torch.where(above, x ** (1 / eps), 0).sum(-1, keepdim=True)).clamp(min=tiny) / same
    for _ in range(NEWTON_STEPS):
        power = q**eps
        p = torch.where(above, (x + power) ** (1 / eps), 0)
        excess = p.sum(-1, keepdim=True) + same * q - 1
        slope = (p / q * (power / (x + power))).sum(-1, keepdim=True) + same
        q = (q - excess / slope).clamp(min=tiny)
    return _normalised(torch.where(above, (x + q**eps) ** (1 / eps), torch.where(ties, q, 0)))


def _steep_power(u: Tensor, eps: float | Tensor) -> Tensor:
    return (eps * u).clamp(min=0) ** (1 / eps)
