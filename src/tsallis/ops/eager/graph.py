"""Compute maps and losses with a fixed graph of PyTorch operations, for export to other formats."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.entropy import entropy
from tsallis.ops.eager.thresholds import nonzero_eps

STEPS = 40  # bisection steps until the bracket is narrower than float32's rounding
WIDEST = 20.0  # width of the bracket, enough for exp(20) classes
DOUBLE_STEPS = 64  # bisection steps for float64
MIN_EPS = 1e-7  # minimum of eps for budgets: numbers near 1 lose digits when raised to the power 1 / eps
NEWTON_STEPS = 12  # for alpha above 2, where Newton steps converge faster than bisection


def entmax(scores: Tensor, alpha: Alpha) -> Tensor:
    r"""Return probabilities of rows [rows, d], with alpha as a number or a tensor [rows, 1].

    With the maximum at 0, the sum of :math:`p_k = [1 + \epsilon (z_k - c)]_+^{1/\epsilon}` decreases in `c` and is at
    least 1 at `c = 0`. With :math:`c = (1 - e^{-\epsilon y})/\epsilon` the largest probability is :math:`e^{-y}` for
    every alpha. `y` is found by bisection. For alpha above 2, see :mod:`tsallis.ops.eager.steep`.
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
    low, high = torch.zeros_like(top), torch.full_like(top, WIDEST)
    low, high = _bisect(low, high, STEPS, lambda y: _power(z, y, eps).sum(-1, keepdim=True) > 1)
    probs = _normalise(_power(z, (low + high) / 2, eps))
    if not isinstance(alpha, Tensor):
        return probs
    steep = alpha > 2
    probs = torch.where(steep, _steep(scores, top, torch.where(steep, alpha - 1, 2)), probs)
    return torch.where(alpha == 1, softmax, probs)


