"""Autograd around the kernels: gradients of every order, forward mode, vmap, and opaque operators for tracers.

The kernels decide by looking at numbers (how many Newton steps, how many candidates), which no tracer can follow. Run
eagerly they sit in an `autograd.Function` whose backward is a few in-place passes. When a second derivative is wanted
or `torch.func` is at work, the backward is made of differentiable operations on the saved output instead. Under a
dispatch mode the function's forward is one opaque operator; under `torch.compile` and `torch.export` that operator
alone is called, and its backward is traced and fused.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops import backend, cpu, eager
from tsallis.ops.alphas import Alpha, check_alpha
from tsallis.ops.eager import Packed
from tsallis.ops.transforms import compiling, consecutive, functionalized, operators_only, transforms_active
from tsallis.ops.transforms import differentiable as differentiable
from tsallis.ops.transforms import traced as traced
from tsallis.ops.transforms import widen as widen

COMPILED, TRITON = -1, -2  # the `width` of what kernels computed: they keep no table of candidates


def entmax(scores: Tensor, alpha: Alpha, budget: float | None = None) -> Tensor:
    """Probabilities of rows [rows, d]; `alpha` a float or [rows, 1]; under a budget they sum to it, each at most 1."""
    if compiling() or functionalized():
        return cast(Tensor, _entmax_op(scores, *split(alpha), budget))
    function = _Map if transforms_active() else _DirectMap
    return cast(Tensor, function.apply(scores, alpha, budget)[0])


def entmax_by(kernels: ModuleType, scores: Tensor, alpha: Alpha, dim: int) -> Tensor:
    """By kernels (those of `dispatch.kernels`): any shape, contiguous, along `dim`, -1 or one from 0.

    No view is made on the way, and nothing done that small tensors would notice.
    """
    return cast(Tensor, _KernelMap.apply(scores, alpha, dim, kernels))


def entmax_loss(scores: Tensor, target: Tensor, alpha: Alpha, kernels: ModuleType | None = None) -> Tensor:
    """Compute the Fenchel-Young loss [rows] against classes [rows]; a negative class has loss 0 and no gradient.

    By kernels that were found for these scores, whose targets then were looked at, or by those that are found here.
    """
    if compiling() or functionalized():
        return cast(Tensor, _loss_op(scores, target, *split(alpha))[0])
    function = _Loss if transforms_active() else _DirectLoss
    return cast(Tensor, function.apply(scores, target, alpha, kernels)[0])


def split(alpha: Alpha) -> tuple[float, Tensor | None]:
    """Return alpha as an operator takes it: a number that counts where there is no tensor."""
    return (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)


def _join(number: float, numbers: Tensor | None) -> Alpha:
    return number if numbers is None else numbers


def _check_target(target: Tensor, classes: int) -> None:
    if target.numel() and int(target.max()) >= classes:
        raise ValueError(f"target must hold classes from 0 to {classes - 1} or ignore_index, got one out of range")


def _leading(x: Tensor, dim: int | None, batch: int) -> Tensor:
    """Return the vmapped dimension first and merged with the rows: [batch * rows, ...]."""
    x = x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.reshape(-1, *x.shape[2:])


def _save(ctx: Any, alpha: Alpha, *tensors: Tensor | None) -> None:
    """Keep tensors for both modes; alpha among them if it is one."""
    ctx.alpha = None if isinstance(alpha, Tensor) else alpha
    every = (alpha if isinstance(alpha, Tensor) else None, *tensors)
    ctx.save_for_backward(*every)
    ctx.save_for_forward(*every)
    ctx.set_materialize_grads(False)


def _saved(ctx: Any) -> tuple[Any, ...]:
    """Alpha, and the tensors that were kept with it."""
    alpha, *tensors = ctx.saved_tensors
    return (ctx.alpha if alpha is None else alpha, *tensors)


def _flat(alpha: Alpha) -> Alpha:
    """Alphas as kernels read them."""
    return consecutive(alpha) if isinstance(alpha, Tensor) else alpha


def _mark(kernels: ModuleType) -> int:
    return COMPILED if kernels is cpu else TRITON


def _marked(width: int) -> ModuleType:
    """Return the kernels that computed what has such a width."""
    return cpu if width == COMPILED else backend.triton_kernels()


Solved = tuple[Tensor, Tensor | None, Tensor | None, int]  # probabilities; where the candidates lie, and the `width`


def _solve(scores: Tensor, alpha: Alpha, budget: float | None) -> Solved:
    kernels = backend.kernels(scores, alpha) if budget is None else None
    if kernels is not None:
        return kernels.entmax(consecutive(scores), _flat(alpha)), None, None, _mark(kernels)
    check_alpha(alpha)
    if budget is not None:
        return eager.budgeted_entmax(scores, alpha, budget), None, None, 0
    probs, packed = eager.entmax(scores, alpha)
    return (probs, None, None, 0) if packed is None else (probs, *packed)


class _Map(Function):
    @staticmethod
    def forward(scores: Tensor, alpha: Alpha, budget: float | None) -> Solved:
        if operators_only(scores):
            return _entmax_op(scores, *split(alpha), budget), None, None, 0
        return _solve(scores, alpha, budget)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, alpha, budget = inputs
        probs, position, slot, width = output
        ctx.saturates, ctx.width = budget is not None, width
        if position is not None:
            ctx.mark_non_differentiable(position, slot)
        _save(ctx, alpha, probs, position, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, Tensor | None, None]:
        if grad is None:
            return None, None, None
        alpha, probs, position, slot = _saved(ctx)
        need_alpha = ctx.needs_input_grad[1]
        if differentiable(grad):
            return *eager.pullback(probs, grad, alpha, need_alpha, ctx.saturates), None
        if ctx.width < 0:
            return *_marked(ctx.width).entmax_gradient(probs, consecutive(grad), _flat(alpha), need_alpha), None
        packed = None if position is None else Packed(position, slot, ctx.width)
        p, g = (probs, grad) if packed is None else (packed.gather(probs), packed.gather(grad))
        if need_alpha or ctx.saturates:
            dz, da = eager.pullback(p, g, alpha, need_alpha, ctx.saturates)
        else:
            dz, da = eager.pullback_in_place(p, g, alpha), None
        if packed is not None:
            dz = packed.scatter(dz, probs)
            broken = probs[:, :1].isnan()  # all of such a row is NaN, and none of it a candidate
            if broken.any():
                dz.masked_fill_(broken, torch.nan)
        return dz, da, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, alpha_tangent: Tensor | None, _: Any) -> tuple[Tensor, None, None, None]:
        alpha, probs, *_packed = _saved(ctx)
        return eager.pushforward(probs, tangent, alpha, alpha_tangent, ctx.saturates), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], scores: Tensor, alpha: Alpha, budget: float | None) -> Any:
        rows = _leading(scores, in_dims[0], info.batch_size)
        if isinstance(alpha, Tensor):
            alpha = _leading(alpha, in_dims[1], info.batch_size)
        probs = _Map.apply(rows, alpha, budget)[0].unflatten(0, (info.batch_size, -1))
        return (probs, None, None, 0), (0, None, None, None)


class _DirectMap(Function):
    """The map without `torch.func`: PyTorch then binds the arguments by itself, several times as fast."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
        output = _Map.forward(*inputs)
        _Map.setup_context(ctx, inputs, output)
        return output

    backward = _Map.backward
    jvp = _Map.jvp


