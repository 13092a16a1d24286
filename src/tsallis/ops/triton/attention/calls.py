"""Attention on GPUs: the scores are computed block by block, and only blocks that may hold support a second time.

Each program owns a block of queries. Its one dense sweep over the keys keeps the elementwise maximum of the score
blocks: a subset of every row, whose threshold bounds the row's own from below. Blocks of keys with no score above that
bound are never looked at again. Sweeps over the others take norm-Newton steps until the weights sum to 1, a last one
adds up the output. Backward computes the weights again from the thresholds, in the blocks that had support. Where all
scores of a block of queries fit into registers they stay there, and are computed once.

Beside inputs and outputs two numbers are kept of each query, and for each block of queries which blocks of keys it
needs. A threshold is written relative to the row's largest score, `p = exp_alpha(score - top - threshold)` with
`exp_alpha(x) = [1 + eps x]_+^{1/eps}` and `eps = alpha - 1`: at alpha = 1 it is logsumexp, and no special case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd import attention
from tsallis.ops.autograd.attention import Problem
from tsallis.ops.transforms import differentiable, recomputed_gradients
from tsallis.ops.triton.attention import launch as launching
from tsallis.ops.triton.attention.backward import backward_key, backward_mask, backward_query, draw_factors, transpose
from tsallis.ops.triton.attention.decode import decode as decode
from tsallis.ops.triton.attention.forward import forward
from tsallis.ops.triton.attention.forward_short import forward_short
from tsallis.ops.triton.attention.launch import (
    DECODE_ROWS,
    LARGEST_SIZE,
    LIMITS,
    SHORT_KEYS,
    TOLERANCE,
    Launch,
    broadcast_strides,
    random_numbers,
    rows_contiguous,
)
from tsallis.ops.triton.language import mode, run

DECODE_QUERIES = 16  # at the most
GRID = 65535  # programs in the second and third direction


class Kept(NamedTuple):
    """The tensors of a forward pass saved for backward; the last three are empty after the short kernel."""

    output: Tensor
    numbers: Tensor  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    needed: Tensor
    counts: Tensor
    bits: Tensor


def computes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the kernels take tensors of this dtype and these sizes [batch, heads, length, size]."""
    largest = max(query.shape[-1], value.shape[-1])
    return query.dtype in TOLERANCE and largest <= LARGEST_SIZE and max(query.shape[0], query.shape[1]) <= GRID


def decodes(query: Tensor, key: Tensor, problem: Problem) -> bool:
    """Tell whether queries are so few that splitting the keys over programs pays; for passes without gradients."""
    few = query.shape[2] <= DECODE_QUERIES and query.shape[2] * query.shape[1] <= DECODE_ROWS * key.shape[1]
    return few and key.shape[2] > SHORT_KEYS and problem.dropout == 0


