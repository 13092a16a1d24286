"""Compute an output layer with the alpha-ReLU loss in one pass, without writing scores.

The threshold of alpha-ReLU is known in advance. The product of hidden states and weight is therefore computed in tiles,
and each tile appends only its few positive values to a list in memory. Afterwards, the list is sorted by token and
class, so that all results are reproducible. If the list becomes too long, programs that start later do nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.sparse_rows import CsrRows
from tsallis.ops.triton.language import THREE_HALVES, TWO, interpreted, kernel, mode, precision, run, tl

MIN_CAPACITY = 1 << 10  # minimum capacity of the list
ENTRIES = 128  # list entries that are read at once


class Tiling(NamedTuple):
    """Tokens, classes and dimensions per tile, token blocks per group, and compiler options."""

    tokens: int
    classes: int
    sizes: int
    group: int
    warps: int
    stages: int


def tiling(dtype: torch.dtype) -> Tiling:
    """Return the tile sizes that fit the GPU's registers and shared memory."""
    return Tiling(128, 128, 32, 16, 8, 3) if dtype == torch.float32 else Tiling(128, 256, 64, 16, 8, 3)


@kernel()
def _power(margin: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Return `margin^(1/eps)` for positive margins."""
    if MODE == TWO:
        result = margin
    elif MODE == THREE_HALVES:
        result = margin * margin
    else:
        result = tl.exp(tl.log(margin) / eps)
    return result


@kernel("tokens", "classes", "capacity")
def _append_positive(
    hidden: tl.tensor,  # [tokens, size]
    weight: tl.tensor,  # [classes, size]
    bias: tl.tensor,  # [classes]
    target: tl.tensor,  # [tokens]; negative targets are ignored
    state: tl.tensor,  # [2]: number of values above zero, and whether a score is NaN or infinite
    key: tl.tensor,  # [capacity]: token * classes + class
    value: tl.tensor,  # [capacity]
    gold: tl.tensor,  # [tokens]: score of the target
    tokens: tl.tensor,
    classes: tl.tensor,
    size: tl.tensor,
    capacity: tl.tensor,
    eps: tl.tensor,
    tau: tl.tensor,
    BIAS: tl.constexpr,
    MODE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    EVEN: tl.constexpr,  # whether BLOCK_K divides the size
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    if tl.load(state, volatile=True) > capacity:
        return
    # Run the token blocks of a group one after another, so that they find rows of the weight in the cache.
    number = tl.program_id(0)
    token_blocks, class_blocks = tl.cdiv(tokens, BLOCK_T), tl.cdiv(classes, BLOCK_C)
    first_block = number // (GROUP * class_blocks) * GROUP
    group_rows = tl.minimum(token_blocks - first_block, GROUP)
    index_in_group = number - first_block * class_blocks
    start_token = (first_block + index_in_group % group_rows) * BLOCK_T
    start_class = index_in_group // group_rows * BLOCK_C

    rows = start_token + tl.arange(0, BLOCK_T)
    lanes = tl.arange(0, BLOCK_C)
    columns = start_class + lanes
    dims = tl.arange(0, BLOCK_K)
    # Rows and columns beyond the end read row or column 0; their scores are masked later.
    hidden += tl.where(rows < tokens, rows, 0).to(tl.int64)[:, None] * size + dims[None, :]
    weight += tl.where(columns < classes, columns, 0).to(tl.int64)[None, :] * size + dims[:, None]
    scores = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for k in range(0, size, BLOCK_K):
        if EVEN:
            h = tl.load(hidden)
            w = tl.load(weight)
        else:
            h = tl.load(hidden, mask=(k + dims < size)[None, :], other=0.0)
            w = tl.load(weight, mask=(k + dims < size)[:, None], other=0.0)
        if UPCAST:
            h = h.to(tl.float32)
            w = w.to(tl.float32)
        scores = tl.dot(h, w, scores, input_precision=PRECISION)
        hidden += BLOCK_K
        weight += BLOCK_K
    if BIAS:
        scores += tl.load(bias + columns, mask=columns < classes, other=0.0).to(tl.float32)[None, :]

    y = tl.load(target + rows, mask=rows < tokens, other=-1)
    in_block = (y >= start_class) & (y < start_class + BLOCK_C)
    if tl.max(in_block.to(tl.int32)) > 0:
        is_gold = columns[None, :] == y[:, None]
        tl.store(gold + rows, tl.sum(tl.where(is_gold, scores, 0.0), 1), mask=in_block)

    margin = eps * scores - tau
    margin = tl.where((y >= 0)[:, None] & (columns < classes)[None, :], margin, 0.0)
    margin = tl.where(margin <= 0.0, 0.0, tl.where(margin == margin, margin, float("inf")))
    top, top_lane = tl.max(margin, 1, return_indices=True)
    largest = tl.max(top)
    if largest == float("inf"):
        tl.store(state + 1, 1)
    # Append the largest value of each row, then the next largest: few tiles have many positive values.
    running = largest > 0.0
    while running:
        positive = (top > 0.0).to(tl.int32)
        start = tl.atomic_add(state, tl.sum(positive))
        slot = start + tl.cumsum(positive) - positive
        inside = (positive > 0) & (slot < capacity)
        tl.store(key + slot, rows.to(tl.int64) * classes + start_class + top_lane, mask=inside)
        tl.store(value + slot, _power(tl.where(positive > 0, top, 1.0), eps, MODE), mask=inside)
        margin = tl.where(lanes[None, :] == top_lane[:, None], 0.0, margin)
        top, top_lane = tl.max(margin, 1, return_indices=True)
        running = (tl.max(top) > 0.0) & (start <= capacity)


@kernel()
def _losses(
    offsets: tl.tensor,  # [tokens + 1]
    value: tl.tensor,
    gold: tl.tensor,
    target: tl.tensor,
    loss: tl.tensor,  # [tokens]
    eps: tl.tensor,
    rest: tl.tensor,  # constant term of all losses
    MODE: tl.constexpr,
    ENTRIES: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + token)
    count = (tl.load(offsets + token + 1) - begin).to(tl.int32)
    lanes = tl.arange(0, ENTRIES)
    total = tl.zeros((ENTRIES,), tl.float32)
    for k in range(0, count, ENTRIES):
        r = tl.load(value + begin + k + lanes, mask=k + lanes < count, other=0.0)
        # Sum r times its margin; the margin is r^eps.
        if MODE == TWO:
            total += r * r
        elif MODE == THREE_HALVES:
            total += r * tl.sqrt(r)
        else:
            total += tl.where(r > 0.0, tl.exp((1.0 + eps) * tl.log(tl.where(r > 0.0, r, 1.0))), 0.0)
    row_loss = tl.sum(total, 0) / (1.0 + eps) + rest - tl.load(gold + token)
    tl.store(loss + token, tl.where(tl.load(target + token) < 0, 0.0, row_loss))


def alpha_relu_one_pass(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, alpha: float, tau: float, share: float
) -> tuple[Tensor, CsrRows] | None:
    """Return losses [tokens] and lists of the positive values, or None if too many values are positive.

    Also return None if a score is NaN or infinite. All tensors must be contiguous. Hidden states, weight and bias share
    one dtype, which can't be float64. The function waits for the GPU once.
    """
    tokens, size = hidden.shape
    classes = len(weight)
    capacity = min(tokens * classes, max(MIN_CAPACITY, int(tokens * classes * share)))
    state = hidden.new_zeros(2, dtype=torch.int32)
    key = hidden.new_empty(capacity, dtype=torch.int64)
    value, gold, loss = (hidden.new_empty(n, dtype=torch.float32) for n in (capacity, tokens, tokens))
    tile, eps = tiling(hidden.dtype), alpha - 1
    shared: dict[str, Any] = {"target": target, "gold": gold, "eps": eps, "MODE": mode(alpha)}
    run(
        _append_positive,
        (-(-tokens // tile.tokens) * -(-classes // tile.classes),),
        hidden,
        **shared,
        hidden=hidden,
        weight=weight,
        bias=hidden if bias is None else bias,
        state=state,
        key=key,
        value=value,
        tokens=tokens,
        classes=classes,
        size=size,
        capacity=capacity,
        tau=tau,
        BIAS=bias is not None,
        PRECISION=precision(hidden.dtype),
        UPCAST=interpreted() and hidden.dtype != torch.float32,
        EVEN=size % tile.sizes == 0,
        BLOCK_T=tile.tokens,
        BLOCK_C=tile.classes,
        BLOCK_K=tile.sizes,
        GROUP=tile.group,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    count, broken = state.tolist()
    if broken or count > capacity:
        return None
    ordered, order = key[:count].sort()
    value = value[order]
    offsets = torch.searchsorted(ordered, torch.arange(tokens + 1, device=hidden.device) * classes)
    constant = 1 / (alpha * eps) + tau / eps
    run(_losses, (tokens,), hidden, **shared, offsets=offsets, value=value, loss=loss, rest=constant, ENTRIES=ENTRIES)
    return loss, CsrRows(offsets, (ordered % classes).to(torch.int32), value)
