"""Compute every operation naively in float64, as a reference for tests and benchmarks.

The code is simple, not fast. A threshold is found by bisection without a graph. Two Newton steps inside the graph then
let autograd compute derivatives of every order in the scores and in alpha.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BISECTIONS = 200


def _to_float64(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.double()
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=scores.device)
    if alpha.dim() > 0 and alpha.shape[-1] != 1:
        raise ValueError(f"alpha must have size 1 along the last dimension, got {tuple(alpha.shape)}")
    return scores, alpha.expand(*scores.shape[:-1], 1)


def exp_alpha(u: Tensor, alpha: Tensor) -> Tensor:
    r"""Return `[1 + (alpha-1) u]_+^{1/(alpha-1)}`, and `exp(u)` at alpha = 1, with derivatives of every order."""
    eps = alpha - 1
    inside = 1 + eps * u > 0
    u = torch.where(inside, u, torch.zeros_like(u))
    x = eps * u
    # log1p(x)/eps = u * (log1p(x)/x). Near 0, use the Taylor series of log1p(x)/x, whose singularity is removable.
    near_zero = x.abs() < 1e-2
    far = torch.where(near_zero, torch.ones_like(x), x)
    series = torch.zeros_like(x)
    for n in range(12, -1, -1):
        series = series * torch.where(near_zero, x, torch.zeros_like(x)) + (-1.0) ** n / (n + 1)
    ratio = torch.where(near_zero, series, torch.log1p(far) / far)
    return torch.where(inside, torch.exp(u * ratio), torch.zeros_like(u))


def entmax(scores: Tensor, alpha: float | Tensor = 1.5) -> Tensor:
    r"""Return `argmax_p p.z + H_alpha(p)` over the last dimension, in float64, differentiable to every order.

    Scores of -inf get probability 0; a row with only -inf returns zeros.
    """
    scores, alpha = _to_float64(scores, alpha)
    active = scores > -torch.inf
    empty = ~active.any(-1, keepdim=True)
    z = torch.where(active, scores, torch.zeros_like(scores))
    top = torch.where(active, scores, -torch.inf).amax(-1, keepdim=True).detach()
    z = z - torch.where(empty, torch.zeros_like(top), top)

    eps = alpha - 1
    steep = eps > 1
    # Above alpha 2, use the smallest score of the support instead of the threshold. The difference between them is a
    # power of this score's probability, often too small for float64.
    least = _smallest_support_index(z, active, torch.where(steep, eps, torch.ones_like(eps)))
    base = z.gather(-1, least)

    # Solve for y = -log p. Here p is the largest probability, or above alpha 2 the smallest one in the support.
    def probabilities(y: Tensor) -> Tensor:
        steep_eps = torch.where(steep, eps, torch.ones_like(eps))
        x = (steep_eps * (z - base)).scatter(-1, least, 0.0)
        inside = active & (x >= 0)
        u = torch.exp(-steep_eps * y) + torch.where(inside, x, torch.zeros_like(x))
        power = torch.where(inside, u ** (1 / steep_eps), torch.zeros_like(z))
        small_eps = torch.where(steep, torch.ones_like(eps), eps)
        ratio = -torch.expm1(-small_eps * y) / torch.where(small_eps == 0, torch.ones_like(small_eps), small_eps)
        c = torch.where(small_eps.abs() < 1e-9, y, ratio)
        return torch.where(steep, power, torch.where(active, exp_alpha(z - c, alpha), torch.zeros_like(z)))

    with torch.no_grad():
        low = torch.zeros_like(alpha)
        high = torch.full_like(alpha, math.log(max(scores.shape[-1], 1)))
        high = torch.where(steep, high + 300 / eps, high)  # keeps p^eps above 0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = probabilities(middle).sum(-1, keepdim=True) > 1
            low = torch.where(above, middle, low)
            high = torch.where(above, high, middle)
        y = (low + high) / 2
    for _ in range(2):
        p = probabilities(y)
        inside = p > 0
        weight = torch.where(inside, torch.where(inside, p, torch.ones_like(p)) ** (2 - alpha), torch.zeros_like(p))
        total = torch.where(empty, torch.ones_like(y), weight.sum(-1, keepdim=True)) * torch.exp(-eps * y)
        y = y + (p.sum(-1, keepdim=True) - 1) / total * (~empty)
    return probabilities(y)


@torch.no_grad()
def _smallest_support_index(z: Tensor, active: Tensor, eps: Tensor) -> Tensor:
    """Return the index of the smallest score of the support [..., 1], for alphas of at least 2.

    A score is in the support if the probabilities sum to less than 1 when the threshold equals that score.
    """
    order = torch.where(active, z, -torch.inf).argsort(-1, descending=True)
    best = z.gather(-1, order)
    first, last = torch.zeros_like(order[..., :1]), active.sum(-1, keepdim=True)
    for _ in range(z.shape[-1].bit_length()):
        middle = (first + last) // 2
        mass = (eps * (best - best.gather(-1, middle))).clamp(min=0) ** (1 / eps)
        inside = torch.where(active.gather(-1, order), mass, 0).sum(-1, keepdim=True) < 1
        first, last = torch.where(inside, middle, first), torch.where(inside, last, middle)
    return order.gather(-1, first)


def tsallis_entropy(probs: Tensor, alpha: float | Tensor) -> Tensor:
    r"""Return `(1 - sum p^alpha) / (alpha (alpha-1))`; at alpha = 1, return Shannon's `-sum p log p`."""
    probs, alpha = _to_float64(probs, alpha)
    inside = probs > 0
    log_p = torch.where(inside, torch.where(inside, probs, torch.ones_like(probs)).log(), torch.zeros_like(probs))
    at_one = alpha == 1
    a = torch.where(at_one, torch.full_like(alpha, 2.0), alpha)
    # Use sum p - sum p^alpha, not 1 - sum p^alpha: dividing by alpha - 1 would magnify the rounding of sum p.
    difference = -(probs * torch.expm1((a - 1) * log_p)).sum(-1, keepdim=True)
    shannon = -(probs * log_p).sum(-1, keepdim=True)
    return torch.where(at_one, shannon, difference / (a * (a - 1))).squeeze(-1)


