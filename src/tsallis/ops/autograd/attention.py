"""Compute attention with gradients: by kernels, or by PyTorch operations that store all weights.

An `autograd.Function` calls the kernels, or an operator if a tracer or a dispatch mode must see the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.alphas import bounds
from tsallis.ops.arguments import AttentionArgs, AttentionGradients, schema, tensor_count
from tsallis.ops.autograd import maps as autograd
from tsallis.ops.autograd.recompute import recompute_input_gradients
from tsallis.ops.choice import choose_attention
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager import attention as eager_attention
from tsallis.ops.eager.attention import distances, future_mask, length_mask
from tsallis.ops.registry import BACKENDS, load_attention
from tsallis.ops.transforms import (
    compiling,
    differentiable,
    exporting_to_onnx,
    jit_tracing,
    modes_active,
    operators_only,
    recording,
    savable,
    traced,
    without_numbers,
)

FIELDS, TENSORS = len(AttentionArgs._fields), tensor_count(AttentionArgs)
DIFFERENTIABLE = len(AttentionGradients._fields)
MAX_SAVED = 5  # maximum number of tensors that a backend saves for backward


def compute(args: AttentionArgs, backend: str, dense: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the output, the weights or None, and a record of how many keys each query attends to.

    Kernels are used by default; they return no weights and record the numbers. PyTorch operations return all weights
    and record the detached weights. They are used if `dense`, if a tracer must see the operations, or if there are so
    few weights that storing them is faster than computing them twice.
    """
    # Unpack `args`, because the compiler of PyTorch 2.9 reads the fields of a NamedTuple but not its properties.
    query, key, value, alphas, mask, slopes, *_ = args
    if backend == "eager" and not dense:
        # Check for tracers first: the dynamic sizes of an export can't be compared.
        dense = traced() or without_numbers(query)
        dense = dense or query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] <= eager_attention.TILE
    graph = recording()
    if dense or (graph and exporting_to_onnx()):
        output, weights = dense_attention(args, backend)
        return output, weights, weights.detach()
    inputs = (query, key, value, alphas, mask, slopes)
    needs_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if graph:
        needs_grad = needs_grad or jit_tracing()  # torch.jit.trace checks its graph with inputs that need gradients
        graph = compiling()
    if needs_grad and not graph and any(isinstance(x, Tensor) and x.is_inference() for x in args[:TENSORS]):
        args = AttentionArgs._make(savable(x) if isinstance(x, Tensor) else x for x in args)
    if backend != "eager" and (graph or operators_only(query)):
        output, support, *_ = _attention_op(*args, backend, needs_grad)
    elif needs_grad:
        output, support = Attention.apply(*args, backend)
    else:
        output, support, _ = load_attention(backend).attention(args, False)
    return output, None, support


