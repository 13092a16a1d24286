"""Launch the kernels of entmax and its gradient, with tilings for short and long rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.triton import long_rows
from tsallis.ops.triton.language import ANY_ALPHA, TINY_EPS, mode, plain, processors, run
from tsallis.ops.triton.short_rows import NEWTON_LIMIT, short_gradient, short_map

MAX_PARTS = 64  # maximum number of programs that share a row


class Short(NamedTuple):
    """Tiling of rows that fit into registers."""

    rows: int
    width: int
    lanes: int  # number of subsets per row, whose maxima bound the threshold; if it equals `width`, there is no bound
    warps: int


class Long(NamedTuple):
    """Tiling of rows that are read in tiles."""

    lanes: int  # scores per tile
    width: int  # list entries that are read at once
    depth: int  # slots per lane
    room: int  # maximum length of a list
    warps: int
    stages: int
    programs: int  # maximum number of programs; each has its own lists
    parts: int  # programs per row


def tiling(rows: int, d: int, powers: int, processors: int) -> Short | Long:
    """Choose the tiling of entmax; if alpha needs powers, which are slow, even shorter rows use lists."""
    return short(d) if d <= (1024 if powers == plain(ANY_ALPHA) else 8192) else long(rows, d, processors)


def gradient_tiling(rows: int, d: int, processors: int) -> Short | Long:
    """Choose the tiling of entmax's gradient."""
    return short(d) if d <= 8192 else long(rows, d, processors)


