"""Compute losses on GPUs: forward reads the scores once and saves four numbers per row for backward.

Probabilities are not written. The four numbers are the row's largest score `top`, the threshold `c` relative to `top`,
the `scale` of the weights, and the support size. Then `p = scale [1 + eps (score - top - c)]_+^{1/eps}`. Rows without a
loss have scale 0. The threshold of alpha-ReLU is constant, so its rows have `top = 0`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.triton import maps
from tsallis.ops.triton.language import ANY_ALPHA, entmax_weights, entropy_slope, kernel, plain, processors, run, tl
from tsallis.ops.triton.maps import Short, alphas, pad_size, scan_arguments
from tsallis.ops.triton.scan import initial_threshold, merge_parts, scan_row, solve
from tsallis.ops.triton.short_rows import NEWTON_LIMIT, block_eps, row_eps, short_solve

STATS = 4  # numbers per row that a loss saves: largest score, threshold, scale, support size
TILE = 2048  # scores per program of elementwise kernels

_kernel = kernel("rows", "parts")


@_kernel
def _finish_loss(
    target: tl.tensor,
    gold: tl.tensor,
    empty: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    F: tl.tensor,
    mean: tl.tensor,
    slope_sum: tl.tensor,
    size: tl.tensor,
) -> Any:
    """Return four values of a row from sums over weights: loss, its derivative in alpha, scale, and support size."""
    safe_mass = tl.where(F == 0.0, 1.0, F)
    mean = mean / safe_mass
    alpha = 1.0 + eps
    # Compute sum p (z - z_y) + sum p (c - z) / alpha relative to the largest score, so that offsets cancel exactly.
    loss = tl.maximum((c - mean) / alpha + mean, 0.0) + (top - gold)
    slope = (mean - c) / (alpha * alpha) - slope_sum / safe_mass / alpha
    invalid = F != F
    loss = tl.where(invalid, float("nan"), loss)
    slope = tl.where(invalid, float("nan"), slope)
    no_loss = (target < 0) | empty
    scale = tl.where(no_loss, 0.0, 1.0 / safe_mass)
    size = tl.where(no_loss | invalid, 0.0, size)
    return tl.where(no_loss, 0.0, loss), tl.where(no_loss, 0.0, slope), scale, size


@_kernel
def _short_loss(
    scores: tl.tensor,  # [rows, d]
    target: tl.tensor,  # [rows]
    loss: tl.tensor,  # [rows]
    stats: tl.tensor,  # [rows, STATS]
    alpha_grad: tl.tensor,  # [rows]
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    STATS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < d)[None, :]
    eps = block_eps(row, alpha, eps_scalar, rows, ROWS, ALPHAS, TINY)
    x = tl.load(scores + row[:, None] * d + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    y = tl.load(target + row, mask=row < rows, other=-1)
    gold = tl.load(scores + row * d + tl.maximum(y, 0), mask=row < rows, other=0.0).to(tl.float32)
    top = tl.max(x, 1)
    empty = top == float("-inf")
    top = tl.where(empty, 0.0, top)
    x -= top[:, None]
    c = short_solve(x, eps, ROWS, WIDTH, LANES, MODE, LIMIT)
    p, _w = entmax_weights(x - c[:, None], eps[:, None], MODE)
    F = tl.sum(p, 1)
    mean = tl.sum(p * tl.where(p == 0.0, 0.0, x), 1)
    slope_sum = tl.zeros((ROWS,), tl.float32)
    if NEED_ALPHA:
        slope_sum = tl.sum(entropy_slope(x - c[:, None], p, eps[:, None]), 1)
    size = tl.sum(tl.where(p > 0.0, 1.0, 0.0), 1)
    row_loss, slope, scale, size = _finish_loss(y, gold, empty & (F == F), top, c, eps, F, mean, slope_sum, size)
    tl.store(loss + row, row_loss, mask=row < rows)
    stats_row = stats + row * STATS
    tl.store(stats_row, top, mask=row < rows)
    tl.store(stats_row + 1, c, mask=row < rows)
    tl.store(stats_row + 2, scale, mask=row < rows)
    tl.store(stats_row + 3, size, mask=row < rows)
    if NEED_ALPHA:
        tl.store(alpha_grad + row, slope, mask=row < rows)


@_kernel
def _moments(
    source: tl.tensor,
    size: tl.tensor,
    top: tl.tensor,
    c: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
) -> Any:
    """Return four sums over scores: weights, weighted scores, the entropy's slope in alpha, and the support size."""
    lanes = tl.arange(0, WIDTH)
    F = tl.zeros((WIDTH,), tl.float32)
    mean = tl.zeros((WIDTH,), tl.float32)
    slope_sum = tl.zeros((WIDTH,), tl.float32)
    support = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, size, WIDTH):
        x = tl.load(source + start + lanes, mask=start + lanes < size, other=float("-inf")).to(tl.float32) - top
        p, _w = entmax_weights(x - c, eps, MODE)
        F += p
        mean += p * tl.where(p == 0.0, 0.0, x)
        support += tl.where(p > 0.0, 1.0, 0.0)
        if NEED_ALPHA:
            slope_sum += entropy_slope(x - c, p, eps)
    return tl.sum(F), tl.sum(mean), tl.sum(slope_sum), tl.sum(support)


