"""Attention by the compiled kernels: [batch, heads, rows, size] in float32 or float64, of any strides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops import cpu
from tsallis.ops.alphas import Alpha
from tsallis.ops.cpu.structs import Heads

ROWS, LEAST_ROWS = 64, 8  # of a tile
TILE = 1 << 17  # scores of a tile, where it has more than the least rows
MOST_LISTED = 128  # entries that a query's list may have on average, for backward to read it

NOTHING = Heads(None, 0, 0, 0)


class Setting(NamedTuple):
    """The options of one attention call that are not tensors."""

    scale: float
    causal: bool
    lengths: tuple[int, ...] | None
    dropout: float
    seed: int


class Given(NamedTuple):
    """The tensors and options of one attention call."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Alpha  # a number, or [1 or batch, heads] in the dtype of the query
    mask: Tensor | None  # [1 or batch, 1 or heads, 1 or queries, 1 or keys]
    setting: Setting

    def in_rows(self) -> Given:
        """Return these arguments with tensors whose last dimension has stride 1."""
        return self._replace(query=_rows(self.query), key=_rows(self.key), value=_rows(self.value))

    @property
    def rows(self) -> int:
        """The number of queries in a tile."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        return min(queries, max(LEAST_ROWS, min(ROWS, TILE // keys)))


class Kept(NamedTuple):
    """The tensors saved for backward: statistics of each query, and the lists of its tiles where they are short."""

    counts: Tensor  # [batch, heads, queries]
    stats: Tensor  # [batch, heads, queries, STATS]
    columns: Tensor | None  # [batch, heads, queries, room]
    weight: Tensor | None


def attend(given: Given, learns: bool, room: int | None = None) -> tuple[Tensor, Kept]:
    """Return the output, and what backward needs, if there will be one.

    `room` is how many entries a query's list may have; by default not more than there are keys.
    """
    given = given.in_rows()
    query, value = given.query, given.value
    queries = query.shape[:-1]
    room = min(value.shape[2], MOST_LISTED) if room is None else room
    out = _like(query, value.shape[-1])
    saved = Kept(
        torch.empty(queries, dtype=torch.int32),
        torch.empty(*queries, cpu.STATS, dtype=query.dtype),
        *(torch.empty(*queries, room, dtype=dtype) if learns else None for dtype in (torch.int32, query.dtype)),
    )
    _call("attention", given, saved, out=_heads(out))
    return out, saved


class Gradients(NamedTuple):
    """Gradients of query, key, value, of each query's alpha [batch, heads, queries], and of an additive mask."""

    query: Tensor
    key: Tensor
    value: Tensor
    alpha: Tensor | None
    mask: Tensor | None


def attention_gradient(given: Given, kept: Kept, grad: Tensor, need_alpha: bool, need_mask: bool) -> Gradients:
    """Return all gradients, that of alpha and of the mask if they are requested."""
    given, grad = given.in_rows(), _rows(grad)
    query, key, value, *_ = given
    mask = given.mask if need_mask else None
    splits = _splits(given, mask)
    dq = _like(query, query.shape[-1])
    dk, dv = (_like(x, x.shape[-1], splits * len(x)) for x in (key, value))
    da = torch.empty_like(kept.counts, dtype=query.dtype) if need_alpha else None
    dm = None
    if mask is not None:  # one that is the same for all queries is small: each part has its own
        rows = (*query.shape[:2], 1) if _one_row(given) else mask.shape[:3]
        dm = query.new_zeros(splits if _one_row(given) else 1, *rows, mask.shape[3])
    gradients = (*(_heads(x) for x in (grad, dq, dk, dv)), *map(_pointer, (da, dm)), _strides(dm, 5))
    _call("attention_gradient", given, kept, splits=splits, gradients=gradients)
    if splits > 1:
        dk, dv = (x.unflatten(0, (splits, -1)).sum(0) for x in (dk, dv))
    if dm is not None and mask is not None:
        dm = (dm[0] if len(dm) == 1 else dm.sum(0)).sum_to_size(mask.shape)
    return Gradients(dq, dk, dv, da, dm)


def _one_row(inputs: Given) -> bool:
    """Tell whether all queries share one row of the mask."""
    return inputs.mask is not None and inputs.mask.shape[2] == 1 < inputs.query.shape[2]


def _splits(inputs: Given, mask: Tensor | None) -> int:
    """Return into how many parts the tiles of a head are divided.

    A part of a head of keys is a thread's work, and its gradients of keys and values are its own. So are all heads and
    elements that have the same mask, if that learns.
    """
    query, key, value, *_ = inputs
    work, most = [len(key), key.shape[1]], -(-query.shape[2] // inputs.rows)
    if mask is not None and not _one_row(inputs):
        work = [1 if shared == 1 else n for n, shared in zip(work, mask.shape, strict=False)]
        most = min(most, max(4, 2 * mask.numel() // (key.numel() + value.numel())))  # not too much memory for them
    return max(1, min(most, -(-2 * torch.get_num_threads() // math.prod(work))))


def _call(
    name: str,
    inputs: Given,
    saved: Kept,
    splits: int = 1,
    out: Heads = NOTHING,
    gradients: tuple[Any, ...] = (NOTHING, NOTHING, NOTHING, NOTHING, None, None, (0,) * 5),
) -> None:
    query, key, value, alpha, mask, setting = inputs
    batch, heads, queries, size = query.shape
    key_heads, keys = key.shape[1:3]
    lengths = None if setting.lengths is None else torch.tensor(setting.lengths)
    number, alphas = (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)
    room = 0 if saved.columns is None else saved.columns.shape[-1]
    cpu.run(
        name,
        *(cpu.STORAGE[query.dtype], setting.causal, batch, key_heads, heads // key_heads, queries, keys, size),
        *(value.shape[-1], inputs.rows, room, splits),
        *(setting.scale, 1 - setting.dropout, setting.seed),
        *(number, _pointer(alphas), _strides(alphas, 2), _pointer(lengths)),
        *(_heads(query), _heads(key), _heads(value), out),
        *(_pointer(mask), mask is not None and mask.dtype == torch.bool, _strides(mask, 4)),
        *map(_pointer, saved),
        *gradients,
    )


def _rows(x: Tensor) -> Tensor:
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: Tensor, size: int, batch: int | None = None) -> Tensor:
    """Empty, with heads and rows in memory in the order that `x` has them."""
    own, heads, rows, _ = x.shape
    batch = own if batch is None else batch
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, rows, heads, size).transpose(1, 2)
    return x.new_empty(batch, heads, rows, size)


def _strides(x: Tensor | None, dims: int) -> tuple[int, ...]:
    """Return the strides, 0 along dimensions of size 1, so that their one entry is broadcast."""
    return (0,) * dims if x is None else tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True))


def _heads(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
