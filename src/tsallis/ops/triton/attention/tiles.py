"""Parts that the attention kernels share: loads and stores, scores of a tile, and backward's view of one."""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import advance, constant, kernel, tl, weigh

NO_MASK, BOOLEAN, ADDITIVE = constant(0), constant(1), constant(2)
STEPS = constant(4)  # Newton steps on the maxima each time the bound is renewed
ROUNDING = constant(1e-5)  # how much lower the bound is taken, and how much more for large scores:
ROUNDING_RELATIVE = constant(5e-7)

# Numbers that change from call to call: a kernel compiled for one value of them is good for all.
attention_kernel = kernel(
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
)


@attention_kernel
def dot(a: tl.tensor, b: tl.tensor, PRECISION: tl.constexpr, WIDEN: tl.constexpr) -> Any:
    """Product of matrices, accumulated in float32."""
    if WIDEN:  # the interpreter multiplies halves wrongly
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
    """Rows from `start` on as [ROWS, PADDED]; zeros from `limit` on and beyond SIZE."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        inside = inside & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * stride
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


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
    """Store [ROWS, PADDED] as contiguous rows from `start` on, up to `limit` and SIZE."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    inside = (start + rows < limit)[:, None]
    if PADDED != SIZE:
        inside = inside & (columns < SIZE)[None, :]
    base += start.to(tl.int64) * SIZE
    tl.store(base + rows[:, None] * SIZE + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@attention_kernel
def head_of(base: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple) -> Any:
    """Return the pointer to the start of a head."""
    return base + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@attention_kernel
def eps_of(alpha: tl.tensor, batch: tl.tensor, head: tl.tensor, strides: tl.tuple, TINY: tl.constexpr) -> Any:
    """A head's `alpha - 1`."""
    return tl.maximum(tl.load(alpha + batch * strides[0] + head * strides[1]).to(tl.float32) - 1.0, TINY)


@attention_kernel
def live_of(lengths: tl.tensor, batch: tl.tensor, keys: tl.tensor, LENGTHS: tl.constexpr) -> Any:
    """Return how many first keys of a batch element take part; a length out of range counts as the nearest one."""
    live = keys
    if LENGTHS:
        live = tl.minimum(tl.maximum(tl.load(lengths + batch), 0), keys).to(tl.int32)
    return live


@attention_kernel
def kept_factor(rows: tl.tensor, columns: tl.tensor, place: tl.tensor, random: tl.tuple) -> Any:
    """Return dropout's factors of weights, drawn from the seed and the position alone, so that they can be redrawn."""
    drop_below, factor, seed_low, seed_high = random
    zero = rows * 0 + columns * 0
    stream = place.to(tl.int32) + zero
    drawn, _, _, _ = tl.philox(seed_low.to(tl.int64), columns + zero, rows + zero, stream, seed_high + zero)
    return tl.where((drawn >> 8).to(tl.int32) < drop_below, 0.0, factor)


@attention_kernel
def scores_of(
    a: tl.tensor,
    b: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    live: tl.tensor,
    scale: tl.tensor,
    mask: tl.tuple,  # where it begins, and its strides of rows and columns
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
) -> Any:
    """Scores of `a` [M, PADDED] with `b` [N, PADDED], -inf where a query (of `rows`) doesn't see a key (of `columns`).

    Queries come first and rows are [M, 1], columns [1, N]; or keys come first, and all is transposed.
    """
    scores = dot(a, tl.trans(b), PRECISION, WIDEN) * scale
    seen = (rows < queries) & (columns < live)
    if CAUSAL:
        seen = seen & (columns <= rows)
    if MASK != NO_MASK:
        at = mask[0] + rows.to(tl.int64) * mask[1] + columns.to(tl.int64) * mask[2]
        if MASK == BOOLEAN:
            seen = seen & (tl.load(at, mask=seen, other=0) != 0)
        else:
            scores += tl.load(at, mask=seen, other=0.0).to(tl.float32)
    return tl.where(seen, scores, float("-inf"))


@attention_kernel
def pulled(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    queries: tl.tensor,
    live: tl.tensor,
    top: tl.tensor,
    threshold: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    place: tl.tensor,
    mask: tl.tuple,
    random: tl.tuple,
    MODE: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
) -> Any:
    """A tile again: scores above their threshold, weights, `p^(2 - alpha)`, weights dropped, the weights' gradients.

    `a` are queries, `b` keys, `c` gradients of the output, `d` values; or `a` keys, `b` queries, `c` values, `d`
    gradients, and all is transposed.
    """
    s = scores_of(a, b, rows, columns, queries, live, scale, mask, MASK, CAUSAL, PRECISION, WIDEN)
    x = s - top - threshold
    p, w = weigh(x, eps, MODE)
    dp = dot(c, tl.trans(d), PRECISION, WIDEN)
    dropped = p
    if DROPOUT:
        factor = kept_factor(rows, columns, place, random)
        dropped = p * factor
        dp *= factor
    return x, p, w, dropped, dp


@attention_kernel
def broken_rows(largest: tl.tensor) -> Any:
    """Rows with a NaN or an infinite score among these maxima."""
    return tl.max(tl.where(largest < float("inf"), 0, 1), 1) > 0


@attention_kernel
def climb(largest: tl.tensor, low: tl.tensor, eps: tl.tensor, eps_tile: tl.tensor, MODE: tl.constexpr) -> Any:
    """Newton steps from `low` towards the threshold of a subset of each row: it is at most the row's own.

    Not relative to the largest score. -inf where there is none, NaN where a row is broken.
    """
    low = tl.maximum(low, tl.max(largest, 1))
    base = tl.where(low == float("-inf"), 0.0, low)
    for _ in range(0, STEPS):
        p, w = weigh(largest - base[:, None], eps_tile, MODE)
        F, G = tl.sum(p, 1), tl.sum(w, 1)
        base = tl.where(F > 1.0, advance(base, F, G, eps, MODE), base)
    low = tl.where(low == float("-inf"), low, base)
    return tl.where(broken_rows(largest), float("nan"), low)


@attention_kernel
def near_enough(eps: tl.tensor, tolerance: tl.tensor) -> Any:
    """An error of the sum that the next step, which squares it, brings within the tolerance where a row is smooth."""
    return tl.where(eps <= 0.5, 0.1 * tl.sqrt(0.5 * tolerance / eps), tolerance)