class _KernelMap(Function):
    """Only what kernels need: of small tensors it is most of the time."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Alpha, dim: int, kernels: ModuleType) -> Tensor:
        ctx.alpha, ctx.dim, ctx.kernels = alpha, dim, kernels
        if isinstance(alpha, Tensor):
            probs: Tensor = kernels.entmax(scores, consecutive(alpha), dim)
            ctx.alpha = None
            # The alpha that came in: one made consecutive would have no history, and second derivatives not all terms.
            ctx.save_for_backward(probs, alpha)
            ctx.save_for_forward(probs, alpha)
        else:
            probs = kernels.entmax(scores, alpha, dim)
            ctx.save_for_backward(probs)
            ctx.save_for_forward(probs)
        return probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        probs, alpha = _KernelMap._saved(ctx)
        need_alpha = ctx.needs_input_grad[1]
        if differentiable(grad):
            dz, da = eager.pullback(_KernelMap._rows(ctx, probs), _KernelMap._rows(ctx, grad), alpha, need_alpha, False)
            return _KernelMap._restored(ctx, dz, probs), da, None, None
        slopes = consecutive(grad if grad.dtype == probs.dtype else grad.to(probs.dtype))
        dz, da = ctx.kernels.entmax_gradient(probs, slopes, _flat(alpha), need_alpha, ctx.dim)
        return dz, da, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, alpha_tangent: Tensor | None, *_: Any) -> Tensor:
        probs, alpha = _KernelMap._saved(ctx)
        rows = None if tangent is None else _KernelMap._rows(ctx, tangent)
        moved = eager.pushforward(_KernelMap._rows(ctx, probs), rows, alpha, alpha_tangent, False)
        return _KernelMap._restored(ctx, moved, probs)

    @staticmethod
    def _saved(ctx: Any) -> tuple[Tensor, Alpha]:
        probs, *alpha = ctx.saved_tensors
        return probs, alpha[0] if alpha else ctx.alpha

    @staticmethod
    def _rows(ctx: Any, x: Tensor) -> Tensor:
        moved = x.movedim(ctx.dim, -1)
        return widen(moved.reshape(-1, moved.shape[-1]))

    @staticmethod
    def _restored(ctx: Any, rows: Tensor, like: Tensor) -> Tensor:
        return rows.reshape(like.movedim(ctx.dim, -1).shape).movedim(-1, ctx.dim).to(like.dtype)


# The losses; probabilities, where candidates lie, and the `width`, or what kernels have in their stead.
SolvedLoss = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, int]


def _solve_loss(scores: Tensor, target: Tensor, alpha: Alpha, kernels: ModuleType | None = None) -> SolvedLoss:
    if kernels is None:
        _check_target(target, scores.shape[-1])
        kernels = backend.kernels(scores, alpha)
    if kernels is not None:
        many = isinstance(alpha, Tensor)
        listed = {"listed": True} if kernels is cpu else {}  # the others' gradients are written as they read scores
        results = kernels.entmax_loss(consecutive(scores), target.contiguous(), _flat(alpha), many, **listed)
        return *results, None, _mark(kernels)
    check_alpha(alpha)
    loss, probs, packed = eager.entmax_loss(scores, target, alpha)
    return (loss, probs, None, None, 0) if packed is None else (loss, probs, *packed)


class _Loss(Function):
    @staticmethod
    def forward(scores: Tensor, target: Tensor, alpha: Alpha, kernels: ModuleType | None) -> SolvedLoss:
        if operators_only(scores):
            return *_loss_op(scores, target, *split(alpha)), None, None, 0
        return _solve_loss(scores, target, alpha, kernels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        scores, target, alpha, _ = inputs
        _, probs, position, slot, width = output
        ctx.width = width
        ctx.mark_non_differentiable(*(x for x in (probs, position, slot) if x is not None))
        _save(ctx, alpha, scores, target, probs, position, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, Tensor | None, None]:
        if grad is None:
            return None, None, None, None
        alpha, scores, target, probs, position, slot = _saved(ctx)
        need_alpha = ctx.needs_input_grad[2]
        if differentiable(grad):
            dz, da = _loss_pullback(widen(scores), target, alpha, grad, need_alpha)
            return dz.to(scores.dtype), None, da, None
        if ctx.width < 0:
            stats, alpha_grad = probs, position
            grad = consecutive(grad)
            dz = _marked(ctx.width).entmax_loss_gradient(
                consecutive(scores), target.contiguous(), _flat(alpha), stats, grad
            )
            return dz, None, alpha_grad * grad.unsqueeze(-1) if need_alpha else None, None
        counted = _counted(scores, target).unsqueeze(-1)
        weight = torch.where(counted, grad.unsqueeze(-1), 0)
        dz = probs * weight
        da = eager.entropy_alpha_gradient(probs, alpha) * weight if need_alpha else None
        broken = probs[:, :1].isnan()  # all of such a row is NaN
        if position is not None:
            dz = Packed(position, slot, ctx.width).scatter(dz, scores)
        if broken.any():
            dz.masked_fill_(broken & counted, torch.nan).masked_fill_(broken & ~counted, 0)
            da = None if da is None else da.masked_fill_(broken & ~counted, 0)
        dz.scatter_add_(-1, target.clamp(min=0).unsqueeze(-1), -weight)
        return dz, None, da, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: Any, alpha_tangent: Tensor | None, *_kernels: Any) -> tuple[Any, ...]:
        alpha, scores, target, *_probs = _saved(ctx)
        scores = widen(scores)
        tangent = None if tangent is None else widen(tangent)
        one = torch.ones_like(scores[:, 0])
        dz, da = _loss_pullback(scores, target, alpha, one, alpha_tangent is not None)
        result = torch.zeros_like(one)
        if tangent is not None:
            result = result + (dz * tangent).sum(-1)
        if alpha_tangent is not None and da is not None:
            result = result + (da * alpha_tangent).squeeze(-1)
        return result, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], scores: Tensor, target: Tensor, alpha: Alpha, kernels: ModuleType | None
    ) -> Any:
        rows = _leading(scores, in_dims[0], info.batch_size)
        if isinstance(alpha, Tensor):
            alpha = _leading(alpha, in_dims[2], info.batch_size)
        loss = _Loss.apply(rows, _leading(target, in_dims[1], info.batch_size), alpha, kernels)[0]
        return (loss.unflatten(0, (info.batch_size, -1)), None, None, None, 0), (0, None, None, None, None)


class _DirectLoss(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, int]:
        output = _Loss.forward(*inputs)
        _Loss.setup_context(ctx, inputs, output)
        return output

    backward = _Loss.backward
    jvp = _Loss.jvp


def _counted(scores: Tensor, target: Tensor) -> Tensor:
    """Rows that have a loss: with a target, and with something that takes part. Looks at whole rows only if it must."""
    counted = target >= 0
    lost = (scores.gather(-1, target.clamp(min=0).unsqueeze(-1)) == -torch.inf).squeeze(-1)
    if lost.any():
        counted &= scores.amax(-1) != -torch.inf
    return counted


def _loss_pullback(
    scores: Tensor, target: Tensor, alpha: Alpha, grad: Tensor, need_alpha: bool, probs: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return gradients of the scores [rows, d] and of alpha [rows, 1], themselves differentiable."""
    probs = entmax(scores, alpha) if probs is None else probs
    counted = ((target >= 0) & (scores.detach().amax(-1) != -torch.inf)).unsqueeze(-1)
    gold = torch.zeros_like(probs).scatter(-1, target.clamp(min=0).unsqueeze(-1), 1.0)
    weight = grad.unsqueeze(-1)
    dz = torch.where(counted, (probs - gold) * weight, 0)
    if not need_alpha:
        return dz, None
    return dz, torch.where(counted, eager.entropy_alpha_gradient(probs, alpha) * weight, 0)


