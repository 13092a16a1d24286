"""An output layer and its loss together, without the tokens x classes matrices of scores and gradients.

Tokens are taken in chunks. A chunk's scores live in the only large buffer; what is kept of them is each row's support,
a short list of classes and probabilities, because the gradient of the scores, p - e_y, is zero everywhere else. The
two products of the backward pass then are sums of a few rows of the weight and of the hidden states. A chunk whose
rows are nearly flat has long lists: nothing is kept of it, and its scores are computed once more, unless there are
few of them altogether: then they are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from tsallis.kernels import autograd, cpu, dispatch, eager
from tsallis.kernels.cpu import Lists

Alpha = float | Tensor

CHUNK = 1 << 23  # scores in the buffer
WHOLE = 1 << 24  # up to so many scores in all are one chunk, and are kept where they are dense
SPARSE_SHARE = 1 / 32  # a chunk with at most this share of its entries in a support is kept as lists


class Layer(NamedTuple):
    """What the loss is of: `scores = hidden @ weight.T + bias` against classes, entmax or alpha-ReLU."""

    hidden: Tensor  # [rows, d]
    weight: Tensor  # [classes, d]
    bias: Tensor | None  # [classes]
    target: Tensor  # [rows], negative: none
    alpha: Alpha  # a number, or [rows, 1]
    tau: float | None  # the constant threshold of alpha-ReLU; None: entmax

    def few(self) -> bool:
        """Whether all scores may be there at once, and stay."""
        return len(self.hidden) * len(self.weight) <= WHOLE

    def chunks(self) -> list[slice]:
        rows = len(self.hidden) if self.few() else max(1, CHUNK // len(self.weight))
        return [slice(i, min(i + rows, len(self.hidden))) for i in range(0, len(self.hidden), rows)]

    def rows(self, part: slice) -> Layer:
        """The same layer for some of the rows."""
        alpha = self.alpha[part] if isinstance(self.alpha, Tensor) else self.alpha
        return self._replace(hidden=self.hidden[part], target=self.target[part], alpha=alpha)

    def scores(self, buffer: Tensor | None = None) -> Tensor:
        if self.bias is None:
            return torch.mm(self.hidden, self.weight.t(), out=buffer)
        return torch.addmm(self.bias, self.hidden, self.weight.t(), out=buffer)

    def compiled(self) -> bool:
        return dispatch.compiled(self.hidden, self.alpha) and dispatch.compiled(self.weight, 1.0)


@dataclass
class Dense:
    """A chunk whose rows have no lists."""

    rows: slice
    stats: Tensor | None  # the kernels' statistics of the rows
    scores: Tensor | None = None  # where they were kept; gone once the gradient has taken their place


class Kept(NamedTuple):
    """The supports of all rows as lists; rows of dense chunks have none, and are listed by chunk."""

    lists: Lists
    dense: list[Dense]


def _plain(layer: Layer) -> Layer:
    """With everything the kernels read as consecutive numbers."""
    alpha = layer.alpha.contiguous() if isinstance(layer.alpha, Tensor) else layer.alpha
    return layer._replace(hidden=layer.hidden.contiguous(), weight=layer.weight.contiguous(), alpha=alpha)


def losses(layer: Layer, keep: bool) -> tuple[Tensor, Tensor | None, Kept | None]:
    """Losses [rows], their derivatives in alpha [rows, 1] where alpha is a tensor, and what the backward needs."""
    compiled, wide = layer.compiled(), cpu.computed_in(layer.hidden.dtype)
    many = isinstance(layer.alpha, Tensor)
    each, slopes, counts, columns, values, dense = [], [], [], [], [], []
    buffer = None
    for part in layer.chunks():
        chunk = layer.rows(part)
        rows = len(chunk.hidden)
        if buffer is None:
            buffer = layer.hidden.new_empty(rows, len(layer.weight))
        scores = chunk.scores(buffer[:rows])
        compute = _compiled_chunk if compiled else _eager_chunk
        loss, slope, support, statistics = compute(chunk, scores, many, keep)
        each.append(loss)
        slopes.append(slope)
        if not keep:
            continue
        if support is None:
            dense.append(Dense(part, statistics, scores if layer.few() else None))
            counts.append(torch.zeros(rows, dtype=torch.long, device=scores.device))
        else:
            counts.append(support.offsets)
            columns.append(support.column)
            values.append(support.value)
    alpha_grad = torch.cat([s for s in slopes if s is not None]) if many else None
    if not keep:
        return torch.cat(each), alpha_grad, None
    offsets = F.pad(torch.cat(counts).cumsum(0), (1, 0))
    nothing = layer.hidden.new_empty(0)
    lists = Lists(
        offsets,
        torch.cat([*columns, nothing.to(torch.int32)]),
        torch.cat([*values, nothing.to(wide)]),
    )
    return torch.cat(each), alpha_grad, Kept(lists, dense)


def _compiled_chunk(
    chunk: Layer, scores: Tensor, many: bool, keep: bool
) -> tuple[Tensor, Tensor | None, Lists | None, Tensor | None]:
    """Loss, its derivative in alpha, and to keep: lists with counts for offsets, or statistics instead of long ones."""
    slope = None
    if chunk.tau is None:
        loss, stats, slope = cpu.entmax_loss(scores, chunk.target, chunk.alpha, many)
    else:
        loss, stats = cpu.alpha_relu_loss(scores, chunk.target, cast(float, chunk.alpha), chunk.tau)
        stats[:, -1].masked_fill_(chunk.target < 0, 0)
    if not keep:
        return loss, slope, None, None
    counts = stats[:, -1].long()
    if int(counts.sum()) > SPARSE_SHARE * scores.numel() or bool(loss.isnan().any()):
        return loss, slope, None, stats
    column, value = cpu.support(scores, chunk.alpha, stats, F.pad(counts.cumsum(0), (1, 0)))
    return loss, slope, Lists(counts, column, value), None


def _eager_chunk(
    chunk: Layer, scores: Tensor, many: bool, keep: bool
) -> tuple[Tensor, Tensor | None, Lists | None, None]:
    wide = scores.to(cpu.computed_in(scores.dtype))
    loss, probs = _eager_probs(chunk, wide)
    slope = eager.entropy_alpha_gradient(probs, chunk.alpha) if many else None
    if slope is not None:
        slope = torch.where((chunk.target < 0).unsqueeze(-1), 0, slope)
    if not keep:
        return loss, slope, None, None
    live = (probs != 0) & (chunk.target >= 0).unsqueeze(-1)
    counts = live.sum(-1)
    if int(counts.sum()) > SPARSE_SHARE * scores.numel() or bool(loss.isnan().any()):
        return loss, slope, None, None
    row, column = live.nonzero(as_tuple=True)
    return loss, slope, Lists(counts, column.to(torch.int32), probs[row, column]), None


def _eager_probs(chunk: Layer, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [rows] and all probabilities (alpha-ReLU: values) of scores; a row that counts for nothing has zeros."""
    if chunk.tau is not None:
        return eager.alpha_relu_loss(scores, chunk.target, cast(float, chunk.alpha) - 1, chunk.tau)
    loss, probs, packed = eager.entmax_loss(scores, chunk.target, chunk.alpha)
    if packed is not None:
        probs = packed.scatter(probs, scores)
        probs = probs.masked_fill_(loss.isnan().unsqueeze(-1), torch.nan)
    return loss, torch.where((scores.amax(-1, keepdim=True) == -torch.inf), 0, probs)


