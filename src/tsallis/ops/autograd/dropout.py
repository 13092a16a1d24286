"""Compute dropout from a seed, so that backward can repeat it without a saved mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.choice import choose_direct
from tsallis.ops.protocol import Backend
from tsallis.ops.transforms import differentiable, traced

EXACT = (torch.float32, torch.float64)


def seeded_backend(x: Tensor) -> Backend | None:
    """Return the backend that computes seeded dropout of a tensor, or None to use PyTorch's dropout."""
    if x.dtype not in EXACT or traced() or torch.autograd.forward_ad._current_level >= 0:
        return None
    backend = choose_direct("dropout", 1.0, x.detach())
    return backend if backend is not None and "dropout" in backend.CAPABILITIES.operations else None


def seeded_mask(backend: Backend, ones: Tensor, keep_prob: float, seed: int) -> Tensor:
    """Turn a tensor of ones into a dropout mask of 0 and 1 / keep_prob, in place."""
    return backend.drop(ones, keep_prob, seed, ones) if ones.numel() else ones


class SeededDropout(Function):
    """Function that applies seeded dropout to a tensor: `apply(x, backend, keep_prob, seed)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backend: Backend, keep_prob: float, seed: int) -> Tensor:
        ctx.backend, ctx.drop, ctx.shape = backend, (keep_prob, seed), x.shape
        x = x.contiguous()
        return backend.drop(x, keep_prob, seed, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        keep_prob, seed = ctx.drop
        if differentiable(grad):
            ones = torch.ones(ctx.shape, dtype=grad.dtype, device=grad.device)
            return grad * seeded_mask(ctx.backend, ones, keep_prob, seed), None, None, None
        grad = grad.contiguous()
        return ctx.backend.drop(grad, keep_prob, seed, torch.empty_like(grad)), None, None, None