def entmax_loss(scores: Tensor, target: Tensor, alpha: float | Tensor = 1.5) -> Tensor:
    r"""Return the Fenchel-Young loss `(p - y).z + H(p) - H(y)` of each row; `target` holds classes or probabilities."""
    scores, alpha = _to_float64(scores, alpha)
    if not target.is_floating_point():
        target = torch.nn.functional.one_hot(target, scores.shape[-1])
    y = target.double()
    p = entmax(scores, alpha)
    z = torch.where(scores > -torch.inf, scores, torch.zeros_like(scores))
    # Subtracting a constant from the scores does not change the loss.
    z = z - z.amax(-1, keepdim=True).detach()
    return ((p - y) * z).sum(-1) + tsallis_entropy(p, alpha) - tsallis_entropy(y, alpha)


def alpha_relu(scores: Tensor, alpha: float = 1.5, tau: float | Tensor = 0.0) -> Tensor:
    r"""Return `[(alpha-1) z - tau]_+^{1/(alpha-1)}` for each score."""
    u = (alpha - 1) * scores.double() - tau
    inside = u > 0
    return torch.where(inside, torch.where(inside, u, torch.ones_like(u)) ** (1 / (alpha - 1)), torch.zeros_like(u))


def alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float = 1.5, tau: float | Tensor = 0.0) -> Tensor:
    r"""Return `(r - e_y).(z - tau/(alpha-1)) + (1 - sum r^alpha)/(alpha (alpha-1))` of each row."""
    scores = scores.double()
    r = alpha_relu(scores, alpha, tau)
    y = torch.nn.functional.one_hot(target, scores.shape[-1]).double()
    z = torch.where(scores > -torch.inf, scores, torch.zeros_like(scores)) - tau / (alpha - 1)
    inside = r > 0
    power = torch.where(inside, torch.where(inside, r, torch.ones_like(r)) ** alpha, torch.zeros_like(r)).sum(-1)
    return ((r - y) * z).sum(-1) + (1 - power) / (alpha * (alpha - 1))


def normmax(scores: Tensor, alpha: float = 2.0) -> Tensor:
    r"""Return `argmax_p p.z - ||p||_alpha`; bisection finds tau with `sum [z - tau]_+^{alpha/(alpha-1)} = 1`."""
    z = scores.double()
    top = z.amax(-1, keepdim=True).detach()
    z = z - top
    low, high = torch.full_like(top, -1.0), torch.zeros_like(top)

    def mass(tau: Tensor) -> Tensor:
        return ((z - tau).clamp(min=0) ** (alpha / (alpha - 1))).sum(-1, keepdim=True)

    with torch.no_grad():
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = mass(middle) > 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        tau = (low + high) / 2
    r = alpha / (alpha - 1)
    for _ in range(2):
        u = (z - tau).clamp(min=0)
        tau = tau + ((u**r).sum(-1, keepdim=True) - 1) / (r * (u ** (r - 1)).sum(-1, keepdim=True))
    u = z - tau
    inside = u > 0
    q = torch.where(inside, torch.where(inside, u, torch.ones_like(u)) ** (1 / (alpha - 1)), torch.zeros_like(u))
    return q / q.sum(-1, keepdim=True)


def budgeted_entmax(scores: Tensor, alpha: float | Tensor = 1.5, budget: float = 2) -> Tensor:
    r"""Return `argmax p.z + H_alpha(p)` over `0 <= p <= 1, sum p = budget`."""
    z, alpha = _to_float64(scores, alpha)
    eps = (alpha - 1).clamp(min=1e-12)
    z = z - z.amax(-1, keepdim=True).detach()
    low, high = z.amin(-1, keepdim=True).detach() - 1 / eps * 0 - 1, torch.full_like(alpha, 0.0) + 1 / eps
    high = torch.where(alpha == 1, torch.full_like(high, 50.0), high)

    def clip(c: Tensor) -> Tensor:
        return exp_alpha(z - c, alpha).clamp(max=1)

    with torch.no_grad():
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = clip(middle).sum(-1, keepdim=True) > budget
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        c = (low + high) / 2
    for _ in range(2):
        p = clip(c)
        inside = (p > 0) & (p < 1)
        weight = torch.where(inside, torch.where(inside, p, torch.ones_like(p)) ** (2 - alpha), torch.zeros_like(p))
        total = weight.sum(-1, keepdim=True)
        nonzero = total > 0
        step = (p.sum(-1, keepdim=True) - budget) / torch.where(nonzero, total, torch.ones_like(total))
        c = c + torch.where(nonzero, step, torch.zeros_like(step))
    return clip(c)