def gradients(
    layer: Layer, kept: Kept, weights: Tensor, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of hidden, weight and bias, of losses weighted by `weights` [rows]."""
    need_hidden, need_weight, need_bias = needed
    compiled = layer.compiled()
    # Lists have no place for rows of dense chunks: without a target those take no part in sums over lists.
    target = layer.target.clone()
    for chunk in kept.dense:
        target[chunk.rows] = -1
    wide = weights.to(kept.lists.value.dtype).contiguous()  # the kernels read it: a sum's is one number, seen often
    hidden_grad = weight_grad = bias_grad = None
    if need_hidden:
        hidden_grad = _by_row(layer, kept.lists, wide, target, compiled)
    if need_weight or need_bias:
        weight_grad, bias_grad = _by_class(layer, kept.lists, wide, target, compiled)
    for chunk in kept.dense:
        part = layer.rows(chunk.rows)
        dz = _score_gradient(part, chunk, wide[chunk.rows])
        if hidden_grad is not None:
            torch.mm(dz, layer.weight, out=hidden_grad[chunk.rows])
        if weight_grad is not None and need_weight:
            weight_grad.addmm_(dz.t(), part.hidden)
        if bias_grad is not None:
            bias_grad += dz.sum(0, dtype=bias_grad.dtype)
    dtype = layer.hidden.dtype
    return (
        hidden_grad,
        weight_grad if need_weight else None,
        bias_grad.to(dtype) if need_bias and bias_grad is not None else None,
    )


def _by_row(layer: Layer, lists: Lists, weights: Tensor, target: Tensor, compiled: bool) -> Tensor:
    """`dH[r] = w_r (sum_c p_rc W[c] - W[y_r])`, zero where there is no target."""
    if compiled:
        return cpu.gather(lists, layer.weight, scale=weights, minus=target)[0]
    counted = (target >= 0).unsqueeze(-1)
    table = layer.weight.to(lists.value.dtype)
    found = _sparse(lists, len(table)) @ table - torch.where(counted, table[target.clamp(min=0)], 0)
    return torch.where(counted, found * weights.unsqueeze(-1), 0).to(layer.hidden.dtype)


def _by_class(layer: Layer, lists: Lists, weights: Tensor, target: Tensor, compiled: bool) -> tuple[Tensor, Tensor]:
    """`dW[c] = sum_r w_r (p_rc - [y_r = c]) H[r]`, and the same sums without H for the bias."""
    classes = len(layer.weight)
    if compiled:
        turned = cpu.transpose(lists, classes, weights, target)
        weight_grad, total = cpu.gather(turned, layer.hidden, need_total=True)
        assert total is not None
        return weight_grad, total
    rows = torch.arange(len(target), device=target.device)
    counted = target >= 0
    row = torch.cat([rows.repeat_interleave(lists.offsets.diff()), rows[counted]])
    column = torch.cat([lists.column.long(), target[counted]])
    value = torch.cat([lists.value, lists.value.new_full((int(counted.sum()),), -1.0)]) * weights[row]
    order = column.argsort(stable=True)
    offsets = F.pad(torch.bincount(column, minlength=classes).cumsum(0), (1, 0))
    turned = Lists(offsets, row[order].to(torch.int32), value[order])
    table = layer.hidden.to(value.dtype)
    return (_sparse(turned, len(table)) @ table).to(layer.hidden.dtype), value.new_zeros(classes).index_add_(
        0, column, value
    )


def _sparse(lists: Lists, width: int) -> Tensor:
    rows = torch.arange(len(lists.offsets) - 1, device=lists.offsets.device)
    place = torch.stack([rows.repeat_interleave(lists.offsets.diff()), lists.column.long()])
    size = (len(rows), width)
    return torch.sparse_coo_tensor(place, lists.value, size, is_coalesced=True, check_invariants=False)


def _score_gradient(chunk: Layer, kept: Dense, weights: Tensor) -> Tensor:
    """The gradient of a dense chunk's scores [rows, classes] in their place; if they were not kept, they come again."""
    scores = chunk.scores() if kept.scores is None else kept.scores
    if kept.stats is not None:
        kept.scores = None
        return cpu.entmax_loss_gradient(scores, chunk.target, chunk.alpha, kept.stats, weights, out=scores)
    wide = scores.to(weights.dtype)
    loss, probs = _eager_probs(chunk, wide)
    counted = (chunk.target >= 0) & ((wide.amax(-1) != -torch.inf) | loss.isnan())
    gold = chunk.target.clamp(min=0).unsqueeze(-1)
    dz = probs.scatter_add(-1, gold, torch.full_like(gold, -1, dtype=probs.dtype)) * weights.unsqueeze(-1)
    return torch.where(counted.unsqueeze(-1), dz, 0).to(scores.dtype)


def materialised(layer: Layer) -> Tensor:
    """The same losses by way of all scores: what can be differentiated twice, transformed and batched."""
    scores = F.linear(layer.hidden, layer.weight, layer.bias)
    scores = scores.to(cpu.computed_in(scores.dtype))
    if layer.tau is None:
        return autograd.entmax_loss(scores, layer.target, layer.alpha)
    return eager.alpha_relu_loss(scores, layer.target, cast(float, layer.alpha) - 1, layer.tau)[0]


class _LinearLoss(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        alpha: Alpha,
        tau: float | None,
    ) -> Tensor:
        autograd.check_alpha(alpha)
        layer = _plain(Layer(hidden, weight, bias, target, alpha, tau))
        keep = any(ctx.needs_input_grad)
        loss, alpha_grad, kept = losses(layer, keep)
        ctx.tau, ctx.alpha = tau, None if isinstance(alpha, Tensor) else alpha
        if kept is not None:
            ctx.dense = kept.dense
            many = alpha if isinstance(alpha, Tensor) else None
            ctx.save_for_backward(hidden, weight, bias, target, many, alpha_grad, *kept.lists)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, target, many, alpha_grad, *lists = ctx.saved_tensors
        layer = Layer(hidden, weight, bias, target, ctx.alpha if many is None else many, ctx.tau)
        if autograd.differentiable(grad):
            wanted = [hidden, weight, bias, None, many]
            inputs = [x for x, need in zip(wanted, ctx.needs_input_grad, strict=False) if need and x is not None]
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                loss = materialised(layer)
            found = iter(torch.autograd.grad(loss, inputs, grad, create_graph=again))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:5]), None
        needed = ctx.needs_input_grad[:3]
        dh, dw, db = gradients(_plain(layer), Kept(Lists(*lists), ctx.dense), grad, needed)
        da = alpha_grad * grad.unsqueeze(-1) if ctx.needs_input_grad[4] else None
        return dh, dw, db, None, da, None