class Attention(Function):
    """Function that computes the output and the number of keys per query with kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *fields, ctx.backend = inputs
        output, support, saved = load_attention(ctx.backend).attention(AttentionArgs(*fields), True)
        ctx.options = fields[TENSORS:]
        ctx.mark_non_differentiable(support)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*fields[:TENSORS], *saved)
        return output, support

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, ...]:
        no_gradients = (None,) * (len(ctx.needs_input_grad) - DIFFERENTIABLE)
        if grad is None:
            return (None,) * DIFFERENTIABLE + no_gradients
        tensors, kernels = ctx.saved_tensors, load_attention(ctx.backend)
        args = AttentionArgs(*tensors[:TENSORS], *ctx.options)
        if differentiable(grad, pointers=ctx.backend != "eager"):
            return *differentiable_gradient(ctx, args, grad), *no_gradients
        saved, needs = kernels.SavedForBackward(*tensors[TENSORS:]), ctx.needs_input_grad[:DIFFERENTIABLE]
        return *kernels.attention_gradient(args, saved, grad, needs), *no_gradients


def dense_attention(args: AttentionArgs, backend: str = "eager") -> tuple[Tensor, Tensor]:
    """Compute the output and all weights [batch, heads, queries, keys] with PyTorch operations.

    The backend computes dropout, so that a seed drops the same weights with and without kernels.
    """
    query, key, value, alphas, mask, slopes, lengths, *_ = args
    alpha = cast(float, args.alpha_value) if alphas is None else alphas
    batch, heads, queries, _ = query.shape
    group, keys = heads // key.shape[1], key.shape[2]
    active = None if lengths is None else length_mask(lengths, keys, query.device)
    if active is not None:  # values of invalid keys may be infinite, and infinity times 0 is NaN
        key, value = (torch.where(active.unsqueeze(-1), x, 0) for x in (key, value))
    # Queries that share a key head become rows of one matrix: [batch, key heads, group * queries, size].
    scores = query.reshape(batch, key.shape[1], group * queries, query.shape[-1]) @ key.transpose(-1, -2) * args.scale
    scores = scores.reshape(batch, heads, queries, keys)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if slopes is not None:
        scores = scores - slopes.to(scores.dtype)[..., None, None] * distances(queries, keys, args.offset, scores)
    if args.causal:
        scores = scores.masked_fill(future_mask(queries, keys, query.device, args.offset), -torch.inf)
    if active is not None:
        scores = scores.masked_fill(~active.unsqueeze(1), -torch.inf)
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(batch, heads)[..., None, None].expand(-1, -1, queries, 1)
    weights = autograd.entmax(scores, alpha, rule=autograd.ATTENTION_WEIGHTS)
    dropped = weights
    if args.dropout and (traced() or modes_active()):
        dropped = torch.dropout(weights, args.dropout, True)
    elif args.dropout:
        dropped = weights * load_attention(backend).drop_factors(args)
    out = dropped.reshape(batch, key.shape[1], group * queries, keys) @ value
    return out.reshape(batch, heads, queries, value.shape[-1]), weights


def differentiable_gradient(ctx: Any, args: AttentionArgs, grad: Tensor) -> Sequence[Tensor | None]:
    """Compute gradients from all weights, so that the gradients can be differentiated again or batched."""

    def compute(*inputs: Any) -> Tensor:
        new_args = args._replace(**AttentionGradients(*inputs)._asdict())
        return dense_attention(_upcast_args(new_args), ctx.backend)[0]

    return recompute_input_gradients(ctx, compute, args.differentiable, upcast(grad))


# Operator for tracers and dispatch modes. Its arguments are the fields of `AttentionArgs` and the name of the backend,
# which was chosen when the call was recorded. If that backend is missing when a saved program runs, PyTorch's
# operations replace it.


def _resolve_backend(args: AttentionArgs, backend: str) -> str:
    """Return the backend for an operator's call, and check alphas that a tracer could not read."""
    return backend if choose_attention(*args[:3], bounds(args.alpha)) == backend else "eager"


def _upcast_args(args: AttentionArgs) -> AttentionArgs:
    """Return arguments in the compute dtype of PyTorch's operations."""
    query, key, value = (upcast(x) for x in args[:3])
    alphas, slopes = (None if x is None else x.to(query.dtype) for x in (args.alphas, args.slopes))
    mask = args.mask if args.mask is None or args.mask.dtype == torch.bool else args.mask.to(query.dtype)
    return args._replace(query=query, key=key, value=value, alphas=alphas, mask=mask, slopes=slopes)


@torch.library.custom_op(
    "tsallis::attention",
    mutates_args=(),
    schema=f"({schema(AttentionArgs)}, str backend, bool needs_grad) -> ({', '.join(['Tensor'] * (MAX_SAVED + 2))})",
)
def _attention_op(*inputs: Any) -> tuple[Tensor, ...]:
    """Return the output, the support sizes and the data for backward."""
    *fields, backend, needs_grad = inputs
    args = AttentionArgs(*fields)
    if _resolve_backend(args, backend) != "eager":
        kernels = load_attention(backend)
        output, support, saved = kernels.attention(kernels.resolve(args), needs_grad)
        return output.contiguous(), support, *_pad_saved(saved, output, support)
    output, support, saved = eager_attention.attention(eager_attention.resolve(_upcast_args(args)), False)
    output = output.to(args.query.dtype)
    if args.query.device.type in BACKENDS[backend].devices:  # compiled graphs may rely on these shapes
        saved = load_attention(backend).allocate(args, output, support, needs_grad)
    return output, support, *_pad_saved(saved, output, support)