@_kernel
def _long_loss(
    scores: tl.tensor,
    target: tl.tensor,
    loss: tl.tensor,
    stats: tl.tensor,
    alpha_grad: tl.tensor,
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    slots: tl.tensor,
    slot_columns: tl.tensor,
    candidates: tl.tensor,
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
    MERGE: tl.constexpr,
    STATS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
    LIMIT: tl.constexpr,
    NEED_ALPHA: tl.constexpr,
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
        eps = row_eps(alpha, eps_scalar, row, ALPHAS, TINY)
        y = tl.load(target + row)
        gold = tl.load(source + tl.maximum(y, 0)).to(tl.float32)
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
                source,
                room,
                LANES,
                DEPTH,
                STAGES,
                False,
                MODE,
            )
        empty = top == float("-inf")
        top, c = initial_threshold(top, low)
        if (size <= room) & (top == top):
            c = solve(candidates, size, top, c, eps, WIDTH, MODE, LIMIT)
            F, mean, slope_sum, support = _moments(candidates, size, top, c, eps, WIDTH, MODE, NEED_ALPHA)
        else:
            c = solve(source, d, top, c, eps, LANES, MODE, LIMIT)
            F, mean, slope_sum, support = _moments(source, d, top, c, eps, LANES, MODE, NEED_ALPHA)
        row_loss, slope, scale, support = _finish_loss(y, gold, empty, top, c, eps, F, mean, slope_sum, support)
        tl.store(loss + row, row_loss)
        stats_row = stats + row * STATS
        tl.store(stats_row, top)
        tl.store(stats_row + 1, c)
        tl.store(stats_row + 2, scale)
        tl.store(stats_row + 3, support)
        if NEED_ALPHA:
            tl.store(alpha_grad + row, slope)
        row += tl.num_programs(0)
        tl.debug_barrier()  # the next row overwrites the lists