def linear_loss(layer: Layer) -> Tensor:
    """Losses [rows] of a layer, differentiable in hidden, weight, bias and alpha."""
    if autograd.transforms_active():
        return materialised(layer)
    if torch.compiler.is_compiling():
        number, numbers = (1.0, layer.alpha) if isinstance(layer.alpha, Tensor) else (layer.alpha, None)
        return cast(Tensor, _CompiledLinearLoss.apply(*layer[:4], number, numbers, layer.tau))
    return cast(Tensor, _LinearLoss.apply(*layer))


_ARGUMENTS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, float alpha, Tensor? alphas, float? tau"


def _layer(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float,
    alphas: Tensor | None,
    tau: float | None,
) -> Layer:
    return _plain(Layer(hidden, weight, bias, target, alpha if alphas is None else alphas, tau))


@torch.library.custom_op("tsallis::linear_loss", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor")
def _linear_loss_op(*arguments: Any) -> Tensor:
    layer = _layer(*arguments)
    autograd.check_alpha(layer.alpha)
    return losses(layer, keep=False)[0]


@_linear_loss_op.register_fake
def _(hidden: Tensor, *_: Any) -> Tensor:
    return hidden.new_empty(hidden.shape[0], dtype=cpu.computed_in(hidden.dtype))


@torch.library.custom_op(
    "tsallis::linear_loss_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _linear_loss_backward_op(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layer = _layer(*arguments)
    _, alpha_grad, kept = losses(layer, keep=True)
    assert kept is not None
    dh, dw, db = gradients(layer, kept, grad, (True, True, True))
    assert dh is not None and dw is not None and db is not None
    da = grad.new_empty(0, 1) if alpha_grad is None else alpha_grad * grad.unsqueeze(-1)
    return dh, dw, db, da


@_linear_loss_backward_op.register_fake
def _(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Any, target: Any, alpha: Any, alphas: Tensor | None, _: Any
) -> Any:
    da = grad.new_empty(0, 1) if alphas is None else torch.empty_like(alphas)
    return torch.empty_like(hidden), torch.empty_like(weight), weight.new_empty(weight.shape[0]), da


class _CompiledLinearLoss(Function):
    """Two opaque operators: the compiler can't keep lists whose lengths the numbers decide, so they are made again."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        result: Tensor = _linear_loss_op(*arguments)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau = inputs
        ctx.biased, ctx.many = bias is not None, alphas is not None
        ctx.save_for_backward(hidden, weight, target, *(x for x in (bias, alphas) if x is not None))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, target, *rest = ctx.saved_tensors
        bias = rest[0] if ctx.biased else None
        alphas = rest[-1] if ctx.many else None
        dh, dw, db, da = _linear_loss_backward_op(grad, hidden, weight, bias, target, ctx.alpha, alphas, ctx.tau)
        return dh, dw, db if ctx.biased else None, None, None, da if ctx.many else None, None
