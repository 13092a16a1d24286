"""Compute attention with the compiled kernels, on tensors [batch, heads, rows, size] of any strides."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops import cpu
from tsallis.ops.arguments import AttentionArgs, AttentionGradients
from tsallis.ops.cpu.structs import Heads
from tsallis.ops.eager.attention import resolve as resolve

ROWS, MIN_ROWS = 64, 8  # largest and smallest number of queries per tile
MIN_SLOPED_ROWS = 32  # minimum with slopes: their windows allow small tiles, but many tiles touch more memory pages
TILE = 1 << 17  # maximum number of scores per tile; a tile with the minimum number of rows may have more
MAX_LISTED = 128  # backward reads saved lists if their average length is at most this


class SavedForBackward(NamedTuple):
    """Statistics per query, and lists of the supports if the supports are small."""

    support: Tensor  # [batch, heads, queries]: number of keys with non-zero weight
    stats: Tensor  # [batch, heads, queries, STATS]
    columns: Tensor | None  # [batch, heads, queries, capacity]: keys in each list; None: no gradient is needed
    weight: Tensor | None


def allocate(args: AttentionArgs, output: Tensor, support: Tensor, needs_grad: bool) -> SavedForBackward:
    """Allocate the data that backward needs for these results."""
    queries, keys = args.query.shape[:-1], args.key.shape[2]
    stats = args.query.new_empty(*queries, cpu.STATS)
    if not needs_grad:
        return SavedForBackward(support, stats, None, None)
    capacity = min(keys, MAX_LISTED) if isinstance(keys, int) else torch.sym_min(keys, MAX_LISTED)
    columns = support.new_empty(*queries, capacity)
    return SavedForBackward(support, stats, columns, args.query.new_empty(*queries, capacity))


def attention(args: AttentionArgs, needs_grad: bool) -> tuple[Tensor, Tensor, SavedForBackward]:
    """Return the output, the number of keys per query, and the data for backward if `needs_grad`."""
    args = contiguous_rows(args)
    output = _empty_like(args.query, args.value.shape[-1])
    support = torch.empty(args.query.shape[:-1], dtype=torch.int32, device="cpu")
    saved = allocate(args, output, support, needs_grad)
    _run("attention", args, saved, out=_heads(output))
    return output, support, saved


def attention_gradient(
    args: AttentionArgs, saved: SavedForBackward, grad: Tensor, needs: tuple[bool, ...]
) -> AttentionGradients:
    """Return the gradients of query, key and value, and the gradients of alphas, mask and slopes if needed."""
    args, grad = contiguous_rows(args), _contiguous_row(grad)
    query, key, value, alphas, mask, slopes, *_ = args
    need_alphas, need_mask, need_slopes = needs[3:]
    mask = mask if need_mask else None
    splits = _splits(args, mask)
    dq = _empty_like(query, query.shape[-1])
    dk, dv = (_empty_like(x, x.shape[-1], splits * len(x)) for x in (key, value))
    da = torch.empty_like(saved.support, dtype=query.dtype) if need_alphas else None
    ds = torch.empty_like(saved.support, dtype=query.dtype) if need_slopes else None
    dm = None
    if mask is not None:  # a mask shared by all queries is small, so each part sums a gradient of its own
        rows = (*query.shape[:2], 1) if _shares_mask_row(args) else mask.shape[:3]
        dm = query.new_zeros(splits if _shares_mask_row(args) else 1, *rows, mask.shape[3])
    _run(
        "attention_gradient",
        args,
        saved,
        splits=splits,
        grad=_heads(grad),
        query_grad=_heads(dq),
        key_grad=_heads(dk),
        value_grad=_heads(dv),
        alpha_grad=_pointer(da),
        slope_grad=_pointer(ds),
        mask_grad=_pointer(dm),
        mask_grad_strides=_strides(dm, 5),
    )
    if splits > 1:
        dk, dv = (x.unflatten(0, (splits, -1)).sum(0) for x in (dk, dv))
    if da is not None and alphas is not None:
        da = da.sum(-1).sum_to_size(alphas.shape)
    if ds is not None and slopes is not None:
        ds = ds.sum(-1).sum_to_size(slopes.shape)
    if dm is not None and mask is not None:
        dm = (dm[0] if len(dm) == 1 else dm.sum(0)).sum_to_size(mask.shape)
    return AttentionGradients(dq, dk, dv, da, dm, ds)


def drop_factors(args: AttentionArgs) -> Tensor:
    """Return the factors by which dropout multiplies all weights [batch, heads, queries, keys]."""
    keys = args.key.shape[2]
    ones = args.query.new_ones(*args.query.shape[:-1], keys)
    return cpu.drop(ones, 1 - args.dropout, args.seed_value, ones, keys)


def _tile_rows(args: AttentionArgs) -> int:
    """Return the number of queries in a tile."""
    queries, keys = args.query.shape[2], args.key.shape[2]
    min_rows = MIN_ROWS if args.slopes is None else MIN_SLOPED_ROWS
    return min(queries, max(min_rows, min(ROWS, TILE // keys)))


def _shares_mask_row(args: AttentionArgs) -> bool:
    """Return whether all queries share one row of the mask."""
    return args.mask is not None and args.mask.shape[2] == 1 < args.query.shape[2]


def _splits(args: AttentionArgs, mask: Tensor | None) -> int:
    """Return the number of parts into which the tiles of a head are divided.

    A thread computes one part of a key head, and has its own memory for the gradients of keys and values. If the mask
    needs a gradient, a thread computes all heads and batch elements that share a mask.
    """
    query, key, value, *_ = args
    parallel_sizes, max_splits = [len(key), key.shape[1]], -(-query.shape[2] // _tile_rows(args))
    if mask is not None and not _shares_mask_row(args):
        parallel_sizes = [1 if shared == 1 else n for n, shared in zip(parallel_sizes, mask.shape, strict=False)]
        # Limit the memory of the gradients.
        max_splits = min(max_splits, max(4, 2 * mask.numel() // (key.numel() + value.numel())))
    return max(1, min(max_splits, -(-2 * torch.get_num_threads() // math.prod(parallel_sizes))))


def _run(name: str, args: AttentionArgs, saved: SavedForBackward, **extra_fields: Any) -> None:
    """Call a kernel with these arguments; all other fields are zero or null."""
    cpu.run(name, **call_fields(args, saved, **extra_fields))


def call_fields(args: AttentionArgs, saved: SavedForBackward, **extra_fields: Any) -> dict[str, Any]:
    """Return the fields of the kernels' structure `Attention`."""
    query, key, value, alphas, mask, slopes, lengths, _, key_norms, *_ = args
    batch, heads, queries, size = query.shape
    key_heads, keys = key.shape[1:3]
    support, stats, columns, weight = saved
    if slopes is not None:
        extra_fields |= {
            "slopes": _pointer(slopes),
            "slope_strides": _strides(slopes, 2),
            "key_norms": _pointer(key_norms),
        }
    fields = dict(
        storage=cpu.STORAGE[query.dtype],
        causal=args.causal,
        batch=batch,
        key_heads=key_heads,
        group=heads // key_heads,
        queries=queries,
        keys=keys,
        size=size,
        value_size=value.shape[-1],
        tile_rows=_tile_rows(args),
        capacity=0 if columns is None else columns.shape[-1],
        splits=1,
        scale=args.scale,
        keep_prob=1 - args.dropout,
        seed=args.seed_value,
        alpha=1.0 if args.alpha_value is None else args.alpha_value,
        alphas=_pointer(alphas),
        alpha_strides=_strides(alphas, 2),
        lengths=_pointer(lengths),
        query=_heads(query),
        key=_heads(key),
        value=_heads(value),
        mask=_pointer(mask),
        boolean_mask=mask is not None and mask.dtype == torch.bool,
        mask_strides=_strides(mask, 4),
        offset=args.offset,
        support=support.data_ptr(),
        stats=stats.data_ptr(),
        columns=_pointer(columns),
        weight=_pointer(weight),
    )
    return fields | extra_fields


def contiguous_rows(args: AttentionArgs) -> AttentionArgs:
    """Return the arguments with queries, keys and values whose last dimension has stride 1."""
    query, key, value, *other_fields = args
    return AttentionArgs(_contiguous_row(query), _contiguous_row(key), _contiguous_row(value), *other_fields)  # type: ignore[arg-type]


def _contiguous_row(x: Tensor) -> Tensor:
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_like(x: Tensor, size: int, batch: int | None = None) -> Tensor:
    """Allocate a tensor with heads and rows in the same memory order as in `x`."""
    x_batch, heads, rows, _ = x.shape
    batch = x_batch if batch is None else batch
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, rows, heads, size).transpose(1, 2)
    return x.new_empty(batch, heads, rows, size)


def _strides(x: Tensor | None, dims: int) -> tuple[int, ...]:
    """Return the strides, with 0 along dimensions of size 1, which are broadcast."""
    return (0,) * dims if x is None else tuple(0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True))


def _heads(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
