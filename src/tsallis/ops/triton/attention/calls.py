"""Compute attention on GPUs block by block; only blocks that may hold support are computed again.

Each program handles a block of queries. First, one dense sweep over all keys takes the elementwise maximum of the score
blocks. These maxima are a subset of each row, so their threshold is a lower bound of the row's threshold. Later sweeps
skip blocks of keys that can't hold support under this bound. Sparse sweeps take Newton steps on the norm until the
weights sum to 1, and a last sweep sums the output. Backward recomputes weights from the thresholds, only in blocks with
support. If all scores of a block of queries fit into registers, the scores are computed once and stay there.

Besides inputs and outputs, forward saves two numbers per query, and for each block of queries the list of key blocks
with support. Thresholds are relative to the row's largest score: `p = exp_alpha(score - top - threshold)` with
`exp_alpha(x) = [1 + eps x]_+^{1/eps}` and `eps = alpha - 1`. At alpha = 1, the threshold is the logsumexp of
`score - top`, without a special case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import bounds
from tsallis.ops.arguments import AttentionArgs, AttentionGradients
from tsallis.ops.triton.attention import launch as launching
from tsallis.ops.triton.attention.backward import backward_key, backward_mask, backward_query, draw_factors, transpose
from tsallis.ops.triton.attention.decode import decode
from tsallis.ops.triton.attention.forward import forward
from tsallis.ops.triton.attention.forward_short import forward_short
from tsallis.ops.triton.attention.launch import (
    DECODE_ROWS,
    LIMITS,
    SHORT_KEYS,
    Launch,
    broadcast_strides,
    contiguous_rows,
    random_numbers,
)
from tsallis.ops.triton.language import run

DECODE_QUERIES = 16  # maximum number of queries for the decoding kernels
FACTORS = 256  # number of dropout factors that one program draws


class SavedForBackward(NamedTuple):
    """Results of a forward pass; the short kernel leaves `block_list`, `counts` and `bits` empty."""

    output: Tensor
    stats: Tensor  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    block_list: Tensor  # [batch, heads, query blocks, key blocks]: key blocks with support come first
    counts: Tensor  # [3, batch, heads, query blocks]: numbers of key blocks with support, candidate blocks, sweeps
    bits: Tensor  # [batch, heads, query blocks, key blocks]: whether a block holds support


def decodes(args: AttentionArgs) -> bool:
    """Return whether few queries read so many keys that programs should share the keys, without gradients."""
    (_, heads, queries, _), (_, key_heads, keys, _) = args.query.shape, args.key.shape
    few_queries = queries <= DECODE_QUERIES and queries * heads <= DECODE_ROWS * key_heads
    if not few_queries or keys <= SHORT_KEYS or args.dropout:
        return False
    rows, memory = queries * heads // key_heads, launching.shared_memory(args.query.device)
    sizes = (args.query.shape[-1], args.value.shape[-1])
    return launching.decode_tiling(*sizes, args.query.dtype, rows, memory) is not None


def resolve(args: AttentionArgs) -> AttentionArgs:
    """Return an operator's arguments in the form that kernels take; check values that a tracer could not read."""
    least, most = bounds(args.alpha) or (1.0, 2.0)
    if most > 2:
        raise NotImplementedError(
            f"compiled attention on a GPU needs alphas from 1 to 2, got {most:g}: use tsallis.backend('eager')"
        )
    return args._replace(alpha_value=least if least == most else None)


