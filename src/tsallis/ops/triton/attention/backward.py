"""Backward: the weights again from their thresholds, by blocks of queries and by blocks of keys.

After the sparse forward only blocks that held support are visited (LISTED); after the short one every block that the
causal order and the lengths leave, which needs no lists.
"""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    attention_kernel,
    dot,
    eps_of,
    head_of,
    kept_factor,
    live_of,
    load,
    pulled,
    store,
)
from tsallis.ops.triton.language import bend_of, tl


@attention_kernel
def backward_query(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,
    output: tl.tensor,
    grad: tl.tensor,  # of the output, with strides
    kept: tl.tensor,
    needed: tl.tensor,
    counts: tl.tensor,
    query_grad: tl.tensor,  # [batch, heads, queries, SIZE]
    delta: tl.tensor,  # [batch, heads, queries]: the mean that is taken off the gradients of the weights
    alpha_grad: tl.tensor,  # [batch, heads, queries]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,  # programs that share a block of the forward kernel's queries
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
    LISTED: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> None:
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CAUSAL:
        block = blocks - 1 - block
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
    if LISTED:
        shared = place * tl.cdiv(queries, BLOCK_Q * SPLIT) + block // SPLIT
        needed += shared * tl.cdiv(keys, BLOCK_K)
        count = tl.load(counts + shared)
    else:
        end = live
        if CAUSAL:
            end = tl.minimum(end, start + BLOCK_Q)
        count = tl.cdiv(end, BLOCK_K)
    q = load(head_of(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    grad = head_of(grad, batch, head, grad_strides)
    do = load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    out = load(output + place * queries * VALUE_SIZE, start, VALUE_SIZE, queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(kept + at, mask=rows < queries, other=0.0)[:, None]
    threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)[:, None]

    # The mean delta is known only at the end. What it is at alpha = 1 is near enough for the sums not to cancel.
    shift = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    shifted = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w (dp - shift) k
    mean = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w k
    slope = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w
    rest = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w (dp - shift)
    bend = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi
    bent = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi (dp - shift)
    for number in range(0, count):
        j = number
        if LISTED:
            j = tl.load(needed + number)
        k = load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        x, p, w, _, dp = pulled(
            q, k, do, v, rows[:, None], columns, queries, live, top, threshold, eps, scale, place, seen_by, random,
            MODE, MASK, CAUSAL, DROPOUT, PRECISION, WIDEN,
        )  # fmt: skip
        dp -= shift[:, None]
        moved = w * dp
        slope += tl.sum(w, 1)
        rest += tl.sum(moved, 1)
        shifted += dot(moved.to(k.dtype), k, PRECISION, WIDEN)
        mean += dot(w.to(k.dtype), k, PRECISION, WIDEN)
        if NEED_ALPHA:
            psi = bend_of(x, p, w, eps)
            bend += tl.sum(psi, 1)
            bent += tl.sum(psi * dp, 1)
    rest /= tl.where(slope > 0.0, slope, 1.0)
    dq = scale * (shifted - rest[:, None] * mean)
    store(query_grad + place * queries * SIZE, start, queries, dq, BLOCK_Q, SIZE, PADDED)
    tl.store(delta + at, shift + rest, mask=rows < queries)
    if NEED_ALPHA:
        tl.store(alpha_grad + at, rest * bend - bent, mask=rows < queries)


@attention_kernel
def transpose(
    bits: tl.tensor,
    back: tl.tensor,
    back_counts: tl.tensor,
    blocks: tl.tensor,
    key_blocks: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """For each block of keys the numbers of the blocks of queries that need it: [batch * heads, key blocks, blocks]."""
    j = tl.program_id(0)
    place = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    bits += place * blocks * key_blocks + j
    back += (place * key_blocks + j) * blocks
    count = 0
    for first in range(0, blocks, LANES):
        block = first + tl.arange(0, LANES)
        used = tl.load(bits + block.to(tl.int64) * key_blocks, mask=block < blocks, other=0).to(tl.int32)
        tl.store(back + count + tl.cumsum(used, 0) - 1, block, mask=used != 0)
        count += tl.sum(used)
    tl.store(back_counts + place * key_blocks + j, count)


@attention_kernel
def backward_key(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,
    grad: tl.tensor,
    kept: tl.tensor,
    delta: tl.tensor,
    back: tl.tensor,
    back_counts: tl.tensor,
    key_grad: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value_grad: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
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
    LISTED: tl.constexpr,
) -> None:
    key_blocks, key_heads = tl.num_programs(0), tl.num_programs(1)
    j, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(queries, BLOCK_Q * SPLIT)
    live = live_of(lengths, batch, keys, LENGTHS)
    start = j * BLOCK_K
    columns = (start + tl.arange(0, BLOCK_K))[:, None]
    lanes = tl.arange(0, BLOCK_Q)
    k = load(head_of(key, batch, key_head, key_strides), start, key_strides[2], live, BLOCK_K, SIZE, PADDED)
    value = head_of(value, batch, key_head, value_strides)
    v = load(value, start, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
    dk = tl.zeros((BLOCK_K, PADDED), tl.float32)
    dv = tl.zeros((BLOCK_K, VALUE_PADDED), tl.float32)
    apart = tl.num_programs(2).to(tl.int64) * key_heads * group * queries
    random = (drop_below, drop_factor, seed_low, seed_high)
    for member in range(0, group):
        head = key_head * group + member
        place = batch.to(tl.int64) * key_heads * group + head
        eps = eps_of(alpha, batch, head, alpha_strides, TINY)
        query_head = head_of(query, batch, head, query_strides)
        grad_head = head_of(grad, batch, head, grad_strides)
        seen_by = (head_of(mask, batch, head, mask_strides), mask_strides[2], mask_column)
        list_head = back
        before = 0
        if LISTED:
            list_head = back + (place * key_blocks + j) * blocks
            count = tl.load(back_counts + place * key_blocks + j) * SPLIT
        else:
            if CAUSAL:
                before = start // BLOCK_Q
            count = tl.where(start < live, tl.cdiv(queries, BLOCK_Q) - before, 0)
        for number in range(0, count):
            block = before + number
            if LISTED:
                block = tl.load(list_head + number // SPLIT) * SPLIT + number % SPLIT
            first = block * BLOCK_Q
            q = load(query_head, first, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
            do = load(grad_head, first, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
            rows = first + lanes
            at = place * queries + rows
            top = tl.load(kept + at, mask=rows < queries, other=0.0)[None, :]
            threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)[None, :]
            mean = tl.load(delta + at, mask=rows < queries, other=0.0)[None, :]
            # All transposed [BLOCK_K, BLOCK_Q]: the products below need the weights in registers so.
            _, _, w, dropped, dp = pulled(
                k, q, v, do, rows[None, :], columns, queries, live, top, threshold, eps, scale, place, seen_by, random,
                MODE, MASK, CAUSAL, DROPOUT, PRECISION, WIDEN,
            )  # fmt: skip
            dv += dot(dropped.to(do.dtype), do, PRECISION, WIDEN)
            ds = w * (dp - mean)
            dk += dot(ds.to(q.dtype), q, PRECISION, WIDEN)
    place = batch.to(tl.int64) * key_heads + key_head
    store(key_grad + place * keys * SIZE, start, keys, dk * scale, BLOCK_K, SIZE, PADDED)
    store(value_grad + place * keys * VALUE_SIZE, start, keys, dv, BLOCK_K, VALUE_SIZE, VALUE_PADDED)


@attention_kernel
def backward_mask(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,
    grad: tl.tensor,
    kept: tl.tensor,
    delta: tl.tensor,
    needed: tl.tensor,
    counts: tl.tensor,
    mask_grad: tl.tensor,  # float32, in the mask's shape, with strides
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    mask_grad_strides: tl.tuple,
    mask_grad_column: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
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
    LISTED: tl.constexpr,
    ONE_ROW: tl.constexpr,
    ONE_COLUMN: tl.constexpr,
) -> None:
    """Gradients of the scores, added into those of the mask: atomically, as broadcast entries meet."""
    heads = tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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
    mask_grad = head_of(mask_grad, batch, head, mask_grad_strides)
    if LISTED:
        shared = place * tl.cdiv(queries, BLOCK_Q * SPLIT) + block // SPLIT
        needed += shared * tl.cdiv(keys, BLOCK_K)
        count = tl.load(counts + shared)
    else:
        end = live
        if CAUSAL:
            end = tl.minimum(end, start + BLOCK_Q)
        count = tl.cdiv(end, BLOCK_K)
    q = load(head_of(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    grad = head_of(grad, batch, head, grad_strides)
    do = load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(kept + at, mask=rows < queries, other=0.0)[:, None]
    threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)[:, None]
    mean = tl.load(delta + at, mask=rows < queries, other=0.0)
    for number in range(0, count):
        j = number
        if LISTED:
            j = tl.load(needed + number)
        k = load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = j * BLOCK_K + lanes
        _, _, w, _, dp = pulled(
            q, k, do, v, rows[:, None], columns[None, :], queries, live, top, threshold, eps, scale, place, seen_by,
            random, MODE, MASK, CAUSAL, DROPOUT, PRECISION, WIDEN,
        )  # fmt: skip
        ds = w * (dp - mean[:, None])
        row_at = mask_grad + rows.to(tl.int64) * mask_grad_strides[2]
        column_at = columns.to(tl.int64) * mask_grad_column
        if ONE_ROW and ONE_COLUMN:
            tl.atomic_add(mask_grad, tl.sum(ds))
        elif ONE_ROW:
            tl.atomic_add(mask_grad + column_at, tl.sum(ds, 0), mask=columns < keys)
        elif ONE_COLUMN:
            tl.atomic_add(row_at, tl.sum(ds, 1), mask=rows < queries)
        else:
            inside = (rows < queries)[:, None] & (columns < keys)[None, :]
            tl.atomic_add(row_at[:, None] + column_at[None, :], ds, mask=inside)


@attention_kernel
def draw_factors(
    factors: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_K: tl.constexpr,
) -> None:
    """Store dropout's factors for all weights [batch * heads, queries, keys]."""
    row, place = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    found = kept_factor(row, columns, place, (drop_below, drop_factor, seed_low, seed_high))
    at = (place.to(tl.int64) * queries + row) * keys + columns
    tl.store(factors + at, found, mask=columns < keys)
