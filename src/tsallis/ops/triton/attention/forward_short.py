"""Forward for rows of few keys: one sweep, for all scores of a block of queries stay in registers.

The threshold is then found without computing them again. What is kept of each row is what the sparse forward keeps.
"""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    attention_kernel,
    broken_rows,
    climb,
    dot,
    eps_of,
    head_of,
    kept_factor,
    live_of,
    load,
    near_enough,
    scores_of,
    store,
)
from tsallis.ops.triton.language import advance, tl, weigh


@attention_kernel
def forward_short(
    query: tl.tensor,  # [batch, heads, queries, SIZE], with strides as all that is given
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,  # [batch]
    output: tl.tensor,  # [batch, heads, queries, VALUE_SIZE]
    kept: tl.tensor,  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    support: tl.tensor,  # [batch, heads, queries]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
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
    PARTS: tl.constexpr,  # blocks of keys, enough for all
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LENGTHS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    place = batch.to(tl.int64) * heads + head
    live = live_of(lengths, batch, keys, LENGTHS)
    eps = eps_of(alpha, batch, head, alpha_strides, TINY)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    key = head_of(key, batch, head // group, key_strides)
    value = head_of(value, batch, head // group, value_strides)
    seen_by = (head_of(mask, batch, head, mask_strides), mask_strides[2], mask_column)
    random = (drop_below, drop_factor, seed_low, seed_high)
    q = load(head_of(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    end = live
    if CAUSAL:
        end = tl.minimum(end, start + BLOCK_Q)
    zero = block * 0  # makes numbers of the unrolled loops tensors

    tiles = ()  # only sums of tuples: the compiler knows no unpacking
    largest = tl.full((BLOCK_Q, BLOCK_K), float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        first = zero + part * BLOCK_K
        k = load(key, first, key_strides[2], end, BLOCK_K, SIZE, PADDED)
        columns = (first + lanes)[None, :]
        s = scores_of(q, k, rows[:, None], columns, queries, live, scale, seen_by, MASK, CAUSAL, PRECISION, WIDEN)
        tiles = tiles + (s,)  # type: ignore[assignment]  # noqa: RUF005
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
    top = tl.max(largest, 1)
    low = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    low = climb(largest, low, eps, eps, MODE)  # a subset's threshold, as in the sparse forward
    broken = broken_rows(largest)
    top = tl.where(broken | (top == float("-inf")), 0.0, top)
    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    threshold = tl.where(broken, float("nan"), threshold)
    shifted = ()
    for part in tl.static_range(PARTS):
        shifted = shifted + (tiles[part] - top[:, None],)  # type: ignore[assignment]  # noqa: RUF005

    near = near_enough(eps, tolerance)
    sweeps = 0
    going = end > 0
    while going:
        F = tl.zeros((BLOCK_Q,), tl.float32)
        G = tl.zeros((BLOCK_Q,), tl.float32)
        for part in tl.static_range(PARTS):
            p, w = weigh(shifted[part] - threshold[:, None], eps, MODE)
            F += tl.sum(p, 1)
            G += tl.sum(w, 1)
        error = tl.max(tl.where(F > 0.0, tl.abs(F - 1.0), 0.0))
        threshold = advance(threshold, F, G, eps, MODE)
        sweeps += 1
        going = (error > near) & (sweeps < LIMIT)

    # The output, divided by what the weights sum to.
    out = tl.zeros((BLOCK_Q, VALUE_PADDED), tl.float32)
    F = tl.zeros((BLOCK_Q,), tl.float32)
    G = tl.zeros((BLOCK_Q,), tl.float32)
    seen = tl.zeros((BLOCK_Q,), tl.int32)
    for part in tl.static_range(PARTS):
        first = zero + part * BLOCK_K
        v = load(value, first, value_strides[2], end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        p, w = weigh(shifted[part] - threshold[:, None], eps, MODE)
        F += tl.sum(p, 1)
        G += tl.sum(w, 1)
        seen += tl.sum(tl.where(p > 0.0, 1, 0), 1)
        if DROPOUT:
            p *= kept_factor(rows[:, None], (first + lanes)[None, :], place, random)
        out += dot(p.to(v.dtype), v, PRECISION, WIDEN)
    out /= tl.where(F > 0.0, F, 1.0)[:, None]
    out = tl.where(broken[:, None], float("nan"), out)
    store(output + place * queries * VALUE_SIZE, start, queries, out, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    tl.store(kept + at, top, mask=rows < queries)
    tl.store(kept + apart + at, advance(threshold, F, G, eps, MODE), mask=rows < queries)
    tl.store(support + at, seen, mask=rows < queries)
