"""Dropout that on a CPU costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from tsallis.ops import cpu
from tsallis.ops.backend import choose_direct
from tsallis.ops.transforms import differentiable, traced

EXACT = (torch.float32, torch.float64)


class Dropout(nn.Dropout):
    """PyTorch's dropout; on a CPU the compiled kernels decide by a seed, so that no mask is drawn slowly, or kept.

    Args:
        p: share of the numbers that become zero; the others grow to make up for it.

    Example:
        >>> Dropout(0.5)(torch.ones(1000)).unique()
        tensor([0., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if 0 < self.p < 1 and _kernels(x):
            output: Tensor = _Drop.apply(x, 1 - self.p, _seed())
            return output
        plain: Tensor = super().forward(x)
        return plain


def dropout_mask(shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """Draw a mask to multiply with: zeros for a share `p` below 1, else 1 / (1 - p); of `like`'s dtype and device."""
    if _kernels(like):
        return _mask(like.new_ones(shape), 1 - p, _seed())
    return torch.rand(tuple(shape), dtype=like.dtype, device=like.device).ge_(p).div_(1 - p)


def _kernels(x: Tensor) -> bool:
    eligible = x.dtype in EXACT and not traced() and torch.autograd.forward_ad._current_level < 0
    backend = choose_direct(1.0, x.detach()) if eligible else None
    return backend is not None and backend.CAPABILITIES.seeded_dropout


def _seed() -> int:
    return int(torch.randint(1 << 62, ()))


def _mask(ones: Tensor, keep_prob: float, seed: int) -> Tensor:
    return cpu.drop(ones, keep_prob, seed, ones) if ones.numel() else ones


class _Drop(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep_prob: float, seed: int) -> Tensor:
        ctx.drop, ctx.shape = (keep_prob, seed), x.shape
        x = x.contiguous()
        return cpu.drop(x, keep_prob, seed, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        keep_prob, seed = ctx.drop
        if differentiable(grad):
            return grad * _mask(torch.ones(ctx.shape, dtype=grad.dtype), keep_prob, seed), None, None
        grad = grad.contiguous()
        return cpu.drop(grad, keep_prob, seed, torch.empty_like(grad)), None, None
