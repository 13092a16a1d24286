"""The loss of an output layer by chunks of tokens, and its gradients: what `linear` puts under autograd.

Tokens are taken in chunks. A chunk's scores live in the only large buffer; what is kept of them is each row's support,
a short list of classes and probabilities, because the gradient of the scores, p - e_y, is zero everywhere else. The
two products of the backward pass then are sums of a few rows of the weight and of the hidden states. A chunk whose
rows are nearly flat has long lists: nothing is kept of it, and its scores are computed once more, unless there are
few of them altogether: then they are kept.

On a GPU there are two buffers, so that it has the next chunk's scores to compute while this program waits to hear how
long the lists of one are. And where the loss is one sum, the gradient of every row is known but for one factor: a chunk
without lists makes its share of the gradients at once, from the scores that are still there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops import backend, cpu, eager
from tsallis.ops.alphas import Alpha
from tsallis.ops.cpu import Lists
from tsallis.ops.transforms import consecutive

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of hidden, weight and bias
Needed = tuple[bool, bool, bool]


class Sizes(NamedTuple):
    """The sizes of chunks, and the share of non-zeros up to which one is saved as lists."""

    chunk: int  # scores in a buffer
    whole: int  # up to so many scores in all are one chunk, and are kept where they are dense
    chunks: int | None  # at most so many: the weight's gradient is rounded after each
    tokens: int  # a chunk has a multiple of so many, if it has that many
    share: float  # a chunk with at most this share of its entries in a support is kept as lists


CPU = Sizes(chunk=1 << 23, whole=1 << 24, chunks=None, tokens=1, share=1 / 32)
# There a product is as quick as a sum of rows already where one score in a hundred counts.
GPU = Sizes(chunk=1 << 27, whole=1 << 26, chunks=16, tokens=128, share=1 / 128)
ONE_PASS = True  # whether alpha-ReLU tries to do without any buffer where the kernels can


class Layer(NamedTuple):
    """A linear layer and its loss: `scores = hidden @ weight.T + bias` against classes, entmax or alpha-ReLU."""

    hidden: Tensor  # [rows, d]
    weight: Tensor  # [classes, d]
    bias: Tensor | None  # [classes]
    target: Tensor  # [rows], negative: none
    alpha: Alpha  # a number, or [rows, 1]
    tau: float | None  # the constant threshold of alpha-ReLU; None: entmax

    def plain(self) -> Layer:
        """With everything the kernels read as consecutive numbers."""
        alpha = consecutive(self.alpha) if isinstance(self.alpha, Tensor) else self.alpha
        bias = None if self.bias is None else consecutive(self.bias)
        return self._replace(hidden=consecutive(self.hidden), weight=consecutive(self.weight), bias=bias, alpha=alpha)

    def kernels(self) -> ModuleType | None:
        """Return the kernels that compute the layer, None for PyTorch's operations."""
        kernels = backend.kernels(self.hidden, self.alpha)
        return kernels if kernels is backend.kernels(self.weight, 1.0) else None

    def rows(self, part: slice) -> Layer:
        """Return the layer restricted to some of the rows."""
        alpha = self.alpha[part] if isinstance(self.alpha, Tensor) else self.alpha
        return self._replace(hidden=self.hidden[part], target=self.target[part], alpha=alpha)

    def scores(self, buffer: Tensor | None = None) -> Tensor:
        if self.bias is None:
            return torch.mm(self.hidden, self.weight.t(), out=buffer)
        return torch.addmm(self.bias, self.hidden, self.weight.t(), out=buffer)


class Plan(NamedTuple):
    """The kernels and chunks that compute a layer. PyTorch's operations get the sizes of the CPU on every device."""

    kernels: ModuleType | None
    sizes: Sizes
    chunks: list[slice]
    few: bool  # all scores may be there at once, and stay

    @property
    def ahead(self) -> bool:
        """True if the next chunk's scores are launched before this chunk is settled."""
        return self.sizes is GPU and len(self.chunks) > 1

    @property
    def at_once(self) -> bool:
        """True if, for a loss that is one sum, a chunk without lists multiplies its gradients in the forward pass."""
        return self.sizes is GPU


