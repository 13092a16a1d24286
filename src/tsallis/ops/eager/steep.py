"""Compute thresholds and derivatives for alphas above 2 without cancellation.

Let `q` be the smallest probability of the support, `z_s` its score, and `eps = alpha - 1`. The power `q^eps` is far
below the rounding of the threshold: at alpha 10, `q = 0.01` gives `q^eps = 1e-18`. The unknown is therefore `q` itself:

    p_i = (q^eps + eps (z_i - z_s))^{1/eps}   for z_i >= z_s, else 0.

Both terms are positive, and `z_i - z_s` is computed from the original scores. In the Jacobian `diag(s) - s s^T / sum
s`, `s = p^{2-alpha}` overflows for small p. Therefore, only ratios to the largest `s` of a row are used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.entropy import expm1_over_slope

STEPS = 100  # maximum number of Newton steps; about five are enough
HALVINGS = 60  # bisection steps from 1 down to float64's rounding
# Maximum logarithm of a slope; products with the slope must not overflow.
LARGEST = {torch.float64: 600.0, torch.float32: 80.0}


def solve_steep(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor]:
    """Return probabilities of rows [rows, d], and the threshold c [rows, 1] of `scores - max(scores)`.

    `alpha` is above 2. Rows of -inf return zeros; rows with a NaN or infinity return NaN.
    """
    eps = _eps(alpha, scores)
    top = scores.amax(-1, keepdim=True)
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    least, mass = _smallest_support_score(_largest_scores(finite, top, eps), eps, 1.0)
    x, above, ties = _compare_with_smallest(finite, least, eps)
    num_ties = ties.sum(-1, keepdim=True).to(x.dtype)
    # The sum is convex in q and at least `mass + num_ties q`, so Newton steps from above converge.
    q = ((1 - mass) / num_ties).minimum(1 / (above.sum(-1, keepdim=True) + num_ties))
    tolerance, tiny = 4 * torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    for _ in range(STEPS):
        power = q**eps
        u = x + power
        p = (u ** (1 / eps)).mul_(above)
        excess = p.sum(-1, keepdim=True) + num_ties * q - 1
        slope = p.mul_(power / u).sum(-1, keepdim=True) / q + num_ties
        q = (q - (excess / slope).clamp_(min=0)).clamp_(min=tiny)
        if not bool((excess > tolerance).any()):
            break
    p = _probabilities(x, above, ties, q, eps)
    empty = top == -torch.inf
    p.div_(p.sum(-1, keepdim=True)).masked_fill_(empty, 0).masked_fill_(top == torch.inf, torch.nan)
    c = -torch.expm1(eps * p.amax(-1, keepdim=True).log()) / eps
    return p, c.masked_fill_(empty, 0)


def solve_steep_budget(scores: Tensor, alpha: Alpha, budget: float, pivot: Tensor) -> Tensor:
    """Return `min(1, p)` with rows that sum to a positive budget; `p` is defined as in :func:`solve_steep`.

    `pivot` [rows, 1] is the k-th largest score, k = ceil(budget). Rows with a pivot of -inf are not solved.
    """
    eps = _eps(alpha, scores)
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    least, _ = _smallest_support_score(_largest_scores(finite, pivot, eps), eps, budget)
    x, above, ties = _compare_with_smallest(finite, least, eps)
    low, high = torch.zeros_like(least), torch.ones_like(least)
    for _ in range(HALVINGS):  # bisect, because the cap makes the sum not convex in q
        middle = (low + high) / 2
        exceeds_budget = _probabilities(x, above, ties, middle, eps).clamp_(max=1).sum(-1, keepdim=True) > budget
        low, high = torch.where(exceeds_budget, low, middle), torch.where(exceeds_budget, middle, high)
    return _probabilities(x, above, ties, high, eps).clamp_(max=1)


def _eps(alpha: Alpha, like: Tensor) -> Alpha:
    return (alpha.to(like.dtype) if isinstance(alpha, Tensor) else alpha) - 1


def _largest_scores(scores: Tensor, pivot: Tensor, eps: Alpha) -> Tensor:
    """Return the largest scores of rows, sorted; scores with probability 0, far below the pivot, may be missing."""
    near = ((scores - pivot) * eps > -1) & (pivot > -torch.inf)
    return scores.topk(max(int(near.sum(-1).amax()), 1) if len(scores) else 1, -1).values


def _smallest_support_score(best: Tensor, eps: Alpha, budget: float) -> tuple[Tensor, Tensor]:
    """Return the smallest score of each row's support [rows, 1], and the row's sum at that threshold.

    `best` holds the largest scores of each row, sorted. A score is in the support if the sum with the threshold at that
    score is below the budget. The sums grow along `best`.
    """
    first = torch.zeros_like(best[:, :1], dtype=torch.long)
    last = torch.full_like(first, best.shape[-1])
    mass = torch.zeros_like(best[:, :1])
    for _ in range((best.shape[-1] - 1).bit_length()):
        middle = (first + last) // 2
        x = (best - best.gather(-1, middle)).clamp_(min=0)
        total = x.mul_(eps).pow_(1 / eps).clamp_(max=1).sum(-1, keepdim=True)
        inside = total < budget
        mass = torch.where(inside, total, mass)
        first, last = torch.where(inside, middle, first), torch.where(inside, last, middle)
    return best.gather(-1, first), mass


def _compare_with_smallest(scores: Tensor, smallest: Tensor, eps: Alpha) -> tuple[Tensor, Tensor, Tensor]:
    """Return `eps (z - z_s)`, and masks of the scores above `z_s` and equal to it."""
    above, ties = scores > smallest, scores == smallest
    return torch.where(above, (scores - smallest) * eps, 1), above, ties


def _probabilities(x: Tensor, above: Tensor, ties: Tensor, q: Tensor, eps: Alpha) -> Tensor:
    # Set entries at z_s to q itself, because the power of a small q may underflow to 0.
    return torch.where(above, (x + q**eps) ** (1 / eps), torch.where(ties, q, 0))


def apply_jacobian(probs: Tensor, vector: Tensor, alpha: Alpha, inside: Tensor) -> Tensor:
    r"""Return `s (v - (s.v) / sum s)` for any alpha, differentiable; `s` is `p^{2-alpha}` inside and 0 elsewhere.

    The entry with the largest `s` is computed as minus the sum of all other entries, because direct
    subtraction would lose digits.
    """
    log_s = torch.where(inside, (2 - alpha) * torch.where(inside, probs, 1).log(), -torch.inf)
    top, first = log_s.detach().max(-1, keepdim=True)
    share = (log_s - torch.where(top == -torch.inf, 0, top)).exp()
    total = share.sum(-1, keepdim=True)
    share = share / torch.where(total > 0, total, 1)
    difference = vector - vector.gather(-1, first)
    s = log_s.clamp(max=LARGEST.get(probs.dtype, 80.0)).exp().scatter(-1, first, 0)
    result = s * (difference - (share * difference).sum(-1, keepdim=True))
    return result.scatter(-1, first, -result.sum(-1, keepdim=True))


def alpha_direction(probs: Tensor, alpha: Alpha, inside: Tensor) -> Tensor:
    r"""Return a vector v of scores such that `dp / d alpha` is the Jacobian J times v.

    `v = -k` with `k = log^2 p ((x - 1) e^x + 1) / x^2` and `x = eps log p`. Above alpha 2, the constant `1 / eps^2` is
    added, because k is close to this constant for small p, and J maps constants to 0.
    """
    eps = alpha - 1
    log_p = torch.where(inside, probs, 1).log()
    if isinstance(eps, float):
        x = eps * log_p
        return torch.where(inside, x.exp() * (1 - x) / (eps * eps), 0)
    steep = eps > 1
    x = torch.where(steep, eps, 1) * log_p
    steep_direction = x.exp() * (1 - x) / torch.where(steep, eps, 1).square()
    x = (torch.where(steep, 0, eps) * log_p).clamp(max=LARGEST.get(probs.dtype, 80.0))
    return torch.where(inside, torch.where(steep, steep_direction, -log_p * log_p * expm1_over_slope(x)), 0)
