"""Forward for rows of any length: one dense sweep over the keys, and sparse ones where there may be support."""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    ROUNDING,
    ROUNDING_RELATIVE,
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
def forward(
    query: tl.tensor,  # [batch, heads, queries, SIZE], with strides as all that is given
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,  # [batch]
    output: tl.tensor,  # [batch, heads, queries, VALUE_SIZE]
    kept: tl.tensor,  # [2, batch, heads, queries]: largest score, and the threshold relative to it
    support: tl.tensor,  # [batch, heads, queries]
    needed: tl.tensor,  # [batch, heads, query blocks, key blocks]: first the numbers of the key blocks with support
    counts: tl.tensor,  # [3, batch, heads, query blocks]: those, candidates after the dense sweep, sparse sweeps
    bits: tl.tensor,  # [batch, heads, query blocks, key blocks]: whether a block holds support
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
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CAUSAL:  # the longest first
        block = blocks - 1 - block
    place = batch.to(tl.int64) * heads + head
    key_blocks = tl.cdiv(keys, BLOCK_K)
    live = live_of(lengths, batch, keys, LENGTHS)
    eps = eps_of(alpha, batch, head, alpha_strides, TINY)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    key = head_of(key, batch, head // group, key_strides)
    value = head_of(value, batch, head // group, value_strides)
    seen_by = (head_of(mask, batch, head, mask_strides), mask_strides[2], mask_column)
    random = (drop_below, drop_factor, seed_low, seed_high)
    needed += (place * blocks + block) * key_blocks
    bits += (place * blocks + block) * key_blocks
    query = head_of(query, batch, head, query_strides)
    q = load(query, start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    end = live
    if CAUSAL:
        end = tl.minimum(end, start + BLOCK_Q)
    end = tl.cdiv(end, BLOCK_K)

    # The dense sweep: the largest score of each lane, and a list of the blocks that may hold support.
    largest = tl.full((BLOCK_Q, BLOCK_K), float("-inf"), tl.float32)
    low = tl.full((BLOCK_Q,), float("-inf"), tl.float32)  # thresholds of the maxima so far
    bound = low  # scores up to it have weight 0
    reach = 1.0 / eps + ROUNDING
    count = 0
    renew = 1
    for number in range(0, end):
        j = end - 1 - number  # a causal row's nearest keys first
        k = load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        s = scores_of(q, k, rows[:, None], columns, queries, live, scale, seen_by, MASK, CAUSAL, PRECISION, WIDEN)
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
        tl.store(needed + count, j)
        count += tl.max(tl.where(s <= bound[:, None], 0, 1))  # NaN counts
        if (number + 1 == renew) | (number + 1 == end):
            renew *= 2
            low = climb(largest, low, eps, eps, MODE)
            bound = low - tl.abs(low) * ROUNDING_RELATIVE - reach
    found = count
    top = tl.max(largest, 1)
    broken = broken_rows(largest)
    top = tl.where(broken | (top == float("-inf")), 0.0, top)
    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    threshold = tl.where(broken, float("nan"), threshold)

    # Sparse sweeps: a smooth row is close enough when the next step, which squares the error, gets it there.
    near = near_enough(eps, tolerance)
    sweeps = 0
    going = found > 0
    while going:
        F = tl.zeros((BLOCK_Q,), tl.float32)
        G = tl.zeros((BLOCK_Q,), tl.float32)
        stay = 0
        tl.debug_barrier()  # one thread writes the list, all read it
        for number in range(0, count):
            j = tl.load(needed + number)
            k = load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
            columns = (j * BLOCK_K + lanes)[None, :]
            s = scores_of(q, k, rows[:, None], columns, queries, live, scale, seen_by, MASK, CAUSAL, PRECISION, WIDEN)
            x = s - top[:, None]
            p, w = weigh(x - threshold[:, None], eps, MODE)
            F += tl.sum(p, 1)
            G += tl.sum(w, 1)
            # Written after a reduction by all threads: none of them still has to read what is overwritten.
            used = tl.max(tl.where(x <= (threshold - reach)[:, None], 0, 1))
            tl.store(needed + stay, j, mask=used > 0)
            stay += used
        count = stay
        error = tl.max(tl.where(F > 0.0, tl.abs(F - 1.0), 0.0))
        threshold = advance(threshold, F, G, eps, MODE)
        sweeps += 1
        going = (error > near) & (sweeps < LIMIT)

    # The output, divided by what the weights sum to.
    out = tl.zeros((BLOCK_Q, VALUE_PADDED), tl.float32)
    F = tl.zeros((BLOCK_Q,), tl.float32)
    G = tl.zeros((BLOCK_Q,), tl.float32)
    seen = tl.zeros((BLOCK_Q,), tl.int32)
    stay = 0
    tl.debug_barrier()
    for number in range(0, count):
        j = tl.load(needed + number)
        k = load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        s = scores_of(q, k, rows[:, None], columns, queries, live, scale, seen_by, MASK, CAUSAL, PRECISION, WIDEN)
        p, w = weigh(s - top[:, None] - threshold[:, None], eps, MODE)
        F += tl.sum(p, 1)
        G += tl.sum(w, 1)
        seen += tl.sum(tl.where(p > 0.0, 1, 0), 1)
        used = tl.max(tl.where(p == 0.0, 0, 1))
        tl.store(bits + j, used.to(tl.int8))
        tl.store(needed + stay, j, mask=used > 0)
        stay += used
        if DROPOUT:
            p *= kept_factor(rows[:, None], columns, place, random)
        out += dot(p.to(v.dtype), v, PRECISION, WIDEN)
    out /= tl.where(F > 0.0, F, 1.0)[:, None]
    out = tl.where(broken[:, None], float("nan"), out)
    store(output + place * queries * VALUE_SIZE, start, queries, out, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    tl.store(kept + at, top, mask=rows < queries)
    apart = tl.num_programs(2).to(tl.int64) * heads
    tl.store(kept + apart * queries + at, advance(threshold, F, G, eps, MODE), mask=rows < queries)
    tl.store(support + at, seen, mask=rows < queries)
    at = counts + place * blocks + block
    tl.store(at, stay)
    tl.store(at + apart * blocks, found)
    tl.store(at + 2 * apart * blocks, sweeps)
