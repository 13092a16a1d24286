"""What an operation with a backward pass of its own asks about who follows it, and its way when one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.ops.transforms import forward_mode, modes_active, transforms_active


def followed() -> bool:
    """Tell whether a compiler, a dispatch mode, torch.func or forward mode follows PyTorch's operations."""
    return torch.compiler.is_compiling() or transforms_active() or modes_active() or forward_mode()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype in which autocast multiplies now; None without autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def gradients_of(
    plain: Callable[..., tuple[Tensor, ...]], ctx: Any, grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated again, of all saved tensors.

    Args:
        plain: what the operation computes, by PyTorch's own operations, from the saved tensors.
        ctx: of the Function: `autocast` is the dtype of :func:`autocast_dtype` when it ran.
        grads: of its results.
    """
    # Inputs that were computed from each other must not be reached through each other.
    tensors = [None if x is None else x.view_as(x) for x in ctx.saved_tensors]
    device = next(x for x in tensors if x is not None).device.type
    with torch.enable_grad(), torch.autocast(device, dtype=ctx.autocast, enabled=ctx.autocast is not None):
        results = plain(*tensors)
    pairs = [(x, grad.to(x.dtype)) for x, grad in zip(results, grads, strict=True) if grad is not None]
    wanted = [x for x in tensors if x is not None and x.requires_grad]
    gradients = torch.autograd.grad(
        [x for x, _ in pairs],
        wanted,
        [grad for _, grad in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    later = iter(gradients)
    return tuple(next(later) if x is not None and x.requires_grad else None for x in tensors)
