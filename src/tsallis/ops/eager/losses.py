"""Compute the entmax loss with PyTorch operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.entropy import entropy_alpha_gradient
from tsallis.ops.eager.maps import CompactIndex, candidates, solve, steep
from tsallis.ops.eager.thresholds import threshold


class LossStats(NamedTuple):
    """Probabilities [rows, d], or probabilities of the candidates [rows, width] with their `CompactIndex`."""

    probs: Tensor
    position: Tensor | None
    slot: Tensor | None
    width: int

    def rows(self, like: Tensor) -> Tensor:
        """Return all probabilities [rows, d]; a row with a NaN is all NaN."""
        if self.position is None or self.slot is None:
            return self.probs
        return CompactIndex(self.position, self.slot, self.width).scatter(self.probs, like)


def entmax_loss(
    scores: Tensor, target: Tensor, alpha: Alpha, need_alpha: bool, save_support: bool = False
) -> tuple[Tensor, LossStats, Tensor | None]:
    """Return three values: losses [rows], 0 for negative targets; statistics; and dL/d alpha or None."""
    loss, probs, packed = solve_loss(upcast(scores), target, alpha)
    stats = LossStats(probs, None, None, 0) if packed is None else LossStats(probs, *packed)
    if not need_alpha:
        return loss, stats, None
    return loss, stats, torch.where(_has_loss(scores, target).unsqueeze(-1), entropy_alpha_gradient(probs, alpha), 0)


def entmax_loss_gradient(
    scores: Tensor, target: Tensor, alpha: Alpha, stats: LossStats, grad: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of the scores, (p - e_y) times the gradients of the losses [rows]."""
    stats = LossStats(*stats)
    has_loss = _has_loss(scores, target).unsqueeze(-1)
    weight = torch.where(has_loss, grad.unsqueeze(-1), 0)
    dz = LossStats(stats.probs * weight, *stats[1:]).rows(upcast(scores))
    nan_rows = stats.probs[:, :1].isnan()  # if a row has a NaN, all its entries are NaN
    if nan_rows.any():
        dz.masked_fill_(nan_rows & has_loss, torch.nan).masked_fill_(nan_rows & ~has_loss, 0)
    return dz.scatter_add_(-1, target.clamp(min=0).unsqueeze(-1), -weight).to(scores.dtype)


def _has_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Return a mask of the rows that have a loss: rows with a target and a finite score."""
    has_loss = target >= 0
    impossible = (scores.gather(-1, target.clamp(min=0).unsqueeze(-1)) == -torch.inf).squeeze(-1)
    if impossible.any():
        has_loss &= scores.amax(-1) != -torch.inf
    return has_loss


def pullback(
    scores: Tensor, target: Tensor, alpha: Alpha, probs: Tensor, grad: Tensor, need_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """Return gradients of the scores [rows, d] and of alpha [rows, 1]; they are differentiable if `probs` is."""
    has_loss = ((target >= 0) & (scores.detach().amax(-1) != -torch.inf)).unsqueeze(-1)
    gold = torch.zeros_like(probs).scatter(-1, target.clamp(min=0).unsqueeze(-1), 1.0)
    weight = grad.unsqueeze(-1)
    dz = torch.where(has_loss, (probs - gold) * weight, 0)
    if not need_alpha:
        return dz, None
    return dz, torch.where(has_loss, entropy_alpha_gradient(probs, alpha) * weight, 0)


def solve_loss(scores: Tensor, target: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, CompactIndex | None]:
    """Compute the Fenchel-Young loss of class targets [rows], and the probabilities; ignore negative targets.

    If the rows were compacted, the probabilities are a table [rows, width] for `CompactIndex`. Rows with a NaN are all
    NaN.
    """
    if scores.dtype == torch.float32 and steep(alpha):
        loss, probs, packed = solve_loss(scores.double(), target, alpha)
        return loss.float(), probs.float(), packed
    if isinstance(alpha, float) and alpha == 1.0:
        top, packed = scores.amax(-1, keepdim=True), None
        values = scores - torch.where(top == -torch.inf, 0, top)
        probs, c = solve(scores, alpha)[0], values.logsumexp(-1, keepdim=True)
    else:
        values, top, packed, start, table = candidates(scores, alpha)
        probs, c = threshold(values, alpha, start, table)
        ones = (alpha == 1).squeeze(-1) if isinstance(alpha, Tensor) and packed is None else None
        if ones is not None and ones.any():  # alpha is exactly 1: softmax
            probs[ones], c[ones] = solve(scores[ones], 1.0)[0], values[ones].logsumexp(-1, keepdim=True)
    # Compute sum p (z - z_y) + sum p (c - z) / alpha relative to the row's maximum, so that offsets cancel exactly.
    mean = (probs * values.clamp_(min=torch.finfo(values.dtype).min)).sum(-1, keepdim=True)  # 0 * -inf would be NaN
    gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1))
    loss = ((c - mean) / alpha + mean).clamp(min=0) + (top - gold)
    loss = torch.where((top == -torch.inf) | (target < 0).unsqueeze(-1), 0, loss)
    nan_rows = ~(top < torch.inf)
    if packed is not None and nan_rows.any():
        probs.masked_fill_(nan_rows, torch.nan)
    return loss.masked_fill_(nan_rows & (target >= 0).unsqueeze(-1), torch.nan).squeeze(-1), probs, packed
