"""Forward for few queries and many keys, as when text is generated: the keys are shared out among programs.

Scores are written once and read again, keys and values are read by all queries of a group at once, and values only
where a block of keys has a weight above zero. There is no gradient.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tsallis.ops.triton.attention.launch import LIMITS, Launch, decode_tiling, processors
from tsallis.ops.triton.attention.tiles import (
    ROUNDING,
    ROUNDING_RELATIVE,
    attention_kernel,
    climb,
    dot,
    live_of,
    load,
    near_enough,
    scores_of,
)
from tsallis.ops.triton.language import advance, tl, weigh


@attention_kernel
def _rows_of(key_head: tl.tensor, queries: tl.tensor, group: tl.tensor, ROWS: tl.constexpr) -> Any:
    """All queries that read a head of keys: their heads, their numbers (`queries` where there are no more)."""
    rows = tl.arange(0, ROWS)
    inside = rows < group * queries
    head = key_head * group + tl.where(inside, rows // queries, 0)
    return head, tl.where(inside, rows % queries, queries), inside


@attention_kernel
def _eps_of_rows(
    alpha: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, TINY: tl.constexpr, inside: tl.tensor
) -> Any:
    found = tl.load(alpha + batch * strides[0] + head * strides[1], mask=inside, other=1.5)
    return tl.maximum(found.to(tl.float32) - 1.0, TINY)


@attention_kernel
def decode_scores(
    query: tl.tensor,  # [batch, heads, queries, SIZE], with strides as all that is given
    key: tl.tensor,  # [batch, heads / group, keys, SIZE]
    alpha: tl.tensor,
    mask: tl.tensor,
    lengths: tl.tensor,  # [batch]
    scores: tl.tensor,  # [batch, heads, queries, keys]
    parts: tl.tensor,  # [2, batch, heads, queries, splits]: the largest score, and what the threshold is at least
    query_strides: tl.tuple,
    key_strides: tl.tuple,
    alpha_strides: tl.tuple,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    span: tl.tensor,  # keys of a split
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    splits, key_heads = tl.num_programs(0), tl.num_programs(1)
    split, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = key_heads * group
    head, rows, inside = _rows_of(key_head, queries, group, ROWS)
    eps = _eps_of_rows(alpha, batch, head, alpha_strides, TINY, inside)
    live = live_of(lengths, batch, keys, LENGTHS)
    key += batch.to(tl.int64) * key_strides[0] + key_head.to(tl.int64) * key_strides[1]
    sizes = tl.arange(0, PADDED)
    query += batch.to(tl.int64) * query_strides[0]
    at = head.to(tl.int64) * query_strides[1] + rows.to(tl.int64) * query_strides[2]
    q = tl.load(query + at[:, None] + sizes[None, :], mask=inside[:, None] & (sizes < SIZE)[None, :], other=0.0)
    mask += batch.to(tl.int64) * mask_strides[0]
    seen_by = ((mask + head.to(tl.int64) * mask_strides[1])[:, None], mask_strides[2], mask_column)
    place = (batch.to(tl.int64) * heads + head) * queries + rows
    first = split * span
    last = tl.minimum(first + span, live)
    lanes = tl.arange(0, BLOCK_K)
    largest = tl.full((ROWS, BLOCK_K), float("-inf"), tl.float32)
    for number in range(0, tl.cdiv(last - first, BLOCK_K)):
        start = first + number * BLOCK_K
        k = load(key, start, key_strides[2], live, BLOCK_K, SIZE, PADDED)
        columns = (start + lanes)[None, :]
        s = scores_of(q, k, rows[:, None], columns, queries, live, scale, seen_by, MASK, CAUSAL, PRECISION, WIDEN)
        tl.store(scores + place[:, None] * keys + columns, s, mask=inside[:, None] & (columns < live))
        largest = tl.maximum(largest, s, propagate_nan=tl.PropagateNan.ALL)
    low = climb(largest, tl.full((ROWS,), float("-inf"), tl.float32), eps, eps[:, None], MODE)
    at = place * splits + split
    apart = tl.num_programs(2).to(tl.int64) * heads * queries * splits
    tl.store(parts + at, tl.max(largest, 1), mask=inside)
    tl.store(parts + apart + at, low, mask=inside)


@attention_kernel
def decode_thresholds(
    alpha: tl.tensor,
    lengths: tl.tensor,
    scores: tl.tensor,
    parts: tl.tensor,
    some: tl.tensor,  # [batch, heads, queries, keys]: first the scores that may be above the threshold
    kept: tl.tensor,  # [3, batch, heads, queries]: the largest score, the threshold, the sum of the weights
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
    place = (batch.to(tl.int64) * heads + head) * queries + row
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    live = live_of(lengths, batch, keys, LENGTHS)
    eps = tl.maximum(tl.load(alpha + batch * alpha_strides[0] + head * alpha_strides[1]).to(tl.float32) - 1.0, TINY)
    lanes = tl.arange(0, LANES)
    used = tl.cdiv(live, span)
    tops = tl.full((LANES,), float("-inf"), tl.float32)
    lows = tl.full((LANES,), float("-inf"), tl.float32)
    bad = tl.zeros((LANES,), tl.int32)
    for first in range(0, used, LANES):
        at = place * splits + first + lanes
        inside = first + lanes < used
        low = tl.load(parts + apart * splits + at, mask=inside, other=float("-inf"))
        bad += tl.where(low == low, 0, 1)
        lows = tl.maximum(lows, tl.where(low == low, low, float("-inf")))
        tops = tl.maximum(tops, tl.load(parts + at, mask=inside, other=float("-inf")))
    broken = tl.max(bad) > 0
    low = tl.max(lows)
    top = tl.max(tops)
    top = tl.where(broken | (low == float("-inf")), 0.0, top)
    bound = low - tl.abs(low) * ROUNDING_RELATIVE - 1.0 / eps - ROUNDING
    bound = tl.where(broken, float("inf"), bound)

    # Only what is above the best split's bound is looked at again.
    scores += place * keys
    some += place * keys
    count = 0
    for first in range(0, live, LANES):
        at = first + lanes
        s = tl.load(scores + at, mask=at < live, other=float("-inf"))
        above = (s > bound).to(tl.int32)
        tl.store(some + count + tl.cumsum(above, 0) - 1, s - top, mask=above != 0)
        count += tl.sum(above)
    tl.debug_barrier()

    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    near = near_enough(eps, tolerance)
    mass = 0.0 * eps
    sweeps = 0
    seen = tl.zeros((LANES,), tl.int32)
    going = count > 0
    last = count * 0
    while going:
        F = tl.zeros((LANES,), tl.float32)
        G = tl.zeros((LANES,), tl.float32)
        seen = tl.zeros((LANES,), tl.int32)
        for first in range(0, count, LANES):
            at = first + lanes
            x = tl.load(some + at, mask=at < count, other=float("-inf"))
            p, w = weigh(x - threshold, eps, MODE)
            F += p
            G += w
            seen += tl.where(p > 0.0, 1, 0)
        mass = tl.sum(F)
        going = last == 0
        last = ((tl.abs(mass - 1.0) <= near) | (sweeps >= LIMIT)).to(tl.int32)
        threshold = tl.where(going, advance(threshold, mass, tl.sum(G), eps, MODE), threshold)
        sweeps += 1
    at = kept + place
    tl.store(at, top)
    tl.store(at + apart, tl.where(broken, float("nan"), threshold))
    tl.store(at + 2 * apart, tl.where(mass > 0.0, mass, 1.0))
    tl.store(support + place, tl.sum(seen))


@attention_kernel
def decode_output(
    value: tl.tensor,  # [batch, heads / group, keys, VALUE_SIZE], with strides
    alpha: tl.tensor,
    lengths: tl.tensor,
    scores: tl.tensor,
    kept: tl.tensor,
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
    WIDEN: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    splits, key_heads = tl.num_programs(0), tl.num_programs(1)
    split, key_head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = key_heads * group
    head, rows, inside = _rows_of(key_head, queries, group, ROWS)
    eps = _eps_of_rows(alpha, batch, head, alpha_strides, TINY, inside)
    live = live_of(lengths, batch, keys, LENGTHS)
    value += batch.to(tl.int64) * value_strides[0] + key_head.to(tl.int64) * value_strides[1]
    place = (batch.to(tl.int64) * heads + head) * queries + rows
    apart = tl.num_programs(2).to(tl.int64) * heads * queries
    top = tl.load(kept + place, mask=inside, other=0.0)[:, None]
    threshold = tl.load(kept + apart + place, mask=inside, other=0.0)[:, None]
    mass = tl.load(kept + 2 * apart + place, mask=inside, other=1.0)[:, None]
    lanes = tl.arange(0, BLOCK_K)
    out = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
    first = split * span
    last = tl.minimum(first + span, live)
    for number in range(0, tl.cdiv(last - first, BLOCK_K)):
        start = first + number * BLOCK_K
        columns = (start + lanes)[None, :]
        s = tl.load(
            scores + place[:, None] * keys + columns, mask=inside[:, None] & (columns < last), other=float("-inf")
        )
        p, _ = weigh(s - top - threshold, eps[:, None], MODE)
        if tl.max(tl.where(p == 0.0, 0, 1)) > 0:  # NaN counts
            v = load(value, start, value_strides[2], live, BLOCK_K, VALUE_SIZE, VALUE_PADDED)
            out += dot(p.to(v.dtype), v, PRECISION, WIDEN)
    sizes = tl.arange(0, VALUE_PADDED)
    at = partial + (place * splits + split)[:, None] * VALUE_SIZE + sizes[None, :]
    tl.store(at, (out / mass).to(partial.dtype.element_ty), mask=inside[:, None] & (sizes < VALUE_SIZE)[None, :])


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
    """Sum one row's outputs over all splits, in order: the result doesn't depend on which was ready first."""
    row, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (batch.to(tl.int64) * tl.num_programs(1) + head) * queries + row
    used = tl.cdiv(live_of(lengths, batch, keys, LENGTHS), span)
    partial += place * splits * VALUE_SIZE
    total = tl.zeros((LANES, VALUE_PADDED), tl.float32)
    for number in range(0, tl.cdiv(used, LANES)):
        first = row * 0 + number * LANES
        total += load(partial, first, VALUE_SIZE, used, LANES, VALUE_SIZE, VALUE_PADDED)
    sizes = tl.arange(0, VALUE_PADDED)
    out = tl.sum(total, 0).to(output.dtype.element_ty)
    tl.store(output + place * VALUE_SIZE + sizes, out, mask=sizes < VALUE_SIZE)


def decode(launch: Launch, output: Tensor, support: Tensor) -> None:
    """Write the output and how many keys each query attends to, for few queries of each head of keys."""
    query, rows = launch.query, support.shape
    batch, heads, queries = rows
    keys, key_heads = launch.keys, launch.key_heads
    tiling = decode_tiling(launch.size, launch.value_size, query.dtype, queries * (heads // key_heads))
    blocks = -(-keys // tiling.keys)
    programs = -(-4 * processors(query.device) // (batch * key_heads))  # programs that a multiprocessor can choose from
    span = -(-blocks // min(programs, blocks)) * tiling.keys
    splits = -(-keys // span)
    stats = launch.numbers(3, *rows)
    scores, some, parts = launch.numbers(*rows, keys), launch.numbers(*rows, keys), launch.numbers(2, *rows, splits)
    partial = output if splits == 1 else launch.numbers(*rows, splits, launch.value_size)
    work = {"scores": scores, "parts": parts, "kept": stats, "partial": partial, "span": span, "splits": splits}
    by_split, by_row = (splits, key_heads, batch), (queries, heads, batch)
    sizes = {"ROWS": tiling.queries, "BLOCK_K": tiling.keys, "num_warps": tiling.warps, "num_stages": tiling.stages}
    launch.run(decode_scores, by_split, **work, **sizes)
    launch.run(
        decode_thresholds,
        by_row,
        **work,
        some=some,
        support=support,
        tolerance=launch.tolerance,
        LIMIT=LIMITS.newton,
        LANES=LIMITS.scores,
        num_warps=8,
    )
    launch.run(decode_output, by_split, **work, **sizes)
    if splits > 1:
        launch.run(decode_sum, by_row, **work, output=output, LANES=LIMITS.splits, num_warps=4)
