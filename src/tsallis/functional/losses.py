"""Define the Fenchel-Young losses of entmax: convex, non-negative, and zero beyond a margin."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tsallis.errors import check_one_of
from tsallis.functional.rows import (
    as_rows,
    check_dense,
    check_floating,
    check_integers,
    check_real,
    integer,
    number,
    result_dtype,
)
from tsallis.functional.sparse_rows import SparseRows
from tsallis.ops.alphas import Alpha, capturing
from tsallis.ops.autograd import losses as autograd
from tsallis.ops.autograd.soft_targets import SoftTarget, add_soft_target, leads_in_place, soft_target
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.entropy import entropy
from tsallis.ops.protocol import Backend
from tsallis.ops.transforms import savable, traced, without_numbers

REDUCTIONS = ("mean", "sum", "none")


def entmax_loss(
    scores: Tensor,
    target: Tensor | SparseRows,
    alpha: Alpha = 1.5,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Return the Fenchel-Young loss of alpha-entmax: cross-entropy at `alpha = 1`, the sparsemax loss at 2.

    .. math:: L_\alpha(z; y) = (p - y)^\top z + H_\alpha(p) - H_\alpha(y),
              \qquad p = \mathrm{entmax}_\alpha(z), \qquad \nabla_z L = p - y

    (Peters et al. 2019, eq. 11 and 12). Above alpha 1, the loss of a class target is exactly zero if its score exceeds
    all others by at least :math:`1/(\alpha - 1)`. The loss is computed from score differences, so adding a constant to
    all scores does not change the loss. It is finite if the score of the target is finite.

    Args:
        scores: [..., classes], any floating dtype; a class with a score of -inf is excluded.
        target: classes [...] (integers), probabilities [..., classes], or :class:`SparseRows`. For probabilities
            :math:`H_\alpha(y)` is subtracted: at `alpha = 1` the loss is then the Kullback-Leibler divergence.
        alpha: positive: a number, or a tensor broadcastable to `scores` with last size 1; it gets a gradient.
        weight: weights of the classes [classes]. As in `torch.nn.functional.cross_entropy`, the mean divides by the
            summed weights of the targets, and probability targets are multiplied by the weights first.
        ignore_index: class targets with this value have loss 0 and no gradient.
        reduction: "mean" over the targets that are not ignored, "sum", or "none" for a loss of shape [...].
        label_smoothing: share of the target, from 0 to 1, spread over all finite scores. It makes a learned alpha grow.

    Returns:
        A number (NaN if all targets are ignored), or losses [...] with reduction "none", in the dtype of `scores`.

    Raises:
        ValueError: wrong shapes, a class out of range, an unknown reduction, a smoothing outside [0, 1], a bad alpha.
        TypeError: scores that are not floating point, class targets that are not integers.

    Example:
        >>> scores = torch.tensor([[2.0, 1.0, 0.1], [4.0, 1.0, 0.1]], requires_grad=True)
        >>> loss = entmax_loss(scores, torch.tensor([0, 0]), reduction="none")
        >>> loss.detach()
        tensor([0.0617, 0.0000])
        >>> loss.sum().backward()
        >>> scores.grad
        tensor([[-0.1693,  0.1693,  0.0000],
                [ 0.0000,  0.0000,  0.0000]])
    """
    _check(scores, target, alpha, weight, reduction, label_smoothing)
    if isinstance(target, SparseRows):
        return _sparse_loss(scores, target, alpha, reduction)
    plain = weight is None and label_smoothing == 0 and not target.is_floating_point()
    rows = as_rows(scores, alpha, operation="losses" if plain else None, positive=True)
    z = savable(rows.scores.reshape(-1, scores.shape[-1]))  # [rows, classes]
    weight = None if weight is None else weight.to(device=scores.device, dtype=z.dtype)
    if target.is_floating_point():
        loss, total = _dense_loss(z, scores.shape, target, rows.alpha, weight, label_smoothing)
    else:
        classes = class_rows(scores.shape, scores.device, target, ignore_index)
        loss, total = _class_loss(z, classes, rows.alpha, weight, label_smoothing, rows.backend)
    return reduce(loss.reshape(scores.shape[:-1]), total, reduction).to(rows.dtype)


