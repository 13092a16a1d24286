"""Attention by the compiled kernels: [batch, heads, rows, size] in float32 or float64, of any strides."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.kernels import cpu
from tsallis.kernels.cpu.calls import Heads

ROWS, LEAST_ROWS = 64, 8  # of a tile
TILE = 1 << 17  # scores of a tile, where it has more than the least rows
MOST_LISTED = 128  # entries that a query's list may have on average, for backward to read it

NOTHING = Heads(None, 0, 0, 0)


class Setting(NamedTuple):
    """What is not a tensor of the attention that is computed."""

    scale: float
    causal: bool
    lengths: tuple[int, ...] | None
    dropout: float
    seed: int


class Kept(NamedTuple):
    """What forward leaves for backward: numbers of each query, and the lists of its tiles, where they are short."""

    counts: Tensor  # [batch, heads, queries]
    stats: Tensor  # [batch, heads, queries, STATS]
    columns: Tensor | None  # [batch, heads, queries, room]
    weight: Tensor | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alphas: Tensor,
    mask: Tensor | None,
    setting: Setting,
    learns: bool,
    room: int | None = None,
) -> tuple[Tensor, Kept]:
    """Output, and what backward needs, if there will be one; `alphas` are [batch, heads] of float64.

    `room` is how many entries a query's list may have; by default not more than there are keys.
    """
    query, key, value = (_rows(x) for x in (query, key, value))
    batch, heads, queries, _ = query.shape
    room = min(key.shape[2], MOST_LISTED) if room is None else room
    out = _like(query, value.shape[-1])
    kept = Kept(
        torch.empty(batch, heads, queries, dtype=torch.int32),
        torch.empty(batch, heads, queries, cpu.STATS, dtype=query.dtype),
        *(
            torch.empty(batch, heads, queries, room, dtype=dtype) if learns else None
            for dtype in (torch.int32, query.dtype)
        ),
    )
    _call("attention", query, key, value, alphas, mask, setting, kept, out=_heads(out))
    return out, kept


def attention_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alphas: Tensor,
    mask: Tensor | None,
    setting: Setting,
    kept: Kept,
    grad: Tensor,
    need_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of query, key, value, and of the alpha of each query [batch, heads, queries] if it is asked for."""
    query, key, value, grad = (_rows(x) for x in (query, key, value, grad))
    # A part of a head of keys is a thread's work, and its gradients of keys and values are its own.
    splits = max(1, min(-(-2 * torch.get_num_threads() // (len(key) * key.shape[1])), kept_tiles(query, key)))
    dq = _like(query, query.shape[-1])
    dk, dv = (_like(x, x.shape[-1], splits * len(x)) for x in (key, value))
    da = torch.empty_like(kept.counts, dtype=query.dtype) if need_alpha else None
    _call(
        "attention_gradient",
        *(query, key, value, alphas, mask, setting, kept),
        splits=splits,
        gradients=(*(_heads(x) for x in (grad, dq, dk, dv)), None if da is None else da.data_ptr()),
    )
    if splits > 1:
        dk, dv = (x.unflatten(0, (splits, -1)).sum(0) for x in (dk, dv))
    return dq, dk, dv, da


def kept_tiles(query: Tensor, key: Tensor) -> int:
    """How many tiles the queries of a head are."""
    return -(-query.shape[2] // _rows_of_a_tile(query.shape[2], key.shape[2]))


def _call(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alphas: Tensor,
    mask: Tensor | None,
    setting: Setting,
    kept: Kept,
    splits: int = 1,
    out: Heads = NOTHING,
    gradients: tuple[Any, ...] = (NOTHING, NOTHING, NOTHING, NOTHING, None),
) -> None:
    batch, heads, queries, size = query.shape
    key_heads, keys = key.shape[1:3]
    lengths = None if setting.lengths is None else torch.tensor(setting.lengths)
    alphas = alphas.contiguous()
    strides = [0] * 4
    if mask is not None:
        strides = [0 if n == 1 else stride for n, stride in zip(mask.shape, mask.stride(), strict=True)]
    cpu.run(
        name,
        *(cpu.STORAGE[query.dtype], setting.causal, batch, key_heads, heads // key_heads, queries, keys, size),
        *(
            value.shape[-1],
            _rows_of_a_tile(queries, keys),
            0 if kept.columns is None else kept.columns.shape[-1],
            splits,
        ),
        *(setting.scale, 1 - setting.dropout, setting.seed, alphas.data_ptr(), _pointer(lengths)),
        *(_heads(query), _heads(key), _heads(value), out),
        *(_pointer(mask), mask is not None and mask.dtype == torch.bool, tuple(strides)),
        *map(_pointer, kept),
        *gradients,
    )


def _rows_of_a_tile(queries: int, keys: int) -> int:
    return min(queries, max(LEAST_ROWS, min(ROWS, TILE // keys)))


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor, size: int, batch: int | None = None) -> Tensor:
    """Empty, with heads and rows in memory in the order that `x` has them."""
    own, heads, rows, _ = x.shape
    batch = own if batch is None else batch
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, rows, heads, size).transpose(1, 2)
    return x.new_empty(batch, heads, rows, size)


def _heads(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