@torch.library.custom_op(
    "tsallis::entmax",
    mutates_args=(),
    schema="(Tensor scores, float alpha, Tensor? alphas, float? budget) -> Tensor",
)
def _entmax_op(scores: Tensor, alpha: float, alphas: Tensor | None, budget: float | None) -> Tensor:
    return _solve(scores, _join(alpha, alphas), budget)[0].contiguous()


@_entmax_op.register_fake
def _(scores: Tensor, alpha: float, alphas: Tensor | None, budget: float | None) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@_entmax_op.register_vmap
def _(info: Any, in_dims: Any, scores: Tensor, alpha: float, alphas: Tensor | None, budget: float | None) -> Any:
    rows = _leading(scores, in_dims[0], info.batch_size)
    if alphas is not None:
        alphas = _leading(alphas, in_dims[2], info.batch_size)
    return _entmax_op(rows, alpha, alphas, budget).unflatten(0, (info.batch_size, -1)), 0


@torch.library.custom_op(
    "tsallis::entmax_loss",
    mutates_args=(),
    schema="(Tensor scores, Tensor target, float alpha, Tensor? alphas) -> (Tensor, Tensor)",
)
def _loss_op(scores: Tensor, target: Tensor, alpha: float, alphas: Tensor | None) -> tuple[Tensor, Tensor]:
    loss, probs, position, slot, width = _solve_loss(scores, target, _join(alpha, alphas))
    if width < 0:
        return loss, _marked(width).entmax(consecutive(scores), _flat(_join(alpha, alphas)))
    if position is not None and slot is not None and probs is not None:
        probs = Packed(position, slot, width).scatter(probs, scores)
        probs = probs.masked_fill_(loss.isnan().unsqueeze(-1), torch.nan)
    assert probs is not None
    return loss, probs.contiguous()


