"""Entry points of `entmax_attention` to the kernels for GPUs; under `torch.compile` as opaque operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd.attention import Problem
from tsallis.ops.autograd.attention_traced import GIVEN, Asked, arguments, draw_seed
from tsallis.ops.triton.attention.calls import (
    Kept,
    TritonAttention,
    backward_pass,
    book,
    computes,
    decode,
    decodes,
    forward_pass,
)
from tsallis.ops.triton.attention.launch import powers_of

__all__ = ["TritonAttention", "computes", "decode", "decodes", "powers_of", "traced_attention"]

Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def traced_attention(
    query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem, learns: bool
) -> tuple[Tensor, Tensor]:
    """Return the output, and how many keys each query attends to, for a tracer; gradients only if it `learns`."""
    inputs = arguments(query, key, value, alpha, mask, problem)
    if learns:
        output, support, *_ = _attention_op(*inputs)
        return output, support
    output, support = _inference_op(*inputs)
    return output, support


def _problem(args: Asked, seed: Tensor) -> tuple[Tensor, Tensor, Tensor, Alpha, Tensor | None, Problem]:
    """Return the kernels' arguments for an operator's."""
    powers = powers_of(args.alpha)
    if powers is None:
        raise NotImplementedError(
            "compiled attention on a GPU computes alphas from 1 to 2, got a larger one: use tsallis.backend('eager')"
        )
    problem = Problem(args.scale, args.causal, args.lengths, 1, args.dropout, int(seed), powers=powers)
    return *args[:3], args.alpha, args.mask, problem


@torch.library.custom_op("tsallis::attention_inference", mutates_args=(), schema=f"({GIVEN}) -> (Tensor, Tensor)")
def _inference_op(*inputs: Any) -> tuple[Tensor, Tensor]:
    args = Asked(*inputs)
    kernel_args = _problem(args, draw_seed(args.dropout))
    if decodes(args.query, args.key, kernel_args[-1]):
        return decode(*kernel_args)
    support, saved = forward_pass(*kernel_args)
    return saved.output, support


@_inference_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    rows = query.shape[:-1]
    return query.new_empty(*rows, value.shape[-1]), query.new_empty(rows, dtype=torch.int32)


@torch.library.custom_op(
    "tsallis::attention",
    mutates_args=(),
    schema=f"({GIVEN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _attention_op(*inputs: Any) -> Found:
    """Return the output, support, what backward needs of the pass, and the seed of its dropout, on the CPU."""
    args = Asked(*inputs)
    seed = draw_seed(args.dropout)
    support, saved = forward_pass(*_problem(args, seed))
    return saved.output, support, saved.numbers, saved.needed, saved.counts, saved.bits, seed


@_attention_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Found:
    rows = query.shape[:-1]
    output, support = query.new_empty(*rows, value.shape[-1]), query.new_empty(rows, dtype=torch.int32)
    numbers = query.new_empty(2, *rows, dtype=torch.float32)
    needed, counts, bits = (query.new_empty(s, dtype=d) for s, d in book(query, key, value.shape[-1]))
    return output, support, numbers, needed, counts, bits, torch.empty((), dtype=torch.int64)


@torch.library.custom_op(
    "tsallis::attention_backward",
    mutates_args=(),
    schema=f"({GIVEN}, Tensor output, Tensor numbers, Tensor needed, Tensor counts, Tensor bits, Tensor seed, "
    "Tensor grad, bool need_keys, bool need_alpha, bool need_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward_op(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients; empty ones where none is needed."""
    args, (*saved, seed, grad), needs = Asked(*inputs[:10]), inputs[10:-3], inputs[-3:]
    grads = backward_pass(*_problem(args, seed), Kept(*saved), grad, needs)
    dq, dk, dv, da, dm = (args.query.new_empty(0) if x is None else x for x in grads)
    return dq, dk, dv, da, dm


@_backward_op.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, alpha: float, alphas: Tensor | None, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    need_keys, need_alpha, need_mask = rest[-3:]
    pairs = ((query, True), (key, need_keys), (value, need_keys), (alphas, need_alpha), (mask, need_mask))
    dq, dk, dv, da, dm = (x.new_empty(x.shape) if need and x is not None else query.new_empty(0) for x, need in pairs)
    return dq, dk, dv, da, dm


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
    query, key, value, ctx.alpha, alphas, mask, lengths, *ctx.rest = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    result, _, *saved = output
    ctx.save_for_backward(query, key, value, alphas, mask, lengths, result, *saved)


def _pull(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 4  # lengths, scale, causal, dropout
    if grad is None:
        return (None,) * 6 + nothing
    query, key, value, alphas, mask, lengths, *saved = ctx.saved_tensors
    need_query, need_key, need_value, _, need_alpha, need_mask, *_ = ctx.needs_input_grad
    inputs = (query, key, value, ctx.alpha, alphas, mask, lengths, *ctx.rest)
    dq, dk, dv, da, dm = _backward_op(*inputs, *saved, grad, need_key or need_value, need_alpha, need_mask)
    return (
        dq if need_query else None,
        dk if need_key else None,
        dv if need_value else None,
        None,
        da if need_alpha else None,
        dm if need_mask else None,
        *nothing,
    )


_attention_op.register_autograd(_pull, setup_context=_keep)