def forward_pass(
    query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
) -> tuple[Tensor, Kept]:
    """Return how many keys each query attends to [batch, heads, queries], and the saved tensors with the output."""
    launch = Launch(query, key, value, alpha, mask, problem)
    rows = query.shape[:-1]
    output = query.new_empty(*rows, launch.value_size)
    numbers, support = launch.numbers(2, *rows), launch.counts(*rows)
    arguments: dict[str, Any] = {"output": output, "kept": numbers, "support": support}
    arguments |= {"tolerance": launch.tolerance, "LIMIT": LIMITS.newton}
    needed, counts, bits = (query.new_empty(shape, dtype=dtype) for shape, dtype in book(query, key, launch.value_size))
    short = launching.short_tiling(launch.size, launch.value_size, query.dtype, launch.keys)
    if short is not None:
        blocks = -(-launch.queries // short.queries)
        sizes = {"BLOCK_Q": short.queries, "BLOCK_K": short.keys, "PARTS": short.parts, "num_warps": short.warps}
        launch.run(forward_short, (blocks, launch.heads, launch.batch), **arguments, **sizes)
    else:
        bits.zero_()
        launch.by_query(forward, launch.tilings.forward, **arguments, needed=needed, counts=counts, bits=bits)
    return support, Kept(output, numbers, needed, counts, bits)


def book(query: Tensor, key: Tensor, value_size: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shapes and dtypes of what says which blocks hold support: needed, counts, bits."""
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    dtypes = (torch.int32, torch.int32, torch.int8)
    if launching.short_tiling(size, value_size, query.dtype, keys) is not None:
        return [((0,), dtype) for dtype in dtypes]
    tiling = launching.tilings(size, value_size, query.dtype).forward
    blocks, key_blocks = -(-queries // tiling.queries), -(-keys // tiling.keys)
    every = (batch, heads, blocks, key_blocks)
    return list(zip((every, (3, batch, heads, blocks), every), dtypes, strict=True))


class Gradients(NamedTuple):
    """The gradients of a backward pass; None where not requested."""

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    alpha: Tensor | None
    mask: Tensor | None


def backward_pass(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Alpha,
    mask: Tensor | None,
    problem: Problem,
    kept: Kept,
    grad: Tensor,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """Return gradients of the queries, and those that are needed: of keys and values, of the alphas, of the mask."""
    need_keys, need_alpha, need_mask = needs
    launch = Launch(query, key, value, alpha, mask, problem)
    grad = rows_contiguous(grad)
    listed = kept.needed.numel() > 0
    shared = {"grad": grad, "grad_strides": grad.stride()[:3], "kept": kept.numbers, "LISTED": listed}
    lists = {"needed": kept.needed, "counts": kept.counts}
    dq = torch.empty_like(query, memory_format=torch.contiguous_format)
    delta = torch.empty_like(kept.numbers[0])
    slopes = torch.empty_like(delta) if need_alpha else delta
    launch.by_query(
        backward_query,
        launch.tilings.by_query,
        **shared,
        **lists,
        output=kept.output,
        query_grad=dq,
        delta=delta,
        alpha_grad=slopes,
        NEED_ALPHA=need_alpha,
    )
    shared["delta"] = delta
    dk = dv = da = dm = None
    if need_keys:
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (key, value))
        back = _queries_of_keys(launch, kept.bits) if listed else {"back": kept.needed, "back_counts": kept.counts}
        launch.by_key(backward_key, launch.tilings.by_key, **shared, **back, key_grad=dk, value_grad=dv)
    if need_alpha and isinstance(alpha, Tensor):
        da = slopes.sum(-1)
        da = (da.sum(0, keepdim=True) if len(alpha) < len(da) else da).to(alpha.dtype)
    if need_mask and mask is not None:
        total = torch.zeros_like(mask, dtype=torch.float32)
        strides = broadcast_strides(total)
        launch.by_query(
            backward_mask,
            launch.tilings.by_query,
            **shared,
            **lists,
            mask_grad=total,
            mask_grad_strides=strides[:3],
            mask_grad_column=strides[3],
            ONE_ROW=mask.shape[2] == 1,
            ONE_COLUMN=mask.shape[3] == 1,
        )
        dm = total.to(mask.dtype)
    return Gradients(dq, dk, dv, da, dm)


def _queries_of_keys(launch: Launch, bits: Tensor) -> dict[str, Tensor]:
    """For each block of keys the blocks of queries that need it, and how many they are."""
    batch, heads, blocks, key_blocks = bits.shape
    back, back_counts = launch.counts(bits.numel()), launch.counts(batch * heads, key_blocks)
    lists = {"back": back, "back_counts": back_counts}
    sizes = {"blocks": blocks, "key_blocks": key_blocks, "LANES": 128}
    launch.run(transpose, (key_blocks, heads, batch), bits=bits, **lists, **sizes, num_warps=1)
    return lists


def drop_factors(query: Tensor, keys: int, problem: Problem) -> Tensor:
    """Return dropout's factors for the weights of these queries [batch, heads, queries, keys]."""
    batch, heads, queries, _ = query.shape
    factors = torch.empty(batch, heads, queries, keys, device=query.device)
    if not problem.dropout:
        return factors.fill_(1)
    grid = (queries, -(-keys // 256), batch * heads)
    sizes = {"queries": queries, "keys": keys, "BLOCK_K": 256}
    run(draw_factors, grid, query, factors=factors, **sizes, **random_numbers(problem))
    return factors


class TritonAttention(Function):
    """`attention.Attention` by Triton's kernels, which also take float16 and bfloat16 and return the output in them.

    Scores, weights and sums are float32. Tensors of alphas may have any floating dtype.

    Raises:
        NotImplementedError: an alpha above 2.
        TypeError: another dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        problem = problem if problem.powers is not None else problem._replace(powers=mode(alpha))
        support, saved = forward_pass(query, key, value, alpha, mask, problem)
        ctx.problem, ctx.alpha = problem, alpha if isinstance(alpha, float) else None
        ctx.mark_non_differentiable(support)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, mask, alpha if isinstance(alpha, Tensor) else None, *saved)
        return saved.output, support

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None
        query, key, value, mask, alpha, *saved = ctx.saved_tensors
        alpha = ctx.alpha if alpha is None else alpha
        if differentiable(grad):
            return *_differentiable_backward(ctx, query, key, value, alpha, mask, grad), None
        need_query, need_key, need_value, need_alpha, need_mask, _ = ctx.needs_input_grad
        needs = (need_key or need_value, need_alpha, need_mask)
        dq, dk, dv, da, dm = backward_pass(query, key, value, alpha, mask, ctx.problem, Kept(*saved), grad, needs)
        return dq if need_query else None, dk if need_key else None, dv if need_value else None, da, dm, None


def _differentiable_backward(
    ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return gradients that have gradients, through all weights, in float32."""

    def compute(query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None) -> Tensor:
        q, k, v = query.float(), key.float(), value.float()
        alphas = alpha.float() if isinstance(alpha, Tensor) else alpha
        added = mask.float() if mask is not None and mask.dtype != torch.bool else mask
        _, weights = attention.materialised(q, k, v, alphas, added, ctx.problem._replace(dropout=0.0))
        dropped = weights * drop_factors(query, key.shape[2], ctx.problem)
        group = query.shape[1] // key.shape[1]
        out: Tensor = (dropped.unflatten(1, (-1, group)) @ v.unsqueeze(2)).flatten(1, 2)
        return out

    return recomputed_gradients(ctx, compute, (query, key, value, alpha, mask), grad.float())