@_attention_op.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    *fields, backend, needs_grad = inputs
    args = AttentionArgs(*fields)
    rows = args.query.shape[:-1]
    output, support = args.query.new_empty(*rows, args.value.shape[-1]), args.query.new_empty(rows, dtype=torch.int32)
    saved = load_attention(backend).allocate(args, output, support, needs_grad)
    return output, support, *_pad_saved(saved, output, support)


def _pad_saved(saved: Any, output: Tensor, support: Tensor) -> list[Tensor]:
    """Return saved tensors as an operator's results; an empty tensor replaces None, the output and the support."""
    tensors = [None if x is output or x is support else x for x in saved]
    tensors += [None] * (MAX_SAVED - len(tensors))
    return [output.new_empty(0) if x is None else x for x in tensors]


@torch.library.custom_op(
    "tsallis::attention_backward",
    mutates_args=(),
    schema=f"({schema(AttentionArgs)}, str backend, {', '.join(f'Tensor saved_{i}' for i in range(MAX_SAVED))}, "
    f"Tensor grad, bool[] needs) -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})",
)
def _backward_op(*inputs: Any) -> tuple[Tensor, ...]:
    """Return gradients; gradients that are not needed are empty tensors."""
    *fields, backend = inputs[: FIELDS + 1]
    *saved, grad, needs = inputs[FIELDS + 1 :]
    args = AttentionArgs(*fields)
    if _resolve_backend(args, backend) != "eager":
        kernels = load_attention(backend)
        saved = kernels.SavedForBackward(*saved[: len(kernels.SavedForBackward._fields)])
        gradients = kernels.attention_gradient(kernels.resolve(args), saved, grad, needs)
    else:
        wide = eager_attention.resolve(_upcast_args(args))
        gradients = eager_attention.attention_gradient(wide, eager_attention.SavedForBackward(), upcast(grad), needs)
    return tuple(
        grad.new_empty(0) if g is None or x is None else g.to(x.dtype).contiguous()
        for g, x in zip(gradients, args.differentiable, strict=True)
    )


@_backward_op.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    tensors, needs = inputs[:DIFFERENTIABLE], inputs[-1]
    empty = inputs[0].new_empty
    return tuple(x.new_empty(x.shape) if need else empty(0) for x, need in zip(tensors, needs, strict=True))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *fields, ctx.backend, ctx.saved_all = inputs
    args = AttentionArgs(*fields)
    if not (traced() or without_numbers(args.query)):
        ctx.backend = _resolve_backend(args, ctx.backend)
    results = {"output": output[0], "support": output[1]}
    names = load_attention(ctx.backend).SavedForBackward._fields
    slots = [results.get(name, x) for name, x in zip_longest(names, output[2:])]
    ctx.options = args[TENSORS:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*args[:TENSORS], *slots)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    no_gradients = (None,) * (FIELDS + 2 - DIFFERENTIABLE)
    if grad is None:
        return (None,) * DIFFERENTIABLE + no_gradients
    tensors = ctx.saved_tensors
    args = AttentionArgs(*tensors[:TENSORS], *ctx.options)
    dense = torch.is_grad_enabled() or not ctx.saved_all  # not all is saved if no input needed gradients at recording
    if dense and not torch.compiler.is_compiling():
        return *differentiable_gradient(ctx, args, grad), *no_gradients
    needs = list(ctx.needs_input_grad[:DIFFERENTIABLE])
    gradients = _backward_op(*args, ctx.backend, *tensors[TENSORS:], grad, needs)
    return *(x if need else None for x, need in zip(gradients, needs, strict=True)), *no_gradients


_attention_op.register_autograd(_backward, setup_context=_setup_context)
