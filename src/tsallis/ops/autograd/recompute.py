"""Recompute gradients with PyTorch's operations, so that they can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def recompute_saved_gradients(
    plain: Callable[..., tuple[Tensor, ...]], ctx: Any, grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return differentiable gradients of all tensors that a Function saved.

    Args:
        plain: Function that computes the results from the saved tensors with PyTorch's operations.
        ctx: Context of the Function; `ctx.autocast` is :func:`tsallis.ops.dtypes.autocast_dtype` of the forward pass.
        grads: Gradients of the results.
    """
    # Use views: an input that was computed from another input must not pass its gradient on to that input.
    tensors = [None if x is None else x.view_as(x) for x in ctx.saved_tensors]
    device = next(x for x in tensors if x is not None).device.type
    with torch.enable_grad(), torch.autocast(device, dtype=ctx.autocast, enabled=ctx.autocast is not None):
        results = plain(*tensors)
    pairs = [(x, grad.to(x.dtype)) for x, grad in zip(results, grads, strict=True) if grad is not None]
    trainable = [x for x in tensors if x is not None and x.requires_grad]
    gradients = torch.autograd.grad(
        [x for x, _ in pairs],
        trainable,
        [grad for _, grad in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    gradient_iter = iter(gradients)
    return tuple(next(gradient_iter) if x is not None and x.requires_grad else None for x in tensors)


def recompute_input_gradients(
    ctx: Any, compute: Callable[..., Tensor], inputs: Sequence[Any], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `compute(*inputs)` that backward needs, differentiable in inputs and `grad`.

    Saved inputs keep their history, and one input may be computed from another. Therefore, gradients are taken for
    views of the inputs, which are independent of each other.
    """
    needs = ctx.needs_input_grad[: len(inputs)]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        views = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        result = compute(*views)
    targets = [view for view, need in zip(views, needs, strict=True) if need]
    gradients = iter(torch.autograd.grad(result, targets, grad, create_graph=create_graph))
    return tuple(next(gradients) if need else None for need in needs)
