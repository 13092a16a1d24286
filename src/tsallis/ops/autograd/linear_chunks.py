"""Compute the loss of an output layer and its gradients in chunks of tokens.

All chunks share one buffer for scores. Only the support of each row is saved: a short list of classes and
probabilities. The list suffices because the gradient of the scores, p - e_y, is zero elsewhere. The two products of the
backward pass are then sums over a few rows of the weight and of the hidden states. If the probabilities of a chunk are
nearly uniform, its lists would be long. Such a chunk saves no lists: a small chunk keeps its scores, and backward
recomputes the scores of other chunks.

A GPU uses two buffers: the GPU computes the next chunk's scores while the program waits for the lengths of the lists.
If the loss is one sum, all rows have the same factor in the gradients. The gradients of chunks without lists are then
computed in the forward pass, while the scores are in the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.autograd.soft_targets import SoftTarget, impossible, leads
from tsallis.ops.choice import choose
from tsallis.ops.dtypes import compute_dtype, contiguous, contiguous_alpha
from tsallis.ops.protocol import Backend
from tsallis.ops.sparse_rows import CsrRows, concatenate_rows

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # gradients of hidden, weight and bias
RequiresGrad = tuple[bool, bool, bool]


class Sizes(NamedTuple):
    """Sizes of chunks, and the largest share of non-zeros for which a chunk is saved as lists."""

    chunk: int  # number of scores in a buffer
    single_chunk: int  # if there are at most this many scores, use one chunk, and keep its scores
    chunks: int | None  # maximum number of chunks, because each chunk rounds the weight's gradient
    tokens: int  # except for small chunks, the number of tokens is a multiple of this number
    share: float  # a chunk with at most this share of non-zeros is saved as lists


CPU = Sizes(chunk=1 << 23, single_chunk=1 << 24, chunks=None, tokens=1, share=1 / 32)
# On a GPU a matrix product is as fast as a sum over rows if one score in a hundred is non-zero.
GPU = Sizes(chunk=1 << 27, single_chunk=1 << 26, chunks=16, tokens=128, share=1 / 128)
ONE_PASS = True  # whether alpha-ReLU may use kernels that need no buffer of scores


class Layer(NamedTuple):
    """Inputs of a linear layer with an entmax or alpha-ReLU loss: `scores = hidden @ weight.T + bias`."""

    hidden: Tensor  # [rows, d]
    weight: Tensor  # [classes, d]
    bias: Tensor | None  # [classes]
    target: Tensor  # [rows]; negative targets are ignored
    alpha: Alpha  # a number, or [rows, 1]
    tau: float | None  # the constant threshold of alpha-ReLU; None: entmax
    soft: SoftTarget | None = None  # probabilities whose anchors are the targets

    def contiguous(self) -> Layer:
        """Return the layer with contiguous tensors."""
        alpha = contiguous_alpha(self.alpha)
        bias = None if self.bias is None else contiguous(self.bias)
        return self._replace(hidden=contiguous(self.hidden), weight=contiguous(self.weight), bias=bias, alpha=alpha)

    def rows(self, part: slice) -> Layer:
        """Return the layer restricted to some of the rows, with the anchors as targets."""
        alpha = self.alpha[part] if isinstance(self.alpha, Tensor) else self.alpha
        return self._replace(hidden=self.hidden[part], target=self.target[part], alpha=alpha, soft=None)

    def scores(self, buffer: Tensor | None = None) -> Tensor:
        if self.bias is None:
            return torch.mm(self.hidden, self.weight.t(), out=buffer)
        return torch.addmm(self.bias, self.hidden, self.weight.t(), out=buffer)


class Plan(NamedTuple):
    """Backend and chunks for a layer."""

    backend: Backend
    sizes: Sizes
    chunks: list[slice]
    keeps_scores: bool  # whether all scores fit into memory and are kept

    @property
    def prefetches(self) -> bool:
        """Return whether the next chunk's scores are launched before this chunk is finished."""
        return self.backend.CAPABILITIES.asynchronous and len(self.chunks) > 1

    @property
    def multiplies_in_forward(self) -> bool:
        """Return whether the forward pass also computes gradients of chunks without lists, if the loss is a sum."""
        return self.backend.CAPABILITIES.asynchronous


