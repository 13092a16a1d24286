"""Compute attention of few queries over many keys, as in text generation; programs share the keys.

Scores are written once and read again. A program reads each key and value once for all queries of a group. It reads
values only if their block of keys has a non-zero weight. There is no gradient.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tsallis.ops.triton.attention.launch import LIMITS, Launch, decode_tiling
from tsallis.ops.triton.attention.tiles import (
    ROUNDING,
    ROUNDING_RELATIVE,
    attention_kernel,
    dot,
    load,
    load_key_end,
    newton_tolerance,
    raise_lower_bound,
    score,
)
from tsallis.ops.triton.language import entmax_weights, newton_step, processors, tl


@attention_kernel
def _locate_rows(key_head: tl.tensor, queries: tl.tensor, group: tl.tensor, ROWS: tl.constexpr) -> Any:
    """Return head, index and validity of all queries that read a head of keys; padding has the index `queries`."""
    rows = tl.arange(0, ROWS)
    valid = rows < group * queries
    head = key_head * group + tl.where(valid, rows // queries, 0)
    return head, tl.where(valid, rows % queries, queries), valid


@attention_kernel
def _load_row_eps(
    alpha: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, TINY: tl.constexpr, valid: tl.tensor
) -> Any:
    alphas = tl.load(alpha + batch * strides[0] + head * strides[1], mask=valid, other=1.5)
    return tl.maximum(alphas.to(tl.float32) - 1.0, TINY)


@attention_kernel
def decode_scores(
    query: tl.tensor,  # [batch, heads, queries, SIZE]; all inputs may have any strides
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,  # [batch, heads], with any strides
    lengths: tl.tensor,  # [batch]
    scores: tl.tensor,  # [batch, heads, queries, keys]
    parts: tl.tensor,  # [2, batch, heads, queries, splits]: the largest score, and a lower bound of the threshold
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    span: tl.tensor,  # keys per split
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    SLOPES: tl.constexpr,
    LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    splits, key_heads = tl.num_programs(0), tl.num_programs(1)
    split, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = key_heads * group
    head, rows, valid = _locate_rows(key_head, queries, group, ROWS)
    eps = _load_row_eps(alpha, batch, head, alpha_strides, TINY, valid)
    key_end = load_key_end(lengths, batch, keys, LENGTHS)
    key += batch.to(tl.int64) * key_strides[0] + key_head.to(tl.int64) * key_strides[1]
    sizes = tl.arange(0, PADDED)
    query += batch.to(tl.int64) * query_strides[0]
    query_offsets = head.to(tl.int64) * query_strides[1] + rows.to(tl.int64) * query_strides[2]
    q = tl.load(
        query + query_offsets[:, None] + sizes[None, :], mask=valid[:, None] & (sizes < SIZE)[None, :], other=0.0
    )
    mask += batch.to(tl.int64) * mask_strides[0]
    slope = offset * 0.0
    if SLOPES:
        slope_pointers = slopes + batch * slope_strides[0] + head * slope_strides[1]
        slope = tl.load(slope_pointers, mask=valid, other=0.0).to(tl.float32)[:, None]
    bias = ((mask + head.to(tl.int64) * mask_strides[1])[:, None], mask_strides[2], mask_column, slope, offset)
    row_index = (batch.to(tl.int64) * heads + head) * queries + rows
    first = split * span
    last = tl.minimum(first + span, key_end)
    lanes = tl.arange(0, BLOCK_K)
    largest = tl.full((ROWS, BLOCK_K), float("-inf"), tl.float32)
    for number in range(0, tl.cdiv(last - first, BLOCK_K)):
        start = first + number * BLOCK_K
        k = load(key, start, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
        columns = (start + lanes)[None, :]
        s = score(q, k, rows[:, None], columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST)
        tl.store(scores + row_index[:, None] * keys + columns, s, mask=valid[:, None] & (columns < key_end))
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
    low = raise_lower_bound(largest, tl.full((ROWS,), float("-inf"), tl.float32), eps, eps[:, None], MODE)
    part_index = row_index * splits + split
    stats_stride = tl.num_programs(2).to(tl.int64) * heads * queries * splits
    tl.store(parts + part_index, tl.max(largest, 1), mask=valid)
    tl.store(parts + stats_stride + part_index, low, mask=valid)


@attention_kernel
def decode_thresholds(
    alpha: tl.tensor,
    lengths: tl.tensor,
    scores: tl.tensor,
    parts: tl.tensor,
    candidates: tl.tensor,  # [batch, heads, queries, keys]: scores that may get a non-zero weight come first
    stats: tl.tensor,  # [3, batch, heads, queries]: the largest score, the threshold, the sum of the weights
    support: tl.tensor,  # [batch, heads, queries]
    alpha_strides: tl.tuple,
    queries: tl.tensor,
    keys: tl.tensor,
    span: tl.tensor,
    splits: tl.tensor,
    tolerance: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    LENGTHS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    """Find the threshold, support size and sum of weights of one row."""
    row, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    row_index = (batch.to(tl.int64) * heads + head) * queries + row
    stats_stride = tl.num_programs(2).to(tl.int64) * heads * queries
    key_end = load_key_end(lengths, batch, keys, LENGTHS)
    eps = tl.maximum(tl.load(alpha + batch * alpha_strides[0] + head * alpha_strides[1]).to(tl.float32) - 1.0, TINY)
    lanes = tl.arange(0, LANES)
    used_splits = tl.cdiv(key_end, span)
    tops = tl.full((LANES,), float("-inf"), tl.float32)
    lows = tl.full((LANES,), float("-inf"), tl.float32)
    nan_count = tl.zeros((LANES,), tl.int32)
    for first in range(0, used_splits, LANES):
        part_index = row_index * splits + first + lanes
        valid = first + lanes < used_splits
        low = tl.load(parts + stats_stride * splits + part_index, mask=valid, other=float("-inf"))
        nan_count += tl.where(low == low, 0, 1)
        lows = tl.maximum(lows, tl.where(low == low, low, float("-inf")))
        tops = tl.maximum(tops, tl.load(parts + part_index, mask=valid, other=float("-inf")))
    not_finite = tl.max(nan_count) > 0
    low = tl.max(lows)
    top = tl.max(tops)
    top = tl.where(not_finite | (low == float("-inf")), 0.0, top)
    bound = low - tl.abs(low) * ROUNDING_RELATIVE - 1.0 / eps - ROUNDING
    bound = tl.where(not_finite, float("inf"), bound)

    # Copy the scores above the highest bound of all splits; Newton steps read only these candidates.
    scores += row_index * keys
    candidates += row_index * keys
    count = 0
    for first in range(0, key_end, LANES):
        columns = first + lanes
        s = tl.load(scores + columns, mask=columns < key_end, other=float("-inf"))
        above = (s > bound).to(tl.int32)
        tl.store(candidates + count + tl.cumsum(above, 0) - 1, s - top, mask=above != 0)
        count += tl.sum(above)
    tl.debug_barrier()

    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    tolerance_before_step = newton_tolerance(eps, tolerance)
    mass = 0.0 * eps
    sweeps = 0
    support_size = tl.zeros((LANES,), tl.int32)
    unfinished = count > 0
    last = count * 0
    while unfinished:
        F = tl.zeros((LANES,), tl.float32)
        G = tl.zeros((LANES,), tl.float32)
        support_size = tl.zeros((LANES,), tl.int32)
        for first in range(0, count, LANES):
            columns = first + lanes
            x = tl.load(candidates + columns, mask=columns < count, other=float("-inf"))
            p, w = entmax_weights(x - threshold, eps, MODE)
            F += p
            G += w
            support_size += tl.where(p > 0.0, 1, 0)
        mass = tl.sum(F)
        unfinished = last == 0
        last = ((tl.abs(mass - 1.0) <= tolerance_before_step) | (sweeps >= LIMIT)).to(tl.int32)
        threshold = tl.where(unfinished, newton_step(threshold, mass, tl.sum(G), eps, MODE), threshold)
        sweeps += 1
    stats_pointer = stats + row_index
    tl.store(stats_pointer, top)
    tl.store(stats_pointer + stats_stride, tl.where(not_finite, float("nan"), threshold))
    tl.store(stats_pointer + 2 * stats_stride, tl.where(mass > 0.0, mass, 1.0))
    tl.store(support + row_index, tl.sum(support_size))


@attention_kernel
def decode_output(
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE], with any strides
    alpha: tl.tensor,
    lengths: tl.tensor,
    scores: tl.tensor,
    stats: tl.tensor,
    partial: tl.tensor,  # [batch, heads, queries, splits, VALUE_SIZE]: each split's share of the output
    value_strides: tl.tuple,
    alpha_strides: tl.tuple,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    span: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    MODE: tl.constexpr,
    LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    splits, key_heads = tl.num_programs(0), tl.num_programs(1)
    split, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = key_heads * group
    head, rows, valid = _locate_rows(key_head, queries, group, ROWS)
    eps = _load_row_eps(alpha, batch, head, alpha_strides, TINY, valid)
    key_end = load_key_end(lengths, batch, keys, LENGTHS)
    value += batch.to(tl.int64) * value_strides[0] + key_head.to(tl.int64) * value_strides[1]
    row_index = (batch.to(tl.int64) * heads + head) * queries + rows
    stats_stride = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(stats + row_index, mask=valid, other=0.0)[:, None]
    threshold = tl.load(stats + stats_stride + row_index, mask=valid, other=0.0)[:, None]
    mass = tl.load(stats + 2 * stats_stride + row_index, mask=valid, other=1.0)[:, None]
    lanes = tl.arange(0, BLOCK_K)
    out = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
    first = split * span
    last = tl.minimum(first + span, key_end)
    for number in range(0, tl.cdiv(last - first, BLOCK_K)):
        start = first + number * BLOCK_K
        columns = (start + lanes)[None, :]
        s = tl.load(
            scores + row_index[:, None] * keys + columns, mask=valid[:, None] & (columns < last), other=float("-inf")
        )
        p, _ = entmax_weights(s - top - threshold, eps[:, None], MODE)
        if tl.max(tl.where(p == 0.0, 0, 1)) > 0:  # NaN counts as support
            v = load(value, start, value_strides[2], key_end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
            out += dot(p.to(v.dtype), v, PRECISION, UPCAST)
    sizes = tl.arange(0, VALUE_PADDED)
    pointers = partial + (row_index * splits + split)[:, None] * VALUE_SIZE + sizes[None, :]
    tl.store(pointers, (out / mass).to(partial.dtype.element_ty), mask=valid[:, None] & (sizes < VALUE_SIZE)[None, :])


@attention_kernel
def decode_sum(
    lengths: tl.tensor,
    partial: tl.tensor,
    output: tl.tensor,  # [batch, heads, queries, VALUE_SIZE]
    queries: tl.tensor,
    keys: tl.tensor,
    span: tl.tensor,
    splits: tl.tensor,
    LANES: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    LENGTHS: tl.constexpr,
) -> None:
    """Sum one row's outputs over all splits, in a fixed order, so that the result is reproducible."""
    row, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row_index = (batch.to(tl.int64) * tl.num_programs(1) + head) * queries + row
    used_splits = tl.cdiv(load_key_end(lengths, batch, keys, LENGTHS), span)
    partial += row_index * splits * VALUE_SIZE
    total = tl.zeros((LANES, VALUE_PADDED), tl.float32)
    for number in range(0, tl.cdiv(used_splits, LANES)):
        first = row * 0 + number * LANES
        total += load(partial, first, VALUE_SIZE, used_splits, LANES, VALUE_SIZE, VALUE_PADDED)
    sizes = tl.arange(0, VALUE_PADDED)
    out = tl.sum(total, 0).to(output.dtype.element_ty)
    tl.store(output + row_index * VALUE_SIZE + sizes, out, mask=sizes < VALUE_SIZE)


