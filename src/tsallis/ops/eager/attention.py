"""Compute attention in tiles with PyTorch operations, so that the weights of a tile fit into a cache.

A tile holds the weights of some queries of some heads, for all keys that these queries may attend to. Backward computes
the scores and weights of each tile again. Memory therefore grows linearly with the sequence length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.arguments import AttentionArgs, AttentionGradients
from tsallis.ops.eager import maps

TILE = 1 << 20  # maximum number of weights per tile
MIN_ROWS = 128  # minimum number of queries per head and tile, for fast matrix products
CAUSAL_ROWS = 128  # maximum number of queries per tile in causal attention: smaller tiles skip more keys


class SavedForBackward(NamedTuple):
    """Empty container: backward needs only the arguments."""


class Tile(NamedTuple):
    """Queries [i0, i1) of key heads [h0, h1) in batch elements [b0, b1); they attend to the first `keys` keys."""

    b0: int
    b1: int
    h0: int
    h1: int
    i0: int
    i1: int
    keys: int


def resolve(args: AttentionArgs) -> AttentionArgs:
    """Return an operator's arguments with lengths on the CPU; check lengths, which a tracer could not read."""
    keys, lengths = args.key.shape[2], args.lengths
    if lengths is None:
        return args
    lengths = lengths.cpu().long().contiguous()
    invalid = lengths[(lengths < 0) | (lengths > keys)]
    if len(invalid):
        raise ValueError(f"key_lengths must be from 0 to the number of keys, {keys}, got {invalid[0]}")
    return args._replace(lengths=lengths)


def attention(args: AttentionArgs, needs_grad: bool) -> tuple[Tensor, Tensor, SavedForBackward]:
    """Return the output [batch, heads, queries, value size] and the number of keys per query."""
    query, _, value = args[:3]
    tiled = _TiledAttention(args)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    support = torch.zeros(query.shape[:-1], dtype=torch.int32, device=query.device)
    for number, tile, k, v, buffer in tiled.tiles():
        weights = tiled.solve(tiled.scores(tiled.rows(query, tile), k, tile, buffer), tile)
        tiled.write(support.unsqueeze(-1), tile, (weights > 0).sum(-1))
        tiled.write(out, tile, torch.bmm(tiled.drop(weights, number), v))
    return out, support, SavedForBackward()


def attention_gradient(
    args: AttentionArgs, saved: SavedForBackward, grad: Tensor, needs: tuple[bool, ...]
) -> AttentionGradients:
    """Return the gradients of query, key and value, and the gradients of alphas, mask and slopes if needed."""
    query, key, value, alphas, mask, slopes, *_ = args
    need_alphas, need_mask, need_slopes = needs[3:]
    tiled = _TiledAttention(args)
    dq = torch.empty_like(query) if args.lengths is None else torch.zeros_like(query)
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    da = query.new_zeros(*query.shape[:-1], 1) if need_alphas else None
    dm = torch.zeros_like(mask) if need_mask and mask is not None else None
    slope_grad = query.new_zeros(query.shape[:2]) if need_slopes else None
    for number, tile, k, v, buffer in tiled.tiles():
        q, do = tiled.rows(query, tile), tiled.rows(grad, tile)
        weights = tiled.solve(tiled.scores(q, k, tile, buffer), tile)
        dropped = tiled.drop(weights, number, copy=True)
        tiled.add(dv, tile, torch.bmm(dropped.transpose(1, 2), do))
        dp = torch.bmm(do, v.transpose(1, 2), out=tiled.second_buffer(weights))
        if args.dropout:
            tiled.drop(dp, number)
        ds, alpha_grad = tiled.pullback(weights, dp, tile, need_alphas)
        if da is not None and alpha_grad is not None:
            tiled.write(da, tile, alpha_grad)
        if dm is not None:
            tiled.add_mask(dm, tile, ds)
        if slope_grad is not None:
            tiled.add_slopes(slope_grad, tile, ds)
        tiled.write(dq, tile, torch.bmm(ds, k).mul_(args.scale))
        tiled.add(dk, tile, torch.bmm(ds.transpose(1, 2), q).mul_(args.scale))
    if da is not None and alphas is not None:
        da = da.sum((2, 3)).sum_to_size(alphas.shape)
    if slope_grad is not None and slopes is not None:
        slope_grad = slope_grad.sum_to_size(slopes.shape)
    return AttentionGradients(dq, dk, dv, da, dm, slope_grad)


