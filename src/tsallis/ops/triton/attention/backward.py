"""Compute gradients of attention per block of queries or keys; weights are recomputed from thresholds.

After the sparse forward pass (HAS_LISTS), kernels visit only blocks with support. After the short forward pass, kernels
visit every block that the causal order and the lengths allow.
"""

from __future__ import annotations

from tsallis.ops.triton.attention.tiles import (
    attention_kernel,
    distance,
    dot,
    dropout_factor,
    head_bias,
    head_pointer,
    last_key,
    load,
    load_eps,
    load_key_end,
    load_thresholds,
    locate_head,
    open_block_list,
    recompute_tile,
    store,
)
from tsallis.ops.triton.language import alpha_curvature, tl


@attention_kernel
def backward_query(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,  # [batch, heads], with any strides
    lengths: tl.tensor,
    output: tl.tensor,
    grad: tl.tensor,  # gradient of the output, with any strides
    stats: tl.tensor,
    block_list: tl.tensor,
    counts: tl.tensor,
    query_grad: tl.tensor,  # [batch, heads, queries, SIZE]
    delta: tl.tensor,  # [batch, heads, queries]: mean gradient of the weights, weighted by p^(2 - alpha)
    alpha_grad: tl.tensor,  # [batch, heads, queries]
    slope_grad: tl.tensor,  # [batch, heads, queries]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
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
    SPLIT: tl.constexpr,  # number of programs that share a query block of the forward kernel
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
    HAS_LISTS: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    NEED_SLOPES: tl.constexpr,
) -> None:
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CAUSAL:
        block = blocks - 1 - block
    head_index, key, value, key_end, eps = locate_head(
        key, value, alpha, lengths, key_strides, value_strides, alpha_strides, group, keys, LENGTHS, TINY
    )
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    bias = head_bias(mask, mask_strides, mask_column, slopes, slope_strides, offset, batch, head, SLOPES)
    random = (drop_below, drop_factor, seed_low, seed_high)
    block_list, count = open_block_list(
        block_list, counts, head_index, block, queries, keys, last_key(key_end, start, offset, BLOCK_Q, CAUSAL),
        BLOCK_Q, BLOCK_K, SPLIT, HAS_LISTS,
    )  # fmt: skip
    q = load(head_pointer(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    grad = head_pointer(grad, batch, head, grad_strides)
    do = load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    output += head_index * queries * VALUE_SIZE
    out = load(output, start, VALUE_SIZE, queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    row_index = head_index * queries + rows
    stats_stride = tl.num_programs(2).to(tl.int64) * heads * queries
    top, threshold = load_thresholds(stats, row_index, stats_stride, rows, queries)

    # The mean is known only at the end. Subtract its value at alpha = 1 first, to avoid cancellation in the sums.
    shift = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    sum_w_dp_k = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w (dp - shift) k
    sum_w_k = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w k
    sum_w = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w
    sum_w_dp = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w (dp - shift)
    sum_psi = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi
    sum_psi_dp = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi (dp - shift)
    sum_w_distance = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w times the distance
    sum_w_dp_distance = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w (dp - shift) times the distance
    for number in range(0, count):
        j = number
        if HAS_LISTS:
            j = tl.load(block_list + number)
        k = load(key, j * BLOCK_K, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], key_end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = (j * BLOCK_K + lanes)[None, :]
        x, p, w, _, dp = recompute_tile(
            q, k, do, v, rows[:, None], columns, queries, key_end, top[:, None], threshold[:, None], eps, scale,
            head_index, bias, random, MODE, MASK, CAUSAL, SLOPES, DROPOUT, PRECISION, UPCAST,
        )  # fmt: skip
        dp -= shift[:, None]
        w_dp = w * dp
        sum_w += tl.sum(w, 1)
        sum_w_dp += tl.sum(w_dp, 1)
        sum_w_dp_k += dot(w_dp.to(k.dtype), k, PRECISION, UPCAST)
        sum_w_k += dot(w.to(k.dtype), k, PRECISION, UPCAST)
        if NEED_ALPHA:
            psi = alpha_curvature(x, p, w, eps)
            sum_psi += tl.sum(psi, 1)
            sum_psi_dp += tl.sum(psi * dp, 1)
        if NEED_SLOPES:
            distances = distance(rows[:, None], columns, offset)
            sum_w_distance += tl.sum(w * distances, 1)
            sum_w_dp_distance += tl.sum(w_dp * distances, 1)
    mean_dp = sum_w_dp / tl.where(sum_w > 0.0, sum_w, 1.0)
    dq = scale * (sum_w_dp_k - mean_dp[:, None] * sum_w_k)
    store(query_grad + head_index * queries * SIZE, start, queries, dq, BLOCK_Q, SIZE, PADDED)
    tl.store(delta + row_index, shift + mean_dp, mask=rows < queries)
    if NEED_ALPHA:
        tl.store(alpha_grad + row_index, mean_dp * sum_psi - sum_psi_dp, mask=rows < queries)
    if NEED_SLOPES:
        tl.store(slope_grad + row_index, mean_dp * sum_w_distance - sum_w_dp_distance, mask=rows < queries)


@attention_kernel
def transpose(
    bits: tl.tensor,
    query_blocks: tl.tensor,
    query_block_counts: tl.tensor,
    blocks: tl.tensor,
    key_blocks: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """List the query blocks that need each key block [batch * heads, key blocks, blocks], and count them."""
    j = tl.program_id(0)
    head_index = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    bits += head_index * blocks * key_blocks + j
    query_blocks += (head_index * key_blocks + j) * blocks
    count = 0
    for first in range(0, blocks, LANES):
        block = first + tl.arange(0, LANES)
        has_support = tl.load(bits + block.to(tl.int64) * key_blocks, mask=block < blocks, other=0).to(tl.int32)
        tl.store(query_blocks + count + tl.cumsum(has_support, 0) - 1, block, mask=has_support != 0)
        count += tl.sum(has_support)
    tl.store(query_block_counts + head_index * key_blocks + j, count)


@attention_kernel
def backward_key(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,
    lengths: tl.tensor,
    grad: tl.tensor,
    stats: tl.tensor,
    delta: tl.tensor,
    query_blocks: tl.tensor,
    query_block_counts: tl.tensor,
    key_grad: tl.tensor,  # [batch, heads / group, keys, SIZE]
    value_grad: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE]
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
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
    SLOPES: tl.constexpr,
    LENGTHS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    TINY: tl.constexpr,
    HAS_LISTS: tl.constexpr,
) -> None:
    key_blocks, key_heads = tl.num_programs(0), tl.num_programs(1)
    j, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(queries, BLOCK_Q * SPLIT)
    key_end = load_key_end(lengths, batch, keys, LENGTHS)
    start = j * BLOCK_K
    columns = (start + tl.arange(0, BLOCK_K))[:, None]
    lanes = tl.arange(0, BLOCK_Q)
    k = load(head_pointer(key, batch, key_head, key_strides), start, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
    value = head_pointer(value, batch, key_head, value_strides)
    v = load(value, start, value_strides[2], key_end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
    dk = tl.zeros((BLOCK_K, PADDED), tl.float32)
    dv = tl.zeros((BLOCK_K, VALUE_PADDED), tl.float32)
    stats_stride = tl.num_programs(2).to(tl.int64) * key_heads * group * queries
    random = (drop_below, drop_factor, seed_low, seed_high)
    for member in range(0, group):
        head = key_head * group + member
        head_index = batch.to(tl.int64) * key_heads * group + head
        eps = load_eps(alpha, batch, head, alpha_strides, TINY)
        query_head = head_pointer(query, batch, head, query_strides)
        grad_head = head_pointer(grad, batch, head, grad_strides)
        bias = head_bias(mask, mask_strides, mask_column, slopes, slope_strides, offset, batch, head, SLOPES)
        block_list = query_blocks
        first_block = 0
        if HAS_LISTS:
            block_list = query_blocks + (head_index * key_blocks + j) * blocks
            count = tl.load(query_block_counts + head_index * key_blocks + j) * SPLIT
        else:
            if CAUSAL:
                first_block = tl.maximum(start - offset, 0) // BLOCK_Q
            count = tl.where(start < key_end, tl.cdiv(queries, BLOCK_Q) - first_block, 0)
        for number in range(0, count):
            block = first_block + number
            if HAS_LISTS:
                block = tl.load(block_list + number // SPLIT) * SPLIT + number % SPLIT
            first = block * BLOCK_Q
            q = load(query_head, first, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
            do = load(grad_head, first, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
            rows = first + lanes
            row_index = head_index * queries + rows
            top, threshold = load_thresholds(stats, row_index, stats_stride, rows, queries)
            mean = tl.load(delta + row_index, mask=rows < queries, other=0.0)[None, :]
            # The products below need transposed tiles [BLOCK_K, BLOCK_Q].
            _, _, w, dropped, dp = recompute_tile(
                k, q, v, do, rows[None, :], columns, queries, key_end, top[None, :], threshold[None, :], eps, scale,
                head_index, bias, random, MODE, MASK, CAUSAL, SLOPES, DROPOUT, PRECISION, UPCAST,
            )  # fmt: skip
            dv += dot(dropped.to(do.dtype), do, PRECISION, UPCAST)
            ds = w * (dp - mean)
            dk += dot(ds.to(q.dtype), q, PRECISION, UPCAST)
    head_index = batch.to(tl.int64) * key_heads + key_head
    store(key_grad + head_index * keys * SIZE, start, keys, dk * scale, BLOCK_K, SIZE, PADDED)
    store(value_grad + head_index * keys * VALUE_SIZE, start, keys, dv, BLOCK_K, VALUE_SIZE, VALUE_PADDED)


@attention_kernel
def backward_mask(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    mask: tl.tensor,
    slopes: tl.tensor,
    lengths: tl.tensor,
    grad: tl.tensor,
    stats: tl.tensor,
    delta: tl.tensor,
    block_list: tl.tensor,
    counts: tl.tensor,
    mask_grad: tl.tensor,  # float32 in the mask's shape; with ONE_ROW, one row in all or per query block
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    grad_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
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
    SLOPES: tl.constexpr,
    LENGTHS: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    TINY: tl.constexpr,
    HAS_LISTS: tl.constexpr,
    ONE_ROW: tl.constexpr,
    ONE_COLUMN: tl.constexpr,
) -> None:
    """Add gradients of the scores to the mask's gradient, atomically: many scores may share a broadcast entry."""
    heads = tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    head_index, key, value, key_end, eps = locate_head(
        key, value, alpha, lengths, key_strides, value_strides, alpha_strides, group, keys, LENGTHS, TINY
    )
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    bias = head_bias(mask, mask_strides, mask_column, slopes, slope_strides, offset, batch, head, SLOPES)
    random = (drop_below, drop_factor, seed_low, seed_high)
    mask_grad = head_pointer(mask_grad, batch, head, mask_grad_strides)
    if ONE_ROW:
        mask_grad += block.to(tl.int64) * mask_grad_strides[2]
    block_list, count = open_block_list(
        block_list, counts, head_index, block, queries, keys, last_key(key_end, start, offset, BLOCK_Q, CAUSAL),
        BLOCK_Q, BLOCK_K, SPLIT, HAS_LISTS,
    )  # fmt: skip
    q = load(head_pointer(query, batch, head, query_strides), start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    grad = head_pointer(grad, batch, head, grad_strides)
    do = load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    row_index = head_index * queries + rows
    stats_stride = tl.num_programs(2).to(tl.int64) * heads * queries
    top, threshold = load_thresholds(stats, row_index, stats_stride, rows, queries)
    mean = tl.load(delta + row_index, mask=rows < queries, other=0.0)
    for number in range(0, count):
        j = number
        if HAS_LISTS:
            j = tl.load(block_list + number)
        k = load(key, j * BLOCK_K, key_strides[2], key_end, BLOCK_K, SIZE, PADDED)
        v = load(value, j * BLOCK_K, value_strides[2], key_end, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        columns = j * BLOCK_K + lanes
        _, _, w, _, dp = recompute_tile(
            q, k, do, v, rows[:, None], columns[None, :], queries, key_end, top[:, None], threshold[:, None], eps,
            scale, head_index, bias, random, MODE, MASK, CAUSAL, SLOPES, DROPOUT, PRECISION, UPCAST,
        )  # fmt: skip
        ds = w * (dp - mean[:, None])
        row_pointers = mask_grad + rows.to(tl.int64) * mask_grad_strides[2]
        column_offsets = columns.to(tl.int64) * mask_grad_column
        if ONE_ROW and ONE_COLUMN:
            tl.atomic_add(mask_grad, tl.sum(ds))
        elif ONE_ROW:
            tl.atomic_add(mask_grad + column_offsets, tl.sum(ds, 0), mask=columns < keys)
        elif ONE_COLUMN:
            tl.atomic_add(row_pointers, tl.sum(ds, 1), mask=rows < queries)
        else:
            valid = (rows < queries)[:, None] & (columns < keys)[None, :]
            tl.atomic_add(row_pointers[:, None] + column_offsets[None, :], ds, mask=valid)


@attention_kernel
def draw_factors(
    factors: tl.tensor,
    heads: tl.tensor,  # batch size * number of heads
    queries: tl.tensor,
    keys: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Store the dropout factors of all weights [batch * heads, queries, keys]; each program stores LANES factors."""
    index = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    row = index // keys
    head_index = row // queries
    query, column = (row - head_index * queries).to(tl.int32), (index - row * keys).to(tl.int32)
    factor = dropout_factor(query, column, head_index, (drop_below, drop_factor, seed_low, seed_high))
    tl.store(factors + index, factor, mask=head_index < heads)