def decode(launch: Launch, output: Tensor, support: Tensor) -> None:
    """Write the output and the number of keys that each query attends to, for few queries per head of keys."""
    query, row_shape = launch.query, support.shape
    batch, heads, queries = row_shape
    keys, key_heads = launch.keys, launch.key_heads
    per_key_head = queries * (heads // key_heads)
    tiling = decode_tiling(launch.size, launch.value_size, query.dtype, per_key_head, launch.memory)
    assert tiling is not None  # `decodes` has checked this
    blocks = -(-keys // tiling.keys)
    # Splits per head of keys, so that a multiprocessor can switch between about four programs.
    programs = -(-4 * processors(query.device) // (batch * key_heads))
    span = -(-blocks // min(programs, blocks)) * tiling.keys
    splits = -(-keys // span)
    stats = launch.new_float32(3, *row_shape)
    scores, candidates, parts = (
        launch.new_float32(*row_shape, keys),
        launch.new_float32(*row_shape, keys),
        launch.new_float32(2, *row_shape, splits),
    )
    partial = output if splits == 1 else launch.new_float32(*row_shape, splits, launch.value_size)
    buffers = {"scores": scores, "parts": parts, "stats": stats, "partial": partial, "span": span, "splits": splits}
    split_grid, row_grid = (splits, key_heads, batch), (queries, heads, batch)
    sizes = {"ROWS": tiling.queries, "BLOCK_K": tiling.keys, "num_warps": tiling.warps, "num_stages": tiling.stages}
    launch.run(decode_scores, split_grid, **buffers, **sizes)
    launch.run(
        decode_thresholds,
        row_grid,
        **buffers,
        candidates=candidates,
        support=support,
        tolerance=launch.tolerance,
        LIMIT=LIMITS.newton,
        LANES=LIMITS.scores,
        num_warps=8,
    )
    launch.run(decode_output, split_grid, **buffers, **sizes)
    if splits > 1:
        launch.run(decode_sum, row_grid, **buffers, output=output, LANES=LIMITS.splits, num_warps=4)
