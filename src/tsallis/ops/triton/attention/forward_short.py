"""Compute attention over few keys in one sweep, with all scores of a block of queries in registers.

The kernel saves the same statistics per row as the sparse forward pass.
"""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    attention_kernel,
    dot,
    dropout_factor,
    head_bias,
    head_pointer,
    last_key,
    load,
    locate_head,
    newton_tolerance,
    raise_lower_bound,
    score,
    start_thresholds,
    store,
)
from tsallis.ops.triton.language import entmax_weights, newton_step, tl


@attention_kernel
def forward_short(
    query: tl.tensor,  # [batch, heads, queries, SIZE]; all inputs may have any strides
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,  # [batch, heads], with any strides
    lengths: tl.tensor,  # [batch]
    output: tl.tensor,  # [batch, heads, queries, VALUE_SIZE]
    stats: tl.tensor,  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    support: tl.tensor,  # [batch, heads, queries]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    tolerance: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,  # number of key blocks that covers all keys
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    SLOPES: tl.constexpr,
    LENGTHS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head_index, key, value, key_end, eps = locate_head(
        key, value, alpha, lengths, key_strides, value_strides, alpha_strides, group, keys, LENGTHS, TINY
    )
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    bias = head_bias(mask, mask_strides, mask_column, slopes, slope_strides, offset, batch, head, SLOPES)
    random = (drop_below, drop_factor, seed_low, seed_high)
    q = load(head_pointer(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    end = last_key(key_end, start, offset, BLOCK_Q, CAUSAL)
    zero = block * 0  # adding it turns the numbers of unrolled loops into tensors

    tiles = ()  # the compiler supports sums of tuples, but not unpacking
    largest = tl.full((BLOCK_Q, BLOCK_K), float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        first = zero + part * BLOCK_K
        k = load(key, first, key_strides[2], end, BLOCK_K, SIZE, PADDED)
        columns = (first + lanes)[None, :]
        s = score(q, k, rows[:, None], columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST)
        tiles = tiles + (s,)  # type: ignore[assignment]  # noqa: RUF005
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
    low = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    low = raise_lower_bound(largest, low, eps, eps, MODE)  # the threshold of a subset is a lower bound
    top, threshold, not_finite = start_thresholds(largest, low)
    shifted = ()
    for part in tl.static_range(PARTS):
        shifted = shifted + (tiles[part] - top[:, None],)  # type: ignore[assignment]  # noqa: RUF005

    tolerance_before_step = newton_tolerance(eps, tolerance)
    sweeps = 0
    unfinished = end > 0
    while unfinished:
        F = tl.zeros((BLOCK_Q,), tl.float32)
        G = tl.zeros((BLOCK_Q,), tl.float32)
        for part in tl.static_range(PARTS):
            p, w = entmax_weights(shifted[part] - threshold[:, None], eps, MODE)
            F += tl.sum(p, 1)
            G += tl.sum(w, 1)
        error = tl.max(tl.where(F > 0.0, tl.abs(F - 1.0), 0.0))
        threshold = newton_step(threshold, F, G, eps, MODE)
        sweeps += 1
        unfinished = (error > tolerance_before_step) & (sweeps < LIMIT)

    # Sum the output, and divide it by the sum of the weights.
    out = tl.zeros((BLOCK_Q, VALUE_PADDED), tl.float32)
    F = tl.zeros((BLOCK_Q,), tl.float32)
    G = tl.zeros((BLOCK_Q,), tl.float32)
    support_size = tl.zeros((BLOCK_Q,), tl.int32)
    for part in tl.static_range(PARTS):
        first = zero + part * BLOCK_K
        v = load(value, first, value_strides[2], end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        p, w = entmax_weights(shifted[part] - threshold[:, None], eps, MODE)
        F += tl.sum(p, 1)
        G += tl.sum(w, 1)
        support_size += tl.sum(tl.where(p > 0.0, 1, 0), 1)
        if DROPOUT:
            p *= dropout_factor(rows[:, None], (first + lanes)[None, :], head_index, random)
        out += dot(p.to(v.dtype), v, PRECISION, UPCAST)
    out /= tl.where(F > 0.0, F, 1.0)[:, None]
    out = tl.where(not_finite[:, None], float("nan"), out)
    store(output + head_index * queries * VALUE_SIZE, start, queries, out, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    row_index = head_index * queries + rows
    stats_stride = tl.num_programs(2).to(tl.int64) * tl.num_programs(1) * queries
    tl.store(stats + row_index, top, mask=rows < queries)
    tl.store(stats + stats_stride + row_index, newton_step(threshold, F, G, eps, MODE), mask=rows < queries)
    tl.store(support + row_index, support_size, mask=rows < queries)
