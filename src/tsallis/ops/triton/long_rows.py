"""The maps of long rows and their gradients: scores are read once and probabilities written once, as far as it goes.

The sweep writes zeros on its way, and what is in the support is written over them. A row of a backward pass is treated
alike: it is read once, and what was in the support is put aside.
"""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import bend_at, kernel, tl, weigh
from tsallis.ops.triton.scan import gather_parts, put_aside, scan, solve, squeeze, start_of, sums
from tsallis.ops.triton.short_rows import eps_of, slope_of

_kernel = kernel("rows", "tiles", "apart")


@_kernel
def write_listed(
    listed: tl.tensor,
    listed_at: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    target: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    """A list's probabilities, in their places among zeros."""
    lanes = tl.arange(0, WIDTH)
    F, _unused = sums(listed, size, top, c, eps, WIDTH, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        x = tl.load(listed + start + lanes, mask=inside, other=float("-inf"))
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        p, _w = weigh(x - top - c, eps, MODE)
        tl.store(target + place, (p * scale).to(target.dtype.element_ty), mask=inside & (p > 0.0))


@_kernel
def write_all(
    source: tl.tensor,
    d: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    target: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    """All of a row's probabilities."""
    lanes = tl.arange(0, LANES)
    F, _unused = sums(source, d, top, c, eps, LANES, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for tile in range(0, tl.cdiv(d, LANES)):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        p, _w = weigh(x - top - c, eps, MODE)
        tl.store(target + column, (p * scale).to(target.dtype.element_ty), mask=column < d)


@_kernel
def long_map(
    scores: tl.tensor,  # [rows, d]
    probs: tl.tensor,  # [rows, d]
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,  # [programs, DEPTH, LANES]
    places: tl.tensor,
    listed: tl.tensor,  # [programs, ROOM]
    listed_at: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_lists: tl.tensor,
    part_places: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    PARTS: tl.constexpr,  # programs that have listed the row's scores; 0: it is done here
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    PART_ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    places += program.to(tl.int64) * DEPTH * LANES
    listed += program.to(tl.int64) * ROOM
    listed_at += program.to(tl.int64) * ROOM
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = scores + row * d
        target = probs + row * d
        eps = eps_of(alpha, number, row, ALPHAS, TINY)
        if PARTS > 0:
            top, low, size = gather_parts(
                row, eps, tops, lows, sizes, part_lists, part_places, listed, listed_at, PARTS, LANES, PART_ROOM, ROOM
            )
        else:
            top, low, size = scan(
                source,
                0,
                tiles,
                d,
                eps,
                slots,
                places,
                listed,
                listed_at,
                target,
                LANES,
                DEPTH,
                ROOM,
                STAGES,
                True,
                MODE,
            )
        top, c = start_of(top, low)
        if (size <= ROOM) & (top == top):
            c = solve(listed, size, top, c, eps, WIDTH, MODE, LIMIT)
            write_listed(listed, listed_at, size, top, c, eps, target, WIDTH, MODE)
        else:
            c = solve(source, d, top, c, eps, LANES, MODE, LIMIT)
            write_all(source, d, top, c, eps, target, LANES, MODE)
        row += tl.num_programs(0)
        tl.debug_barrier()  # the lists are those of the next row now


@_kernel
def part_scan(
    scores: tl.tensor,
    probs: tl.tensor,
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,  # [rows, parts, DEPTH, LANES]
    places: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_lists: tl.tensor,
    part_places: tl.tensor,
    d: tl.tensor,
    apart: tl.tensor,  # tiles of each part
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    PART_ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    """A program lists what may be in the support of a part of a row: what a part excludes, the row does."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    place = row * tl.num_programs(0) + part
    top, low, size = scan(
        scores + row * d,
        part * apart,
        tl.minimum((part + 1) * apart, tl.cdiv(d, LANES)),
        d,
        eps_of(alpha, number, row, ALPHAS, TINY),
        slots + place * DEPTH * LANES,
        places + place * DEPTH * LANES,
        part_lists + place * PART_ROOM,
        part_places + place * PART_ROOM,
        probs + row * d,
        LANES,
        DEPTH,
        PART_ROOM,
        STAGES,
        ZEROS,
        MODE,
    )
    tl.store(tops + place, top)
    tl.store(lows + place, low)
    tl.store(sizes + place, size)


@_kernel
def gradient_listed(
    listed: tl.tensor,
    listed_at: tl.tensor,
    size: tl.tensor,
    upstream: tl.tensor,
    target: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Gradients of what has a probability, in their places among zeros; and alpha's."""
    lanes = tl.arange(0, WIDTH)
    S = tl.zeros((WIDTH,), tl.float32)
    N = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(listed + start + lanes, mask=inside, other=0.0)
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + place, mask=inside, other=0.0).to(tl.float32)
        w, t = slope_of(p, eps, MODE)
        S += w
        N += w * g
    total = tl.sum(S)
    delta = tl.sum(N) / tl.where(total == 0.0, 1.0, total)
    da = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(listed + start + lanes, mask=inside, other=0.0)
        place = tl.load(listed_at + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + place, mask=inside, other=0.0).to(tl.float32) - delta
        w, t = slope_of(p, eps, MODE)
        tl.store(target + place, (w * g).to(target.dtype.element_ty), mask=inside)
        if NEED_ALPHA:
            da -= bend_at(t, p, w, eps) * g
    return tl.sum(da)


@_kernel
def gradient_sums(
    source: tl.tensor,
    upstream: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    eps: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
) -> Any:
    """Sums of `p^(2 - alpha)` and its products with the gradient, over tiles."""
    lanes = tl.arange(0, LANES)
    S = tl.zeros((LANES,), tl.float32)
    N = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32)
        w, _t = slope_of(p, eps, MODE)
        S += w
        N += w * g
    return tl.sum(S), tl.sum(N)


@_kernel
def gradient_all(
    source: tl.tensor,
    upstream: tl.tensor,
    target: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    d: tl.tensor,
    S: tl.tensor,
    N: tl.tensor,
    eps: tl.tensor,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Gradients of all of some tiles, by the sums of the whole row; and alpha's, as far as it is theirs."""
    lanes = tl.arange(0, LANES)
    delta = N / tl.where(S == 0.0, 1.0, S)
    da = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32) - delta
        w, t = slope_of(p, eps, MODE)
        tl.store(target + column, (w * g).to(target.dtype.element_ty), mask=column < d)
        if NEED_ALPHA:
            da -= bend_at(t, p, w, eps) * g
    return tl.sum(da)


@_kernel
def long_gradient(
    probs: tl.tensor,  # [rows, d]
    grad: tl.tensor,
    scores_grad: tl.tensor,
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    number: tl.tensor,
    slots: tl.tensor,
    places: tl.tensor,
    listed: tl.tensor,
    listed_at: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROOM: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    IN_PLACE: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    places += program.to(tl.int64) * DEPTH * LANES
    listed += program.to(tl.int64) * ROOM
    listed_at += program.to(tl.int64) * ROOM
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = probs + row * d
        upstream = grad + row * d
        target = scores_grad + row * d
        eps = eps_of(alpha, number, row, ALPHAS, TINY)
        largest = tl.zeros((LANES,), tl.float32)
        count = tl.zeros((LANES,), tl.int32)
        largest, count = put_aside(
            source, 0, tiles, d, 0.0, largest, count, slots, places, target, LANES, DEPTH, STAGES, not IN_PLACE
        )
        tl.debug_barrier()
        size = ROOM + 1
        if (tl.max(count) <= DEPTH) & (tl.max(tl.where(largest < float("inf"), 0, 1)) == 0):
            size = squeeze(slots, places, count, 0.0, listed, listed_at, LANES, ROOM)
        tl.debug_barrier()
        da = 0.0
        if size <= ROOM:
            da = gradient_listed(listed, listed_at, size, upstream, target, eps, WIDTH, MODE, NEED_ALPHA)
        else:
            S, N = gradient_sums(source, upstream, 0, tiles, d, eps, LANES, MODE)
            da = gradient_all(source, upstream, target, 0, tiles, d, S, N, eps, LANES, MODE, NEED_ALPHA)
        if NEED_ALPHA:
            tl.store(alpha_grad + row, da)
        row += tl.num_programs(0)
        tl.debug_barrier()


@_kernel
def part_gradient(
    probs: tl.tensor,
    grad: tl.tensor,
    scores_grad: tl.tensor,
    alpha_grad: tl.tensor,  # [rows, parts]
    partial: tl.tensor,  # [2, rows, parts]: sums of w and of w g
    alpha: tl.tensor,
    number: tl.tensor,
    d: tl.tensor,
    apart: tl.tensor,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    WRITE: tl.constexpr,
) -> None:
    """A part of a row: first its sums, then (WRITE) its gradients by the sums of all parts."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    eps = eps_of(alpha, number, row, ALPHAS, TINY)
    source, upstream, target = probs + row * d, grad + row * d, scores_grad + row * d
    first, last = part * apart, tl.minimum((part + 1) * apart, tl.cdiv(d, LANES))
    rest = tl.num_programs(1).to(tl.int64) * PARTS
    if WRITE:
        every = tl.arange(0, PADDED)
        at = partial + row * PARTS + every
        S = tl.sum(tl.load(at, mask=every < PARTS, other=0.0))
        N = tl.sum(tl.load(at + rest, mask=every < PARTS, other=0.0))
        da = gradient_all(source, upstream, target, first, last, d, S, N, eps, LANES, MODE, NEED_ALPHA)
        if NEED_ALPHA:
            tl.store(alpha_grad + row * PARTS + part, da)
    else:
        S, N = gradient_sums(source, upstream, first, last, d, eps, LANES, MODE)
        tl.store(partial + row * PARTS + part, S)
        tl.store(partial + rest + row * PARTS + part, N)
