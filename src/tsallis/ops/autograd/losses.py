"""Define the entmax loss with gradients of every order, forward mode, vmap, and an operator for tracers."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd import maps
from tsallis.ops.choice import choose, choose_direct
from tsallis.ops.dtypes import contiguous, contiguous_alpha, upcast
from tsallis.ops.eager import graph
from tsallis.ops.eager import losses as eager
from tsallis.ops.eager.maps import pullback as map_pullback
from tsallis.ops.protocol import Backend
from tsallis.ops.tracing import Operation, join_alpha, operator, save, saved, split_alpha, vmap_rows
from tsallis.ops.transforms import (
    compiling,
    differentiable,
    differentiated,
    exporting_to_onnx,
    functionalized,
    operators_only,
)


def entmax_loss(scores: Tensor, target: Tensor, alpha: Alpha, backend: Backend | None = None) -> Tensor:
    """Return the Fenchel-Young loss [rows] of class targets [rows]; negative targets have loss 0.

    If `backend` is given, the caller has chosen it for these scores and has checked the targets.
    """
    if backend is None:
        if exporting_to_onnx():
            return graph.entmax_loss(scores, target, alpha)
        if compiling() or functionalized():
            return cast(Tensor, _operator(scores, target, *split_alpha(alpha))[0])
        backend = choose_direct("losses", alpha, scores)
    if backend is not None and not differentiated(scores, alpha):  # without autograd, small tensors take half the time
        alphas = contiguous_alpha(alpha)
        return backend.entmax_loss(contiguous(scores), target.contiguous(), alphas, False)[0]
    return cast(Tensor, Loss.apply(scores, target, alpha, backend)[0])


class Loss(Operation):
    """Operation that computes the Fenchel-Young loss of rows [rows, d] with a backend or an operator."""

    @staticmethod
    def forward(scores: Tensor, target: Tensor, alpha: Alpha, backend: Backend | None) -> tuple[Any, ...]:
        if backend is None:
            if operators_only(scores):
                return (_operator(scores, target, *split_alpha(alpha))[0],)
            return (_solve(scores, target, alpha)[0],)
        need_alpha = isinstance(alpha, Tensor)
        alphas = contiguous_alpha(alpha)
        loss, stats, slope = backend.entmax_loss(contiguous(scores), target.contiguous(), alphas, need_alpha, True)
        return loss, slope, *(stats if isinstance(stats, tuple) else (stats,))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        scores, target, alpha, ctx.backend = inputs
        _, *extra_outputs = output
        ctx.mark_non_differentiable(*(x for x in extra_outputs if isinstance(x, Tensor)))
        save(ctx, scores, target, alpha, *extra_outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, Tensor | None, None]:
        if grad is None:
            return None, None, None, None
        scores, target, alpha, *extra_outputs = saved(ctx)
        need_alpha = ctx.needs_input_grad[2]
        if ctx.backend is None or differentiable(grad):
            # Set ignored rows to 0: a NaN there would spread to the second derivatives.
            wide = torch.where((target >= 0).unsqueeze(-1), upcast(scores), 0)
            dz, da = eager.pullback(wide, target, alpha, maps.entmax(wide, alpha), grad, need_alpha)
            return dz.to(scores.dtype), None, da, None
        slope, *stats = extra_outputs
        grad, alphas = contiguous(grad), contiguous_alpha(alpha)
        statistics = stats[0] if len(stats) == 1 else tuple(stats)
        dz = ctx.backend.entmax_loss_gradient(contiguous(scores), target.contiguous(), alphas, statistics, grad)
        return dz, None, slope * grad.unsqueeze(-1) if need_alpha else None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: Any, alpha_tangent: Tensor | None, *__: Any) -> tuple[Any, ...]:
        scores, target, alpha, *extra_outputs = saved(ctx)
        wide = upcast(scores)
        one = torch.ones_like(wide[:, 0])
        probs = maps.entmax(wide, alpha)
        dz, da = eager.pullback(wide, target, alpha, probs, one, alpha_tangent is not None)
        result = torch.zeros_like(one)
        if tangent is not None:
            result = result + (dz * upcast(tangent)).sum(-1)
        if alpha_tangent is not None and da is not None:
            result = result + (da * alpha_tangent).squeeze(-1)
        return result, *(None for _ in extra_outputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        return vmap_rows(Loss.apply, info, in_dims, inputs)


def _solve(scores: Tensor, target: Tensor, alpha: Alpha) -> tuple[Tensor, Any]:
    """Return losses and statistics; check the targets, which a tracer could not check."""
    classes = scores.shape[-1]
    if target.numel() and int(target.max()) >= classes:
        raise ValueError(
            f"target must contain classes from 0 to {classes - 1} or ignore_index, got a negative or larger class"
        )
    backend = choose("losses", alpha, scores)
    alphas = contiguous_alpha(alpha)
    loss, stats, _ = backend.entmax_loss(contiguous(scores), target.contiguous(), alphas, False)
    return loss, stats


def _compute(scores: Tensor, target: Tensor, number: float, alphas: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return losses, and all probabilities for a traced backward pass."""
    alpha = join_alpha(number, alphas)
    loss, stats = _solve(scores, target, alpha)
    if isinstance(stats, eager.LossStats):
        probs = stats.rows(scores).masked_fill(stats.probs[:, :1].isnan(), torch.nan)
    else:
        probs = maps.ENTMAX.solve(scores, alpha)
    return loss, probs.contiguous()


def _fake(scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[0]), torch.empty_like(scores, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    scores, target, ctx.alpha, alphas = inputs
    ctx.has_alphas = alphas is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(scores, target, output[1], *(() if alphas is None else (alphas,)))


def _backward(ctx: Any, grad: Tensor | None, probs_grad: Tensor | None) -> tuple[Tensor | None, None, None, Any]:
    """Return gradients, given the gradients of the losses and (for second derivatives) of the probabilities."""
    scores, target, probs = ctx.saved_tensors[:3]
    alpha = ctx.saved_tensors[3] if ctx.has_alphas else ctx.alpha
    need_alpha = ctx.needs_input_grad[3]
    dz: Tensor | None = None
    da: Tensor | None = None
    if grad is not None:
        dz, da = eager.pullback(scores, target, alpha, probs, grad, need_alpha)
    if probs_grad is not None:
        probs_dz, probs_da = map_pullback(probs, probs_grad, alpha, need_alpha)
        dz = probs_dz if dz is None else dz + probs_dz
        da = probs_da if da is None or probs_da is None else da + probs_da
    return dz, None, None, da


_operator = operator(
    "entmax_loss",
    "(Tensor scores, Tensor target, float alpha, Tensor? alphas) -> (Tensor, Tensor)",
    _compute,
    _fake,
    _setup,
    _backward,
    rows=True,
    waits=True,
)
