"""Turn the loss of a class into the loss of a sparse distribution.

A row of probabilities q has an anchor: its most probable class k. The loss of q is the loss of k plus terms that need
only the entries of q:

    L(z; q) = L(z; k) + sum_c q_c (z_k - z_c) - H(q),    dL/dz = (p - e_k) + (e_k - q) = p - q

Backends thus compute losses of classes only, and the lists e_k - q are added to their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.alphas import Alpha
from tsallis.ops.eager.entropy import entropy
from tsallis.ops.sparse_rows import row_numbers
from tsallis.ops.transforms import differentiable, tracing_active


class SoftTarget(NamedTuple):
    """Rows of probabilities q as a difference from their anchors, which are the class targets."""

    offsets: Tensor  # [rows + 1]
    column: Tensor  # [entries], int32
    value: Tensor  # [entries]: 1 - q at the anchor, -q elsewhere
    entropy: Tensor  # [rows], H(q)

    @property
    def row(self) -> Tensor:
        """Return the row of each entry."""
        return row_numbers(self.offsets, len(self.column))

    def part(self, rows: slice, begin: int, end: int) -> SoftTarget:
        """Return some of the rows, whose entries are those from `begin` to `end`."""
        offsets = self.offsets[rows.start : rows.stop + 1] - begin
        return SoftTarget(offsets, self.column[begin:end], self.value[begin:end], self.entropy[rows])


def soft_target(
    indices: Tensor, probs: Tensor, offsets: Tensor, alpha: Alpha, dtype: torch.dtype
) -> tuple[Tensor, SoftTarget]:
    """Return the anchors [rows] (-1 for an empty row), and the rows divided by their sums, as differences from them."""
    row, rows = row_numbers(offsets, len(indices)), len(offsets) - 1
    probs = probs.to(dtype)
    probs = probs / probs.new_zeros(rows).index_add_(0, row, probs).index_select(0, row)
    largest = probs.new_zeros(rows).scatter_reduce_(0, row, probs, "amax")
    column = indices.long()
    candidates = torch.where(probs == largest.index_select(0, row), column, -1)
    anchor = torch.full_like(offsets[1:], -1).scatter_reduce_(0, row, candidates, "amax")
    entropies = _entropies(probs, alpha[row] if isinstance(alpha, Tensor) else alpha).to(dtype)
    value = (column == anchor.index_select(0, row)).to(dtype) - probs
    return anchor, SoftTarget(offsets, indices, value, entropies.new_zeros(rows).index_add(0, row, entropies))


def _entropies(probs: Tensor, alpha: Alpha) -> Tensor:
    """Return each probability's term of the entropy [entries]. A number needs a fifth of the operations of a tensor."""
    if isinstance(alpha, Tensor):
        return entropy(probs.unsqueeze(-1), alpha).squeeze(-1)
    log_p = torch.where(probs != 0, probs, 1).log()
    if alpha == 1:
        return -probs * log_p
    return probs * torch.expm1(((alpha - 1) * log_p).clamp(max=87.0)) / (alpha * (1 - alpha))


def add_soft_target(
    loss: Tensor, scores: Tensor, target: Tensor, soft: SoftTarget, lead: Tensor | None = None
) -> Tensor:
    """Return losses [rows] of distributions from the losses of their anchors and :func:`leads`."""
    lead = leads(scores, target, soft) if lead is None else lead
    return torch.where(impossible(loss, scores, target), 0, loss + lead - soft.entropy)


def impossible(loss: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Return which rows have only scores of -inf [rows]; the losses of their anchors are 0."""
    return (loss == 0) & (anchor_scores(scores.detach(), target) == -torch.inf)


def anchor_scores(scores: Tensor, target: Tensor) -> Tensor:
    """Return the scores of the anchors [rows]."""
    return scores.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def leads(scores: Tensor, target: Tensor, soft: SoftTarget) -> Tensor:
    """Return `sum_c q_c (z_k - z_c)` [rows]; 0 if the anchor's score is -inf, because the loss is then infinite."""
    row, best = soft.row, anchor_scores(scores, target).to(soft.value.dtype)
    anchor, column = best.index_select(0, row), soft.column.long()
    if scores.is_contiguous():  # one index is several times faster than two
        gap = scores.view(-1).index_select(0, row * scores.shape[1] + column).to(best.dtype) - anchor
    else:
        gap = scores[row, column].to(best.dtype) - anchor
    gap = torch.where((soft.value == 0) | (anchor == -torch.inf), 0, gap)  # 0 times infinity would be NaN
    return torch.zeros_like(best).index_add(0, row, soft.value * gap)


def leads_in_place(scores: Tensor, target: Tensor, soft: SoftTarget) -> tuple[Tensor, Tensor | None]:
    """Return scores for the loss of the anchors, and their leads; gradients of both share one tensor.

    If derivatives of another kind may be taken, leave the leads to :func:`add_soft_target`.
    """
    if tracing_active() or not (scores.requires_grad and torch.is_grad_enabled()):
        return scores, None
    scores_view, lead = Leads.apply(scores, target, *soft[:3])
    return scores_view, lead


class Leads(Function):
    """Operation whose backward pass adds the lists `e_k - q` to the gradient p - e_k in place."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, *lists: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*lists)
        offsets, column, value = lists
        soft = SoftTarget(offsets, column, value, value)
        return scores.view_as(scores), leads(scores, target, soft)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, lead_grad: Tensor) -> tuple[Tensor | None, ...]:
        offsets, column, value = ctx.saved_tensors
        row = row_numbers(offsets, len(column))
        added = (value * lead_grad.index_select(0, row)).to(grad.dtype)
        if differentiable(grad) or not grad.is_contiguous():
            return grad.index_put((row, column.long()), added, accumulate=True), None, None, None, None
        # Only the loss of the anchors has written this tensor.
        grad.view(-1).index_add_(0, row * grad.shape[1] + column, added)
        return grad, None, None, None, None
