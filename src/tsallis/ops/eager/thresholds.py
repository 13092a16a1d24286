"""Find thresholds of rows whose largest score is 0, by Newton steps or by sorting, with PyTorch operations.

Probabilities are `p = exp_alpha(v - c)` with `v = scores - max(scores)`, `exp_alpha(u) = [1 + eps u]_+^{1/eps}` and
`eps = alpha - 1`. In this form the threshold `c` needs no special case at alpha = 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.steep import solve_steep

SMALL = 8192  # smaller inputs are sorted, which takes fewer operations than Newton steps
NEWTON_LIMIT = 60
TINY_EPS = 1e-10  # minimum of |alpha - 1|: log1p(TINY_EPS u) / TINY_EPS equals u up to rounding


def threshold(
    values: Tensor, alpha: Alpha, start: Tensor | None = None, scores: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return probabilities of scores whose maximum is 0, and the threshold c [rows, 1]. Rows of -inf return zeros.

    `start` is an optional lower bound of c. `scores` are the values before the maximum was subtracted; alphas above 2
    need them, because the rounding of the differences would change the result.
    """
    start = torch.zeros_like(values[:, :1]) if start is None else start
    if isinstance(alpha, float):
        if alpha == 2.0:
            return _solve_two(values, start)
        if alpha == 1.5:
            return _solve_three_halves(values, start)
        if alpha <= 2:
            return _solve_convex(values, alpha, start)
        return solve_steep(values if scores is None else scores, alpha)
    steep = (alpha > 2).squeeze(-1)
    probs, c = _solve_convex(values, alpha.clamp(max=2), start)
    if steep.any():
        probs[steep], c[steep] = solve_steep((values if scores is None else scores)[steep], alpha[steep])
    return probs, c


def _tolerance(values: Tensor, quadratic: bool) -> float:
    """Return the tolerance of a row's sum before the last Newton step; a quadratic step squares the error."""
    eps = torch.finfo(values.dtype).eps
    return math.sqrt(eps) / 4 if quadratic else 8 * eps


def _normalise(probs: Tensor, mass: Tensor) -> Tensor:
    return probs.div_(mass.clamp_(min=0.5))  # rows of -inf have sum 0 and stay 0


def _solve_two(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    if x.numel() < SMALL:
        # A row's threshold is the maximum over k of the threshold of its k largest scores.
        best = x.clamp(min=-1).sort(-1, descending=True).values
        tau = best.cumsum(-1).sub_(1).div_(_ranks(best)).amax(-1, keepdim=True)
        u = (x - tau).clamp_(min=0)
        return _normalise(u, u.sum(-1, keepdim=True)), 1 + tau
    tau = start - 1
    tolerance = _tolerance(x, quadratic=False)
    for _ in range(NEWTON_LIMIT):
        u = (x - tau).clamp_(min=0)
        size = (u > 0).to(x.dtype).sum(-1, keepdim=True).clamp_(min=1)
        excess = u.sum(-1, keepdim=True) - 1
        # Set tau to the exact threshold of the current support. Entries only leave the support, so the loop ends.
        tau = tau + excess.clamp(min=-0.5) / size
        if not bool((excess > tolerance).any()):
            break
    u = (x - tau).clamp_(min=0)
    return _normalise(u, u.sum(-1, keepdim=True)), 1 + tau


def _solve_three_halves(values: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    x = values * 0.5
    if x.numel() < SMALL:
        return _solve_three_halves_sorted(x)
    tau = start / 2 - 1
    tolerance = _tolerance(x, quadratic=True)
    for _ in range(NEWTON_LIMIT):
        u = (x - tau).clamp_(min=0)
        total = u.sum(-1, keepdim=True)
        norm = u.square_().sum(-1, keepdim=True).sqrt_()
        # Take a Newton step on the 2-norm of u; this norm is convex and nearly linear in tau.
        tau = tau + norm * (norm - 1) / total.clamp(min=torch.finfo(x.dtype).tiny)
        if not bool((((norm - 1).abs() > tolerance) & (total > 0)).any()):
            break
    p = (x - tau).clamp_(min=0).square_()
    return _normalise(p, p.sum(-1, keepdim=True)), 2 * (1 + tau)


def _solve_three_halves_sorted(x: Tensor) -> tuple[Tensor, Tensor]:
    best = x.clamp(min=-1).sort(-1, descending=True).values
    k = _ranks(best)
    mean = best.cumsum(-1).div_(k)
    squared_deviations = best.square().cumsum_(-1).addcmul_(k * mean, mean, value=-1)
    taus = mean.sub_(((1 - squared_deviations) / k).clamp_(min=0).sqrt_())
    size = (taus < best).sum(-1, keepdim=True).clamp_(min=1)
    tau = taus.gather(-1, size - 1)
    u = (x - tau).clamp_(min=0)
    norm = u.square().sum(-1, keepdim=True).sqrt_()
    # `squared_deviations` is a difference of sums; one Newton step removes its rounding error.
    tau = tau + norm * (norm - 1) / u.sum(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny)
    p = (x - tau).clamp_(min=0).square_()
    return _normalise(p, p.sum(-1, keepdim=True)), 2 * (1 + tau)


def _ranks(rows: Tensor) -> Tensor:
    return torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)


def _solve_convex(values: Tensor, alpha: Alpha, start: Tensor) -> tuple[Tensor, Tensor]:
    eps = nonzero_eps(alpha)
    smooth = alpha <= 1.5 if isinstance(alpha, float) else bool((alpha <= 1.5).all())
    tolerance = _tolerance(values, smooth)
    tiny = torch.finfo(values.dtype).tiny
    c = start
    for _ in range(NEWTON_LIMIT):
        u = ((values - c) * eps).clamp_(min=-1)
        p = u.log1p().div_(eps).exp_()
        mass = p.sum(-1, keepdim=True)
        weight = p.div_(u.add_(1).clamp_(min=tiny)).sum(-1, keepdim=True)
        log_mass = mass.clamp(min=tiny).log()
        # The Newton step on the norm is F (1 - F^-eps) / (eps G), or log F at alpha = 1. For alpha below 1, F^eps is
        # concave in c and rises to 1 at the threshold, so these steps don't overshoot either.
        step = mass * torch.expm1(-eps * log_mass) / (eps * weight.clamp(min=tiny))
        c = c - torch.where(mass > 0, step, 0)  # the step may be 0 / 0 in rows of -inf
        if not bool(((log_mass.abs() > tolerance) & (mass > 0)).any()):
            break
    p = ((values - c) * eps).clamp_(min=-1).log1p_().div_(eps).exp_()
    return _normalise(p, p.sum(-1, keepdim=True)), c


def nonzero_eps(alpha: Alpha) -> Alpha:
    """Return `alpha - 1`, at least `TINY_EPS` away from 0."""
    eps = alpha - 1
    if isinstance(eps, float):
        return eps if abs(eps) > TINY_EPS else TINY_EPS
    return eps.masked_fill(eps.abs() < TINY_EPS, TINY_EPS)