def drop_factors(args: AttentionArgs) -> Tensor:
    """Return the dropout factors of all weights [batch, heads, queries, keys], the same as :func:`attention` draws."""
    query, key, *_ = args
    factors, group = query.new_zeros(*query.shape[:-1], key.shape[2]), args.group
    tiles = (tile for shared in cut(args) for tile in shared)
    for number, (b0, b1, h0, h1, i0, i1, keys) in enumerate(tiles):
        part = factors[b0:b1, h0 * group : h1 * group, i0:i1, :keys]
        ones = query.new_ones(part.shape)
        part.copy_(_drop(ones, args, number, ones))
    return factors


def length_mask(lengths: Tensor, keys: int, device: torch.device) -> Tensor:
    """Return a mask [batch, 1, keys] that is True for valid keys."""
    return torch.arange(keys, device=device) < lengths.to(device).view(-1, 1, 1)


def future_mask(queries: int, keys: int, device: torch.device, offset: int = 0) -> Tensor:
    """Return a mask [queries, keys], True for keys after the query; query i has position i + offset."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(1 + offset)


def distances(queries: int, keys: int, offset: int, like: Tensor) -> Tensor:
    """Return the distance of each key from each query [queries, keys], in the dtype and device of `like`."""
    position = torch.arange(offset, offset + queries, device=like.device).unsqueeze(1)
    return (position - torch.arange(keys, device=like.device)).abs().to(like.dtype)


def cut(args: AttentionArgs) -> Iterator[list[Tile]]:
    """Divide a call into tiles; the tiles of a list share keys and values."""
    batch, heads, keys, _ = args.key.shape
    queries = args.query.shape[2]
    lengths = None if args.lengths is None else args.lengths.tolist()
    scores_per_row = max(args.group * keys, 1)
    # Give each thread whole matrices: PyTorch divides a single product less well among threads.
    # Dropout is drawn per tile, so backward must cut the same tiles as forward, even in another process.
    threads = args.threads or (1 if args.dropout else torch.get_num_threads())
    min_heads = min(heads, threads)
    rows = min(queries, max(MIN_ROWS, TILE // (scores_per_row * min_heads)))
    if args.causal:
        rows = min(rows, CAUSAL_ROWS)
    tile_heads = min(heads, max(min_heads, TILE // (scores_per_row * rows)))
    elements = max(1, TILE // (scores_per_row * rows * heads)) if tile_heads == heads else 1
    for b0 in range(0, batch, elements):
        b1 = min(b0 + elements, batch)
        extent = keys if lengths is None else max(lengths[b0:b1])
        if extent == 0:  # outputs and gradients are zero
            continue
        for h0 in range(0, heads, tile_heads):
            h1 = min(h0 + tile_heads, heads)
            starts = [(i0, min(i0 + rows, queries)) for i0 in range(0, queries, rows)]
            last = args.offset if args.causal else extent
            yield [Tile(b0, b1, h0, h1, i0, i1, min(extent, i1 + last)) for i0, i1 in starts]


def _drop(weights: Tensor, args: AttentionArgs, number: int, out: Tensor) -> Tensor:
    """Apply dropout to a tile's weights; `out` may be the weights."""
    keep_prob = 1 - args.dropout
    if keep_prob == 0:
        return out.zero_()
    if weights.is_meta:
        return out
    generator = torch.Generator(weights.device).manual_seed(args.seed_value + number)
    return torch.mul(
        weights, torch.empty_like(weights).bernoulli_(keep_prob, generator=generator).div_(keep_prob), out=out
    )


