"""Attention in tiles: never more weights at a time than fit into a cache, forward and backward.

A tile is some queries of some heads against all the keys they may see. By PyTorch's operations backward computes its
scores and weights again and goes on to the next tile; the compiled kernels have ways of their own to keep little. What
is held beside the inputs and their gradients grows with the length, not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops import cpu, eager
from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd import rows as autograd
from tsallis.ops.cpu import attention as compiled
from tsallis.ops.transforms import differentiable, modes_active, recomputed_gradients, traced

TILE = 1 << 20  # weights at a time
LEAST_ROWS = 128  # of a head in a tile, for the sake of the matrix products
CAUSAL_ROWS = 128  # and at most so many where the keys behind them are skipped


class Problem(NamedTuple):
    """The options of one attention call that are not differentiable inputs."""

    scale: float
    causal: bool
    # Keys of each batch element that take part; a tensor only while traced, and for a GPU's kernels.
    lengths: tuple[int, ...] | Tensor | None
    threads: int  # forward and backward have the same tiles, whatever happens to torch's number in between
    dropout: float = 0.0
    seed: int = 0
    kernels: bool = False  # whether the compiled kernels do all of it, and say what is dropped
    powers: int | None = None  # which of them the GPU's kernels need, where the alphas were looked at already


class Tile(NamedTuple):
    """Queries [i0, i1) of the heads that read key heads [h0, h1) in batch elements [b0, b1): they see `keys` keys."""

    b0: int
    b1: int
    h0: int
    h1: int
    i0: int
    i1: int
    keys: int


class Shape(NamedTuple):
    """Sizes: `heads` of keys, each read by a `group` of query heads."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int


