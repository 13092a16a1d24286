"""The sweep over a long row: its candidates are stored in a list, and Newton's steps read those alone.

One sweep keeps, lane by lane, the largest score (a subset of the row, whose threshold bounds the row's own from below)
and aside the scores above the newest bound, usually a few hundred. A row with more of them than there is room for is
swept again in each step.
"""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import advance, constant, kernel, tl, weigh
from tsallis.ops.triton.short_rows import STEPS, roughly, unsettled

GROWTH = constant(4)  # how much longer a stretch of the sweep is than all before it
ROUNDING = constant(1e-5)  # how much lower a bound is taken, and how much more for large scores:
ROUNDING_RELATIVE = constant(5e-7)

_kernel = kernel("rows", "tiles", "apart")


@_kernel
def renew(largest: tl.tensor, low: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """A newer bound of the row's threshold (with the largest score, not relative to it), from the lanes' maxima."""
    low = tl.maximum(low, tl.max(largest))
    base = tl.where(low == float("-inf"), 0.0, low)
    for _ in tl.static_range(STEPS):
        p, w = roughly(largest - base, eps, MODE)
        F, G = tl.sum(p), tl.sum(w)
        base = tl.where(F > 1.0, advance(base, F, G, eps, MODE), base)
    return tl.where(low == float("-inf"), low, base)


@_kernel
def cut_of(low: tl.tensor, eps: tl.tensor) -> Any:
    """Scores up to this have weight 0 at every threshold from `low` on."""
    return low - tl.abs(low) * ROUNDING_RELATIVE - ROUNDING - 1.0 / eps


@_kernel
def put_aside(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    cut: tl.tensor,
    largest: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,  # [DEPTH, LANES]
    places: tl.tensor,  # [DEPTH, LANES]
    zeros: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """Store, lane by lane, the scores above the cut of the tiles from `first` to `last`; return the lanes' maxima.

    `count` goes on counting where a lane has no room left.
    """
    lanes = tl.arange(0, LANES)
    for tile in tl.range(first, last, num_stages=STAGES):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        if ZEROS:
            tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
        keep = x > cut
        room = keep & (count < DEPTH)
        at = count * LANES + lanes
        tl.store(slots + at, x, mask=room)
        tl.store(places + at, column, mask=room)
        count += keep.to(tl.int32)
    return largest, count


@_kernel
def append(
    x: tl.tensor,
    place: tl.tensor,
    keep: tl.tensor,
    size: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    ROOM: tl.constexpr,
) -> Any:
    """Scores and their places at the end of a list, as far as there is room; and the size that makes."""
    number = keep.to(tl.int32)
    slot = size + tl.cumsum(number, 0) - 1
    room = keep & (slot < ROOM)
    tl.store(listed + slot, x, mask=room)
    tl.store(listed_at + slot, place, mask=room)
    return size + tl.sum(number)


@_kernel
def squeeze(
    slots: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    cut: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    LANES: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """Compact the lanes' scores above the cut into one list; return its size."""
    lanes = tl.arange(0, LANES)
    size = 0
    for depth in range(0, tl.max(count)):
        at = depth * LANES + lanes
        x = tl.load(slots + at, mask=depth < count, other=float("-inf"))
        place = tl.load(places + at, mask=depth < count, other=0)
        size = append(x, place, x > cut, size, listed, listed_at, ROOM)
    return size


@_kernel
def scan(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    slots: tl.tensor,
    places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    zeros: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Lists what may be in the support of the tiles from `first` to `last`.

    Largest score, bound of the threshold, and the list's size: more than ROOM where it isn't all there. The largest
    score is NaN where there is a NaN or an infinite score.
    """
    lanes = tl.arange(0, LANES)
    column = first * LANES + lanes
    x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
    largest = x
    low = renew(largest, float("-inf"), eps, MODE)
    keep = x > cut_of(low, eps)
    count = keep.to(tl.int32)
    tl.store(slots + lanes, x, mask=keep)
    tl.store(places + lanes, column, mask=keep)
    if ZEROS:
        tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
    start = first + 1
    while start < last:
        stop = tl.minimum(last, first + (start - first) * GROWTH)
        cut = cut_of(low, eps)
        largest, count = put_aside(
            source, start, stop, d, cut, largest, count, slots, places, zeros, LANES, DEPTH, STAGES, ZEROS
        )
        low = renew(largest, low, eps, MODE)
        start = stop
    cut = cut_of(low, eps)
    if tl.max(count) > DEPTH:  # once more, against the newest bound from the start
        tl.debug_barrier()
        count = tl.zeros((LANES,), tl.int32)
        largest, count = put_aside(
            source, first, last, d, cut, largest, count, slots, places, zeros, LANES, DEPTH, STAGES, False
        )
    tl.debug_barrier()  # one thread writes a list, others read it
    size = ROOM + 1
    if tl.max(count) <= DEPTH:
        size = squeeze(slots, places, count, cut, listed, listed_at, LANES, ROOM)
    tl.debug_barrier()
    broken = tl.max(tl.where(largest < float("inf"), 0, 1)) > 0
    return tl.where(broken, float("nan"), tl.max(largest)), low, size


@_kernel
def gather_parts(
    row: tl.tensor,
    eps: tl.tensor,
    tops: tl.tensor,  # [rows, PARTS]
    lows: tl.tensor,  # [rows, PARTS]
    sizes: tl.tensor,  # [rows, PARTS]
    part_lists: tl.tensor,  # [rows, PARTS, PART_ROOM]
    part_places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    PART_ROOM: tl.constexpr,
    ROOM: tl.constexpr,
) -> Any:
    """The lists of a row's parts in one, against the best bound of any of them; else as `scan`."""
    lanes = tl.arange(0, LANES)
    top = float("-inf")
    low = float("-inf")
    fits = True
    for part in range(0, PARTS):
        at = row * PARTS + part
        top = tl.maximum(top, tl.load(tops + at), propagate_nan=tl.PropagateNan.ALL)
        low = tl.maximum(low, tl.load(lows + at))
        fits = fits & (tl.load(sizes + at) <= PART_ROOM)
    low = tl.maximum(low, top)
    cut = cut_of(low, eps)
    size = ROOM + 1
    if fits:
        size = 0
        for part in range(0, PARTS):
            at = row * PARTS + part
            many = tl.load(sizes + at)
            for start in range(0, many, LANES):
                entry = at * PART_ROOM + start + lanes
                x = tl.load(part_lists + entry, mask=start + lanes < many, other=float("-inf"))
                place = tl.load(part_places + entry, mask=start + lanes < many, other=0)
                size = append(x, place, x > cut, size, listed, listed_at, ROOM)
    tl.debug_barrier()
    return top, low, size


@_kernel
def sums(
    source: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Sums of `p` and `p^(2 - alpha)` over scores."""
    lanes = tl.arange(0, WIDTH)
    F = tl.zeros((WIDTH,), tl.float32)
    G = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        x = tl.load(source + start + lanes, mask=start + lanes < size, other=float("-inf")).to(tl.float32)
        p, w = weigh(x - top - c, eps, MODE)
        F += p
        G += w
    return tl.sum(F), tl.sum(G)


@_kernel
def solve(
    source: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    LIMIT: tl.constexpr,
) -> Any:
    """The threshold, relative to the largest score, from a list or from all of a row."""
    taken = 0
    going = True
    while going:
        F, G = sums(source, size, top, c, eps, WIDTH, MODE)
        further = advance(c, F, G, eps, MODE)
        taken += 1
        going = unsettled(F, c, further, eps) & (taken < LIMIT)
        c = further
    return c


@_kernel
def start_of(top: tl.tensor, low: tl.tensor) -> Any:
    """Return the offset subtracted from a row's scores, and its threshold's bound relative to that."""
    top = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.where(low > top, low - top, 0.0)
