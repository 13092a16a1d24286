"""Collect the candidates of a long row in a list, so that Newton steps read only the list.

A sweep computes the largest score per lane. The threshold of these maxima is a lower bound of the row's threshold.
Scores above the cutoff of the newest bound are candidates; a row usually has a few hundred. Each lane stores candidates
in DEPTH slots. Then all slots [DEPTH, LANES] are compacted into a list of at most `room` scores with their columns. If
a row has more candidates, each Newton step reads the whole row.
"""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import constant, entmax_weights, kernel, newton_step, tl
from tsallis.ops.triton.short_rows import STEPS, approximate_weights, needs_step

GROWTH = constant(4)  # the sweep raises its bound each time the number of tiles read has grown by this factor
ROUNDING = constant(1e-5)  # absolute margin below a bound
ROUNDING_RELATIVE = constant(5e-7)  # margin relative to the bound

_kernel = kernel("rows", "tiles", "tiles_per_part", "parts")


@_kernel
def raise_lower_bound(largest: tl.tensor, low: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Raise the lower bound of the row's threshold from the lanes' maxima; bounds are not relative to `top`."""
    low = tl.maximum(low, tl.max(largest))
    base = tl.where(low == float("-inf"), 0.0, low)
    for _ in tl.static_range(STEPS):
        p, w = approximate_weights(largest - base, eps, MODE)
        F, G = tl.sum(p), tl.sum(w)
        base = tl.where(F > 1.0, newton_step(base, F, G, eps, MODE), base)
    return tl.where(low == float("-inf"), low, base)


@_kernel
def cutoff(low: tl.tensor, eps: tl.tensor) -> Any:
    """Return a cutoff: scores up to the cutoff have weight 0 if the threshold is at least `low`."""
    return low - tl.abs(low) * ROUNDING_RELATIVE - ROUNDING - 1.0 / eps


@_kernel
def collect_candidates(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    cut: tl.tensor,
    largest: tl.tensor,
    count: tl.tensor,
    slots: tl.tensor,  # [DEPTH, LANES]
    slot_columns: tl.tensor,  # [DEPTH, LANES]
    zeros: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """Store scores above `cut` from tiles `first` to `last` in the slots of their lanes.

    Return the lanes' maxima and the number of such scores per lane, which may exceed the number of slots.
    """
    lanes = tl.arange(0, LANES)
    for tile in tl.range(first, last, num_stages=STAGES):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        if ZEROS:
            tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
        largest = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
        above = x > cut
        has_room = above & (count < DEPTH)
        slot = count * LANES + lanes
        tl.store(slots + slot, x, mask=has_room)
        tl.store(slot_columns + slot, column, mask=has_room)
        count += above.to(tl.int32)
    return largest, count


@_kernel
def append_candidates(
    x: tl.tensor,
    column: tl.tensor,
    above: tl.tensor,
    size: tl.tensor,
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    room: tl.tensor,
) -> Any:
    """Append scores and their columns to a list while there is room; return the size that the complete list needs."""
    increment = above.to(tl.int32)
    slot = size + tl.cumsum(increment, 0) - 1
    inside = above & (slot < room)
    tl.store(candidates + slot, x, mask=inside)
    tl.store(candidate_columns + slot, column, mask=inside)
    return size + tl.sum(increment)


@_kernel
def compact_candidates(
    slots: tl.tensor,
    slot_columns: tl.tensor,
    count: tl.tensor,
    cut: tl.tensor,
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    room: tl.tensor,
    LANES: tl.constexpr,
) -> Any:
    """Compact the lanes' scores above the cut into one list; return its size."""
    lanes = tl.arange(0, LANES)
    size = 0
    for depth in range(0, tl.max(count)):
        slot = depth * LANES + lanes
        x = tl.load(slots + slot, mask=depth < count, other=float("-inf"))
        column = tl.load(slot_columns + slot, mask=depth < count, other=0)
        size = append_candidates(x, column, x > cut, size, candidates, candidate_columns, room)
    return size


@_kernel
def scan_row(
    source: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    slots: tl.tensor,
    slot_columns: tl.tensor,
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    zeros: tl.tensor,
    room: tl.tensor,  # capacity of the list
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """List the candidates of the tiles from `first` to `last`.

    Return the largest score, a lower bound of the threshold, and the size of the list. The largest score is NaN if a
    score is NaN or infinite. The size is above `room` if the list is incomplete.
    """
    lanes = tl.arange(0, LANES)
    column = first * LANES + lanes
    x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
    largest = x
    low = raise_lower_bound(largest, float("-inf"), eps, MODE)
    above = x > cutoff(low, eps)
    count = above.to(tl.int32)
    tl.store(slots + lanes, x, mask=above)
    tl.store(slot_columns + lanes, column, mask=above)
    if ZEROS:
        tl.store(zeros + column, tl.zeros((LANES,), zeros.dtype.element_ty), mask=column < d)
    start = first + 1
    while start < last:
        stop = tl.minimum(last, first + (start - first) * GROWTH)
        cut = cutoff(low, eps)
        largest, count = collect_candidates(
            source, start, stop, d, cut, largest, count, slots, slot_columns, zeros, LANES, DEPTH, STAGES, ZEROS
        )
        low = raise_lower_bound(largest, low, eps, MODE)
        start = stop
    cut = cutoff(low, eps)
    if tl.max(count) > DEPTH:  # sweep again with the newest bound
        tl.debug_barrier()
        count = tl.zeros((LANES,), tl.int32)
        largest, count = collect_candidates(
            source, first, last, d, cut, largest, count, slots, slot_columns, zeros, LANES, DEPTH, STAGES, False
        )
    tl.debug_barrier()  # threads read slots that other threads wrote
    size = room + 1
    if tl.max(count) <= DEPTH:
        size = compact_candidates(slots, slot_columns, count, cut, candidates, candidate_columns, room, LANES)
    tl.debug_barrier()
    invalid = tl.max(tl.where(largest < float("inf"), 0, 1)) > 0
    return tl.where(invalid, float("nan"), tl.max(largest)), low, size


@_kernel
def merge_parts(
    row: tl.tensor,
    eps: tl.tensor,
    tops: tl.tensor,  # [rows, parts]
    lows: tl.tensor,  # [rows, parts]
    sizes: tl.tensor,  # [rows, parts]
    part_candidates: tl.tensor,  # [rows, parts, part_room]
    part_columns: tl.tensor,
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    parts: tl.tensor,
    part_room: tl.tensor,
    room: tl.tensor,
    LANES: tl.constexpr,
) -> Any:
    """Merge the candidate lists of a row's parts, using the highest bound; return the same values as `scan_row`."""
    lanes = tl.arange(0, LANES)
    top = float("-inf")
    low = float("-inf")
    complete = True
    for part in range(0, parts):
        part_index = row * parts + part
        top = tl.maximum(top, tl.load(tops + part_index), propagate_nan=tl.PropagateNan.ALL)
        low = tl.maximum(low, tl.load(lows + part_index))
        complete = complete & (tl.load(sizes + part_index) <= part_room)
    low = tl.maximum(low, top)
    cut = cutoff(low, eps)
    size = room + 1
    if complete:
        size = 0
        for part in range(0, parts):
            part_index = row * parts + part
            part_size = tl.load(sizes + part_index)
            for start in range(0, part_size, LANES):
                entry = part_index * part_room + start + lanes
                x = tl.load(part_candidates + entry, mask=start + lanes < part_size, other=float("-inf"))
                column = tl.load(part_columns + entry, mask=start + lanes < part_size, other=0)
                size = append_candidates(x, column, x > cut, size, candidates, candidate_columns, room)
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
    """Return the sums of `p` and `p^(2 - alpha)` over scores."""
    lanes = tl.arange(0, WIDTH)
    F = tl.zeros((WIDTH,), tl.float32)
    G = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        x = tl.load(source + start + lanes, mask=start + lanes < size, other=float("-inf")).to(tl.float32)
        p, w = entmax_weights(x - top - c, eps, MODE)
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
    """Return the threshold relative to the largest score; `source` is a list or a whole row."""
    steps = 0
    running = True
    while running:
        F, G = sums(source, size, top, c, eps, WIDTH, MODE)
        next_c = newton_step(c, F, G, eps, MODE)
        steps += 1
        running = needs_step(F, c, next_c, eps) & (steps < LIMIT)
        c = next_c
    return c


@_kernel
def initial_threshold(top: tl.tensor, low: tl.tensor) -> Any:
    """Return the offset to subtract from a row's scores, and the threshold's lower bound relative to that offset."""
    top = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.where(low > top, low - top, 0.0)