@_loss_op.register_fake
def _(scores: Tensor, target: Tensor, alpha: float, alphas: Tensor | None) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[0]), torch.empty_like(scores, memory_format=torch.contiguous_format)


@_loss_op.register_vmap
def _(info: Any, in_dims: Any, scores: Tensor, target: Tensor, alpha: float, alphas: Tensor | None) -> Any:
    rows = _leading(scores, in_dims[0], info.batch_size)
    if alphas is not None:
        alphas = _leading(alphas, in_dims[3], info.batch_size)
    results = _loss_op(rows, _leading(target, in_dims[1], info.batch_size), alpha, alphas)
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0, 0)


def _keep_map(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.alpha, alphas, budget = inputs
    ctx.saturates, ctx.many = budget is not None, alphas is not None
    if alphas is None:
        ctx.save_for_backward(output)
    else:
        ctx.save_for_backward(output, alphas)


def _pull_map(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
    alpha = ctx.saved_tensors[1] if ctx.many else ctx.alpha
    dz, da = eager.pullback(ctx.saved_tensors[0], grad, alpha, ctx.needs_input_grad[2], ctx.saturates)
    return dz, None, da, None


# Not a Function: the compiler would trace its backward with it, and fails on the second one of dynamic shapes.
_entmax_op.register_autograd(_pull_map, setup_context=_keep_map)


def _keep_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    scores, target, ctx.alpha, alphas = inputs
    ctx.many = alphas is not None
    ctx.set_materialize_grads(False)
    if alphas is None:
        ctx.save_for_backward(scores, target, output[1])
    else:
        ctx.save_for_backward(scores, target, output[1], alphas)


def _pull_loss(ctx: Any, grad: Tensor | None, of_probs: Tensor | None) -> tuple[Tensor | None, None, None, Any]:
    """Return gradients from that of the losses, and, for derivatives of a second order, that of the probabilities."""
    scores, target, probs = ctx.saved_tensors[:3]
    alpha = ctx.saved_tensors[3] if ctx.many else ctx.alpha
    need_alpha = ctx.needs_input_grad[3]
    dz: Tensor | None = None
    da: Tensor | None = None
    if grad is not None:
        dz, da = _loss_pullback(scores, target, alpha, grad, need_alpha, probs)
    if of_probs is not None:
        more, more_alpha = eager.pullback(probs, of_probs, alpha, need_alpha)
        dz = more if dz is None else dz + more
        da = more_alpha if da is None or more_alpha is None else da + more_alpha
    return dz, None, None, da


_loss_op.register_autograd(_pull_loss, setup_context=_keep_loss)
