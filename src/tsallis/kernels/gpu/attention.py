"""Attention on GPUs: the scores are computed block by block, and only blocks that may hold support a second time.

Each program owns a block of queries. Its one dense sweep over the keys keeps the elementwise maximum of the score
blocks: a subset of every row, whose threshold bounds the row's own from below. Blocks of keys with no score above that
bound are never looked at again. Sweeps over the others take norm-Newton steps until the weights sum to 1, a last one
adds up the output. Backward computes the weights again from the thresholds, in the blocks that had support.

Beside inputs and outputs two numbers are kept of each query, and for each block of queries which blocks of keys it
needs. A threshold is written relative to the row's largest score, `p = exp_alpha(score - top - threshold)` with
`exp_alpha(x) = [1 + eps x]_+^{1/eps}` and `eps = alpha - 1`: at alpha = 1 it is logsumexp, and no special case.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.kernels import attention, autograd
from tsallis.kernels.attention import Problem
from tsallis.kernels.gpu.language import (
    TINY_EPS,
    Alpha,
    advance,
    bend_of,
    constant,
    interpreted,
    kernel,
    mode,
    plain,
    run,
    tl,
    weigh,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}  # |sum of the weights - 1|
NEWTON_LIMIT = 40
DROP_BITS = 24  # random bits that decide whether a weight is dropped

NO_MASK, BOOLEAN, ADDITIVE = constant(0), constant(1), constant(2)
STEPS = constant(4)  # Newton steps on the maxima each time the bound is renewed
ROUNDING = constant(1e-5)  # how much lower the bound is taken, and how much more for large scores:
ROUNDING_RELATIVE = constant(5e-7)

# Numbers that change from call to call: a kernel compiled for one value of them is good for all.
_kernel = kernel("queries", "keys", "blocks", "key_blocks", "mask_strides", "drop_below", "seed_low", "seed_high")


@_kernel
def _dot(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr, WIDEN: tl.constexpr) -> Any:
    """Product of matrices, accumulated in float32."""
    if WIDEN:  # the interpreter multiplies halves wrongly
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@_kernel
def _load(
    base: tl.tensor,
    start: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> Any:
    """Rows from `start` on as [ROWS, PADDED]; zeros from `limit` on and beyond SIZE."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        inside = inside & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * stride
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@_kernel
def _store(
    base: tl.tensor,
    start: tl.tensor,
    limit: tl.tensor,
    values: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """The same the other way, to rows that follow one another."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        inside = inside & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * SIZE
    tl.store(base + rows[:, None] * SIZE + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@_kernel
def _mask_base(mask: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, MASK: tl.constexpr) -> Any:
    """Where the mask of a head begins."""
    if MASK != NO_MASK:
        mask += batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    return mask


@_kernel
def _masked(
    scores: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    live: tl.tensor,
    mask: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
) -> Any:
    """Scores with -inf where a query (of `rows`) doesn't see a key (of `columns`); either may come first."""
    seen = (rows < queries) & (columns < live)
    if CAUSAL:
        seen = seen & (columns <= rows)
    if MASK != NO_MASK:
        at = mask + rows.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
        if MASK == BOOLEAN:
            seen = seen & (tl.load(at, mask=seen, other=0) != 0)
        else:
            scores += tl.load(at, mask=seen, other=0.0).to(tl.float32)
    return tl.where(seen, scores, float("-inf"))


@_kernel
def _kept(
    rows: tl.tensor,
    columns: tl.tensor,
    stream: tl.tensor,
    drop_below: tl.tensor,
    factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
) -> Any:
    """What dropout multiplies weights with: drawn from the seed and the place alone, so that it can be drawn again."""
    zero = rows * 0 + columns * 0
    random, _, _, _ = tl.philox(seed_low.to(tl.int64), columns + zero, rows + zero, stream + zero, seed_high + zero)
    return tl.where((random >> 8).to(tl.int32) < drop_below, 0.0, factor)


@_kernel
def _eps(alpha: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, TINY: tl.constexpr) -> Any:
    return tl.maximum(tl.load(alpha + batch * strides[0] + head * strides[1]).to(tl.float32) - 1.0, TINY)


@_kernel
def _live(lengths: tl.tensor, batch: tl.tensor, keys: tl.tensor, LENGTHS: tl.constexpr) -> Any:
    """How many first keys of a batch element take part."""
    live = keys
    if LENGTHS:
        live = tl.load(lengths + batch)
    return live


@_kernel
def _forward(
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
    SPLIT: tl.constexpr,  # programs of a backward kernel that share a block of queries
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
    live = _live(lengths, batch, keys, LENGTHS)
    eps = _eps(alpha, batch, head, alpha_strides, TINY)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    query += batch.to(tl.int64) * query_strides[0] + head.to(tl.int64) * query_strides[1]
    key += batch.to(tl.int64) * key_strides[0] + (head // group).to(tl.int64) * key_strides[1]
    value += batch.to(tl.int64) * value_strides[0] + (head // group).to(tl.int64) * value_strides[1]
    mask = _mask_base(mask, batch, head, mask_strides, MASK)
    needed += (place * blocks + block) * key_blocks
    bits += (place * blocks + block) * key_blocks
    q = _load(query, start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
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
        k = _load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        s = _dot(q, tl.trans(k), PRECISION, WIDEN) * scale
        columns = (j * BLOCK_K + lanes)[None, :]
        s = _masked(s, rows[:, None], columns, queries, live, mask, mask_strides[2], mask_column, MASK, CAUSAL)
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
        tl.store(needed + count, j)
        count += tl.max(tl.where(s <= bound[:, None], 0, 1))  # NaN counts
        if (number + 1 == renew) | (number + 1 == end):
            renew *= 2
            top = tl.max(largest, 1)
            low = tl.maximum(low, top)
            base = tl.where(low == float("-inf"), 0.0, low)
            for _ in range(0, STEPS):
                p, w = weigh(largest - base[:, None], eps, MODE)
                F, G = tl.sum(p, 1), tl.sum(w, 1)
                base = tl.where(F > 1.0, advance(base, F, G, eps, MODE), base)
            broken = tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0  # by a NaN, or an infinite score
            low = tl.where(low == float("-inf"), low, base)
            low = tl.where(broken, float("nan"), low)
            bound = low - tl.abs(low) * ROUNDING_RELATIVE - reach
    found = count
    top = tl.max(largest, 1)
    broken = tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0
    top = tl.where(broken | (top == float("-inf")), 0.0, top)
    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    threshold = tl.where(broken, float("nan"), threshold)

    # Sparse sweeps: a smooth row is close enough when the next step, which squares the error, gets it there.
    near = tl.where(eps <= 0.5, 0.1 * tl.sqrt(0.5 * tolerance / eps), tolerance)
    sweeps = 0
    going = found > 0
    while going:
        F = tl.zeros((BLOCK_Q,), tl.float32)
        G = tl.zeros((BLOCK_Q,), tl.float32)
        stay = 0
        tl.debug_barrier()  # one thread writes the list, all read it
        for number in range(0, count):
            j = tl.load(needed + number)
            k = _load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
            s = _dot(q, tl.trans(k), PRECISION, WIDEN) * scale
            columns = (j * BLOCK_K + lanes)[None, :]
            s = _masked(s, rows[:, None], columns, queries, live, mask, mask_strides[2], mask_column, MASK, CAUSAL)
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
        k = _load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = _load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        s = _dot(q, tl.trans(k), PRECISION, WIDEN) * scale
        columns = (j * BLOCK_K + lanes)[None, :]
        s = _masked(s, rows[:, None], columns, queries, live, mask, mask_strides[2], mask_column, MASK, CAUSAL)
        p, w = weigh(s - top[:, None] - threshold[:, None], eps, MODE)
        F += tl.sum(p, 1)
        G += tl.sum(w, 1)
        seen += tl.sum(tl.where(p > 0.0, 1, 0), 1)
        used = tl.max(tl.where(p == 0.0, 0, 1))
        tl.store(bits + j, used.to(tl.int8))
        tl.store(needed + stay, j, mask=used > 0)
        stay += used
        if DROPOUT:
            p *= _kept(rows[:, None], columns, place.to(tl.int32), drop_below, drop_factor, seed_low, seed_high)
        out += _dot(p.to(v.dtype), v, PRECISION, WIDEN)
    out /= tl.where(F > 0.0, F, 1.0)[:, None]
    out = tl.where(broken[:, None], float("nan"), out)
    _store(output + place * queries * VALUE_SIZE, start, queries, out, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    tl.store(kept + at, top, mask=rows < queries)
    apart = tl.num_programs(2).to(tl.int64) * heads
    tl.store(kept + apart * queries + at, advance(threshold, F, G, eps, MODE), mask=rows < queries)
    tl.store(support + at, seen, mask=rows < queries)
    at = counts + place * blocks + block
    tl.store(at, stay)
    tl.store(at + apart * blocks, found)
    tl.store(at + 2 * apart * blocks, sweeps)


@_kernel
def _backward_query(
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
    NEED_ALPHA: tl.constexpr,
) -> None:
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if CAUSAL:
        block = blocks - 1 - block
    place = batch.to(tl.int64) * heads + head
    live = _live(lengths, batch, keys, LENGTHS)
    eps = _eps(alpha, batch, head, alpha_strides, TINY)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    query += batch.to(tl.int64) * query_strides[0] + head.to(tl.int64) * query_strides[1]
    key += batch.to(tl.int64) * key_strides[0] + (head // group).to(tl.int64) * key_strides[1]
    value += batch.to(tl.int64) * value_strides[0] + (head // group).to(tl.int64) * value_strides[1]
    grad += batch.to(tl.int64) * grad_strides[0] + head.to(tl.int64) * grad_strides[1]
    mask = _mask_base(mask, batch, head, mask_strides, MASK)
    shared = place * tl.cdiv(queries, BLOCK_Q * SPLIT) + block // SPLIT
    needed += shared * tl.cdiv(keys, BLOCK_K)
    count = tl.load(counts + shared)
    q = _load(query, start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    do = _load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    out = _load(output + place * queries * VALUE_SIZE, start, VALUE_SIZE, queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(kept + at, mask=rows < queries, other=0.0)
    threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)

    # The mean delta is known only at the end. What it is at alpha = 1 is near enough for the sums not to cancel.
    shift = tl.sum(do.to(tl.float32) * out.to(tl.float32), 1)
    shifted = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w (dp - shift) k
    mean = tl.zeros((BLOCK_Q, PADDED), tl.float32)  # sum of w k
    slope = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w
    rest = tl.zeros((BLOCK_Q,), tl.float32)  # sum of w (dp - shift)
    bend = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi
    bent = tl.zeros((BLOCK_Q,), tl.float32)  # sum of p psi (dp - shift)
    for number in range(0, count):
        j = tl.load(needed + number)
        k = _load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = _load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        s = _dot(q, tl.trans(k), PRECISION, WIDEN) * scale
        columns = (j * BLOCK_K + lanes)[None, :]
        s = _masked(s, rows[:, None], columns, queries, live, mask, mask_strides[2], mask_column, MASK, CAUSAL)
        x = s - top[:, None] - threshold[:, None]
        p, w = weigh(x, eps, MODE)
        dp = _dot(do, tl.trans(v), PRECISION, WIDEN)
        if DROPOUT:
            dp *= _kept(rows[:, None], columns, place.to(tl.int32), drop_below, drop_factor, seed_low, seed_high)
        dp -= shift[:, None]
        moved = w * dp
        slope += tl.sum(w, 1)
        rest += tl.sum(moved, 1)
        shifted += _dot(moved.to(k.dtype), k, PRECISION, WIDEN)
        mean += _dot(w.to(k.dtype), k, PRECISION, WIDEN)
        if NEED_ALPHA:
            psi = bend_of(x, p, w, eps)
            bend += tl.sum(psi, 1)
            bent += tl.sum(psi * dp, 1)
    rest /= tl.where(slope > 0.0, slope, 1.0)
    dq = scale * (shifted - rest[:, None] * mean)
    _store(query_grad + place * queries * SIZE, start, queries, dq, BLOCK_Q, SIZE, PADDED)
    tl.store(delta + at, shift + rest, mask=rows < queries)
    if NEED_ALPHA:
        tl.store(alpha_grad + at, rest * bend - bent, mask=rows < queries)


@_kernel
def _transpose(
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


@_kernel
def _backward_key(
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
) -> None:
    key_blocks, key_heads = tl.num_programs(0), tl.num_programs(1)
    j, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(queries, BLOCK_Q * SPLIT)
    live = _live(lengths, batch, keys, LENGTHS)
    start = j * BLOCK_K
    columns = (start + tl.arange(0, BLOCK_K))[:, None]
    lanes = tl.arange(0, BLOCK_Q)
    key += batch.to(tl.int64) * key_strides[0] + key_head.to(tl.int64) * key_strides[1]
    value += batch.to(tl.int64) * value_strides[0] + key_head.to(tl.int64) * value_strides[1]
    k = _load(key, start, key_strides[2], live, BLOCK_K, SIZE, PADDED)
    v = _load(value, start, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
    dk = tl.zeros((BLOCK_K, PADDED), tl.float32)
    dv = tl.zeros((BLOCK_K, VALUE_PADDED), tl.float32)
    apart = tl.num_programs(2).to(tl.int64) * key_heads * group * queries
    for member in range(0, group):
        head = key_head * group + member
        place = batch.to(tl.int64) * key_heads * group + head
        eps = _eps(alpha, batch, head, alpha_strides, TINY)
        query_head = query + batch.to(tl.int64) * query_strides[0] + head.to(tl.int64) * query_strides[1]
        grad_head = grad + batch.to(tl.int64) * grad_strides[0] + head.to(tl.int64) * grad_strides[1]
        mask_head = _mask_base(mask, batch, head, mask_strides, MASK)
        count = tl.load(back_counts + place * key_blocks + j)
        list_head = back + (place * key_blocks + j) * blocks
        for number in range(0, count * SPLIT):
            first = (tl.load(list_head + number // SPLIT) * SPLIT + number % SPLIT) * BLOCK_Q
            q = _load(query_head, first, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
            do = _load(grad_head, first, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
            rows = first + lanes
            at = place * queries + rows
            top = tl.load(kept + at, mask=rows < queries, other=0.0)[None, :]
            threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)[None, :]
            mean = tl.load(delta + at, mask=rows < queries, other=0.0)[None, :]
            rows = rows[None, :]
            # All transposed [BLOCK_K, BLOCK_Q]: the products below need the weights in registers so.
            s = _dot(k, tl.trans(q), PRECISION, WIDEN) * scale
            s = _masked(s, rows, columns, queries, live, mask_head, mask_strides[2], mask_column, MASK, CAUSAL)
            p, w = weigh(s - top - threshold, eps, MODE)
            dp = _dot(v, tl.trans(do), PRECISION, WIDEN)
            if DROPOUT:
                factor = _kept(rows, columns, place.to(tl.int32), drop_below, drop_factor, seed_low, seed_high)
                p *= factor
                dp *= factor
            dv += _dot(p.to(do.dtype), do, PRECISION, WIDEN)
            ds = w * (dp - mean)
            dk += _dot(ds.to(q.dtype), q, PRECISION, WIDEN)
    place = batch.to(tl.int64) * key_heads + key_head
    _store(key_grad + place * keys * SIZE, start, keys, dk * scale, BLOCK_K, SIZE, PADDED)
    _store(value_grad + place * keys * VALUE_SIZE, start, keys, dv, BLOCK_K, VALUE_SIZE, VALUE_PADDED)


@_kernel
def _backward_mask(
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
    ONE_ROW: tl.constexpr,
    ONE_COLUMN: tl.constexpr,
) -> None:
    """Gradients of the scores, added into those of the mask: atomically, as broadcast entries meet."""
    heads = tl.num_programs(1)
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = batch.to(tl.int64) * heads + head
    live = _live(lengths, batch, keys, LENGTHS)
    eps = _eps(alpha, batch, head, alpha_strides, TINY)
    start = block * BLOCK_Q
    rows = start + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, BLOCK_K)
    query += batch.to(tl.int64) * query_strides[0] + head.to(tl.int64) * query_strides[1]
    key += batch.to(tl.int64) * key_strides[0] + (head // group).to(tl.int64) * key_strides[1]
    value += batch.to(tl.int64) * value_strides[0] + (head // group).to(tl.int64) * value_strides[1]
    grad += batch.to(tl.int64) * grad_strides[0] + head.to(tl.int64) * grad_strides[1]
    mask = _mask_base(mask, batch, head, mask_strides, MASK)
    mask_grad = _mask_base(mask_grad, batch, head, mask_grad_strides, MASK)
    shared = place * tl.cdiv(queries, BLOCK_Q * SPLIT) + block // SPLIT
    needed += shared * tl.cdiv(keys, BLOCK_K)
    count = tl.load(counts + shared)
    q = _load(query, start, query_strides[2], queries, BLOCK_Q, SIZE, PADDED)
    do = _load(grad, start, grad_strides[2], queries, BLOCK_Q, VALUE_SIZE, VALUE_PADDED)
    at = place * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(kept + at, mask=rows < queries, other=0.0)
    threshold = tl.load(kept + apart + at, mask=rows < queries, other=0.0)
    mean = tl.load(delta + at, mask=rows < queries, other=0.0)
    for number in range(0, count):
        j = tl.load(needed + number)
        k = _load(key, j * BLOCK_K, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        v = _load(value, j * BLOCK_K, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
        s = _dot(q, tl.trans(k), PRECISION, WIDEN) * scale
        columns = j * BLOCK_K + lanes
        s = _masked(s, rows[:, None], columns[None, :], queries, live, mask, mask_strides[2], mask_column, MASK, CAUSAL)
        _, w = weigh(s - top[:, None] - threshold[:, None], eps, MODE)
        dp = _dot(do, tl.trans(v), PRECISION, WIDEN)
        if DROPOUT:
            dp *= _kept(
                rows[:, None], columns[None, :], place.to(tl.int32), drop_below, drop_factor, seed_low, seed_high
            )
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


@_kernel
def _drop_factors(
    factors: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    drop_below: tl.tensor,
    drop_factor: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    BLOCK_K: tl.constexpr,
) -> None:
    """What dropout multiplies all weights with [batch * heads, queries, keys]."""
    row, place = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    found = _kept(row, columns, place, drop_below, drop_factor, seed_low, seed_high)
    at = (place.to(tl.int64) * queries + row) * keys + columns
    tl.store(factors + at, found, mask=columns < keys)


class Tiling(NamedTuple):
    """Queries and keys of a block, and how a program computes it."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tilings(NamedTuple):
    """Of the forward kernel, and of the backward kernels that go by queries and by keys.

    All have as many keys; backward may split a block of queries, for it has more to hold in registers.
    """

    forward: Tiling
    by_query: Tiling
    by_key: Tiling


def tilings(size: int, value_size: int, dtype: torch.dtype) -> Tilings:
    """What compiles for an H200 with no or few registers spilled; wide heads in float32 are beyond that."""
    widest = max(_padded(size), _padded(value_size))
    if dtype == torch.float32:
        if widest <= 64:
            return Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 4, 1))
        if widest <= 128:
            return Tilings(Tiling(64, 32, 8, 2), Tiling(32, 32, 8, 1), Tiling(32, 32, 8, 1))
        return Tilings(Tiling(64, 16, 8, 1), Tiling(16, 16, 8, 1), Tiling(32, 16, 8, 1))
    if widest <= 128:
        return Tilings(Tiling(128, 64, 8, 2), Tiling(64, 64, 8, 2), Tiling(64, 64, 8, 2))
    return Tilings(Tiling(64, 32, 8, 2), Tiling(64, 32, 8, 1), Tiling(64, 32, 8, 1))


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


class _Launch:
    """What all kernels of one problem are given."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alphas: Tensor,
        mask: Tensor | None,
        problem: Problem,
        powers: int,
    ) -> None:
        self.query, self.key, self.value = (_rows_contiguous(x) for x in (query, key, value))
        batch, heads, queries, size = query.shape
        self.batch, self.heads, self.key_heads = batch, heads, key.shape[1]
        self.size, self.value_size = size, value.shape[-1]
        self.tilings = tilings(size, self.value_size, query.dtype)
        self.blocks = -(-queries // self.tilings.forward.queries)
        self.key_blocks = -(-key.shape[2] // self.tilings.forward.keys)
        kind = NO_MASK if mask is None else BOOLEAN if mask.dtype == torch.bool else ADDITIVE
        alphas = alphas.expand(batch, heads)
        strides = (0, 0, 0, 0) if mask is None else _broadcast_strides(mask)
        self.given: dict[str, Any] = {
            "query": self.query,
            "key": self.key,
            "value": self.value,
            "alpha": alphas,
            # A kernel that reads no mask or lengths is given something all the same.
            "mask": alphas if mask is None else mask.view(torch.uint8) if mask.dtype == torch.bool else mask,
            "lengths": alphas
            if problem.lengths is None
            else torch.tensor(problem.lengths, dtype=torch.int32).to(query.device, non_blocking=True),
            "query_strides": self.query.stride()[:3],
            "key_strides": self.key.stride()[:3],
            "value_strides": self.value.stride()[:3],
            "alpha_strides": alphas.stride(),
            "mask_strides": strides[:3],
            "mask_column": strides[3],
            "queries": queries,
            "keys": key.shape[2],
            "group": heads // key.shape[1],
            "scale": problem.scale,
            "SIZE": size,
            "VALUE_SIZE": self.value_size,
            "PADDED": _padded(size),
            "VALUE_PADDED": _padded(self.value_size),
            "MODE": powers,
            "MASK": plain(kind),
            "CAUSAL": problem.causal,
            "LENGTHS": problem.lengths is not None,
            "DROPOUT": problem.dropout > 0,
            "PRECISION": _precision(query.dtype),
            "WIDEN": interpreted() and query.dtype != torch.float32,
            "TINY": TINY_EPS,
            **_random(problem),
        }

    def by_query(self, kernel: Any, tiling: Tiling, **more: Any) -> None:
        """A program for each block of queries."""
        blocks = -(-self.given["queries"] // tiling.queries)
        self._run(kernel, (blocks, self.heads, self.batch), tiling, more)

    def by_key(self, kernel: Any, tiling: Tiling, **more: Any) -> None:
        """A program for each block of keys."""
        self._run(kernel, (self.key_blocks, self.key_heads, self.batch), tiling, more)

    def _run(self, kernel: Any, grid: tuple[int, int, int], tiling: Tiling, more: dict[str, Any]) -> None:
        sizes = {
            "BLOCK_Q": tiling.queries,
            "BLOCK_K": tiling.keys,
            "SPLIT": self.tilings.forward.queries // tiling.queries,
        }
        run(kernel, grid, self.query, **self.given, **sizes, **more, num_warps=tiling.warps, num_stages=tiling.stages)


def _rows_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _broadcast_strides(mask: Tensor) -> tuple[int, ...]:
    return tuple(0 if n == 1 else stride for n, stride in zip(mask.shape, mask.stride(), strict=True))


def _precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: as exactly as PyTorch is asked to. Three products of tf32 are as good as one exact."""
    if dtype != torch.float32:
        return "tf32"  # not looked at
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _random(problem: Problem) -> dict[str, Any]:
    """Dropout as numbers of 32 bits, whatever the seed: they have the same type in every call."""
    stays = 1 - problem.dropout
    return {
        "drop_below": round(problem.dropout * (1 << DROP_BITS)),
        "drop_factor": 1 / stays if stays else 0.0,
        "seed_low": problem.seed & 0x7FFFFFFF,
        "seed_high": problem.seed >> 31 & 0x7FFFFFFF,
    }


def drop_factors(query: Tensor, keys: int, problem: Problem) -> Tensor:
    """What dropout multiplies the weights of these queries with [batch, heads, queries, keys]."""
    batch, heads, queries, _ = query.shape
    factors = torch.empty(batch, heads, queries, keys, device=query.device)
    if not problem.dropout:
        return factors.fill_(1)
    grid = (queries, -(-keys // 256), batch * heads)
    run(_drop_factors, grid, query, factors=factors, queries=queries, keys=keys, **_random(problem), BLOCK_K=256)
    return factors


class TritonAttention(Function):
    """The same as `attention.Attention`, by Triton's kernels: also of float16 and bfloat16, as the output is then.

    Scores, weights and sums are float32. Tensors of alphas may have any floating dtype.

    Raises:
        NotImplementedError: an alpha above 2.
        TypeError: another dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        if query.dtype not in TOLERANCE:
            raise TypeError(f"the Triton kernels compute float32, float16 and bfloat16, got {query.dtype}")
        powers = mode(alpha)
        alphas = _alphas(alpha, query)
        launch = _Launch(query, key, value, alphas, mask, problem, powers)
        batch, heads, queries, _ = query.shape
        shape, blocks = (batch, heads, queries), (batch, heads, launch.blocks)
        output = query.new_empty(*shape, value.shape[-1])
        kept = query.new_empty(2, *shape, dtype=torch.float32)
        support = query.new_empty(shape, dtype=torch.int32)
        needed = query.new_empty(*blocks, launch.key_blocks, dtype=torch.int32)
        counts = query.new_empty(3, *blocks, dtype=torch.int32)
        bits = query.new_zeros(*blocks, launch.key_blocks, dtype=torch.int8)
        launch.by_query(
            _forward,
            launch.tilings.forward,
            output=output,
            kept=kept,
            support=support,
            needed=needed,
            counts=counts,
            bits=bits,
            tolerance=TOLERANCE[query.dtype],
            LIMIT=NEWTON_LIMIT,
        )
        ctx.problem, ctx.mode, ctx.alpha = problem, powers, alpha if isinstance(alpha, float) else None
        ctx.mark_non_differentiable(support)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            query, key, value, mask, alpha if isinstance(alpha, Tensor) else None, output, kept, needed, counts, bits
        )
        return output, support

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None
        query, key, value, mask, alpha, output, kept, needed, counts, bits = ctx.saved_tensors
        alpha = ctx.alpha if alpha is None else alpha
        if autograd.differentiable(grad):
            return *_differentiable_backward(ctx, query, key, value, alpha, mask, grad), None
        need_query, need_key, need_value, need_alpha, need_mask, _ = ctx.needs_input_grad
        launch = _Launch(query, key, value, _alphas(alpha, query), mask, ctx.problem, ctx.mode)
        grad = _rows_contiguous(grad)
        shared = {"grad": grad, "grad_strides": grad.stride()[:3], "kept": kept}
        dq = torch.empty_like(query, memory_format=torch.contiguous_format)
        delta = torch.empty_like(kept[0])
        slopes = torch.empty_like(delta) if need_alpha else delta
        launch.by_query(
            _backward_query,
            launch.tilings.by_query,
            **shared,
            output=output,
            needed=needed,
            counts=counts,
            query_grad=dq,
            delta=delta,
            alpha_grad=slopes,
            NEED_ALPHA=need_alpha,
        )
        shared["delta"] = delta
        dk = dv = da = dm = None
        if need_key or need_value:
            dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (key, value))
            back = needed.new_empty(bits.numel())
            back_counts = needed.new_empty(launch.batch * launch.heads, launch.key_blocks)
            run(
                _transpose,
                (launch.key_blocks, launch.heads, launch.batch),
                query,
                bits=bits,
                back=back,
                back_counts=back_counts,
                blocks=launch.blocks,
                key_blocks=launch.key_blocks,
                LANES=128,
                num_warps=1,
            )
            launch.by_key(
                _backward_key,
                launch.tilings.by_key,
                **shared,
                back=back,
                back_counts=back_counts,
                key_grad=dk,
                value_grad=dv,
            )
        if need_alpha:
            da = slopes.sum(-1)
            da = (da.sum(0, keepdim=True) if len(alpha) < len(da) else da).to(alpha.dtype)
        if need_mask and mask is not None:
            total = torch.zeros_like(mask, dtype=torch.float32)
            strides = _broadcast_strides(total)
            launch.by_query(
                _backward_mask,
                launch.tilings.by_query,
                **shared,
                needed=needed,
                counts=counts,
                mask_grad=total,
                mask_grad_strides=strides[:3],
                mask_grad_column=strides[3],
                ONE_ROW=mask.shape[2] == 1,
                ONE_COLUMN=mask.shape[3] == 1,
            )
            dm = total.to(mask.dtype)
        return dq if need_query else None, dk if need_key else None, dv if need_value else None, da, dm, None


def _alphas(alpha: Alpha, query: Tensor) -> Tensor:
    if isinstance(alpha, Tensor):
        return alpha.detach()
    return torch.full((1, 1), alpha, dtype=torch.float32, device=query.device)


def _differentiable_backward(
    ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients that have gradients, through all weights, in float32."""
    given = (query, key, value, alpha, mask)

    def compute() -> Tensor:
        q, k, v = query.float(), key.float(), value.float()
        alphas = alpha.float() if isinstance(alpha, Tensor) else alpha
        added = mask.float() if mask is not None and mask.dtype != torch.bool else mask
        _, weights = attention.materialised(q, k, v, alphas, added, ctx.problem._replace(dropout=0.0))
        dropped = weights * drop_factors(query, key.shape[2], ctx.problem)
        group = query.shape[1] // key.shape[1]
        out: Tensor = (dropped.unflatten(1, (-1, group)) @ v.unsqueeze(2)).flatten(1, 2)
        return out

    return attention.gradients(ctx, compute, given, grad.float())