class _TiledAttention:
    """Steps that forward and backward share: read, score and write tiles."""

    def __init__(self, args: AttentionArgs) -> None:
        self.args, self.group = args, args.group
        self.lengths = None if args.lengths is None else args.lengths.tolist()
        alpha, (batch, heads) = args.alpha, args.query.shape[:2]
        self.alpha = alpha.detach().expand(batch, heads) if isinstance(alpha, Tensor) else alpha
        self.slopes = None if args.slopes is None else args.slopes.detach().expand(batch, heads).to(args.query.dtype)
        self.buffers: dict[str, Tensor] = {}

    def tiles(self) -> Iterator[tuple[int, Tile, Tensor, Tensor, Tensor]]:
        """Yield each tile as (number, tile, keys, values, buffer for scores); keys are [heads, keys, size]."""
        number = 0
        for shared in cut(self.args):
            b0, b1, h0, h1 = shared[0][:4]
            max_keys = max(tile.keys for tile in shared)
            pair = (self.args.key, self.args.value)
            k, v = (self._zero_padding(x[b0:b1, h0:h1, :max_keys], b0).flatten(0, 1) for x in pair)
            for tile in shared:
                keys = tile.keys
                rows = self.group * (tile.i1 - tile.i0)
                yield number, tile, k[:, :keys], v[:, :keys], self._buffer("scores", (len(k), rows, keys))
                number += 1

    def _zero_padding(self, x: Tensor, b0: int) -> Tensor:
        """Set keys or values beyond each length to zero, because infinity times a zero weight would be NaN."""
        lengths, b1 = self.lengths, b0 + len(x)
        if lengths is None or self.args.lengths is None or min(lengths[b0:b1]) >= x.shape[2]:
            return x
        active = length_mask(self.args.lengths[b0:b1], x.shape[2], x.device)
        return torch.where(active.unsqueeze(-1), x, 0)

    def _buffer(self, name: str, shape: tuple[int, int, int]) -> Tensor:
        size = shape[0] * shape[1] * shape[2]
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.args.key.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def second_buffer(self, like: Tensor) -> Tensor:
        """Return a second buffer with the shape of a tile's weights."""
        n, rows, keys = like.shape
        return self._buffer("second", (n, rows, keys))

    def _slice_queries(self, x: Tensor, tile: Tile) -> Tensor:
        """Return a tile's slice of a tensor with one entry per query [batch, heads, queries, ...]."""
        group = self.group
        return x[tile.b0 : tile.b1, tile.h0 * group : tile.h1 * group, tile.i0 : tile.i1]

    def rows(self, x: Tensor, tile: Tile) -> Tensor:
        """Return a tile's slice as [heads, group * rows, size], one matrix per key head."""
        part = self._slice_queries(x, tile)
        return part.reshape((tile.b1 - tile.b0) * (tile.h1 - tile.h0), -1, x.shape[-1])

    def write(self, x: Tensor, tile: Tile, values: Tensor) -> None:
        """Write a tile's results for its queries into the full tensor."""
        part = self._slice_queries(x, tile)
        part.copy_(values.reshape(part.shape))

    def add(self, x: Tensor, tile: Tile, values: Tensor) -> None:
        """Add gradients of a tile's keys or values [heads, keys, size] to the full tensor."""
        part = x[tile.b0 : tile.b1, tile.h0 : tile.h1, : tile.keys]
        part += values.view(part.shape)

    def scores(self, q: Tensor, k: Tensor, tile: Tile, out: Tensor) -> Tensor:
        """Compute a tile's scores [heads, group * rows, keys]; -inf for masked keys."""
        scores = torch.baddbmm(out, q, k.transpose(1, 2), beta=0, alpha=self.args.scale, out=out)
        batch, heads = tile.b1 - tile.b0, (tile.h1 - tile.h0) * self.group
        view = scores.view(batch, heads, tile.i1 - tile.i0, tile.keys)
        if self.args.mask is not None:
            mask = self._slice_mask(self.args.mask, tile)
            if mask.dtype == torch.bool:
                view.masked_fill_(~mask, -torch.inf)
            else:
                view += mask
        if self.slopes is not None:
            view.addcmul_(self._slice_heads(self.slopes, tile)[..., None, None], self._distances(tile, q), value=-1)
        first = tile.i0 + self.args.offset
        if self.args.causal and tile.keys > first + 1:
            future = future_mask(tile.i1 - tile.i0, tile.keys - first, q.device)
            view[..., first:].masked_fill_(future, -torch.inf)
        if self.lengths is not None:
            for number, length in enumerate(self.lengths[tile.b0 : tile.b1]):
                if length < tile.keys:
                    view[number, :, :, length:] = -torch.inf
        return scores

    def _slice_mask(self, mask: Tensor, tile: Tile) -> Tensor:
        group = self.group
        spans = ((tile.b0, tile.b1), (tile.h0 * group, tile.h1 * group), (tile.i0, tile.i1), (0, tile.keys))
        for dim, (first, last) in enumerate(spans):
            if mask.shape[dim] > 1:
                mask = mask.narrow(dim, first, last - first)
        return mask

    def add_mask(self, total: Tensor, tile: Tile, values: Tensor) -> None:
        """Add the gradients of a tile's scores to the gradient of the additive mask."""
        part = self._slice_mask(total, tile)
        shape = (tile.b1 - tile.b0, (tile.h1 - tile.h0) * self.group, tile.i1 - tile.i0, tile.keys)
        part += values.view(shape).sum_to_size(part.shape)

    def add_slopes(self, total: Tensor, tile: Tile, values: Tensor) -> None:
        """Add a tile's contribution to the gradient of the slopes [batch, heads]."""
        part, distance = self._slice_heads(total, tile), self._distances(tile, values)
        part -= torch.tensordot(values.view(*part.shape, *distance.shape), distance, 2)

    def _distances(self, tile: Tile, like: Tensor) -> Tensor:
        return distances(tile.i1 - tile.i0, tile.keys, tile.i0 + self.args.offset, like)

    def _slice_heads(self, x: Tensor, tile: Tile) -> Tensor:
        """Return a tile's slice of a tensor [batch, heads]."""
        return x[tile.b0 : tile.b1, tile.h0 * self.group : tile.h1 * self.group]

    def _alphas(self, tile: Tile) -> Alpha:
        if isinstance(self.alpha, float):
            return self.alpha
        part = self._slice_heads(self.alpha, tile)
        return part.unsqueeze(-1).expand(-1, -1, tile.i1 - tile.i0).reshape(-1, 1).contiguous()

    def solve(self, scores: Tensor, tile: Tile) -> Tensor:
        """Replace scores by weights, in place."""
        flat = scores.view(-1, scores.shape[-1])
        flat.copy_(maps.solve(flat, self._alphas(tile))[0])
        return scores

    def pullback(self, weights: Tensor, grad: Tensor, tile: Tile, need_alphas: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the scores, and the gradient of alpha [rows, 1] or None."""
        p, g = (x.view(-1, x.shape[-1]) for x in (weights, grad))
        ds, alpha_grad = maps.pullback(p, g, self._alphas(tile), need_alphas)
        return ds.view(weights.shape), alpha_grad

    def drop(self, weights: Tensor, number: int, copy: bool = False) -> Tensor:
        """Apply a tile's dropout in place or to a copy; forward and backward drop the same weights."""
        if not self.args.dropout:
            return weights
        factors = self._buffer("dropped", tuple(weights.shape)) if copy else weights  # type: ignore[arg-type]
        return _drop(weights, self.args, number, factors)