def reduce(loss: Tensor, total: Tensor | int, reduction: str) -> Tensor:
    """Reduce the losses; a mean over no target is NaN, as in PyTorch."""
    if reduction == "none":
        return loss
    if reduction == "sum" or not isinstance(total, Tensor):
        return loss.sum() if reduction == "sum" else loss.sum() / total
    # Do not divide by zero: gradients would be zero times infinity, which is NaN.
    no_targets = total == 0
    return torch.where(no_targets, torch.nan, loss.sum() / torch.where(no_targets, 1, total))


def check_reduction(name: str) -> str:
    """Return a reduction if it is valid; otherwise raise a ValueError that lists the valid reductions."""
    check_one_of("reduction", name, REDUCTIONS)
    return name


def check_classes(scores: Tensor) -> None:
    """Raise unless scores are a floating-point tensor [..., classes] with at least one class."""
    check_floating(scores)
    if scores.dim() == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must have shape [..., classes] with at least one class, got {tuple(scores.shape)}")


def check_smoothing(value: float) -> float:
    """Return the label smoothing as a float between 0 and 1."""
    smoothing = number("label_smoothing", value)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {smoothing}")
    return smoothing


def _check(
    scores: Tensor, target: Tensor | SparseRows, alpha: Alpha, weight: Tensor | None, reduction: str, smoothing: float
) -> None:
    check_reduction(reduction)
    smoothing = check_smoothing(smoothing)
    check_classes(scores)
    if isinstance(target, SparseRows):
        if weight is not None or smoothing:
            raise ValueError("weight and label_smoothing need class targets or dense probabilities, got SparseRows")
        return
    check_dense(target, "target")
    if isinstance(alpha, Tensor) and weight is None and alpha.shape == scores.shape[-1:] != (1,):
        raise ValueError(f"alpha must have last size 1, got shape {tuple(alpha.shape)}; did you mean weight=?")
    if weight is None:
        return
    check_real(weight, "weight")
    if weight.shape != scores.shape[-1:]:
        raise ValueError(f"weight must have shape ({scores.shape[-1]},), got {tuple(weight.shape)}")


def class_rows(shape: Sequence[int], device: torch.device, target: Tensor, ignore_index: int) -> Tensor:
    """Check class targets and return them as [rows]; ignored targets become -1."""
    check_integers(target, "class targets")
    ignore_index = integer("ignore_index", ignore_index)
    *leading, classes = shape
    if list(target.shape) != leading:
        # Detect the layout of `torch.nn.functional.cross_entropy`, which has the classes in dimension 1.
        classes_second = list(target.shape) == [*shape[:1], *shape[2:]]
        hint = "; the last dimension of scores must be the classes: use scores.movedim(1, -1)" if classes_second else ""
        raise ValueError(
            f"class targets must have shape {tuple(leading)} for scores of shape {tuple(shape)}, "
            f"got {tuple(target.shape)}{hint}"
        )
    target = target.to(device=device, dtype=torch.long).reshape(-1)
    has_loss = target != ignore_index
    if not (traced() or without_numbers(target) or capturing(target)):
        out_of_range = has_loss & ((target < 0) | (target >= classes))
        if out_of_range.any():
            raise ValueError(
                f"target must contain classes from 0 to {classes - 1} or ignore_index {ignore_index}, "
                f"got {int(target[out_of_range][0])}"
            )
    # Replace an unchecked negative class by a class that is too large, so that the kernel raises an error.
    return torch.where(has_loss, torch.where(target < 0, classes, target), -1)


