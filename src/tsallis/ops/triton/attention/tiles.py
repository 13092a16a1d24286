"""Define functions that the attention kernels share: loads, stores, scores and recomputed tiles."""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import constant, entmax_weights, kernel, newton_step, tl

NO_MASK, BOOLEAN, ADDITIVE = constant(0), constant(1), constant(2)
UNDERFLOW = constant(104.0)  # exp(-x) is 0 in float32 if x is at least this
MARGIN = constant(1.001)  # allows for rounding in the computation of a window
FARTHEST = constant(1e9)  # maximum reach of a window
STEPS = constant(4)  # Newton steps that compute a bound from the maxima
ROUNDING = constant(1e-5)  # absolute margin below a bound
ROUNDING_RELATIVE = constant(5e-7)  # margin relative to the bound

# These arguments change from call to call, so each kernel is compiled once for all their values.
attention_kernel = kernel(
    "heads",
    "queries",
    "keys",
    "blocks",
    "key_blocks",
    "mask_strides",
    "drop_below",
    "seed_low",
    "seed_high",
    "span",
    "splits",
    "offset",
)


@attention_kernel
def dot(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr, UPCAST: tl.constexpr) -> Any:
    """Multiply matrices, with sums in float32."""
    if UPCAST:  # the interpreter multiplies half precision wrongly
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@attention_kernel
def load(
    base: tl.tensor,
    start: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> Any:
    """Load rows from `start` as [ROWS, PADDED]; rows from `limit` on and columns from SIZE on are zero."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    valid = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        valid = valid & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * stride
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=valid, other=0.0)


@attention_kernel
def store(
    base: tl.tensor,
    start: tl.tensor,
    limit: tl.tensor,
    values: tl.tensor,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """Store values [ROWS, PADDED] as contiguous rows from `start`; skip rows and columns beyond `limit` and SIZE."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    valid = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        valid = valid & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * SIZE
    tl.store(base + rows[:, None] * SIZE + columns[None, :], values.to(base.dtype.element_ty), mask=valid)


@attention_kernel
def head_pointer(base: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple) -> Any:
    """Return the pointer to the start of a head."""
    return base + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@attention_kernel
def head_bias(
    mask: tl.tensor,
    mask_strides: tl.tuple,
    mask_column: tl.tensor,
    slopes: tl.tensor,
    slope_strides: tl.tuple,
    offset: tl.tensor,
    batch: tl.tensor,
    head: tl.tensor,
    SLOPES: tl.constexpr,
) -> Any:
    """Return a head's mask (pointer, row stride, column stride), its slope, and the position of the first query."""
    slope = offset * 0.0
    if SLOPES:
        slope = tl.load(slopes + batch * slope_strides[0] + head * slope_strides[1]).to(tl.float32)
    return head_pointer(mask, batch, head, mask_strides), mask_strides[2], mask_column, slope, offset


@attention_kernel
def distance(rows: tl.tensor, columns: tl.tensor, offset: tl.tensor) -> Any:
    """Return the distances between queries and keys."""
    return tl.abs(rows + offset - columns).to(tl.float32)


@attention_kernel
def load_eps(alpha: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, TINY: tl.constexpr) -> Any:
    """Return a head's `alpha - 1`, at least TINY."""
    return tl.maximum(tl.load(alpha + batch * strides[0] + head * strides[1]).to(tl.float32) - 1.0, TINY)


@attention_kernel
def load_key_end(lengths: tl.tensor, batch: tl.tensor, keys: tl.tensor, LENGTHS: tl.constexpr) -> Any:
    """Return the number of valid keys of a batch element, clamped to the valid range."""
    key_end = keys
    if LENGTHS:
        key_end = tl.minimum(tl.maximum(tl.load(lengths + batch), 0), keys).to(tl.int32)
    return key_end


@attention_kernel
def locate_head(
    key: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    lengths: tl.tensor,
    key_strides: tl.tuple,
    value_strides: tl.tuple,
    alpha_strides: tl.tuple,
    group: tl.tensor,
    keys: tl.tensor,
    LENGTHS: tl.constexpr,
    TINY: tl.constexpr,
) -> Any:
    """Return a program's head index, pointers to keys and values, the number of valid keys, and `alpha - 1`."""
    head, batch = tl.program_id(1), tl.program_id(2)
    head_index = batch.to(tl.int64) * tl.num_programs(1) + head
    key_end = load_key_end(lengths, batch, keys, LENGTHS)
    eps = load_eps(alpha, batch, head, alpha_strides, TINY)
    key = head_pointer(key, batch, head // group, key_strides)
    value = head_pointer(value, batch, head // group, value_strides)
    return head_index, key, value, key_end, eps


@attention_kernel
def last_key(
    key_end: tl.tensor, start: tl.tensor, offset: tl.tensor, BLOCK_Q: tl.constexpr, CAUSAL: tl.constexpr
) -> Any:
    """Return the end of the range of keys that a block of queries may attend to."""
    end = key_end
    if CAUSAL:
        end = tl.minimum(end, start + offset + BLOCK_Q)
    return end


@attention_kernel
def window(
    q: tl.tensor,
    key: tl.tensor,
    key_stride: tl.tensor,
    key_norm: tl.tensor,
    slope: tl.tensor,
    rows: tl.tensor,
    offset: tl.tensor,
    queries: tl.tensor,
    key_end: tl.tensor,
    scale: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
) -> Any:
    """Return the first and last key that may get a weight from a block of queries.

    A score is at most scale |q| |k| minus slope times distance. A weight is zero if its score is 1/eps below the row's
    largest score. This largest score is at least the score of the nearest key.
    """
    position = rows + offset
    nearest = tl.maximum(tl.minimum(position, key_end - 1), 0)
    sizes = tl.arange(0, PADDED)
    pointers = key + nearest.to(tl.int64)[:, None] * key_stride + sizes[None, :]
    k = tl.load(pointers, mask=(nearest < key_end)[:, None] & (sizes < SIZE)[None, :], other=0.0).to(tl.float32)
    q = q.to(tl.float32)
    top = tl.sum(q * k, 1) * scale - slope * tl.abs(position - nearest).to(tl.float32)
    largest = tl.sqrt(tl.sum(q * q, 1)) * tl.abs(scale) * key_norm * MARGIN
    reach = (largest - top + tl.minimum(1.0 / eps, UNDERFLOW) * MARGIN) / slope
    reach = tl.where(rows < queries, reach, 0.0)
    has_window = (slope > 0.0) & (tl.max(tl.where(reach < FARTHEST, 0, 1)) == 0)
    keys = tl.where(reach < FARTHEST, reach, 0.0).to(tl.int32) + 1
    inside = rows < queries
    first = tl.where(has_window, tl.min(tl.where(inside, position - keys, key_end)), 0)
    last = tl.where(has_window, tl.max(tl.where(inside, position + keys, 0)), key_end)
    return tl.maximum(first, 0), last


@attention_kernel
def open_block_list(
    block_list: tl.tensor,
    counts: tl.tensor,
    head_index: tl.tensor,
    block: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    end: tl.tensor,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_LISTS: tl.constexpr,
) -> Any:
    """Return the list of key blocks that a query block needs, and its length; without lists, all blocks up to `end`."""
    if HAS_LISTS:
        forward_block = head_index * tl.cdiv(queries, BLOCK_Q * SPLIT) + block // SPLIT
        block_list += forward_block * tl.cdiv(keys, BLOCK_K)
        count = tl.load(counts + forward_block)
    else:
        count = tl.cdiv(end, BLOCK_K)
    return block_list, count


@attention_kernel
def load_thresholds(
    stats: tl.tensor, at: tl.tensor, stats_stride: tl.tensor, rows: tl.tensor, queries: tl.tensor
) -> Any:
    """Return the largest score of each row, and the threshold relative to it."""
    top = tl.load(stats + at, mask=rows < queries, other=0.0)
    return top, tl.load(stats + stats_stride + at, mask=rows < queries, other=0.0)


@attention_kernel
def dropout_factor(rows: tl.tensor, columns: tl.tensor, head_index: tl.tensor, random: tl.tuple) -> Any:
    """Return the dropout factors of weights; factors depend only on seed and position, so backward recomputes them."""
    drop_below, factor, seed_low, seed_high = random
    zero = rows * 0 + columns * 0
    stream = head_index.to(tl.int32) + zero
    bits, _, _, _ = tl.philox(seed_low.to(tl.int64), columns + zero, rows + zero, stream, seed_high + zero)
    return tl.where((bits >> 8).to(tl.int32) < drop_below, 0.0, factor)


@attention_kernel
def score(
    a: tl.tensor,
    b: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    key_end: tl.tensor,
    scale: tl.tensor,
    bias: tl.tuple,  # see `head_bias`
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    SLOPES: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
) -> Any:
    """Return the scores of `a` [M, PADDED] with `b` [N, PADDED]; masked pairs get -inf.

    If `a` holds queries, `rows` are [M, 1] and `columns` [1, N]. If `a` holds keys, everything is transposed.
    """
    scores = dot(a, tl.trans(b), PRECISION, UPCAST) * scale
    visible = (rows < queries) & (columns < key_end)
    if CAUSAL:
        visible = visible & (columns <= rows + bias[4])
    if SLOPES:
        scores -= bias[3] * distance(rows, columns, bias[4])
    if MASK != NO_MASK:
        pointers = bias[0] + rows.to(tl.int64) * bias[1] + columns.to(tl.int64) * bias[2]
        if MASK == BOOLEAN:
            visible = visible & (tl.load(pointers, mask=visible, other=0) != 0)
        else:
            scores += tl.load(pointers, mask=visible, other=0.0).to(tl.float32)
    return tl.where(visible, scores, float("-inf"))


@attention_kernel
def recompute_tile(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    key_end: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    head_index: tl.tensor,
    bias: tl.tuple,
    random: tl.tuple,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    SLOPES: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
) -> Any:
    """Return scores minus thresholds; weights; `p^(2 - alpha)`; weights after dropout; and gradients of weights.

    If `a` holds queries, `b` holds keys, `c` gradients of the output, and `d` values. If `a` holds keys, `b` holds
    queries, `c` values, and `d` gradients of the output; then everything is transposed.
    """
    s = score(a, b, rows, columns, queries, key_end, scale, bias, MASK, CAUSAL, SLOPES, PRECISION, UPCAST)
    x = s - top - threshold
    p, w = entmax_weights(x, eps, MODE)
    dp = dot(c, tl.trans(d), PRECISION, UPCAST)
    dropped = p
    if DROPOUT:
        factor = dropout_factor(rows, columns, head_index, random)
        dropped = p * factor
        dp *= factor
    return x, p, w, dropped, dp


@attention_kernel
def find_non_finite(largest: tl.tensor) -> Any:
    """Return a mask of the rows whose maximum is NaN or infinite."""
    return tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0


@attention_kernel
def raise_lower_bound(
    largest: tl.tensor, low: tl.tensor, eps: tl.tensor, eps_tile: tl.tensor, MODE: tl.constexpr
) -> Any:
    """Raise the lower bound `low` of each row's threshold by Newton steps towards the threshold of `largest`.

    Bounds are not relative to the largest score. Rows without a score get -inf; rows with a NaN or infinite score get
    NaN.
    """
    low = tl.maximum(low, tl.max(largest, 1))
    base = tl.where(low == float("-inf"), 0.0, low)
    for _ in range(0, STEPS):
        p, w = entmax_weights(largest - base[:, None], eps_tile, MODE)
        F, G = tl.sum(p, 1), tl.sum(w, 1)
        base = tl.where(F > 1.0, newton_step(base, F, G, eps, MODE), base)
    low = tl.where(low == float("-inf"), low, base)
    return tl.where(find_non_finite(largest), float("nan"), low)


@attention_kernel
def start_thresholds(largest: tl.tensor, low: tl.tensor) -> Any:
    """Return the rows' largest scores, initial thresholds relative to these scores, and a mask of non-finite rows."""
    top = tl.max(largest, 1)
    not_finite = find_non_finite(largest)
    top = tl.where(not_finite | (top == float("-inf")), 0.0, top)
    threshold = tl.where(low == float("-inf"), 0.0, tl.maximum(low - top, 0.0))
    return top, tl.where(not_finite, float("nan"), threshold), not_finite


@attention_kernel
def newton_tolerance(eps: tl.tensor, tolerance: tl.tensor) -> Any:
    """Return the tolerance of |sum - 1| before the next step; in smooth rows, that step squares the error."""
    return tl.where(eps <= 0.5, 0.1 * tl.sqrt(0.5 * tolerance / eps), tolerance)
