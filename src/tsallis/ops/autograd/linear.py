"""Compute an output layer with its loss, without a matrix of scores for all tokens and classes.

In eager mode, an `autograd.Function` computes the losses in chunks (see `linear_chunks`). `torch.compile` and dispatch
modes see an opaque operator. Second derivatives, forward mode and `torch.func` compute all scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.alphas import check_alpha
from tsallis.ops.autograd.linear_chunks import Layer, SavedForBackward, gradients, losses
from tsallis.ops.autograd.losses import entmax_loss
from tsallis.ops.autograd.recompute import recompute_input_gradients
from tsallis.ops.autograd.soft_targets import SoftTarget, add_soft_target
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.eager import alpha_relu as eager
from tsallis.ops.sparse_rows import CsrRows
from tsallis.ops.tracing import operator, split_alpha
from tsallis.ops.transforms import (
    check_wrapped_alpha,
    compiling,
    differentiable,
    exporting_to_onnx,
    forward_mode,
    operators_only,
    transforms_active,
    varies,
)

__all__ = ["Layer", "linear_loss"]


def materialise(layer: Layer) -> Tensor:
    """Compute all scores and then the losses, so that the losses can be differentiated twice and batched."""
    scores = F.linear(layer.hidden, layer.weight, layer.bias)
    scores = scores.to(compute_dtype(scores.dtype))
    if layer.tau is None:
        loss = entmax_loss(scores, layer.target, layer.alpha)
    else:
        loss = eager.loss(scores, layer.target, cast(float, layer.alpha) - 1, layer.tau)
    return loss if layer.soft is None else add_soft_target(loss, scores, layer.target, layer.soft)


class LinearLoss(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        hidden, weight, bias, target, alpha, tau, total, *soft = inputs
        check_alpha(alpha)
        needs = ctx.needs_input_grad
        layer = Layer(hidden, weight, bias, target, alpha, tau, _soft_target(soft)).contiguous()
        loss, alpha_grad, saved = losses(layer, any(needs), needs[:3] if total else None)
        ctx.tau, ctx.alpha = tau, None if isinstance(alpha, Tensor) else alpha
        ctx.total = total
        if saved is not None:
            ctx.backend, ctx.dense_chunks, ctx.products = saved.backend, saved.dense_chunks, saved.products
            alphas = alpha if isinstance(alpha, Tensor) else None
            saved_tensors = (*saved.supports, saved.active, *soft)
            ctx.save_for_backward(hidden, weight, bias, target, alphas, alpha_grad, *saved_tensors)
        return loss.sum() if total else loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, target, alphas, alpha_grad, offsets, column, value, active, *soft = ctx.saved_tensors
        layer = Layer(
            hidden, weight, bias, target, ctx.alpha if alphas is None else alphas, ctx.tau, _soft_target(soft)
        )
        if differentiable(grad):

            def compute(*inputs: Any) -> Tensor:
                hidden, weight, bias, target, alpha, tau, _, *soft = inputs
                loss = materialise(Layer(hidden, weight, bias, target, alpha, tau, _soft_target(soft)))
                return loss.sum() if ctx.total else loss

            return recompute_input_gradients(ctx, compute, (*layer[:6], None, *soft), grad)
        grad = grad.expand(len(hidden))
        products, ctx.products = ctx.products, None
        saved = SavedForBackward(ctx.backend, CsrRows(offsets, column, value), ctx.dense_chunks, products, active)
        dh, dw, db = gradients(layer.contiguous(), saved, grad, ctx.needs_input_grad[:3])
        da = alpha_grad * grad.unsqueeze(-1) if ctx.needs_input_grad[4] else None
        entropy_grad = (None, None, None, torch.where(active, -grad, 0)) if soft else ()
        return dh, dw, db, None, da, None, None, *entropy_grad


def _soft_target(tensors: Sequence[Tensor | None]) -> SoftTarget | None:
    """Return probabilities from the arguments of an operation."""
    return SoftTarget(*cast(tuple[Tensor, Tensor, Tensor, Tensor], tensors)) if tensors else None


def linear_loss(layer: Layer, total: bool = False) -> Tensor:
    """Return the losses [rows] of a layer, or their sum; both are differentiable in hidden, weight, bias and alpha.

    With `total`, backward is faster, because all losses have the same weight in the gradients.
    """
    has_varying_numbers = layer.tau is not None and (varies(layer.tau) or varies(cast(float, layer.alpha)))
    if transforms_active() or forward_mode() or exporting_to_onnx() or has_varying_numbers:
        check_wrapped_alpha(layer.alpha)
        loss = materialise(layer)
    elif compiling() or operators_only(layer.hidden):
        soft = layer.soft or (None,) * 4
        loss = cast(Tensor, _operator(*layer[:4], *split_alpha(layer.alpha), layer.tau, *soft))
    else:
        return cast(Tensor, LinearLoss.apply(*layer[:6], total, *(layer.soft or ())))
    return loss.sum() if total else loss


_ARGUMENTS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, float alpha, Tensor? alphas, float? tau"
_ARGUMENTS += ", Tensor? offsets, Tensor? column, Tensor? value, Tensor? entropy"


def _layer(*arguments: Any) -> Layer:
    hidden, weight, bias, target, alpha, alphas, tau, *soft = arguments
    soft = [] if soft[0] is None else soft
    return Layer(
        hidden, weight, bias, target, alpha if alphas is None else alphas, tau, _soft_target(soft)
    ).contiguous()


def _compute(*arguments: Any) -> Tensor:
    layer = _layer(*arguments)
    check_alpha(layer.alpha)
    _check_target(layer)
    return losses(layer, keep=False)[0]


def _check_target(layer: Layer) -> None:
    """Raise if a target is out of range; only traced calls need this check.

    Raises:
        ValueError: A target is not below the number of classes.
    """
    target, classes = layer.target, len(layer.weight)
    if layer.soft is not None:
        target = layer.soft.column
    if target.numel() and int(target.max()) >= classes:
        raise ValueError(f"target must contain classes from 0 to {classes - 1}, got {int(target.max())}")


def _fake(hidden: Tensor, *_: Any) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=compute_dtype(hidden.dtype))


def _compute_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return all gradients; recompute the lists, because a tracer can't save lists of unknown length."""
    layer = _layer(*arguments)
    _check_target(layer)
    _, alpha_grad, saved = losses(layer, keep=True)
    assert saved is not None
    dh, dw, db = gradients(layer, saved, grad, (True, True, True))
    assert dh is not None and dw is not None and db is not None
    da = grad.new_empty(0, 1) if alpha_grad is None else alpha_grad * grad.unsqueeze(-1)
    entropy_grad = grad.new_empty(0) if saved.active is None else torch.where(saved.active, -grad, 0)
    return dh, dw, db, da, entropy_grad