def _class_loss(
    scores: Tensor, classes: Tensor, alpha: Alpha, weight: Tensor | None, smoothing: float, backend: Backend | None
) -> tuple[Tensor, Tensor]:
    has_loss = classes >= 0
    losses = autograd.entmax_loss(scores, classes, alpha, backend)  # [rows]
    index = classes.clamp(min=0)
    row_weights = has_loss.to(losses.dtype) if weight is None else torch.where(has_loss, weight[index], 0)
    loss = losses if weight is None else losses * row_weights
    if smoothing > 0:
        # The loss of class c is the loss of the target plus z_y - z_c, so one loss suffices for the mean over classes.
        active = scores > -torch.inf
        lead = torch.where(active, scores.gather(-1, index.unsqueeze(-1)) - torch.where(active, scores, 0), 0)
        if weight is None:
            mean = losses + lead.sum(-1) / active.sum(-1).clamp(min=1)
        else:
            mean = (torch.where(active, losses.unsqueeze(-1) + lead, 0) * weight).sum(-1) / active.sum(-1).clamp(min=1)
        mean = torch.where(losses == torch.inf, losses, mean)  # infinite if the target's score is -inf
        loss = (1 - smoothing) * loss + smoothing * torch.where(has_loss, mean, 0)
    return loss, row_weights.sum()


def _sparse_loss(scores: Tensor, target: SparseRows, alpha: Alpha, reduction: str) -> Tensor:
    rows = as_rows(upcast(scores), alpha, operation="losses", positive=True)
    z = savable(rows.scores.reshape(-1, scores.shape[-1]))
    anchor, soft = anchors(target, z.shape, rows.alpha, z)
    z, lead = leads_in_place(z, anchor, soft)
    loss = add_soft_target(autograd.entmax_loss(z, anchor, rows.alpha, rows.backend), z, anchor, soft, lead)
    loss = not_negative(loss).reshape(scores.shape[:-1])
    return reduce(loss, (anchor >= 0).sum(), reduction).to(result_dtype(scores))


def anchors(target: SparseRows, shape: Sequence[int], alpha: Alpha, like: Tensor) -> tuple[Tensor, SoftTarget]:
    """Return sparse targets in the form of :func:`soft_target`, for scores of the shape [rows, classes]."""
    rows, classes = shape
    if len(target) != rows:
        raise ValueError(f"target must have {rows} rows, one for each row of scores, got {len(target)}")
    if not traced():
        target.check_classes(classes)
    target = target.to(like.device)
    indices, probs, offsets = (savable(x) for x in (target.indices, target.probs, target.offsets))
    return soft_target(indices, probs, offsets, alpha, like.dtype)


def not_negative(loss: Tensor) -> Tensor:
    """Set losses that are negative by rounding to 0, and keep their gradients."""
    return torch.where(loss < 0, loss - loss.detach(), loss)


def _dense_loss(
    scores: Tensor, shape: torch.Size, target: Tensor, alpha: Alpha, weight: Tensor | None, smoothing: float
) -> tuple[Tensor, Tensor | int]:
    if target.shape != shape:
        raise ValueError(f"probability targets must have the scores' shape {tuple(shape)}, got {tuple(target.shape)}")
    if not (traced() or target.is_cuda or without_numbers(target)) and (target < 0).any():
        raise ValueError(f"probability targets must be at least 0, got {float(target.min()):g}")
    y = savable(target).to(device=scores.device, dtype=scores.dtype).reshape(scores.shape)
    active = scores > -torch.inf
    if smoothing > 0:
        y = (1 - smoothing) * y + smoothing * active.to(y.dtype) / active.sum(-1, keepdim=True).clamp(min=1)
    if weight is not None:
        y = y * weight
    mass = y.sum(-1, keepdim=True)
    empty = ~active.any(-1) & ~scores.isnan().any(-1)  # the loss is 0 if all scores are -inf
    scores = scores.masked_fill(empty.unsqueeze(-1), 0)
    best = scores.detach().argmax(-1)
    gaps = torch.where(y > 0, scores.gather(-1, best.unsqueeze(-1)) - scores, 0)  # 0 * inf would be NaN
    loss = autograd.entmax_loss(scores, best, alpha) * mass.squeeze(-1) + (y * gaps).sum(-1)
    normalized = y / torch.where(mass > 0, mass, 1)
    loss = loss - mass.squeeze(-1) * entropy(normalized, alpha).squeeze(-1)
    return not_negative(loss).masked_fill(empty, 0), loss.numel()
