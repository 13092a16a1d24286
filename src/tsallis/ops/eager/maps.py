"""Compute maps such as entmax with PyTorch operations, on any device and for any positive alpha.

:func:`entmax` and its gradient accept scores of any shape. Other functions take rows: `scores` is [rows, d] in float32
or float64, and `alpha` is a float or a [rows, 1] tensor. Masked scores are -inf.

Most entries of a long row can't be in the support. The threshold of a subset of a row is at most the threshold of the
whole row. The threshold of a few hundred maxima is therefore a lower bound, which excludes most entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.entropy import SERIES_BELOW, series
from tsallis.ops.eager.steep import alpha_direction, apply_jacobian, solve_steep_budget
from tsallis.ops.eager.thresholds import TINY_EPS, threshold
from tsallis.ops.transforms import traced, without_numbers

LONG = 256  # shorter rows are not compacted, because compacting would cost more than it saves
DENSE_SHARE = 4  # rows are compacted if at most 1 / DENSE_SHARE of the entries are candidates
NEARLY_DENSE = 1.1  # below this alpha, nearly every probability is non-zero


class CompactIndex(NamedTuple):
    """Positions of the candidates of compacted rows; all other probabilities are zero."""

    position: Tensor  # [n] flat positions in [rows, d]
    slot: Tensor  # [n] flat positions in the table [rows, width]
    width: int

    def gather(self, rows: Tensor, fill: float = 0.0) -> Tensor:
        table = rows.new_full((rows.shape[0], self.width), fill)  # [rows, width]
        table.view(-1)[self.slot] = rows.reshape(-1)[self.position]
        return table

    def scatter(self, table: Tensor, like: Tensor) -> Tensor:
        rows = torch.zeros_like(like, memory_format=torch.contiguous_format)  # [rows, d]
        rows.view(-1)[self.position] = table.reshape(-1)[self.slot]
        return rows


def compact(active: Tensor) -> CompactIndex | None:
    """Return the positions of the True entries of rows [rows, d], or None if there are too many."""
    rows, d = active.shape
    count = active.view(torch.int8).sum(-1, dtype=torch.int32).long()
    width = max(int(count.amax()), 1)
    if width * DENSE_SHARE > d:
        return None
    position = active.view(-1).nonzero().squeeze(-1)
    row = torch.arange(rows, device=active.device).repeat_interleave(count, output_size=position.numel())
    first = count.cumsum(0) - count
    slot = row * width + torch.arange(position.numel(), device=active.device) - first[row]
    return CompactIndex(position, slot, width)


def entmax(scores: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    """Return probabilities along a dimension of scores of any shape.

    The result's attribute `packed` holds the positions of candidates, so that the gradient need not search for them.
    """
    rows, packed = solve(to_rows(scores, dim), alpha)
    probs = from_rows(rows, scores, dim)
    if packed is not None:
        probs.packed = packed  # type: ignore[attr-defined]
    return probs


def entmax_gradient(
    probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, dim: int = -1
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of the scores, and the gradient of alpha [rows, 1] or None."""
    p, g = to_rows(probs, dim), to_rows(grad, dim)
    packed = getattr(probs, "packed", None)
    if packed is not None:
        p, g = packed.gather(p), packed.gather(g)
    dz, da = pullback(p, g, alpha, True) if need_alpha else (pullback_in_place(p, g, alpha), None)
    return from_rows(dz if packed is None else packed.scatter(dz, to_rows(probs, dim)), probs, dim), da


def take_index(probs: Tensor) -> CompactIndex | None:
    """Remove the attribute `packed` from the result of :func:`entmax`, and return it.

    Callers must get a plain tensor: safe loading rejects tensors with other objects.
    """
    packed: CompactIndex | None = getattr(probs, "packed", None)
    if packed is not None:
        del probs.packed  # type: ignore[attr-defined]
    return packed


def to_rows(x: Tensor, dim: int) -> Tensor:
    """Return a tensor as rows [rows, d] along `dim`, in its compute dtype."""
    moved = x.movedim(dim, -1)
    return upcast(moved.reshape(-1, moved.shape[-1]))