def _fake_backward(grad: Tensor, *arguments: Any) -> Any:
    hidden, weight, _, _, _, alphas, *_, entropy = arguments
    da = grad.new_empty(0, 1) if alphas is None else alphas.new_empty(alphas.shape)
    entropy_grad = grad.new_empty(0) if entropy is None else entropy.new_empty(entropy.shape)
    dh, dw = (x.new_empty(x.shape) for x in (hidden, weight))  # contiguous also if the inputs are transposed
    return dh, dw, weight.new_empty(weight.shape[0]), da, entropy_grad


_backward_operator = operator(
    "linear_loss_backward",
    f"(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _compute_backward,
    _fake_backward,
    waits=True,
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau, *soft = inputs
    tensors = (hidden, weight, target, bias, alphas, *soft)
    ctx.present = tuple(x is not None for x in tensors)
    ctx.save_for_backward(*(x for x in tensors if x is not None))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = iter(ctx.saved_tensors)
    hidden, weight, target, bias, alphas, *soft = (next(saved) if present else None for present in ctx.present)
    inputs = (hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau, *soft)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return recompute_input_gradients(ctx, lambda *tensors: materialise(_layer(*tensors)), inputs, grad)
    dh, dw, db, da, entropy_grad = _backward_operator(grad, *inputs)
    grads = (dh, dw, db, None, None, da, None, None, None, None, entropy_grad)
    return tuple(x if need else None for x, need in zip(grads, ctx.needs_input_grad, strict=True))


_operator = operator("linear_loss", f"({_ARGUMENTS}) -> Tensor", _compute, _fake, _setup, _backward, waits=True)
