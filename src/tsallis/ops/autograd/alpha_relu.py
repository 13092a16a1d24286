"""Define the alpha-ReLU loss with its gradients. Compilers trace its formula, so the loss needs no operator."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from tsallis.ops.dtypes import contiguous, upcast
from tsallis.ops.eager import alpha_relu as eager
from tsallis.ops.protocol import Backend
from tsallis.ops.tracing import Operation, save, saved
from tsallis.ops.transforms import differentiable


def alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float, tau: float, backend: Backend | None) -> Tensor:
    """Return losses [rows] with a constant threshold; without a backend, use PyTorch's operations."""
    return cast(Tensor, AlphaReLULoss.apply(scores, target, alpha, tau, backend)[0])


class AlphaReLULoss(Operation):
    """Operation in which a backend computes the loss and its gradient; PyTorch computes second derivatives."""

    @staticmethod
    def forward(
        scores: Tensor, target: Tensor, alpha: float, tau: float, backend: Backend | None
    ) -> tuple[Tensor, Any]:
        if backend is None:
            return eager.alpha_relu_loss(scores, target, alpha, tau)[0], None
        loss, stats = backend.alpha_relu_loss(contiguous(scores), target, alpha, tau)
        return loss, stats

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        scores, target, ctx.alpha, ctx.tau, ctx.backend = inputs
        stats = output[1]
        if isinstance(stats, Tensor):
            ctx.mark_non_differentiable(stats)
        save(ctx, scores, target, stats)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, None, None, None, None]:
        if grad is None:
            return None, None, None, None, None
        scores, target, stats = saved(ctx)
        if ctx.backend is None or differentiable(grad):
            dz = eager.alpha_relu_loss_gradient(scores, target, ctx.alpha, eager.ReluStats(ctx.tau), grad)
        else:
            contiguous_scores, contiguous_grad = contiguous(scores), contiguous(grad)
            dz = ctx.backend.alpha_relu_loss_gradient(contiguous_scores, target, ctx.alpha, stats, contiguous_grad)
        return dz, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> tuple[Tensor, None]:
        scores, target, _stats = saved(ctx)
        wide = upcast(scores)
        one = torch.ones_like(wide[:, 0])
        slope = eager.alpha_relu_loss_gradient(wide, target, ctx.alpha, eager.ReluStats(ctx.tau), one)
        return (slope * upcast(tangent)).sum(-1), None
