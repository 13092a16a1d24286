"""Compute attention over any number of keys: one dense sweep, then sparse sweeps over blocks that may hold support."""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    ROUNDING,
    ROUNDING_RELATIVE,
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
    window,
)
from tsallis.ops.triton.language import entmax_weights, newton_step, tl


@attention_kernel
def forward(
    query: tl.tensor,  # [batch, heads, queries, SIZE]; all inputs may have any strides
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,  # [batch, heads], with any strides
    lengths: tl.tensor,  # [batch]
    key_norms: tl.tensor,  # [batch, heads / group]: largest norm of a head's keys; read only with WINDOW
    output: tl.tensor,  # [batch, heads, queries, VALUE_SIZE]
    stats: tl.tensor,  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    support: tl.tensor,  # [batch, heads, queries]
    block_list: tl.tensor,  # [batch, heads, query blocks, key blocks]: key blocks with support come first
    counts: tl.tensor,  # [3, batch, heads, query blocks]: numbers of key blocks with support, candidate blocks, sweeps
    bits: tl.tensor,  # [batch, heads, query blocks, key blocks]: whether a block holds support
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
    WINDOW: tl.constexpr,
) -> None:
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CAUSAL:  # start with the queries that have the most keys
        block = blocks - 1 - block
    head_index, key, value, key_end, eps = locate_head(
        key, value, alpha, lengths, key_strides, value_strides, alpha_strides, group, keys, LENGTHS, TINY
    )
    key_blocks = tl.cdiv(keys, BLOCK_K)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    bias = head_bias(mask, mask_strides, mask_column, slopes, slope_strides, offset, batch, head, SLOPES)
    random = (drop_below, drop_factor, seed_low, seed_high)
    block_list += (head_index * blocks + block) * key_blocks
    bits += (head_index * blocks + block) * key_blocks
    query = head_pointer(query, batch, head, query_strides)
    q = load(query, start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    end = tl.cdiv(last_key(key_end, start, offset, BLOCK_Q, CAUSAL), BLOCK_K)

    start_block = 0
    if WINDOW:
        norm = tl.load(key_norms + batch * (heads // group) + head // group)
        first_key, end_key = window(
            q, key, key_strides[2], norm, bias[3], rows, offset, queries, key_end, scale, eps, SIZE, PADDED
        )
        start_block = first_key // BLOCK_K
        end = tl.minimum(end, end_key // BLOCK_K + 1)

    # Dense sweep: find the largest score of each lane, and list the blocks that may hold support.
    largest = tl.full((BLOCK_Q, BLOCK_K), float("-inf"), tl.float32)
    low = tl.full((BLOCK_Q,), float("-inf"), tl.float32)  # thresholds of the maxima so far
    bound = low  # scores up to this bound have weight 0
    margin = 1.0 / eps + ROUNDING
    count = 0
    next_update = 1
    for number in range(0, end - start_block):
        j = end - 1 - number  # causal rows start with the nearest keys
        k = load(key, j * BLOCK_K, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        s = score(q, k, rows[:, None], columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST)
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
        tl.store(block_list + count, j)
        count += tl.max(tl.where(s <= bound[:, None], 0, 1))  # NaN counts as support
        if (number + 1 == next_update) | (number + 1 == end - start_block):
            next_update *= 2
            low = raise_lower_bound(largest, low, eps, eps, MODE)
            bound = low - tl.abs(low) * ROUNDING_RELATIVE - margin
    candidates = count
    top, threshold, not_finite = start_thresholds(largest, low)

    # Sparse sweeps: smooth rows may stop at a loose tolerance, because the last step squares the error.
    tolerance_before_step = newton_tolerance(eps, tolerance)
    sweeps = 0
    unfinished = candidates > 0
    while unfinished:
        F = tl.zeros((BLOCK_Q,), tl.float32)
        G = tl.zeros((BLOCK_Q,), tl.float32)
        remaining = 0
        tl.debug_barrier()  # one thread writes the list, and all threads read it
        for number in range(0, count):
            j = tl.load(block_list + number)
            k = load(key, j * BLOCK_K, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
            columns = (j * BLOCK_K + lanes)[None, :]
            s = score(
                q, k, rows[:, None], columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST
            )
            x = s - top[:, None]
            p, w = entmax_weights(x - threshold[:, None], eps, MODE)
            F += tl.sum(p, 1)
            G += tl.sum(w, 1)
            # Now the list can be overwritten: the reduction above waited until all threads had read the entry.
            has_support = tl.max(tl.where(x <= (threshold - margin)[:, None], 0, 1))
            tl.store(block_list + remaining, j, mask=has_support > 0)
            remaining += has_support
        count = remaining
        error = tl.max(tl.where(F > 0.0, tl.abs(F - 1.0), 0.0))
        threshold = newton_step(threshold, F, G, eps, MODE)
        sweeps += 1
        unfinished = (error > tolerance_before_step) & (sweeps < LIMIT)

    # Sum the output, and divide it by the sum of the weights.
    out = tl.zeros((BLOCK_Q, VALUE_PADDED), tl.float32)
    F = tl.zeros((BLOCK_Q,), tl.float32)
    G = tl.zeros((BLOCK_Q,), tl.float32)
    support_size = tl.zeros((BLOCK_Q,), tl.int32)
    remaining = 0
    tl.debug_barrier()
    for number in range(0, count):
        j = tl.load(block_list + number)
        k = load(key, j * BLOCK_K, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], key_end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        s = score(q, k, rows[:, None], columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST)
        p, w = entmax_weights(s - top[:, None] - threshold[:, None], eps, MODE)
        F += tl.sum(p, 1)
        G += tl.sum(w, 1)
        support_size += tl.sum(tl.where(p > 0.0, 1, 0), 1)
        has_support = tl.max(tl.where(p == 0.0, 0, 1))
        tl.store(bits + j, has_support.to(tl.int8))
        tl.store(block_list + remaining, j, mask=has_support > 0)
        remaining += has_support
        if DROPOUT:
            p *= dropout_factor(rows[:, None], columns, head_index, random)
        out += dot(p.to(v.dtype), v, PRECISION, UPCAST)
    out /= tl.where(F > 0.0, F, 1.0)[:, None]
    out = tl.where(not_finite[:, None], float("nan"), out)
    store(output + head_index * queries * VALUE_SIZE, start, queries, out, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    row_index = head_index * queries + rows
    tl.store(stats + row_index, top, mask=rows < queries)
    stats_stride = tl.num_programs(2).to(tl.int64) * heads
    tl.store(stats + stats_stride * queries + row_index, newton_step(threshold, F, G, eps, MODE), mask=rows < queries)
    tl.store(support + row_index, support_size, mask=rows < queries)
    counts_pointer = counts + head_index * blocks + block
    tl.store(counts_pointer, remaining)
    tl.store(counts_pointer + stats_stride * blocks, candidates)
    tl.store(counts_pointer + 2 * stats_stride * blocks, sweeps)