def tiles(shape: Shape, problem: Problem) -> Iterator[list[Tile]]:
    """All tiles; those of a list share their keys and values."""
    batch, heads, group, queries, keys = shape
    of_row = max(group * keys, 1)
    # A product of matrices for each thread: one matrix is not divided as well.
    together = min(heads, problem.threads)
    rows = min(queries, max(LEAST_ROWS, TILE // (of_row * together)))
    if problem.causal:
        rows = min(rows, CAUSAL_ROWS)
    some = min(heads, max(together, TILE // (of_row * rows)))
    elements = max(1, TILE // (of_row * rows * heads)) if some == heads else 1
    assert not isinstance(problem.lengths, Tensor)
    for b0 in range(0, batch, elements):
        b1 = min(b0 + elements, batch)
        extent = keys if problem.lengths is None else max(problem.lengths[b0:b1])
        if extent == 0:  # zeros, and zero gradients
            continue
        for h0 in range(0, heads, some):
            h1 = min(h0 + some, heads)
            starts = [(i0, min(i0 + rows, queries)) for i0 in range(0, queries, rows)]
            yield [Tile(b0, b1, h0, h1, i0, i1, min(extent, i1) if problem.causal else extent) for i0, i1 in starts]


class Attention(Function):
    """Output [batch, query heads, queries, value size] and, per query, how many keys it attends to.

    `query` [batch, heads * group, queries, size], `key` and `value` [batch, heads, keys, size], in float32 or float64;
    `alpha` a float, or [1 or batch, heads * group]; `mask` None, boolean or additive, [1 or batch, 1 or heads * group,
    1 or queries, 1 or keys].
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        work = _Work(query, key, value, alpha, mask, problem)
        out = query.new_zeros(*query.shape[:-1], value.shape[-1])
        counts = torch.zeros(query.shape[:-1], dtype=torch.int32, device=query.device)
        for number, tile, k, v, buffer in work.tiles():
            weights = work.solve(work.scores(work.rows(query, tile), k, tile, buffer), tile)
            work.put(counts.unsqueeze(-1), tile, (weights > 0).sum(-1))
            work.put(out, tile, torch.bmm(work.drop(weights, number), v))
        ctx.problem, ctx.alpha = problem, alpha if isinstance(alpha, float) else None
        ctx.mark_non_differentiable(counts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, mask, alpha if isinstance(alpha, Tensor) else None)
        return out, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None
        query, key, value, mask, alphas = ctx.saved_tensors
        alpha = ctx.alpha if alphas is None else alphas
        need_alpha, need_mask = ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        if differentiable(grad, pointers=False):
            return *differentiable_backward(ctx, (query, key, value, alpha, mask), grad), None
        work = _Work(query, key, value, alpha, mask, ctx.problem)
        dq = torch.empty_like(query) if ctx.problem.lengths is None else torch.zeros_like(query)
        dk, dv = torch.zeros_like(key), torch.zeros_like(value)
        da = query.new_zeros(*query.shape[:-1], 1) if need_alpha else None
        dm = torch.zeros_like(mask) if need_mask and mask is not None else None
        for number, tile, k, v, buffer in work.tiles():
            q, do = work.rows(query, tile), work.rows(grad, tile)
            weights = work.solve(work.scores(q, k, tile, buffer), tile)
            dropped = work.drop(weights, number, keep=True)
            work.add(dv, tile, torch.bmm(dropped.transpose(1, 2), do))
            dp = torch.bmm(do, v.transpose(1, 2), out=work.second(weights))
            if ctx.problem.dropout:
                work.drop(dp, number)
            ds, slope = work.pull(weights, dp, tile, need_alpha)
            if da is not None and slope is not None:
                work.put(da, tile, slope)
            if dm is not None:
                work.add_mask(dm, tile, ds)
            work.put(dq, tile, torch.bmm(ds, k).mul_(ctx.problem.scale))
            work.add(dk, tile, torch.bmm(ds.transpose(1, 2), q).mul_(ctx.problem.scale))
        if da is not None:
            da = da.sum((2, 3)).sum_to_size(alphas.shape)
        return dq, dk, dv, da, dm, None


class Compiled(Function):
    """Attention with sparse weights by the compiled CPU kernels, differentiable."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        learns = any(ctx.needs_input_grad[:5])
        out, saved = compiled.attend(_given(query, key, value, alpha, mask, problem), learns)
        ctx.problem, ctx.alpha = problem, alpha if isinstance(alpha, float) else None
        ctx.mark_non_differentiable(saved.counts)
        ctx.set_materialize_grads(False)
        if learns:
            ctx.save_for_backward(query, key, value, mask, alpha if isinstance(alpha, Tensor) else None, *saved)
        return out, saved.counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any = None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None, None
        query, key, value, mask, alphas, *saved = ctx.saved_tensors
        alpha = ctx.alpha if alphas is None else alphas
        if differentiable(grad):
            return *differentiable_backward(ctx, (query, key, value, alpha, mask), grad), None
        arguments = _given(query, key, value, alpha, mask, ctx.problem)
        dq, dk, dv, da, dm = compiled.attention_gradient(
            arguments, compiled.Kept(*saved), grad, *ctx.needs_input_grad[3:5]
        )
        if da is not None:
            da = da.sum(-1).sum_to_size(alphas.shape)
        return dq, dk, dv, da, dm, None


def _given(
    query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
) -> compiled.Given:
    assert not isinstance(problem.lengths, Tensor)
    setting = compiled.Setting(problem.scale, problem.causal, problem.lengths, problem.dropout, problem.seed)
    return compiled.Given(query, key, value, alpha, mask, setting)


class _Work:
    """The pieces of both passes: a tile's queries, scores, weights, and where its results go."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Alpha,
        mask: Tensor | None,
        problem: Problem,
    ) -> None:
        batch, heads, queries, _ = query.shape
        self.shape = Shape(batch, key.shape[1], heads // key.shape[1], queries, key.shape[2])
        self.key, self.value, self.mask, self.problem = key, value, mask, problem
        self.alpha = alpha if isinstance(alpha, float) else alpha.detach().expand(batch, heads)
        self.buffers: dict[str, Tensor] = {}

    def tiles(self) -> Iterator[tuple[int, Tile, Tensor, Tensor, Tensor]]:
        """Number, tile, its keys and values [heads, keys, size], and memory for its scores."""
        number = 0
        for shared in tiles(self.shape, self.problem):
            b0, b1, h0, h1 = shared[0][:4]
            most = max(tile.keys for tile in shared)
            k, v = (self._padded(x[b0:b1, h0:h1, :most], b0).flatten(0, 1) for x in (self.key, self.value))
            for tile in shared:
                keys = tile.keys
                rows = self.shape.group * (tile.i1 - tile.i0)
                yield number, tile, k[:, :keys], v[:, :keys], self._buffer("scores", (len(k), rows, keys))
                number += 1

    def _padded(self, x: Tensor, b0: int) -> Tensor:
        """Keys or values with zeros where a batch element has none: whatever lies there, infinity times 0 is NaN."""
        lengths = self.problem.lengths
        if lengths is None or all(int(n) >= x.shape[2] for n in lengths[b0 : b0 + len(x)]):
            return x
        active = live_keys(lengths[b0 : b0 + len(x)], x.shape[2], x.device)
        return torch.where(active.unsqueeze(-1), x, 0)

    def _buffer(self, name: str, shape: tuple[int, int, int]) -> Tensor:
        size = shape[0] * shape[1] * shape[2]
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.key.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def second(self, like: Tensor) -> Tensor:
        """More memory of a tile's size."""
        n, rows, keys = like.shape
        return self._buffer("second", (n, rows, keys))

    def _span(self, x: Tensor, tile: Tile) -> Tensor:
        """A tile's part of what there is for each query [batch, heads * group, queries, ...]."""
        group = self.shape.group
        return x[tile.b0 : tile.b1, tile.h0 * group : tile.h1 * group, tile.i0 : tile.i1]

    def rows(self, x: Tensor, tile: Tile) -> Tensor:
        """Return a tile's part as [heads, group * rows, size]: queries that share a key head are rows of one matrix."""
        part = self._span(x, tile)
        return part.reshape((tile.b1 - tile.b0) * (tile.h1 - tile.h0), -1, x.shape[-1])

    def put(self, x: Tensor, tile: Tile, values: Tensor) -> None:
        part = self._span(x, tile)
        part.copy_(values.reshape(part.shape))

    def add(self, x: Tensor, tile: Tile, values: Tensor) -> None:
        """Add gradients of a tile's keys or values [heads, keys, size] to those of all."""
        part = x[tile.b0 : tile.b1, tile.h0 : tile.h1, : tile.keys]
        part += values.view(part.shape)

    def scores(self, q: Tensor, k: Tensor, tile: Tile, out: Tensor) -> Tensor:
        scores = torch.baddbmm(out, q, k.transpose(1, 2), beta=0, alpha=self.problem.scale, out=out)
        batch, heads = tile.b1 - tile.b0, (tile.h1 - tile.h0) * self.shape.group
        view = scores.view(batch, heads, tile.i1 - tile.i0, tile.keys)
        if self.mask is not None:
            mask = self._mask(self.mask, tile)
            if mask.dtype == torch.bool:
                view.masked_fill_(~mask, -torch.inf)
            else:
                view += mask
        if self.problem.causal and tile.keys > tile.i0 + 1:
            ahead = later_keys(tile.i1 - tile.i0, tile.keys - tile.i0, q.device)
            view[..., tile.i0 :].masked_fill_(ahead, -torch.inf)
        if self.problem.lengths is not None:
            for number, length in enumerate(self.problem.lengths[tile.b0 : tile.b1]):
                if length < tile.keys:
                    view[number, :, :, length:] = -torch.inf
        return scores

    def _mask(self, mask: Tensor, tile: Tile) -> Tensor:
        group = self.shape.group
        spans = ((tile.b0, tile.b1), (tile.h0 * group, tile.h1 * group), (tile.i0, tile.i1), (0, tile.keys))
        for dim, (first, last) in enumerate(spans):
            if mask.shape[dim] > 1:
                mask = mask.narrow(dim, first, last - first)
        return mask

    def add_mask(self, total: Tensor, tile: Tile, values: Tensor) -> None:
        """Add gradients of a tile's scores to those of the mask that was added to them."""
        part = self._mask(total, tile)
        shape = (tile.b1 - tile.b0, (tile.h1 - tile.h0) * self.shape.group, tile.i1 - tile.i0, tile.keys)
        part += values.view(shape).sum_to_size(part.shape)

    def _alphas(self, tile: Tile) -> Alpha:
        if isinstance(self.alpha, float):
            return self.alpha
        some = self.alpha[tile.b0 : tile.b1, tile.h0 * self.shape.group : tile.h1 * self.shape.group]
        return some.unsqueeze(-1).expand(-1, -1, tile.i1 - tile.i0).reshape(-1, 1).contiguous()

    def solve(self, scores: Tensor, tile: Tile) -> Tensor:
        """Turn scores into weights, in place."""
        flat = scores.view(-1, scores.shape[-1])
        flat.copy_(eager.entmax(flat, self._alphas(tile))[0])
        return scores

    def pull(self, weights: Tensor, grad: Tensor, tile: Tile, need_alpha: bool) -> tuple[Tensor, Tensor | None]:
        """Return gradients of the scores, and of alpha [rows, 1]."""
        p, g = (x.view(-1, x.shape[-1]) for x in (weights, grad))
        ds, slope = eager.pullback(p, g, self._alphas(tile), need_alpha, False)
        return ds.view(weights.shape), slope

    def drop(self, weights: Tensor, number: int, keep: bool = False) -> Tensor:
        """Dropout of a tile, the same whenever it is asked for; in place unless the weights shall be kept."""
        if not self.problem.dropout:
            return weights
        factors = self._buffer("dropped", tuple(weights.shape)) if keep else weights  # type: ignore[arg-type]
        return _drop(weights, self.problem, number, factors)


def live_keys(lengths: Sequence[int] | Tensor, keys: int, device: torch.device) -> Tensor:
    """True for the keys that take part [batch, 1, keys]."""
    return torch.arange(keys, device=device) < torch.as_tensor(lengths, device=device).view(-1, 1, 1)


def later_keys(queries: int, keys: int, device: torch.device) -> Tensor:
    """True where a key comes after the query."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(1)


def _drop(weights: Tensor, problem: Problem, number: int, out: Tensor) -> Tensor:
    """A tile's weights, some of them zero and the others larger to make up for it; `out` may be the weights."""
    keep_prob = 1 - problem.dropout
    if keep_prob == 0:
        return out.zero_()
    generator = torch.Generator(weights.device).manual_seed(problem.seed + number)
    return torch.mul(
        weights, torch.empty_like(weights).bernoulli_(keep_prob, generator=generator).div_(keep_prob), out=out
    )


def materialised(
    query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """Compute the output and all weights [batch, query heads, queries, keys] by operations PyTorch differentiates."""
    batch, heads, queries, _ = query.shape
    group, keys = heads // key.shape[1], key.shape[2]
    active = None if problem.lengths is None else live_keys(problem.lengths, keys, query.device)
    if active is not None:  # whatever lies behind, infinity times 0 is NaN
        key, value = (torch.where(active.unsqueeze(-1), x, 0) for x in (key, value))
    # Queries that share a key head are rows of one matrix; [batch, heads, group * queries, size] before and after.
    scores = query.reshape(batch, key.shape[1], group * queries, -1) @ key.transpose(-1, -2) * problem.scale
    scores = scores.reshape(batch, heads, queries, keys)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if problem.causal:
        scores = scores.masked_fill(later_keys(queries, keys, query.device), -torch.inf)
    if active is not None:
        scores = scores.masked_fill(~active.unsqueeze(1), -torch.inf)
    if isinstance(alpha, Tensor):
        alpha = alpha.expand(batch, heads).unsqueeze(-1).expand(-1, -1, queries).reshape(-1, 1)
    weights = autograd.entmax(scores.reshape(-1, keys), alpha).view(batch, heads, queries, keys)
    dropped = weights
    if problem.dropout and (traced() or modes_active()):
        dropped = torch.dropout(weights, problem.dropout, True)
    elif problem.dropout:
        dropped = weights * _factors(weights.detach(), Shape(batch, key.shape[1], group, queries, keys), problem)
    out = dropped.reshape(batch, key.shape[1], group * queries, keys) @ value
    return out.reshape(batch, heads, queries, -1), weights


def _factors(like: Tensor, shape: Shape, problem: Problem) -> Tensor:
    """Return dropout's factors for all weights: a seed drops the same ones with and without kernels."""
    if problem.kernels:
        ones = torch.ones_like(like, memory_format=torch.contiguous_format)
        return cpu.drop(ones, 1 - problem.dropout, problem.seed, ones, shape.keys)
    factors, number = torch.zeros_like(like), 0
    for shared in tiles(shape, problem):
        for b0, b1, h0, h1, i0, i1, keys in shared:
            part = factors[b0:b1, h0 * shape.group : h1 * shape.group, i0:i1, :keys]
            ones = like.new_ones(part.shape)
            part.copy_(_drop(ones, problem, number, ones))
            number += 1
    return factors


def differentiable_backward(ctx: Any, inputs: Sequence[Any], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, alpha and mask that have gradients, or come in batches, through all weights."""

    def compute(query: Tensor, key: Tensor, value: Tensor, alpha: Alpha, mask: Tensor | None) -> Tensor:
        return materialised(query, key, value, alpha, mask, ctx.problem)[0]

    return recomputed_gradients(ctx, compute, inputs, grad)