def make_plan(layer: Layer) -> Plan:
    backend = choose("output layer", layer.alpha, layer.hidden, layer.weight)
    sizes = GPU if backend.CAPABILITIES.asynchronous else CPU
    tokens, classes = len(layer.hidden), len(layer.weight)
    keeps_scores = tokens * classes <= sizes.single_chunk
    rows = tokens if keeps_scores else max(1, sizes.chunk // classes)
    if not keeps_scores and sizes.chunks is not None:
        step = sizes.tokens
        rows = max(rows // step, -(-tokens // (sizes.chunks * step)), 1) * step
    return Plan(backend, sizes, [slice(i, min(i + rows, tokens)) for i in range(0, tokens, rows)], keeps_scores)


@dataclass
class DenseChunk:
    """Chunk that saves no lists, because its supports are large."""

    rows: slice
    stats: Any  # the backend's statistics; None if they are as large as the rows and are recomputed
    scores: Tensor | None = None  # None if not kept, or after the gradient has overwritten them


@dataclass
class Sums:
    """Sums of the gradients of chunks without lists."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None

    def add(self, chunk: Layer, rows: slice, dz: Tensor) -> None:
        """Add the gradients of a chunk, given the gradient of its scores."""
        if self.hidden is not None:
            self.hidden[rows].addmm_(dz, chunk.weight)
        if self.weight is not None:
            self.weight.addmm_(dz.t(), chunk.hidden)
        if self.bias is not None:
            self.bias += dz.sum(0, dtype=self.bias.dtype)


@dataclass
class SavedForBackward:
    """Supports of all rows as lists; rows of dense chunks have empty lists."""

    backend: Backend  # backend that computed the supports
    supports: CsrRows
    dense_chunks: list[DenseChunk]
    products: Sums | None = None  # gradients of dense chunks for losses of weight 1; None after use
    active: Tensor | None = None  # which rows have a finite score [rows]; only for probabilities


class ChunkSolution(NamedTuple):
    """Losses of a chunk, and a function that lists its supports."""

    loss: Tensor  # [rows]
    slope: Tensor | None  # derivative of the loss in alpha [rows, 1]
    counts: Tensor | None  # [rows], int64: support sizes; None: nothing is saved
    stats: Any
    entries: Callable[[int], tuple[Tensor, Tensor]] | None  # function of the total size that returns classes and values


class DeferredNumbers:
    """Transfer of two numbers from the device to the CPU without blocking; `read` waits for the numbers."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        numbers = torch.stack([first, second.to(first.dtype)])
        self.numbers = numbers.to("cpu", non_blocking=True)
        self.event = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def read(self) -> tuple[int, int]:
        if self.event is not None:
            self.event.synchronize()
        first, second = self.numbers.tolist()
        return first, second


class ChunkedForward:
    """Forward pass that computes the losses chunk by chunk and saves data for backward."""

    def __init__(self, layer: Layer, plan: Plan, keep: bool, requires_grad: RequiresGrad | None) -> None:
        self.layer = layer
        self.plan = plan
        self.keep = keep
        in_forward = plan.multiplies_in_forward and layer.hidden.dtype != torch.float16
        self.requires_grad = requires_grad if in_forward else None  # None: backward computes the gradients
        self.sum_dtype = compute_dtype(layer.hidden.dtype)
        self.losses: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.columns: list[Tensor] = []
        self.values: list[Tensor] = []
        self.dense_chunks: list[DenseChunk] = []
        self.products: Sums | None = None
        self.active: list[Tensor] = []
        self.open_chunk: tuple[slice, Tensor, ChunkSolution, DeferredNumbers] | None = None

    def run(self) -> None:
        rows = self.plan.chunks[0].stop
        prefetch = self.keep and self.plan.prefetches
        buffers = [self.layer.hidden.new_empty(rows, len(self.layer.weight)) for _ in range(1 + prefetch)]
        parts = self.soft_parts()
        for number, part in enumerate(self.plan.chunks):
            if not prefetch:
                self.finish_chunk()
            scores = self.layer.rows(part).scores(buffers[number % len(buffers)][: part.stop - part.start])
            self.finish_chunk()
            self.start_chunk(part, scores, parts[number])
        self.finish_chunk()

    def soft_parts(self) -> list[SoftTarget] | list[None]:
        """Return the probabilities of each chunk; this waits once for a GPU."""
        soft, chunks = self.layer.soft, self.plan.chunks
        if soft is None:
            return [None] * len(chunks)
        bounds = soft.offsets[[0, *(part.stop for part in chunks)]].tolist()
        return [soft.part(part, *ends) for part, ends in zip(chunks, pairwise(bounds), strict=True)]

    def start_chunk(self, part: slice, scores: Tensor, soft: SoftTarget | None) -> None:
        """Compute the losses of a chunk, and request the lengths of its lists."""
        solution = _solve(self.layer.rows(part), scores, self.plan.backend, self.keep)
        if soft is not None:
            target = self.layer.target[part]
            self.active.append(~impossible(solution.loss, scores, target))
            loss = solution.loss + leads(scores, target, soft) - soft.entropy
            solution = solution._replace(loss=torch.where(self.active[-1], loss, 0))
        self.losses.append(solution.loss)
        if solution.slope is not None:
            self.slopes.append(solution.slope)
        if solution.counts is not None:
            self.open_chunk = (
                part,
                scores,
                solution,
                DeferredNumbers(solution.counts.sum(), solution.loss.isnan().any()),
            )

    def finish_chunk(self) -> None:
        """Save the data for backward, before the chunk's scores are overwritten."""
        if self.open_chunk is None:
            return
        part, scores, solution, numbers = self.open_chunk
        self.open_chunk = None
        assert solution.counts is not None and solution.entries is not None
        size, has_nan = numbers.read()
        if size <= self.plan.sizes.share * scores.numel() and not has_nan:
            column, value = solution.entries(size)
            self.counts.append(solution.counts)
            self.columns.append(column)
            self.values.append(value)
            return
        self.counts.append(torch.zeros_like(solution.counts))
        stats = solution.stats if self.plan.backend.CAPABILITIES.row_statistics else None
        dense = DenseChunk(part, stats, scores if self.plan.keeps_scores or self.requires_grad else None)
        self.dense_chunks.append(dense)
        if self.requires_grad is not None:
            self.multiply(dense, self.requires_grad)

    def multiply(self, dense: DenseChunk, requires_grad: RequiresGrad) -> None:
        """Compute the gradients of a chunk now, for losses of weight 1."""
        if self.products is None:
            self.products = zero_sums(self.layer, requires_grad, self.sum_dtype)
        chunk = self.layer.rows(dense.rows)
        one = torch.ones(len(chunk.hidden), dtype=self.sum_dtype, device=chunk.hidden.device)
        self.products.add(chunk, dense.rows, score_gradient(chunk, dense, one, self.plan.backend))

    def saved(self) -> SavedForBackward:
        empty = self.layer.hidden.new_empty(0)
        supports = CsrRows(
            F.pad(torch.cat(self.counts).cumsum(0), (1, 0)),
            torch.cat([*self.columns, empty.to(torch.int32)]),
            torch.cat([*self.values, empty.to(self.sum_dtype)]),
        )
        active = torch.cat(self.active) if self.active else None
        return SavedForBackward(self.plan.backend, supports, self.dense_chunks, self.products, active)


def zero_sums(layer: Layer, requires_grad: RequiresGrad, sum_dtype: torch.dtype) -> Sums:
    """Return zeros, to which gradients are added; only the bias gets a wider dtype, because the weight is large."""
    kinds = ((layer.hidden, layer.hidden.dtype), (layer.weight, layer.weight.dtype), (layer.weight[:, 0], sum_dtype))
    return Sums(*(torch.zeros_like(x, dtype=t) if n else None for (x, t), n in zip(kinds, requires_grad, strict=True)))


def losses(
    layer: Layer, keep: bool, requires_grad: RequiresGrad | None = None
) -> tuple[Tensor, Tensor | None, SavedForBackward | None]:
    """Return three values: losses [rows]; derivatives in alpha [rows, 1] or None; and the data for backward.

    If the loss is one sum, `requires_grad` marks which of hidden, weight and bias need gradients.
    """
    plan = make_plan(layer)
    one_pass = ONE_PASS and layer.soft is None and "one pass" in plan.backend.CAPABILITIES.operations
    if layer.tau is not None and one_pass:
        arguments = (*layer[:4], cast(float, layer.alpha), layer.tau, plan.sizes.share)
        result = plan.backend.alpha_relu_one_pass(*arguments)
        if result is not None:
            return result[0], None, SavedForBackward(plan.backend, result[1], []) if keep else None
    chunks = ChunkedForward(layer, plan, keep, requires_grad)
    chunks.run()
    slope = torch.cat(chunks.slopes) if isinstance(layer.alpha, Tensor) else None
    return torch.cat(chunks.losses), slope, chunks.saved() if keep else None


def _solve(chunk: Layer, scores: Tensor, backend: Backend, keep: bool) -> ChunkSolution:
    loss, stats, slope = _loss(chunk, scores, backend)
    if not keep:
        return ChunkSolution(loss, slope, None, None, None)
    counts = backend.support_sizes(scores, chunk.alpha, stats, chunk.target)

    def entries(size: int) -> tuple[Tensor, Tensor]:
        offsets = F.pad(counts.cumsum(0), (1, 0))
        if chunk.tau is None:
            return backend.support(scores, chunk.alpha, stats, offsets, size)
        return backend.alpha_relu_support(scores, cast(float, chunk.alpha), stats, offsets, size)

    return ChunkSolution(loss, slope, counts, stats, entries)


def _loss(chunk: Layer, scores: Tensor, backend: Backend) -> tuple[Tensor, Any, Tensor | None]:
    """Return three values: losses [rows]; statistics; and derivatives in alpha [rows, 1] or None."""
    if chunk.tau is None:
        return backend.entmax_loss(scores, chunk.target, chunk.alpha, isinstance(chunk.alpha, Tensor))
    return *backend.alpha_relu_loss(scores, chunk.target, cast(float, chunk.alpha), chunk.tau), None


def gradients(layer: Layer, saved: SavedForBackward, weights: Tensor, requires_grad: RequiresGrad) -> Gradients:
    """Return gradients of hidden, weight and bias for losses weighted by `weights` [rows].

    If forward has already computed gradients, all weights are equal, and the first weight scales these gradients.
    """
    backend, products = saved.backend, saved.products or Sums()
    dense_chunks = saved.dense_chunks if saved.products is None else []
    saved.products = None
    # Kernels need contiguous memory, and a sum's gradient is one expanded number.
    row_weights = contiguous(weights.to(saved.supports.value.dtype))
    target = _list_targets(layer, saved)
    supports = saved.supports
    if layer.soft is not None and saved.active is not None:
        value = layer.soft.value * saved.active[layer.soft.row]
        supports = concatenate_rows(supports, CsrRows(layer.soft.offsets, layer.soft.column, value))
    sums = Sums()
    if requires_grad[0]:  # dH[r] = w_r (sum_c p_rc W[c] - W[y_r]), plus the gradients of the forward pass
        accumulate = _accumulate_arguments(products.hidden, row_weights)
        sums.hidden, _ = backend.spmm(supports, layer.weight, scale=row_weights, minus=target, **accumulate)
    # dW[c] = sum_r w_r (p_rc - [y_r = c]) H[r], and the same without H for the bias
    if requires_grad[1] or requires_grad[2]:
        transposed = backend.transpose(supports, len(layer.weight), row_weights, target)
        accumulate = _accumulate_arguments(products.weight, row_weights)
        weight_grad, total = backend.spmm(transposed, layer.hidden, need_total=True, **accumulate)
        assert total is not None
        sums.weight = weight_grad if requires_grad[1] else None
        sums.bias = total if products.bias is None else total.add_(products.bias * row_weights[0])
    for chunk in dense_chunks:
        part = layer.rows(chunk.rows)
        sums.add(part, chunk.rows, score_gradient(part, chunk, row_weights[chunk.rows], backend))
    bias = sums.bias.to(layer.hidden.dtype) if requires_grad[2] and sums.bias is not None else None
    return sums.hidden, sums.weight, bias


def _list_targets(layer: Layer, saved: SavedForBackward) -> Tensor:
    """Return the targets; rows without a list get -1, so that sums over lists skip them.

    An entmax row has an empty list if all its scores are -inf or its chunk is dense.
    """
    if layer.tau is None:
        return torch.where(saved.supports.offsets.diff() > 0, layer.target, -1)
    target = layer.target.clone()
    for chunk in saved.dense_chunks:
        target[chunk.rows] = -1
    return target


def _accumulate_arguments(products: Tensor | None, weights: Tensor) -> dict[str, Any]:
    """Return the arguments that add a sum over lists to `products` in place."""
    return {} if products is None else {"onto": products, "factor": weights}


def score_gradient(chunk: Layer, dense: DenseChunk, weights: Tensor, backend: Backend) -> Tensor:
    """Return the gradient of a dense chunk's scores [rows, classes]; the gradient may overwrite the scores.

    Scores and statistics that were not kept are recomputed.
    """
    scores = chunk.scores() if dense.scores is None else dense.scores
    dense.scores = None
    stats = _loss(chunk, scores, backend)[1] if dense.stats is None else dense.stats
    if chunk.tau is None:
        return backend.entmax_loss_gradient(scores, chunk.target, chunk.alpha, stats, weights, out=scores)
    alpha = cast(float, chunk.alpha)
    return backend.alpha_relu_loss_gradient(scores, chunk.target, alpha, stats, weights, out=scores)