def plan(layer: Layer) -> Plan:
    kernels = layer.kernels()
    sizes = CPU if kernels in (None, cpu) else GPU
    tokens, classes = len(layer.hidden), len(layer.weight)
    few = tokens * classes <= sizes.whole
    rows = tokens if few else max(1, sizes.chunk // classes)
    if not few and sizes.chunks is not None:
        step = sizes.tokens
        rows = max(rows // step, -(-tokens // (sizes.chunks * step)), 1) * step
    return Plan(kernels, sizes, [slice(i, min(i + rows, tokens)) for i in range(0, tokens, rows)], few)


@dataclass
class Dense:
    """A chunk whose rows have no lists."""

    rows: slice
    stats: Tensor | None  # the kernels' statistics of the rows
    scores: Tensor | None = None  # where they were kept; gone once the gradient has taken their place


@dataclass
class Sums:
    """Gradients to which chunks without lists add their products."""

    hidden: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None

    def add(self, chunk: Layer, rows: slice, dz: Tensor) -> None:
        """Add to the sums the products of the gradient of a chunk's scores."""
        if self.hidden is not None:
            torch.mm(dz, chunk.weight, out=self.hidden[rows])
        if self.weight is not None:
            self.weight.addmm_(dz.t(), chunk.hidden)
        if self.bias is not None:
            self.bias += dz.sum(0, dtype=self.bias.dtype)


@dataclass
class Kept:
    """The supports of all rows as lists; rows of dense chunks have none, and are listed by chunk."""

    kernels: ModuleType | None  # that found them
    lists: Lists
    dense: list[Dense]
    made: Sums | None = None  # products of the dense chunks for losses of weight 1; gone once they are used


class Solved(NamedTuple):
    """A chunk whose losses are known, and how to list its supports."""

    loss: Tensor  # [rows]
    slope: Tensor | None  # its derivative in alpha [rows, 1]
    counts: Tensor | None  # [rows], int64: sizes of the supports; None: nothing is kept
    stats: Tensor | None
    entries: Callable[[int], tuple[Tensor, Tensor]] | None  # classes and values, of so many


class Numbers:
    """Two numbers on their way from the device: it goes on computing, and is waited for when they are read."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        both = torch.stack([first, second.to(first.dtype)])
        self.both = both.to("cpu", non_blocking=True)
        self.event = torch.cuda.current_stream(both.device).record_event() if both.is_cuda else None

    def read(self) -> tuple[int, int]:
        if self.event is not None:
            self.event.synchronize()
        first, second = self.both.tolist()
        return first, second


class Losses:
    """Losses of all chunks as they come, and what is kept of each."""

    def __init__(self, layer: Layer, plan: Plan, keep: bool, at_once: Needed | None) -> None:
        self.layer, self.plan, self.keep = layer, plan, keep
        self.at_once = at_once if plan.at_once and layer.hidden.dtype != torch.float16 else None
        self.wide = cpu.computed_in(layer.hidden.dtype)
        self.each: list[Tensor] = []
        self.slopes: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.columns: list[Tensor] = []
        self.values: list[Tensor] = []
        self.dense: list[Dense] = []
        self.made: Sums | None = None
        self.waiting: tuple[slice, Tensor, Solved, Numbers] | None = None

    def run(self) -> None:
        rows = self.plan.chunks[0].stop
        ahead = self.keep and self.plan.ahead
        buffers = [self.layer.hidden.new_empty(rows, len(self.layer.weight)) for _ in range(1 + ahead)]
        for number, part in enumerate(self.plan.chunks):
            if not ahead:
                self.settle()
            scores = self.layer.rows(part).scores(buffers[number % len(buffers)][: part.stop - part.start])
            self.settle()
            self.begin(part, scores)
        self.settle()

    def begin(self, part: slice, scores: Tensor) -> None:
        """Find the losses of a chunk, and ask how long its lists are."""
        chunk = self.layer.rows(part)
        if self.plan.kernels is None:
            solved = _solve_eagerly(chunk, scores, self.keep)
        else:
            solved = _solve(chunk, scores, self.plan.kernels, self.keep)
        self.each.append(solved.loss)
        if solved.slope is not None:
            self.slopes.append(solved.slope)
        if solved.counts is not None:
            self.waiting = part, scores, solved, Numbers(solved.counts.sum(), solved.loss.isnan().any())

    def settle(self) -> None:
        """Keep of the chunk begun last what the backward pass needs, before its scores are overwritten."""
        if self.waiting is None:
            return
        part, scores, solved, numbers = self.waiting
        self.waiting = None
        assert solved.counts is not None and solved.entries is not None
        size, broken = numbers.read()
        if size <= self.plan.sizes.share * scores.numel() and not broken:
            column, value = solved.entries(size)
            self.counts.append(solved.counts)
            self.columns.append(column)
            self.values.append(value)
            return
        self.counts.append(torch.zeros_like(solved.counts))
        dense = Dense(part, solved.stats, scores if self.plan.few or self.at_once else None)
        self.dense.append(dense)
        if self.at_once is not None:
            self.multiply(dense, self.at_once)

    def multiply(self, dense: Dense, needed: Needed) -> None:
        """Make the products of a chunk now, as if every loss had the weight 1."""
        if self.made is None:
            self.made = sums_of(self.layer, needed, self.wide)
        chunk = self.layer.rows(dense.rows)
        one = torch.ones(len(chunk.hidden), dtype=self.wide, device=chunk.hidden.device)
        self.made.add(chunk, dense.rows, score_gradient(chunk, dense, one, self.plan.kernels))

    def kept(self) -> Kept:
        nothing = self.layer.hidden.new_empty(0)
        lists = Lists(
            F.pad(torch.cat(self.counts).cumsum(0), (1, 0)),
            torch.cat([*self.columns, nothing.to(torch.int32)]),
            torch.cat([*self.values, nothing.to(self.wide)]),
        )
        return Kept(self.plan.kernels, lists, self.dense, self.made)


def sums_of(layer: Layer, needed: Needed, wide: torch.dtype) -> Sums:
    """Gradients of nothing yet. That of the bias is wide; the weight's is too large for that."""
    kinds = ((layer.hidden, layer.hidden.dtype), (layer.weight, layer.weight.dtype), (layer.weight[:, 0], wide))
    return Sums(*(torch.zeros_like(x, dtype=t) if n else None for (x, t), n in zip(kinds, needed, strict=True)))


def losses(layer: Layer, keep: bool, at_once: Needed | None = None) -> tuple[Tensor, Tensor | None, Kept | None]:
    """Return losses [rows], their derivatives in alpha [rows, 1] where alpha is a tensor, and what the backward needs.

    Where the loss is one sum, `at_once` says of what it needs gradients (hidden, weight, bias).
    """
    plan_ = plan(layer)
    if layer.tau is not None and ONE_PASS and hasattr(plan_.kernels, "relu_lists"):
        kernels = cast(Any, plan_.kernels)
        result = kernels.relu_lists(*layer[:4], layer.alpha, layer.tau, plan_.sizes.share)
        if result is not None:
            return result[0], None, Kept(kernels, result[1], []) if keep else None
    chunks = Losses(layer, plan_, keep, at_once)
    chunks.run()
    slope = torch.cat(chunks.slopes) if isinstance(layer.alpha, Tensor) else None
    return torch.cat(chunks.each), slope, chunks.kept() if keep else None


def _solve(chunk: Layer, scores: Tensor, kernels: ModuleType, keep: bool) -> Solved:
    slope = None
    if chunk.tau is None:
        loss, stats, slope = kernels.entmax_loss(scores, chunk.target, chunk.alpha, isinstance(chunk.alpha, Tensor))
    else:
        loss, stats = kernels.alpha_relu_loss(scores, chunk.target, cast(float, chunk.alpha), chunk.tau)
        stats[:, -1].masked_fill_(chunk.target < 0, 0)
    if not keep:
        return Solved(loss, slope, None, None, None)
    counts = stats[:, -1].long()

    def entries(size: int) -> tuple[Tensor, Tensor]:
        offsets = F.pad(counts.cumsum(0), (1, 0))
        options = {} if kernels is cpu else {"size": size}  # a GPU's last offset is not at hand
        support = kernels.support if chunk.tau is None else kernels.alpha_relu_support
        result: tuple[Tensor, Tensor] = support(scores, chunk.alpha, stats, offsets, **options)
        return result

    return Solved(loss, slope, counts, stats, entries)


def _solve_eagerly(chunk: Layer, scores: Tensor, keep: bool) -> Solved:
    loss, probs = _eager_probs(chunk, scores.to(cpu.computed_in(scores.dtype)))
    slope = None
    if isinstance(chunk.alpha, Tensor):
        slope = eager.entropy_alpha_gradient(probs, chunk.alpha)
        slope = torch.where((chunk.target < 0).unsqueeze(-1), 0, slope)
    if not keep:
        return Solved(loss, slope, None, None, None)
    support = (probs != 0) & (chunk.target >= 0).unsqueeze(-1)

    def entries(_: int) -> tuple[Tensor, Tensor]:
        row, column = support.nonzero(as_tuple=True)
        return column.to(torch.int32), probs[row, column]

    return Solved(loss, slope, support.sum(-1), None, entries)


def _eager_probs(chunk: Layer, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [rows] and all probabilities (alpha-ReLU: values) of scores; a row that counts for nothing has zeros."""
    if chunk.tau is not None:
        return eager.alpha_relu_loss(scores, chunk.target, cast(float, chunk.alpha) - 1, chunk.tau)
    loss, probs, packed = eager.entmax_loss(scores, chunk.target, chunk.alpha)
    if packed is not None:
        probs = packed.scatter(probs, scores)
        probs = probs.masked_fill_(loss.isnan().unsqueeze(-1), torch.nan)
    return loss, torch.where((scores.amax(-1, keepdim=True) == -torch.inf), 0, probs)


def gradients(layer: Layer, kept: Kept, weights: Tensor, needed: Needed) -> Gradients:
    """Return gradients of hidden, weight and bias, of losses weighted by `weights` [rows].

    Products that were made in the forward pass are for weights that are one number: that of the first row.
    """
    kernels, made = kept.kernels, kept.made or Sums()
    dense = kept.dense if kept.made is None else []
    kept.made = None
    wide = consecutive(weights.to(kept.lists.value.dtype))  # the kernels read it: a sum's is one number, seen often
    target = _listed(layer, kept)
    sums = Sums()
    if needed[0]:
        sums.hidden = _by_row(layer, kept.lists, wide, target, kernels, made)
    if needed[1] or needed[2]:
        sums.weight, sums.bias = _by_class(layer, kept.lists, wide, target, kernels, made)
        if not needed[1]:
            sums.weight = None
    for chunk in dense:
        part = layer.rows(chunk.rows)
        sums.add(part, chunk.rows, score_gradient(part, chunk, wide[chunk.rows], kernels))
    bias = sums.bias.to(layer.hidden.dtype) if needed[2] and sums.bias is not None else None
    return sums.hidden, sums.weight, bias


def _listed(layer: Layer, saved: Kept) -> Tensor:
    """Return targets of the rows that have lists: without one, a row takes no part in sums over lists.

    A row of entmax without support is none: no class takes part in it, or its chunk is dense.
    """
    if layer.tau is None:
        return torch.where(saved.lists.offsets.diff() > 0, layer.target, -1)
    target = layer.target.clone()
    for chunk in saved.dense:
        target[chunk.rows] = -1
    return target


def _by_row(layer: Layer, lists: Lists, weights: Tensor, target: Tensor, kernels: Any, made: Sums) -> Tensor:
    """`dH[r] = w_r (sum_c p_rc W[c] - W[y_r])`, zero where there is no target; and what was made before."""
    if kernels is not None:
        result: Tensor = kernels.gather(
            lists, layer.weight, scale=weights, minus=target, **_onto(made.hidden, weights)
        )[0]
        return result
    counted = (target >= 0).unsqueeze(-1)
    table = layer.weight.to(lists.value.dtype)
    grad = _sparse(lists, len(table)) @ table - torch.where(counted, table[target.clamp(min=0)], 0)
    grad = torch.where(counted, grad * weights.unsqueeze(-1), 0)
    return _added(grad, made.hidden, weights).to(layer.hidden.dtype)


def _by_class(
    layer: Layer, lists: Lists, weights: Tensor, target: Tensor, kernels: Any, made: Sums
) -> tuple[Tensor, Tensor]:
    """`dW[c] = sum_r w_r (p_rc - [y_r = c]) H[r]`, and the same sums without H for the bias; and what was made."""
    classes = len(layer.weight)
    if kernels is not None:
        transposed = kernels.transpose(lists, classes, weights, target)
        onto = _onto(made.weight, weights)
        weight_grad, total = kernels.gather(transposed, layer.hidden, need_total=True, **onto)
        assert total is not None
        return weight_grad, _added(total, made.bias, weights)
    rows = torch.arange(len(target), device=target.device)
    counted = target >= 0
    row = torch.cat([rows.repeat_interleave(lists.offsets.diff()), rows[counted]])
    column = torch.cat([lists.column.long(), target[counted]])
    value = torch.cat([lists.value, lists.value.new_full((int(counted.sum()),), -1.0)]) * weights[row]
    order = column.argsort(stable=True)
    offsets = F.pad(torch.bincount(column, minlength=classes).cumsum(0), (1, 0))
    transposed = Lists(offsets, row[order].to(torch.int32), value[order])
    table = layer.hidden.to(value.dtype)
    weight_grad = _added(_sparse(transposed, len(table)) @ table, made.weight, weights)
    total = value.new_zeros(classes).index_add_(0, column, value)
    return weight_grad.to(layer.hidden.dtype), _added(total, made.bias, weights)


def _onto(made: Tensor | None, weights: Tensor) -> dict[str, Tensor]:
    """Return the arguments by which a sum over lists is added to `made` in place, none without one."""
    return {} if made is None else {"onto": made, "factor": weights}


def _added(total: Tensor, made: Tensor | None, weights: Tensor) -> Tensor:
    return total if made is None else total.add_(made * weights[0])


def _sparse(lists: Lists, width: int) -> Tensor:
    rows = torch.arange(len(lists.offsets) - 1, device=lists.offsets.device)
    indices = torch.stack([rows.repeat_interleave(lists.offsets.diff()), lists.column.long()])
    size = (len(rows), width)
    return torch.sparse_coo_tensor(indices, lists.value, size, is_coalesced=True, check_invariants=False)


def score_gradient(chunk: Layer, kept: Dense, weights: Tensor, kernels: Any) -> Tensor:
    """The gradient of a dense chunk's scores [rows, classes] in their place; if they were not kept, they come again."""
    scores = chunk.scores() if kept.scores is None else kept.scores
    kept.scores = None
    if kept.stats is not None:
        gradient = kernels.entmax_loss_gradient if chunk.tau is None else kernels.alpha_relu_loss_gradient
        result: Tensor = gradient(scores, chunk.target, chunk.alpha, kept.stats, weights, out=scores)
        return result
    wide = scores.to(weights.dtype)
    loss, probs = _eager_probs(chunk, wide)
    counted = (chunk.target >= 0) & ((wide.amax(-1) != -torch.inf) | loss.isnan())
    gold = chunk.target.clamp(min=0).unsqueeze(-1)
    dz = probs.scatter_add(-1, gold, torch.full_like(gold, -1, dtype=probs.dtype)) * weights.unsqueeze(-1)
    return torch.where(counted.unsqueeze(-1), dz, 0).to(scores.dtype)
