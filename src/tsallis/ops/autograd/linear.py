"""An output layer and its loss together, without the tokens x classes matrices of scores and gradients.

Run eagerly, one `autograd.Function` computes it in chunks (see `linear_chunks`). Under `torch.compile` and dispatch
modes that is an opaque operator. Second derivatives, forward mode and `torch.func` go by way of all scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tsallis.ops import cpu, eager
from tsallis.ops.alphas import Alpha, check_alpha
from tsallis.ops.autograd import rows
from tsallis.ops.autograd.linear_chunks import Kept, Layer, gradients, losses
from tsallis.ops.cpu import Lists
from tsallis.ops.transforms import (
    compiling,
    differentiable,
    forward_mode,
    operators_only,
    recomputed_gradients,
    transforms_active,
)

__all__ = ["Layer", "linear_loss"]


def materialised(layer: Layer) -> Tensor:
    """Compute the losses from all scores, by operations that can be differentiated twice, transformed and batched."""
    scores = F.linear(layer.hidden, layer.weight, layer.bias)
    scores = scores.to(cpu.computed_in(scores.dtype))
    if layer.tau is None:
        return rows.entmax_loss(scores, layer.target, layer.alpha)
    return eager.alpha_relu_loss(scores, layer.target, cast(float, layer.alpha) - 1, layer.tau)[0]


class _LinearLoss(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        alpha: Alpha,
        tau: float | None,
        total: bool,
    ) -> Tensor:
        check_alpha(alpha)
        needs = ctx.needs_input_grad
        layer = Layer(hidden, weight, bias, target, alpha, tau).plain()
        loss, alpha_grad, saved = losses(layer, any(needs), needs[:3] if total else None)
        ctx.tau, ctx.alpha = tau, None if isinstance(alpha, Tensor) else alpha
        ctx.total = total
        if saved is not None:
            ctx.kernels, ctx.dense, ctx.made = saved.kernels, saved.dense, saved.made
            many = alpha if isinstance(alpha, Tensor) else None
            ctx.save_for_backward(hidden, weight, bias, target, many, alpha_grad, *saved.lists)
        return loss.sum() if total else loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, target, many, alpha_grad, *lists = ctx.saved_tensors
        layer = Layer(hidden, weight, bias, target, ctx.alpha if many is None else many, ctx.tau)
        if differentiable(grad):

            def compute(*inputs: Any) -> Tensor:
                hidden, weight, bias, target, alpha = inputs
                loss = materialised(Layer(hidden, weight, bias, target, alpha, ctx.tau))
                return loss.sum() if ctx.total else loss

            return *recomputed_gradients(ctx, compute, layer[:5], grad), None, None
        grad = grad.expand(len(hidden))
        made, ctx.made = ctx.made, None
        saved = Kept(ctx.kernels, Lists(*lists), ctx.dense, made)
        dh, dw, db = gradients(layer.plain(), saved, grad, ctx.needs_input_grad[:3])
        da = alpha_grad * grad.unsqueeze(-1) if ctx.needs_input_grad[4] else None
        return dh, dw, db, None, da, None, None


def linear_loss(layer: Layer, total: bool = False) -> Tensor:
    """Return losses [rows] of a layer, or their sum, differentiable in hidden, weight, bias and alpha.

    A sum is more than the losses added up: every loss then is known to have the same weight in the gradients.
    """
    if transforms_active() or forward_mode():
        loss = materialised(layer)
    elif compiling() or operators_only(layer.hidden):
        arguments = (*layer[:4], *rows.split(layer.alpha), layer.tau)
        learns = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
        # The compiler fails on a Function that needs no gradient.
        loss = cast(Tensor, _CompiledLinearLoss.apply(*arguments) if learns else _linear_loss_op(*arguments))
    else:
        return cast(Tensor, _LinearLoss.apply(*layer, total))
    return loss.sum() if total else loss


_ARGUMENTS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, float alpha, Tensor? alphas, float? tau"


def _layer(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    alphas: Tensor | None,
    tau: float | None,
) -> Layer:
    return Layer(hidden, weight, bias, target, alpha if alphas is None else alphas, tau).plain()


@torch.library.custom_op("tsallis::linear_loss", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _linear_loss_op(*arguments: Any) -> Tensor:
    layer = _layer(*arguments)
    check_alpha(layer.alpha)
    return losses(layer, keep=False)[0]


@_linear_loss_op.register_fake
def _(hidden: Tensor, *_: Any) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=cpu.computed_in(hidden.dtype))


@torch.library.custom_op(
    "tsallis::linear_loss_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _linear_loss_backward_op(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layer = _layer(*arguments)
    _, alpha_grad, saved = losses(layer, keep=True)
    assert saved is not None
    dh, dw, db = gradients(layer, saved, grad, (True, True, True))
    assert dh is not None and dw is not None and db is not None
    da = grad.new_empty(0, 1) if alpha_grad is None else alpha_grad * grad.unsqueeze(-1)
    return dh, dw, db, da


@_linear_loss_backward_op.register_fake
def _(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Any, target: Any, alpha: Any, alphas: Tensor | None, _: Any
) -> Any:
    da = grad.new_empty(0, 1) if alphas is None else torch.empty_like(alphas)
    return torch.empty_like(hidden), torch.empty_like(weight), weight.new_empty(weight.shape[0]), da


def _materialised_with(tau: float | None) -> Callable[..., Tensor]:
    """Return the losses of an operator's arguments but the last; no closure of a context, which a compiler refuses."""

    def compute(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, alpha: float, alphas: Tensor | None
    ) -> Tensor:
        return materialised(_layer(hidden, weight, bias, target, alpha, alphas, tau))

    return compute


class _CompiledLinearLoss(Function):
    """Two opaque operators, for tracers and dispatch modes.

    They can't keep lists whose lengths the numbers decide, so those are made again.
    """

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        result: Tensor = _linear_loss_op(*arguments)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau = inputs
        ctx.biased, ctx.many = bias is not None, alphas is not None
        ctx.save_for_backward(hidden, weight, target, *(x for x in (bias, alphas) if x is not None))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, target, *rest = ctx.saved_tensors
        bias = rest[0] if ctx.biased else None
        alphas = rest[-1] if ctx.many else None
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            inputs = (hidden, weight, bias, target, ctx.alpha, alphas)
            return *recomputed_gradients(ctx, _materialised_with(ctx.tau), inputs, grad), None
        dh, dw, db, da = _linear_loss_backward_op(grad, hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau)
        return dh, dw, db if ctx.biased else None, None, None, da if ctx.many else None, None