def from_rows(rows: Tensor, like: Tensor, dim: int) -> Tensor:
    """Reverse :func:`to_rows`: return rows in the shape and dtype of `like`."""
    return rows.reshape(like.movedim(dim, -1).shape).movedim(-1, dim).to(like.dtype)


def solve(scores: Tensor, alpha: Alpha) -> tuple[Tensor, CompactIndex | None]:
    """Return probabilities [rows, d], and the index of candidates if the rows were compacted."""
    if isinstance(alpha, float) and alpha == 1.0:
        return torch.softmax(scores, -1).masked_fill_(scores.amax(-1, keepdim=True) == -torch.inf, 0), None
    if scores.dtype == torch.float32 and steep(alpha):
        probs, packed = solve(scores.double(), alpha)
        return probs.float(), packed
    values, top, packed, start, table = candidates(scores, alpha)
    probs = threshold(values, alpha, start, table)[0]
    if packed is None:
        return _exactly_softmax_at_one(probs, scores, alpha), None
    probs = packed.scatter(probs, scores)
    nan_rows = ~(top < torch.inf)
    if nan_rows.any():  # a NaN makes its row and that row's gradients NaN
        return probs.masked_fill_(nan_rows, torch.nan), None
    return probs, packed


def pullback(
    probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, inside: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    r"""Return gradients of the scores and of alpha [rows, 1]: `s (g - delta)` and `-sum p psi (g - delta)`.

    `s = p^{2-alpha}` on the support, `delta = (s.g) / sum s`. The operations are differentiable to every order.
    `inside` marks the entries that depend on their scores, including NaN entries; the default is the whole support.
    """
    inside = probs != 0 if inside is None else inside
    if maybe_steep(alpha):
        p, g = (upcast_steep(x, alpha) for x in (probs, grad))
        dz = apply_jacobian(p, g, alpha, inside)
        da = (dz * alpha_direction(p, alpha, inside)).sum(-1, keepdim=True) if need_alpha else None
        return dz.to(probs.dtype), None if da is None else da.to(probs.dtype)
    s = slope(probs, inside, alpha)
    total = s.sum(-1, keepdim=True)
    nonzero = total > 0
    delta = (s * grad).sum(-1, keepdim=True) / torch.where(nonzero, total, 1)
    centred = grad - delta
    if not need_alpha:
        return s * centred, None
    return s * centred, -(alpha_curvature(probs, inside, alpha) * centred).sum(-1, keepdim=True)


def pullback_in_place(probs: Tensor, grad: Tensor, alpha: Alpha) -> Tensor:
    """Return only the gradient of the scores, for common alphas, in fewer passes than `pullback`."""
    if isinstance(alpha, float) and alpha == 1.0:
        weighted = probs * grad
        return weighted.addcmul_(probs, weighted.sum(-1, keepdim=True), value=-1)
    if isinstance(alpha, float) and alpha in (1.5, 2.0):
        s = probs.sqrt() if alpha == 1.5 else probs.ceil()
        total = s.sum(-1, keepdim=True).clamp_(min=torch.finfo(s.dtype).tiny)
        return s.mul_(grad - (s * grad).sum(-1, keepdim=True).div_(total))
    return pullback(probs, grad, alpha, False)[0]


def pushforward(
    probs: Tensor, tangent: Tensor | None, alpha: Alpha, alpha_tangent: Tensor | None, inside: Tensor | None = None
) -> Tensor:
    """Return the derivative of the probabilities along tangents of the scores [rows, d] and of alpha [rows, 1]."""
    inside = probs != 0 if inside is None else inside
    if maybe_steep(alpha):
        p = upcast_steep(probs, alpha)
        direction = torch.zeros_like(p) if tangent is None else tangent.to(p.dtype)
        if alpha_tangent is not None:
            direction = direction + alpha_direction(p, alpha, inside) * alpha_tangent
        return apply_jacobian(p, direction, alpha, inside).to(probs.dtype)
    s = slope(probs, inside, alpha)
    total = s.sum(-1, keepdim=True)
    share = s / torch.where(total > 0, total, 1)
    result = torch.zeros_like(probs)
    if tangent is not None:
        result = result + s * (tangent - (share * tangent).sum(-1, keepdim=True))
    if alpha_tangent is not None:
        curvatures = alpha_curvature(probs, inside, alpha)
        result = result + (share * curvatures.sum(-1, keepdim=True) - curvatures) * alpha_tangent
    return result


def slope(probs: Tensor, inside: Tensor, alpha: Alpha) -> Tensor:
    r"""Return `p^{2-alpha}` on the support and 0 elsewhere: the inverse curvature of the entropy."""
    if isinstance(alpha, float) and alpha == 2.0:
        return torch.where(inside, probs.ceil(), 0)
    safe = torch.where(inside, probs, 1)
    # Add 0 * safe to keep NaN, because NaN ** 0 is 1.
    power = safe.sqrt() if isinstance(alpha, float) and alpha == 1.5 else safe ** (2 - alpha) + 0 * safe
    return torch.where(inside, power, 0)


def alpha_curvature(probs: Tensor, inside: Tensor, alpha: Alpha) -> Tensor:
    r"""Return -dp/d alpha at a fixed threshold: `p log^2 p phi(eps log p)` with `phi(x) = (e^-x - 1 + x) / x^2`."""
    eps = alpha - 1
    log_p = torch.where(inside, probs, 1).log()
    x = eps * log_p
    near_zero = x.abs() < SERIES_BELOW
    small = probs * log_p * log_p * series(torch.where(near_zero, x, 0), lambda n: (-1) ** n / math.factorial(n + 2))
    # Compute p phi(x) from p e^-x = p^{2-alpha}, which doesn't overflow for tiny p.
    large = (torch.exp(torch.where(near_zero, 0, log_p - x)) - probs + probs * x) / torch.where(near_zero, 1, eps * eps)
    return torch.where(inside, torch.where(near_zero, small, large), 0)


def budgeted_entmax(scores: Tensor, alpha: Alpha, budget: float) -> Tensor:
    r"""Return `min(1, exp_alpha(z - c))` with `c` such that rows sum to `budget`.

    If a row has fewer finite scores than the budget, their values are 1. The sum is not convex in `c`, so `c` is found
    by bisection. The k-th largest score, k = ceil(budget), gives the bracket: if `1 + eps (z_k - c)` is 1, at least k
    entries are 1; if it is 0, fewer than k entries are positive.
    """
    if budget == 0:
        return torch.zeros_like(scores).masked_fill_(scores.isnan().any(-1, keepdim=True), torch.nan)
    exact = scores.double()  # the function is steep, so float32 scores need float64 thresholds
    count = min(math.ceil(budget), scores.shape[-1])
    pivot = exact.topk(count, -1).values[..., -1:]
    filled = pivot == -torch.inf  # the budget is at least the number of finite scores
    if isinstance(alpha, float):
        probs = (_solve_budget if alpha <= 2 else solve_steep_budget)(exact, alpha, budget, pivot)
    else:
        probs = _solve_budget(exact, alpha.clamp(max=2), budget, pivot)
        rows = (alpha > 2).squeeze(-1)
        if rows.any():
            probs[rows] = solve_steep_budget(exact[rows], alpha[rows], budget, pivot[rows])
    probs = torch.where(filled, (scores > -torch.inf).to(probs.dtype), probs)
    return probs.masked_fill(scores.isnan().any(-1, keepdim=True), torch.nan).to(scores.dtype)


def _solve_budget(scores: Tensor, alpha: Alpha, budget: float, pivot: Tensor) -> Tensor:
    count, d = min(math.ceil(budget), scores.shape[-1]), scores.shape[-1]
    values = scores - torch.where(pivot == -torch.inf, 0, pivot)
    eps = torch.as_tensor(alpha, dtype=scores.dtype, device=scores.device).sub(1)
    eps = torch.where(eps == 0, eps, eps.clamp(min=TINY_EPS))
    # As exp_alpha(u) <= exp(u), the sum can't exceed the budget if c is log(d / (budget - k + 1)) above z_k.
    max_shift = math.log(d) - math.log(budget - count + 1) if budget < d else 1.0
    low = torch.zeros_like(pivot)
    high = (1 / eps.clamp(min=TINY_EPS)).clamp(max=max_shift).expand_as(low)
    for _ in range(64):
        middle = (low + high) / 2
        above = _exp_alpha(values - middle, eps).clamp_(max=1).sum(-1, keepdim=True) > budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return _exp_alpha(values - (low + high) / 2, eps).clamp_(max=1)


def _exp_alpha(u: Tensor, eps: Tensor) -> Tensor:
    """Return `[1 + eps u]_+^{1/eps}`, or `e^u` if eps is 0."""
    logarithm = (u * eps).clamp_(min=-1).log1p_().div_(eps.clamp(min=TINY_EPS))
    return torch.where(eps == 0, u, logarithm).exp_()


def candidates(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, CompactIndex | None, Tensor | None, Tensor]:
    """Return scores minus their row's maximum, for whole rows or for candidates of the support.

    Also return the maxima, the positions of the candidates, a lower bound of the threshold, and the candidates' scores.
    """
    rows, d = scores.shape
    if d < LONG or rows == 0 or (alpha if isinstance(alpha, float) else float(alpha.amin())) < NEARLY_DENSE:
        return _uncompacted(scores, scores.amax(-1, keepdim=True), None)
    lanes = 256 if d >= 8192 else 64
    blocks = d // lanes
    maxima = scores[:, : blocks * lanes].unflatten(-1, (blocks, lanes)).amax(1)  # [rows, lanes]
    if blocks * lanes < d:
        maxima = torch.cat([maxima, scores[:, blocks * lanes :].amax(-1, keepdim=True)], -1)
    top = maxima.amax(-1, keepdim=True)
    start = threshold(maxima - torch.where(top == -torch.inf, 0, top), alpha)[1]
    bound = start - 1 / (alpha - 1)
    # Allow for the rounding of the bound and of its sum with a large maximum.
    slack = 1e-5 + 4 * torch.finfo(scores.dtype).eps * top.abs()
    keep = scores > top + bound - slack
    packed = compact(keep)
    if packed is None:
        return _uncompacted(scores, top, start)
    table = packed.gather(scores, -torch.inf)
    return table - torch.where(top == -torch.inf, 0, top), top, packed, start, table


def _uncompacted(
    scores: Tensor, top: Tensor, start: Tensor | None
) -> tuple[Tensor, Tensor, None, Tensor | None, Tensor]:
    return scores - torch.where(top == -torch.inf, 0, top), top, None, start, scores


def steep(alpha: Alpha) -> bool:
    """Return whether alpha is above 2; then float32 differences are too inexact for small probabilities."""
    return alpha > 2 if isinstance(alpha, float) else bool((alpha > 2).any())


def maybe_steep(alpha: Alpha) -> bool:
    """Return whether an alpha may be above 2; True for tensors that can't be read without waiting."""
    return _is_unreadable(alpha) or steep(alpha)


def upcast_steep(x: Tensor, alpha: Alpha) -> Tensor:
    """Return a tensor in float64 if an alpha is known to be above 2, because its powers magnify rounding."""
    return x if _is_unreadable(alpha) else x.double()


def _is_unreadable(alpha: Alpha) -> bool:
    return isinstance(alpha, Tensor) and (alpha.is_cuda or traced() or without_numbers(alpha))


def _exactly_softmax_at_one(probs: Tensor, scores: Tensor, alpha: Alpha) -> Tensor:
    if isinstance(alpha, Tensor):
        ones = (alpha == 1).squeeze(-1)
        if ones.any():
            probs[ones] = solve(scores[ones], 1.0)[0]
    return probs