@_kernel
def _loss_gradient(
    scores: tl.tensor,  # [rows, d]
    target: tl.tensor,  # [rows]
    stats: tl.tensor,  # [rows, STATS]
    grad: tl.tensor,  # [rows]
    scores_grad: tl.tensor,  # [rows, d]; may be the scores
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STATS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    row_mask = row < rows
    inside = row_mask[:, None] & (column < d)[None, :]
    offsets = row[:, None] * d + column[None, :]
    eps = block_eps(row, alpha, eps_scalar, rows, ROWS, ALPHAS, TINY)[:, None]
    top = tl.load(stats + row * STATS, mask=row_mask, other=0.0)[:, None]
    c = tl.load(stats + row * STATS + 1, mask=row_mask, other=0.0)[:, None]
    scale = tl.load(stats + row * STATS + 2, mask=row_mask, other=0.0)
    y = tl.load(target + row, mask=row_mask, other=-1)
    has_loss = (y >= 0) & (scale != 0.0)
    weight = tl.where(has_loss, tl.load(grad + row, mask=row_mask, other=0.0).to(tl.float32), 0.0)[:, None]
    scale = tl.where(has_loss, scale, 0.0)[:, None]
    x = tl.load(scores + offsets, mask=inside, other=float("-inf")).to(tl.float32) - top - c
    gold = tl.where((column[None, :] == y[:, None]) & has_loss[:, None], 1.0, 0.0)
    if MODE == ANY_ALPHA:  # most tiles have no support and need no powers
        p = tl.zeros((ROWS, WIDTH), tl.float32)
        if tl.max(tl.where((eps * x <= -1.0) & (scale == scale), 0, 1)) > 0:
            p, _w = entmax_weights(x, eps, MODE)
            p = p * scale
    else:
        p, _w = entmax_weights(x, eps, MODE)
        p = p * scale
    dz = tl.where(has_loss[:, None], (p - gold) * weight, 0.0)
    tl.store(scores_grad + offsets, dz.to(scores_grad.dtype.element_ty), mask=inside)


@_kernel
def _relu_loss(
    scores: tl.tensor,  # [rows, d]
    target: tl.tensor,  # [rows]
    loss: tl.tensor,  # [rows]
    stats: tl.tensor,  # [rows, STATS]
    eps: tl.tensor,
    c: tl.tensor,  # (1 + tau) / eps
    rest: tl.tensor,  # 1 / (alpha eps) + tau / eps
    rows: tl.tensor,
    d: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STATS: tl.constexpr,
    MODE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, WIDTH)
    row_mask = row < rows
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    support = tl.zeros((ROWS, WIDTH), tl.float32)
    for tile in range(0, tl.cdiv(d, WIDTH)):
        column = tile * WIDTH + lanes
        inside = row_mask[:, None] & (column < d)[None, :]
        pointers = scores + row[:, None] * d + column[None, :]
        x = tl.load(pointers, mask=inside, other=float("-inf")).to(tl.float32) - c
        if MODE == ANY_ALPHA:
            if tl.max(tl.where(eps * x <= -1.0, 0, 1)) > 0:
                tile_p, _tile_w = entmax_weights(x, eps, MODE)
                total += tile_p * tl.maximum(1.0 + eps * x, 0.0)
                support += tl.where(tile_p > 0.0, 1.0, 0.0)
        else:
            p, _w = entmax_weights(x, eps, MODE)
            total += p * tl.maximum(1.0 + eps * x, 0.0)
            support += tl.where(p > 0.0, 1.0, 0.0)
    y = tl.load(target + row, mask=row_mask, other=-1)
    gold = tl.load(scores + row * d + tl.maximum(y, 0), mask=row_mask, other=0.0).to(tl.float32)
    row_loss = tl.sum(total, 1) / (1.0 + eps) + rest - gold
    tl.store(loss + row, tl.where(y < 0, 0.0, row_loss), mask=row_mask)
    stats_row = stats + row * STATS
    tl.store(stats_row, tl.zeros((ROWS,), tl.float32), mask=row_mask)
    tl.store(stats_row + 1, tl.zeros((ROWS,), tl.float32) + c, mask=row_mask)
    tl.store(stats_row + 2, tl.where(y < 0, 0.0, 1.0), mask=row_mask)
    tl.store(stats_row + 3, tl.where(y < 0, 0.0, tl.sum(support, 1)), mask=row_mask)


@_kernel
def _support(
    scores: tl.tensor,  # [rows, d]
    stats: tl.tensor,  # [rows, STATS]
    offsets: tl.tensor,  # [rows + 1]
    index: tl.tensor,
    value: tl.tensor,
    alpha: tl.tensor,
    eps_scalar: tl.tensor,
    d: tl.tensor,
    WIDTH: tl.constexpr,
    STATS: tl.constexpr,
    MODE: tl.constexpr,
    ALPHAS: tl.constexpr,
    TINY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    eps = row_eps(alpha, eps_scalar, row, ALPHAS, TINY)
    top = tl.load(stats + row * STATS)
    c = tl.load(stats + row * STATS + 1)
    scale = tl.load(stats + row * STATS + 2)
    slot = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    tile = 0
    while (slot < end) & (tile * WIDTH < d):
        column = tile * WIDTH + lanes
        x = tl.load(scores + row * d + column, mask=column < d, other=float("-inf")).to(tl.float32) - top - c
        if tl.max(tl.where(eps * x <= -1.0, 0, 1)) > 0:
            p, _w = entmax_weights(x, eps, MODE)
            positive = (p > 0.0).to(tl.int32)
            position = slot + tl.cumsum(positive, 0) - 1
            has_room = (positive > 0) & (position < end)
            tl.store(index + position, column, mask=has_room)
            tl.store(value + position, p * scale, mask=has_room)
            slot += tl.sum(positive)
        tile += 1


def tiling(rows: int, d: int, powers: int, processors: int) -> Short | maps.Long:
    """Choose the tiling of a loss; sweeps write nothing, so they pay off for shorter rows than in `maps.tiling`."""
    return maps.short(d) if d <= (1024 if powers == plain(ANY_ALPHA) else 4096) else maps.long(rows, d, processors)


def block(d: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a program's tile."""
    width = min(pad_size(d), TILE)
    return TILE // width, width


def entmax_loss(
    scores: Tensor, target: Tensor, alpha: Alpha, need_alpha: bool, save_support: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return three values: losses [rows] for class targets [rows]; statistics [rows, STATS]; and dL/d alpha or None."""
    rows, d = scores.shape
    loss = scores.new_empty(rows, dtype=torch.float32)
    stats = scores.new_empty(rows, STATS, dtype=torch.float32)
    alpha_grad = scores.new_empty(rows, 1, dtype=torch.float32) if need_alpha else None
    alpha_arguments = alphas(alpha, scores)
    arguments = {
        "scores": scores,
        "target": target,
        "loss": loss,
        "stats": stats,
        "alpha_grad": loss if alpha_grad is None else alpha_grad,
        "STATS": STATS,
        "NEED_ALPHA": need_alpha,
    }
    tiles = tiling(rows, d, alpha_arguments["MODE"], processors(scores.device))
    if isinstance(tiles, Short):
        sizes = {"ROWS": tiles.rows, "WIDTH": tiles.width, "LANES": tiles.lanes, "LIMIT": NEWTON_LIMIT}
        grid = (-(-rows // tiles.rows),)
        run(_short_loss, grid, scores, **arguments, rows=rows, d=d, **sizes, **alpha_arguments, num_warps=tiles.warps)
    else:
        shared, programs = scan_arguments(scores, tiles, alpha_arguments, None)
        run(_long_loss, (programs,), scores, **arguments, **shared, num_warps=tiles.warps)
    return loss, stats, alpha_grad


def entmax_loss_gradient(
    scores: Tensor, target: Tensor, alpha: Alpha, stats: Tensor, grad: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of the scores: (p - e_y) times the gradient of each row's loss. `out` may be `scores`."""
    scores_grad = torch.empty_like(scores) if out is None else out
    rows, d = scores.shape
    block_rows, width = block(d)
    run(
        _loss_gradient,
        (-(-rows // block_rows), -(-d // width)),
        scores,
        scores=scores,
        target=target,
        stats=stats,
        grad=grad,
        scores_grad=scores_grad,
        rows=rows,
        d=d,
        ROWS=block_rows,
        WIDTH=width,
        STATS=STATS,
        **alphas(alpha, scores),
        num_warps=4,
    )
    return scores_grad


alpha_relu_loss_gradient = entmax_loss_gradient  # both losses have the same statistics


def alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float, tau: float) -> tuple[Tensor, Tensor]:
    """Return two values: alpha-ReLU losses [rows] for a constant threshold; and statistics [rows, STATS]."""
    rows, d = scores.shape
    loss = scores.new_empty(rows, dtype=torch.float32)
    stats = scores.new_empty(rows, STATS, dtype=torch.float32)
    eps = alpha - 1
    block_rows, width = block(d)
    run(
        _relu_loss,
        (-(-rows // block_rows),),
        scores,
        scores=scores,
        target=target,
        loss=loss,
        stats=stats,
        eps=eps,
        c=(1 + tau) / eps,
        rest=1 / (alpha * eps) + tau / eps,
        rows=rows,
        d=d,
        ROWS=block_rows,
        WIDTH=width,
        STATS=STATS,
        MODE=maps.powers_of(alpha),
        num_warps=4,
    )
    return loss, stats


def support(
    scores: Tensor, alpha: Alpha, stats: Tensor, offsets: Tensor, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return classes (int32) and probabilities of all supports in one list; row r starts at offsets[r].

    `size` is the last offset. If it is None, the function waits for the GPU.
    """
    size = int(offsets[-1]) if size is None else size
    index = scores.new_zeros(size, dtype=torch.int32)
    value = scores.new_zeros(size, dtype=torch.float32)
    d = scores.shape[-1]
    run(
        _support,
        (len(scores),),
        scores,
        scores=scores,
        stats=stats,
        offsets=offsets,
        index=index,
        value=value,
        d=d,
        WIDTH=min(pad_size(d), 1024),
        STATS=STATS,
        **alphas(alpha, scores),
        num_warps=4,
    )
    return index, value


alpha_relu_support = support
