"""Compute entmax and its gradient for long rows; read and write each row once if possible.

Forward sweeps over a row: it lists scores that may be in the support, and writes zeros. Then the probabilities of the
support overwrite some zeros. Backward also reads a row once and lists its support.
"""

from __future__ import annotations

from typing import Any

from tsallis.ops.triton.language import alpha_curvature_at, entmax_weights, kernel, tl
from tsallis.ops.triton.scan import (
    collect_candidates,
    compact_candidates,
    initial_threshold,
    merge_parts,
    scan_row,
    solve,
    sums,
)
from tsallis.ops.triton.short_rows import probability_slope, row_eps

_kernel = kernel("rows", "tiles", "tiles_per_part", "parts")


@_kernel
def write_candidates(
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    target: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    """Write the probabilities of listed scores to a row of zeros."""
    lanes = tl.arange(0, WIDTH)
    F, _unused = sums(candidates, size, top, c, eps, WIDTH, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        x = tl.load(candidates + start + lanes, mask=inside, other=float("-inf"))
        column = tl.load(candidate_columns + start + lanes, mask=inside, other=0)
        p, _w = entmax_weights(x - top - c, eps, MODE)
        tl.store(target + column, (p * scale).to(target.dtype.element_ty), mask=inside & (p > 0.0))


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
    """Write all probabilities of a row."""
    lanes = tl.arange(0, LANES)
    F, _unused = sums(source, d, top, c, eps, LANES, MODE)
    scale = 1.0 / tl.where(F == 0.0, 1.0, F)
    for tile in range(0, tl.cdiv(d, LANES)):
        column = tile * LANES + lanes
        x = tl.load(source + column, mask=column < d, other=float("-inf")).to(tl.float32)
        p, _w = entmax_weights(x - top - c, eps, MODE)
        tl.store(target + column, (p * scale).to(target.dtype.element_ty), mask=column < d)


@_kernel
def long_map(
    scores: tl.tensor,  # [rows, d]
    probs: tl.tensor,  # [rows, d]
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    slots: tl.tensor,  # [programs, DEPTH, LANES]
    slot_columns: tl.tensor,
    candidates: tl.tensor,  # [programs, room]
    candidate_columns: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_candidates: tl.tensor,
    part_columns: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    parts: tl.tensor,
    part_room: tl.tensor,
    room: tl.tensor,
    MERGE: tl.constexpr,  # whether other programs have scanned the row's parts
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    slot_columns += program.to(tl.int64) * DEPTH * LANES
    candidates += program.to(tl.int64) * room
    candidate_columns += program.to(tl.int64) * room
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = scores + row * d
        target = probs + row * d
        eps = row_eps(alpha, eps_scalar, row, ALPHAS, TINY)
        if MERGE:
            top, low, size = merge_parts(
                row,
                eps,
                tops,
                lows,
                sizes,
                part_candidates,
                part_columns,
                candidates,
                candidate_columns,
                parts,
                part_room,
                room,
                LANES,
            )
        else:
            top, low, size = scan_row(
                source,
                0,
                tiles,
                d,
                eps,
                slots,
                slot_columns,
                candidates,
                candidate_columns,
                target,
                room,
                LANES,
                DEPTH,
                STAGES,
                True,
                MODE,
            )
        top, c = initial_threshold(top, low)
        if (size <= room) & (top == top):
            c = solve(candidates, size, top, c, eps, WIDTH, MODE, LIMIT)
            write_candidates(candidates, candidate_columns, size, top, c, eps, target, WIDTH, MODE)
        else:
            c = solve(source, d, top, c, eps, LANES, MODE, LIMIT)
            write_all(source, d, top, c, eps, target, LANES, MODE)
        row += tl.num_programs(0)
        tl.debug_barrier()  # the next row overwrites the lists


@_kernel
def part_scan(
    scores: tl.tensor,
    probs: tl.tensor,
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    slots: tl.tensor,  # [rows, parts, DEPTH, LANES]
    slot_columns: tl.tensor,
    tops: tl.tensor,
    lows: tl.tensor,
    sizes: tl.tensor,
    part_candidates: tl.tensor,
    part_columns: tl.tensor,
    d: tl.tensor,
    tiles_per_part: tl.tensor,
    part_room: tl.tensor,
    LANES: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    ZEROS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    """List the candidates of one part of a row; other scores of the part can't be in the row's support."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = row * tl.num_programs(0) + part
    top, low, size = scan_row(
        scores + row * d,
        part * tiles_per_part,
        tl.minimum((part + 1) * tiles_per_part, tl.cdiv(d, LANES)),
        d,
        row_eps(alpha, eps_scalar, row, ALPHAS, TINY),
        slots + slot * DEPTH * LANES,
        slot_columns + slot * DEPTH * LANES,
        part_candidates + slot * part_room,
        part_columns + slot * part_room,
        probs + row * d,
        part_room,
        LANES,
        DEPTH,
        STAGES,
        ZEROS,
        MODE,
    )
    tl.store(tops + slot, top)
    tl.store(lows + slot, low)
    tl.store(sizes + slot, size)


@_kernel
def gradient_of_candidates(
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
    size: tl.tensor,
    upstream: tl.tensor,
    target: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Write the gradients of listed scores to a row of zeros; return the gradient of alpha."""
    lanes = tl.arange(0, WIDTH)
    S = tl.zeros((WIDTH,), tl.float32)
    N = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(candidates + start + lanes, mask=inside, other=0.0)
        column = tl.load(candidate_columns + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + column, mask=inside, other=0.0).to(tl.float32)
        w, t = probability_slope(p, eps, MODE)
        S += w
        N += w * g
    total = tl.sum(S)
    delta = tl.sum(N) / tl.where(total == 0.0, 1.0, total)
    da = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        inside = start + lanes < size
        p = tl.load(candidates + start + lanes, mask=inside, other=0.0)
        column = tl.load(candidate_columns + start + lanes, mask=inside, other=0)
        g = tl.load(upstream + column, mask=inside, other=0.0).to(tl.float32) - delta
        w, t = probability_slope(p, eps, MODE)
        tl.store(target + column, (w * g).to(target.dtype.element_ty), mask=inside)
        if NEED_ALPHA:
            da -= alpha_curvature_at(t, p, w, eps) * g
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
    """Return two sums over tiles: `p^(2 - alpha)`, and `p^(2 - alpha)` times the gradient."""
    lanes = tl.arange(0, LANES)
    S = tl.zeros((LANES,), tl.float32)
    N = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32)
        w, _t = probability_slope(p, eps, MODE)
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
    """Write the gradients of tiles, given the sums of the whole row; return the tiles' share of alpha's gradient."""
    lanes = tl.arange(0, LANES)
    delta = N / tl.where(S == 0.0, 1.0, S)
    da = tl.zeros((LANES,), tl.float32)
    for tile in range(first, last):
        column = tile * LANES + lanes
        p = tl.load(source + column, mask=column < d, other=0.0).to(tl.float32)
        g = tl.load(upstream + column, mask=(column < d) & (p != 0.0), other=0.0).to(tl.float32) - delta
        w, t = probability_slope(p, eps, MODE)
        tl.store(target + column, (w * g).to(target.dtype.element_ty), mask=column < d)
        if NEED_ALPHA:
            da -= alpha_curvature_at(t, p, w, eps) * g
    return tl.sum(da)


@_kernel
def long_gradient(
    probs: tl.tensor,  # [rows, d]
    grad: tl.tensor,
    scores_grad: tl.tensor,
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    slots: tl.tensor,
    slot_columns: tl.tensor,
    candidates: tl.tensor,
    candidate_columns: tl.tensor,
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
) -> None:
    program = tl.program_id(0)
    slots += program.to(tl.int64) * DEPTH * LANES
    slot_columns += program.to(tl.int64) * DEPTH * LANES
    candidates += program.to(tl.int64) * ROOM
    candidate_columns += program.to(tl.int64) * ROOM
    tiles = tl.cdiv(d, LANES)
    row = program.to(tl.int64)
    while row < rows:
        source = probs + row * d
        upstream = grad + row * d
        target = scores_grad + row * d
        eps = row_eps(alpha, eps_scalar, row, ALPHAS, TINY)
        largest = tl.zeros((LANES,), tl.float32)
        count = tl.zeros((LANES,), tl.int32)
        largest, count = collect_candidates(
            source, 0, tiles, d, 0.0, largest, count, slots, slot_columns, target, LANES, DEPTH, STAGES, True
        )
        tl.debug_barrier()
        size = ROOM + 1
        if (tl.max(count) <= DEPTH) & (tl.max(tl.where(largest < float("inf"), 0, 1)) == 0):
            size = compact_candidates(slots, slot_columns, count, 0.0, candidates, candidate_columns, ROOM, LANES)
        tl.debug_barrier()
        da = 0.0
        if size <= ROOM:
            da = gradient_of_candidates(
                candidates, candidate_columns, size, upstream, target, eps, WIDTH, MODE, NEED_ALPHA
            )
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
    eps_scalar: tl.tensor,
    d: tl.tensor,
    tiles_per_part: tl.tensor,
    parts: tl.tensor,
    PADDED: tl.constexpr,  # block size, at least the number of parts
    LANES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
    WRITE: tl.constexpr,
) -> None:
    """Compute the sums of one part of a row; with WRITE, compute the part's gradients from the sums of all parts."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    eps = row_eps(alpha, eps_scalar, row, ALPHAS, TINY)
    source, upstream, target = probs + row * d, grad + row * d, scores_grad + row * d
    first, last = part * tiles_per_part, tl.minimum((part + 1) * tiles_per_part, tl.cdiv(d, LANES))
    plane = tl.num_programs(1).to(tl.int64) * parts
    if WRITE:
        lanes = tl.arange(0, PADDED)
        pointers = partial + row * parts + lanes
        S = tl.sum(tl.load(pointers, mask=lanes < parts, other=0.0))
        N = tl.sum(tl.load(pointers + plane, mask=lanes < parts, other=0.0))
        da = gradient_all(source, upstream, target, first, last, d, S, N, eps, LANES, MODE, NEED_ALPHA)
        if NEED_ALPHA:
            tl.store(alpha_grad + row * parts + part, da)
    else:
        S, N = gradient_sums(source, upstream, first, last, d, eps, LANES, MODE)
        tl.store(partial + row * parts + part, S)
        tl.store(partial + plane + row * parts + part, N)