def _bisect(low: Tensor, high: Tensor, steps: int, below: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Halve brackets [rows, 1] `steps` times; `below` returns whether a number is below the solution."""
    for _ in range(steps):
        middle = (low + high) / 2
        raise_low = below(middle)
        low, high = torch.where(raise_low, middle, low), torch.where(raise_low, high, middle)
    return low, high


def _power(z: Tensor, y: Tensor, eps: float | Tensor) -> Tensor:
    c = _expm1(-eps * y) / -eps
    base = (1 + eps * (z - c)).clamp(min=0)
    if isinstance(eps, float) and eps in (0.5, 1.0):
        return base * base if eps == 0.5 else base
    return base ** (1 / eps)


def _expm1(x: Tensor) -> Tensor:
    """Compute `torch.expm1` with operations that the tracing ONNX exporter supports."""
    return torch.tanh(x / 2) * (torch.exp(x) + 1)


def _normalise(probs: Tensor) -> Tensor:
    total = probs.sum(-1, keepdim=True)
    return probs / torch.where(total == 0, 1.0, total)


def _steep(scores: Tensor, top: Tensor, eps: float | Tensor) -> Tensor:
    """Return probabilities for alpha above 2: bisect for the support's smallest score, then find its probability."""
    _, high = _bisect(top - 1 / eps, top, STEPS, lambda c: _steep_power(scores - c, eps).sum(-1, keepdim=True) > 1)
    smallest = torch.where(scores >= high, scores, torch.inf).amin(-1, keepdim=True)
    # Near 0, the spacing of floats is smaller than the final bracket, so one score may lie inside the bracket.
    next_score = torch.where(scores < high, scores, -torch.inf).amax(-1, keepdim=True)
    inside = _steep_power(scores - next_score, eps).sum(-1, keepdim=True) < 1
    smallest = torch.where(inside, next_score, smallest)
    above, ties = scores > smallest, scores == smallest
    num_ties = ties.to(scores.dtype).sum(-1, keepdim=True).clamp(min=1)
    x = torch.where(above, eps * (scores - smallest), 1)
    tiny = torch.finfo(scores.dtype).tiny
    q = (1 - torch.where(above, x ** (1 / eps), 0).sum(-1, keepdim=True)).clamp(min=tiny) / num_ties
    for _ in range(NEWTON_STEPS):
        power = q**eps
        p = torch.where(above, (x + power) ** (1 / eps), 0)
        excess = p.sum(-1, keepdim=True) + num_ties * q - 1
        slope = (p / q * (power / (x + power))).sum(-1, keepdim=True) + num_ties
        q = (q - excess / slope).clamp(min=tiny)
    return _normalise(torch.where(above, (x + q**eps) ** (1 / eps), torch.where(ties, q, 0)))


def _steep_power(u: Tensor, eps: float | Tensor) -> Tensor:
    return (eps * u).clamp(min=0) ** (1 / eps)


def budgeted_entmax(scores: Tensor, alpha: Alpha, budget: float) -> Tensor:
    """Return marginals of rows [rows, d]; each is at most 1, and each row sums to the budget.

    The computation uses float64, because results are not divided by their sum and errors would remain. The bracket of
    the threshold starts at the k-th largest score, k = ceil(budget).
    """
    nan_rows = scores.isnan().any(-1, keepdim=True)
    if budget == 0:
        return torch.zeros_like(scores).masked_fill(nan_rows, torch.nan)
    z = scores.double()
    pivot = z.topk(min(math.ceil(budget), z.shape[-1]), -1).values[..., -1:]
    filled = pivot == -torch.inf  # the budget is at least the number of finite scores
    pivot = pivot.masked_fill(filled, 0)
    eps = alpha.to(z.dtype) - 1 if isinstance(alpha, Tensor) else alpha - 1
    if not isinstance(eps, Tensor):
        probs = (_steep_budget if eps > 1 else _solve_budget)(z, pivot, eps if eps > 1 else max(eps, MIN_EPS), budget)
    else:
        steep = eps > 1
        flat = _solve_budget(z, pivot, eps.clamp(min=MIN_EPS, max=1), budget)
        probs = torch.where(steep, _steep_budget(z, pivot, torch.where(steep, eps, 2), budget), flat)
    probs = torch.where(filled, (z > -torch.inf).to(z.dtype), probs)
    return probs.masked_fill(nan_rows, torch.nan).to(scores.dtype)


def _solve_budget(z: Tensor, pivot: Tensor, eps: float | Tensor, budget: float) -> Tensor:
    low = torch.zeros_like(pivot)
    high = torch.clamp(low + 1 / eps, max=WIDEST)
    low, high = _bisect(
        low, high, DOUBLE_STEPS, lambda y: _capped_power(z - pivot - y, eps).sum(-1, keepdim=True) > budget
    )
    return _capped_power(z - pivot - (low + high) / 2, eps)


def _capped_power(u: Tensor, eps: float | Tensor) -> Tensor:
    return (1 + eps * u.clamp(max=0)).clamp(min=0) ** (1 / eps)


def _steep_budget(z: Tensor, pivot: Tensor, eps: float | Tensor, budget: float) -> Tensor:
    """Return marginals for alpha above 2: bisect for the support's smallest score, then for its probability."""

    def mass(smallest: Tensor) -> Tensor:
        return _steep_power(z - smallest, eps).clamp(max=1).sum(-1, keepdim=True)

    _, high = _bisect(pivot - 1 / eps, pivot, DOUBLE_STEPS, lambda c: mass(c) >= budget)
    smallest = torch.where(z >= high, z, torch.inf).amin(-1, keepdim=True)
    next_score = torch.where(z < high, z, -torch.inf).amax(-1, keepdim=True)
    smallest = torch.where(mass(next_score) < budget, next_score, smallest)
    above, ties = z > smallest, z == smallest
    x = torch.where(above, eps * (z - smallest), 1)

    def marginals(q: Tensor) -> Tensor:
        return torch.where(above, (x + q**eps) ** (1 / eps), torch.where(ties, q, 0)).clamp(max=1)

    low, high = torch.zeros_like(pivot), torch.ones_like(pivot)
    _, high = _bisect(low, high, DOUBLE_STEPS, lambda q: ~(marginals(q).sum(-1, keepdim=True) > budget))
    return marginals(high)


def entmax_loss(scores: Tensor, target: Tensor, alpha: Alpha) -> Tensor:
    """Return the Fenchel-Young loss [rows] of class targets [rows]; negative targets have loss 0."""
    probs = entmax(scores, alpha)
    top = scores.amax(-1, keepdim=True)
    empty = top == -torch.inf
    values = (scores - top.masked_fill(empty, 0)).clamp(min=torch.finfo(scores.dtype).min)  # 0 * -inf would be NaN
    gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1))
    conjugate = (probs * values).sum(-1, keepdim=True) + entropy(probs, alpha)
    loss = conjugate.clamp(min=0) + (top - gold)
    return loss.masked_fill(empty | (target < 0).unsqueeze(-1), 0).squeeze(-1)