def short(d: int) -> Short:
    """Return a tiling with about 32 scores per thread; rows of up to 1,024 scores need one warp."""
    width = pad_size(d)
    rows = max(1, min(64, 1024 // width))
    return Short(rows, width, width // 4 if width >= 256 else width, max(1, rows * width // 1024))


def long(rows: int, d: int, processors: int) -> Long:
    """Return a tiling with eight scores per thread: few registers per thread let many programs run at once."""
    lanes = 256 if d < 8192 else 512 if d < 65536 else 1024
    warps = lanes // 256
    tiles = -(-d // lanes)
    parts = 1
    if rows * 2 <= processors:
        parts = min(-(-2 * processors // rows), max(tiles // 8, 1), MAX_PARTS)
    return Long(lanes, min(lanes, 512), 16, 4096, warps, 4, processors * min(16 // warps, 12), parts)


def pad_size(d: int) -> int:
    """Return the next power of two."""
    return 1 << max(d - 1, 0).bit_length()


def powers_of(alpha: Alpha) -> int:
    """Return the mode of alpha; tensors get the general mode, because reading them would wait for the GPU."""
    return plain(ANY_ALPHA) if isinstance(alpha, Tensor) else mode(alpha)


def alphas(alpha: Alpha, like: Tensor) -> dict[str, Any]:
    """Return the kernels' arguments for alpha."""
    per_row = isinstance(alpha, Tensor)
    eps_scalar = 0.0 if isinstance(alpha, Tensor) else max(alpha - 1, TINY_EPS)
    return {
        "alpha": alpha.detach().contiguous() if isinstance(alpha, Tensor) else like,
        "eps_scalar": eps_scalar,
        "MODE": powers_of(alpha),
        "ALPHAS": per_row,
        "TINY": TINY_EPS,
    }


def cut(tiling: Long) -> dict[str, int]:
    """Return the kernel arguments that set the sizes of a sweep."""
    return {"LANES": tiling.lanes, "DEPTH": tiling.depth, "STAGES": tiling.stages}


def slot_buffers(programs: int, tiling: Long, where: Tensor) -> dict[str, Tensor]:
    """Allocate the slots for the candidates of each lane."""
    shape = (programs, tiling.depth, tiling.lanes)
    return {
        "slots": where.new_empty(shape, dtype=torch.float32),
        "slot_columns": where.new_empty(shape, dtype=torch.int32),
    }


def candidate_buffers(programs: int, room: int, where: Tensor) -> dict[str, Tensor]:
    """Allocate a list of candidates for each program."""
    return {
        "candidates": where.new_empty(programs, room, dtype=torch.float32),
        "candidate_columns": where.new_empty(programs, room, dtype=torch.int32),
    }


def scan_arguments(
    scores: Tensor, tiling: Long, alpha_arguments: dict[str, Any], probs: Tensor | None
) -> tuple[dict[str, Any], int]:
    """Return the arguments and the number of programs of a kernel for long rows.

    If rows are split into parts, scan the parts first. This scan also sets `probs`, if given, to zero.
    """
    rows, d = scores.shape
    programs = min(rows, tiling.programs)
    shared = {**cut(tiling), "rows": rows, "d": d, "WIDTH": tiling.width, "LIMIT": NEWTON_LIMIT, **alpha_arguments}
    parts = {}
    if tiling.parts == 1:
        names = ("tops", "lows", "part_candidates")
        unused: dict[str, Any] = dict.fromkeys(names, lists := scores.new_empty(0, dtype=torch.float32))
        unused |= dict.fromkeys(("sizes", "part_columns"), lists.to(torch.int32))
        shared |= {
            **slot_buffers(programs, tiling, scores),
            **candidate_buffers(programs, tiling.room, scores),
            **unused,
        }
        return {**shared, "MERGE": False, "parts": 0, "room": tiling.room, "part_room": tiling.room}, programs
    tiles = -(-d // tiling.lanes)
    stride = -(-tiles // tiling.parts)
    count = -(-tiles // stride)
    # Keep a multiple of 16: Triton compiles a kernel again for another alignment.
    room = max(-(-tiling.room // count // 16) * 16, tiling.width)
    numbers = (scores.new_empty(rows, count, dtype=torch.float32) for _ in range(2))
    parts = dict(zip(("tops", "lows"), numbers, strict=True))
    parts["sizes"] = scores.new_empty(rows, count, dtype=torch.int32)
    part_lists = candidate_buffers(rows * count, room, scores)
    parts |= {"part_candidates": part_lists["candidates"], "part_columns": part_lists["candidate_columns"]}
    lanes = slot_buffers(rows * count, tiling, scores)
    run(
        long_rows.part_scan,
        (count, rows),
        scores,
        scores=scores,
        probs=scores if probs is None else probs,
        **lanes,
        **parts,
        d=d,
        tiles_per_part=stride,
        **cut(tiling),
        part_room=room,
        ZEROS=probs is not None,
        **alpha_arguments,
        num_warps=tiling.warps,
    )
    shared |= {**lanes, **candidate_buffers(programs, room * count, scores), **parts}
    return {**shared, "MERGE": True, "parts": count, "room": room * count, "part_room": room}, programs


def entmax(scores: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    """Return probabilities along a dimension. `alpha` is a float or a tensor [rows, 1], from 1 to 2."""
    if dim not in (-1, scores.dim() - 1):
        return entmax(scores.movedim(dim, -1).contiguous(), alpha).movedim(-1, dim)
    probs = torch.empty_like(scores)
    alpha_arguments = alphas(alpha, scores)
    flat = scores.view(-1, scores.shape[-1])
    rows, d = flat.shape
    tiles = tiling(rows, d, alpha_arguments["MODE"], processors(scores.device))
    if isinstance(tiles, Short):
        run(
            short_map,
            (-(-rows // tiles.rows),),
            scores,
            scores=flat,
            probs=probs,
            rows=rows,
            d=d,
            ROWS=tiles.rows,
            WIDTH=tiles.width,
            LANES=tiles.lanes,
            LIMIT=NEWTON_LIMIT,
            **alpha_arguments,
            num_warps=tiles.warps,
        )
        return probs
    shared, programs = scan_arguments(flat, tiles, alpha_arguments, probs)
    run(long_rows.long_map, (programs,), scores, scores=flat, probs=probs, **shared, num_warps=tiles.warps)
    return probs


def entmax_gradient(
    probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, dim: int = -1
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the scores and of alpha [rows, 1]."""
    if dim not in (-1, probs.dim() - 1):
        moved_probs, moved_grad = (x.movedim(dim, -1).contiguous() for x in (probs, grad))
        dz, da = entmax_gradient(moved_probs, moved_grad, alpha, need_alpha)
        return dz.movedim(-1, dim), da
    scores_grad = torch.empty_like(probs)
    alpha_arguments = {**alphas(alpha, probs), "NEED_ALPHA": need_alpha}
    d = probs.shape[-1]
    rows = probs.numel() // d
    alpha_grad = probs.new_empty(rows, 1, dtype=torch.float32) if need_alpha else None
    tiles = gradient_tiling(rows, d, processors(probs.device))
    shared = {
        "probs": probs,
        "grad": grad,
        "scores_grad": scores_grad,
        "alpha_grad": probs if alpha_grad is None else alpha_grad,
        "d": d,
        **alpha_arguments,
    }
    if isinstance(tiles, Short):
        sizes = {"ROWS": tiles.rows, "WIDTH": tiles.width, "SKIP": d > 1024, "num_warps": tiles.warps}
        run(short_gradient, (-(-rows // tiles.rows),), probs, rows=rows, **shared, **sizes)
    elif tiles.parts == 1:
        programs = min(rows, tiles.programs)
        run(
            long_rows.long_gradient,
            (programs,),
            probs,
            rows=rows,
            **shared,
            **cut(tiles),
            **slot_buffers(programs, tiles, probs),
            **candidate_buffers(programs, tiles.room, probs),
            WIDTH=tiles.width,
            ROOM=tiles.room,
            num_warps=tiles.warps,
        )
    else:
        alpha_grad = _gradient_by_parts(shared, tiles, rows, alpha_grad)
    return scores_grad, alpha_grad


def _gradient_by_parts(shared: dict[str, Any], tiles: Long, rows: int, alpha_grad: Tensor | None) -> Tensor | None:
    """Launch two kernels: the first computes the sums of each part, the second the gradients of each part."""
    probs, d = shared["probs"], shared["d"]
    num_tiles = -(-d // tiles.lanes)
    stride = -(-num_tiles // tiles.parts)
    count = -(-num_tiles // stride)
    partial = probs.new_empty(2, rows, count, dtype=torch.float32)
    slopes = probs.new_empty(rows, count, dtype=torch.float32) if alpha_grad is not None else None
    shared = {**shared, "alpha_grad": partial if slopes is None else slopes}
    sizes = {
        "tiles_per_part": stride,
        "parts": count,
        "PADDED": MAX_PARTS,  # a constant, so that one kernel serves every number of parts
        "LANES": tiles.lanes,
        "num_warps": tiles.warps,
    }
    for write in (False, True):
        run(long_rows.part_gradient, (count, rows), probs, **shared, partial=partial, **sizes, WRITE=write)
    return None if slopes is None else slopes.sum(-1, keepdim=True)