def allocate(args: AttentionArgs, output: Tensor, support: Tensor, needs_grad: bool) -> SavedForBackward:
    """Allocate the tensors that a forward pass saves for backward."""
    query = args.query
    batch, heads, queries, size = query.shape
    keys, value_size = args.key.shape[2], args.value.shape[-1]
    stats = query.new_empty(2, batch, heads, queries, dtype=torch.float32)
    dtypes = (torch.int32, torch.int32, torch.int8)
    memory = launching.shared_memory(query.device)
    if launching.short_tiling(size, value_size, query.dtype, keys, memory) is not None:
        return SavedForBackward(output, stats, *(query.new_empty(0, dtype=dtype) for dtype in dtypes))
    tiling = launching.tilings(size, value_size, query.dtype, memory).forward
    blocks, key_blocks = -(-queries // tiling.queries), -(-keys // tiling.keys)
    pairs = (batch, heads, blocks, key_blocks)
    shapes = (pairs, (3, batch, heads, blocks), pairs)
    lists = (query.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    return SavedForBackward(output, stats, *lists)


def attention(args: AttentionArgs, needs_grad: bool) -> tuple[Tensor, Tensor, SavedForBackward]:
    """Return the output, the number of keys that each query attends to, and the results saved for backward.

    Inputs and output may have half precision; scores, weights and sums are float32. Alphas may have any dtype.

    Raises:
        NotImplementedError: An alpha is above 2.
        TypeError: The queries are not in float32, float16 or bfloat16.
    """
    query = args.query
    launch = Launch(args)
    output = query.new_empty(*query.shape[:-1], launch.value_size)
    support = launch.new_int32(*query.shape[:-1])
    saved = allocate(args, output, support, needs_grad)
    if not needs_grad and decodes(args):
        decode(launch, output, support)
        return output, support, saved
    arguments: dict[str, Any] = {"output": output, "stats": saved.stats, "support": support}
    arguments |= {"tolerance": launch.tolerance, "LIMIT": LIMITS.newton}
    short = launching.short_tiling(launch.size, launch.value_size, query.dtype, launch.keys, launch.memory)
    if short is not None:
        blocks = -(-launch.queries // short.queries)
        sizes = {"BLOCK_Q": short.queries, "BLOCK_K": short.keys, "PARTS": short.parts, "num_warps": short.warps}
        launch.run(forward_short, (blocks, launch.heads, launch.batch), **arguments, **sizes)
    else:
        saved.bits.zero_()
        lists = {"block_list": saved.block_list, "counts": saved.counts, "bits": saved.bits}
        windows = args.slopes is not None and args.mask is None
        norms = torch.linalg.vector_norm(launch.key, dim=-1, dtype=torch.float32).amax(-1) if windows else saved.stats
        launch.by_query(forward, launch.tilings.forward, **arguments, **lists, key_norms=norms, WINDOW=windows)
    return output, support, saved


def attention_gradient(
    args: AttentionArgs, saved: SavedForBackward, grad: Tensor, needs: tuple[bool, ...]
) -> AttentionGradients:
    """Return the gradients of the inputs that `needs` marks."""
    query, key, value, alphas, mask, slopes, *_ = args
    need_key, need_value, need_alphas, need_mask, need_slopes = needs[1:]
    launch = Launch(args)
    grad = contiguous_rows(grad)
    has_lists = saved.block_list.numel() > 0
    shared = {"grad": grad, "grad_strides": grad.stride()[:3], "stats": saved.stats, "HAS_LISTS": has_lists}
    block_lists = {"block_list": saved.block_list, "counts": saved.counts}
    dq = torch.empty_like(query, memory_format=torch.contiguous_format)
    delta = torch.empty_like(saved.stats[0])
    alpha_grad, slope_grad = (torch.empty_like(delta) if need else delta for need in (need_alphas, need_slopes))
    launch.by_query(
        backward_query,
        launch.tilings.by_query,
        **shared,
        **block_lists,
        output=saved.output,
        query_grad=dq,
        delta=delta,
        alpha_grad=alpha_grad,
        slope_grad=slope_grad,
        NEED_ALPHA=need_alphas,
        NEED_SLOPES=need_slopes,
    )
    shared["delta"] = delta
    dk = dv = da = dm = ds = None
    if need_key or need_value:
        dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (key, value))
        lists = {"query_blocks": saved.block_list, "query_block_counts": saved.counts}  # kernels don't read empty lists
        lists = _transpose_blocks(launch, saved.bits) if has_lists else lists
        launch.by_key(backward_key, launch.tilings.by_key, **shared, **lists, key_grad=dk, value_grad=dv)
    if need_alphas and alphas is not None:
        da = alpha_grad.sum(-1).sum_to_size(alphas.shape).to(alphas.dtype)
    if need_slopes and slopes is not None:
        ds = slope_grad.sum(-1).sum_to_size(slopes.shape).to(slopes.dtype)
    if need_mask and mask is not None:
        total = _mask_total(launch, mask)
        strides = broadcast_strides(total)
        launch.by_query(
            backward_mask,
            launch.tilings.by_query,
            **shared,
            **block_lists,
            mask_grad=total,
            mask_grad_strides=strides[:3],
            mask_grad_column=strides[3],
            ONE_ROW=mask.shape[2] == 1,
            ONE_COLUMN=mask.shape[3] == 1,
        )
        dm = total.sum_to_size(mask.shape).to(mask.dtype)
    grads = AttentionGradients(None, None, None, da, dm, ds)
    return grads._replace(
        query=dq if needs[0] else None, key=dk if need_key else None, value=dv if need_value else None
    )


def _mask_total(launch: Launch, mask: Tensor) -> Tensor:
    """Return float32 zeros, to which programs add a mask's gradient; the caller sums the result to the mask's shape.

    Programs add to an entry that the mask broadcasts in any order. If PyTorch must use deterministic algorithms, each
    batch element, head and row (or block of rows) gets its own entry, so that no two programs add to the same entry.
    This takes more memory.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return torch.zeros_like(mask, dtype=torch.float32)
    rows, columns = mask.shape[2:]
    rows = -(-launch.queries // launch.tilings.by_query.queries) if rows == 1 else rows
    return launch.new_float32(launch.batch, launch.heads, rows, columns).zero_()


def drop_factors(args: AttentionArgs) -> Tensor:
    """Return the factors by which dropout multiplies all weights [batch, heads, queries, keys]."""
    (batch, heads, queries, _), keys = args.query.shape, args.key.shape[2]
    factors = torch.empty(batch, heads, queries, keys, device=args.query.device)
    if not args.dropout:
        return factors.fill_(1)
    sizes = {"queries": queries, "keys": keys, "heads": batch * heads, "LANES": FACTORS}
    # Use only the first dimension of the grid: the other dimensions allow at most 65,535 programs.
    grid = (-(-factors.numel() // FACTORS),)
    run(draw_factors, grid, args.query, factors=factors, **sizes, **random_numbers(args))
    return factors


def _transpose_blocks(launch: Launch, bits: Tensor) -> dict[str, Tensor]:
    """List and count the blocks of queries that need each block of keys."""
    batch, heads, blocks, key_blocks = bits.shape
    query_blocks, query_block_counts = launch.new_int32(bits.numel()), launch.new_int32(batch * heads, key_blocks)
    lists = {"query_blocks": query_blocks, "query_block_counts": query_block_counts}
    sizes = {"blocks": blocks, "key_blocks": key_blocks, "LANES": 128}
    launch.run(transpose, (key_blocks, heads, batch), bits=bits, **lists, **sizes, num_warps=1)
    return lists
