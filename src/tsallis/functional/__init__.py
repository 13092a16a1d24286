"""Tensors in, tensors out: the maps and losses of sparse probability, differentiable to every order."""
from __future__ import annotations
from tsallis.kernels import reference as _r

def entmax(scores, alpha=1.5, dim=-1, *, mask=None):
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return _r.entmax(scores.movedim(dim, -1), alpha).movedim(-1, dim).to(scores.dtype)
def sparsemax(scores, dim=-1, *, mask=None): return entmax(scores, 2.0, dim, mask=mask)
def entmax15(scores, dim=-1, *, mask=None): return entmax(scores, 1.5, dim, mask=mask)
def _reduce(loss, target, ignore_index, reduction):
    keep = target != ignore_index
    loss = loss * keep
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.sum() / keep.sum()
def entmax_loss(scores, target, alpha=1.5, *, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    loss = _r.entmax_loss(scores, target.clamp(min=0), alpha).to(scores.dtype)
    return _reduce(loss, target, ignore_index, reduction)
def alpha_relu(scores, alpha=1.5, tau=0.0): return _r.alpha_relu(scores, alpha, tau).to(scores.dtype)
def alpha_relu_loss(scores, target, alpha=1.5, tau=0.0, *, ignore_index=-100, reduction="mean"):
    return _reduce(_r.alpha_relu_loss(scores, target.clamp(min=0), alpha, tau).to(scores.dtype), target, ignore_index, reduction)
