"""All steps of an LSTM decoder with input feeding and attention as one operation, with a backward pass of its own.

Left to autograd a step is some forty operations, each with a node, gradients that are added to those of other steps,
and under autocast casts. Here a step is its matrix products and a few passes in place; the gradients of weights, memory
and keys are one product of all steps each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from tsallis.ops.autograd.followed import autocast_dtype, gradients_of
from tsallis.ops.autograd.maps import entmax
from tsallis.ops.backend import choose_direct
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.lstm_cell import cell_backward, cell_forward, cell_step
from tsallis.ops.transforms import differentiable

Gradients = tuple[Tensor | None, ...]


class LSTMLayer(NamedTuple):
    """The weights of a layer, with gates in PyTorch's order: input, forget, candidate, output."""

    weight: Tensor  # [4 * d_model, d_below], of what is below: the attentional state, or the layer
    recurrent: Tensor  # [4 * d_model, d_model]
    bias: Tensor | None  # [4 * d_model]; None of the first, whose bias is in the token's gates


class LSTMSteps(NamedTuple):
    r"""What the steps of a decoder start from.

    With :math:`\tilde h_0` the `feed`, step t is

    .. math:: s_t = \mathrm{LSTM}([x_t; \tilde h_{t-1}]), \quad w_t = \mathrm{entmax}_\alpha(K s_t), \quad
              \tilde h_t = m_t \odot \tanh(C [M^\top w_t; s_t])
    """

    token_gates: Tensor  # [tgt, batch, 4 * d_model]: the tokens' part of the first layer's gates, with its bias
    memory: Tensor  # [batch, src, d_model]
    keys: Tensor  # [batch, src, d_model]
    mask: Tensor  # boolean [batch, src]; True takes part
    feed: Tensor  # [batch, d_model]
    combine: Tensor  # [d_model, 2 * d_model]
    between: Tensor | None  # [tgt, layers - 1, batch, d_model], dropout's mask of what is between layers
    out: Tensor | None  # [tgt, batch, d_model], and of attentional states
    layers: Sequence[LSTMLayer]
    hidden: Sequence[Tensor]  # [batch, d_model] a layer
    cell: Sequence[Tensor]  # [batch, d_model] a layer
    alpha: float  # of the attention's map


def plain_steps(steps: LSTMSteps) -> tuple[Tensor, Tensor]:
    """Return attentional states [batch, tgt, d_model] and weights [batch, tgt, src], by PyTorch's own operations."""
    hidden, cell, feed = list(steps.hidden), list(steps.cell), steps.feed
    states, weights = [], []
    for t, gates in enumerate(steps.token_gates.unbind(0)):
        below = feed
        for i, layer in enumerate(steps.layers):
            if i and steps.between is not None:
                below = below * steps.between[t, i - 1]
            by_below = linear(below, layer.weight, layer.bias) + (0 if i else gates)
            hidden[i], cell[i] = cell_step(by_below + linear(hidden[i], layer.recurrent), cell[i])
            below = hidden[i]
        scores = (below.unsqueeze(1) @ steps.keys.mT).squeeze(1).masked_fill(~steps.mask, -torch.inf)
        probs = entmax(scores, steps.alpha)
        context = (probs.unsqueeze(1) @ steps.memory).squeeze(1)
        feed = torch.tanh(linear(torch.cat([context, below], -1), steps.combine))
        feed = feed if steps.out is None else feed * steps.out[t]
        states.append(feed)
        weights.append(probs)
    return torch.stack(states, 1), torch.stack(weights, 1)


def fused_steps(steps: LSTMSteps) -> tuple[Tensor, Tensor]:
    """Return what :func:`plain_steps` returns.

    Products with weights have the dtype of autocast, or else of the weights; all else is computed in float32 or
    float64, and under autocast the results are, too.
    """
    tensors = [*steps[:8], *(x for layer in steps.layers for x in layer), *steps.hidden, *steps.cell]
    states, weights = _Steps.apply(steps.alpha, len(steps.layers), *tensors)
    return states, weights


def _steps_of(alpha: float, count: int, tensors: Sequence[Any]) -> LSTMSteps:
    """Return steps from the order of tensors in :func:`fused_steps`."""
    layers = [LSTMLayer(*tensors[8 + 3 * i : 11 + 3 * i]) for i in range(count)]
    token_gates, memory, keys, mask, feed, combine, between, out, *rest = [*tensors[:8], *tensors[8 + 3 * count :]]
    cells = rest[:count], rest[count:]
    return LSTMSteps(token_gates, memory, keys, mask, feed, combine, between, out, layers, *cells, alpha)


class _Saved(NamedTuple):
    """What forward leaves to backward, of all steps."""

    inputs: list[Tensor]  # a layer: [tgt, batch, d_below + d_model], what is below beside the state before
    gates: list[Tensor]  # a layer: [tgt, batch, 4 * d_model], after their functions
    cells: list[Tensor]  # a layer: [tgt + 1, batch, d_model], the first of before
    tanh_cells: list[Tensor]  # a layer: [tgt, batch, d_model]
    probs: Tensor  # [tgt, batch, src]
    mixed: Tensor  # [tgt, batch, 2 * d_model]: context and state
    feeds: Tensor  # [tgt, batch, d_model], before dropout


class _Steps(Function):
    @staticmethod
    def forward(ctx: Any, alpha: float, count: int, *tensors: Any) -> tuple[Tensor, Tensor]:
        steps = _steps_of(alpha, count, tensors)
        ctx.autocast = autocast_dtype(steps.memory.device)
        ctx.alpha, ctx.count = alpha, count
        ctx.save_for_backward(*tensors)
        with torch.autocast(steps.memory.device.type, enabled=False):
            ctx.record, states = _forward(steps, ctx.autocast or steps.combine.dtype)
        ctx.set_materialize_grads(False)
        dtype = states.dtype if ctx.autocast is not None else steps.memory.dtype
        return _batch_first(states, dtype), _batch_first(ctx.record.probs, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        steps = _steps_of(ctx.alpha, ctx.count, ctx.saved_tensors)
        some = next((grad for grad in grads if grad is not None), None)
        if some is None:
            return (None,) * len(ctx.needs_input_grad)
        if differentiable(some):
            return None, None, *gradients_of(lambda *x: plain_steps(_steps_of(ctx.alpha, ctx.count, x)), ctx, grads)
        with torch.autocast(some.device.type, enabled=False):
            return None, None, *_backward(steps, ctx.record, ctx.autocast or steps.combine.dtype, *grads)


def _batch_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy [batch, tgt, ...] of what has steps first: backward reads the original."""
    return x.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)


def _forward(steps: LSTMSteps, dtype: torch.dtype) -> tuple[_Saved, Tensor]:
    """Return what backward needs, and attentional states [tgt, batch, d_model]; products with weights in `dtype`."""
    memory, keys, feed = upcast(steps.memory), upcast(steps.keys), upcast(steps.feed)
    tgt, batch = steps.token_gates.shape[:2]
    exact, d_model, src, count = feed.dtype, feed.shape[-1], keys.shape[1], len(steps.layers)
    empty = feed.new_empty
    record = _Saved(
        [empty(tgt, batch, w.weight.shape[1] + d_model, dtype=dtype) for w in steps.layers],
        [empty(tgt, batch, 4 * d_model) for _ in steps.layers],
        [empty(tgt + 1, batch, d_model) for _ in steps.layers],
        [empty(tgt, batch, d_model) for _ in steps.layers],
        empty(tgt, batch, src),
        empty(tgt, batch, 2 * d_model),
        empty(tgt, batch, d_model),
    )
    states = record.feeds if steps.out is None else torch.empty_like(record.feeds)
    weights = [torch.cat([layer.weight, layer.recurrent], 1).to(dtype).t() for layer in steps.layers]
    biases = [None if layer.bias is None else layer.bias.to(exact) for layer in steps.layers]
    combine = steps.combine.to(dtype).t()
    blocked = (~steps.mask).unsqueeze(1)
    hidden = list(steps.hidden)
    for i, cell in enumerate(steps.cell):
        record.cells[i][0] = cell
    for t in range(tgt):
        below = feed
        for i, weight in enumerate(weights):
            if i and steps.between is not None:
                below = below * steps.between[t, i - 1]
            inputs, gates = record.inputs[i][t], record.gates[i][t]
            inputs[:, : below.shape[1]] = below
            inputs[:, below.shape[1] :] = hidden[i]
            add = steps.token_gates[t] if i == 0 else biases[i]
            assert add is not None
            torch.add(inputs @ weight, add, out=gates)
            cells = record.cells[i][t], record.cells[i][t + 1]
            own = record.mixed[t][:, d_model:] if i == count - 1 else torch.empty_like(feed)
            below = hidden[i] = cell_forward(gates, *cells, record.tanh_cells[i][t], own)
        scores = torch.bmm(below.unsqueeze(1), keys.mT).masked_fill_(blocked, -torch.inf)
        probs = entmax(scores.squeeze(1), steps.alpha)
        record.probs[t] = probs
        mixed = record.mixed[t]
        mixed[:, :d_model] = torch.bmm(probs.unsqueeze(1), memory).squeeze(1)
        feed = torch.tanh(mixed.to(dtype) @ combine, out=None if dtype != exact else record.feeds[t])
        if dtype != exact:
            record.feeds[t] = feed
            feed = record.feeds[t]
        if steps.out is not None:
            feed = torch.mul(feed, steps.out[t], out=states[t])
    return record, states


def _backward(
    steps: LSTMSteps, record: _Saved, dtype: torch.dtype, grad: Tensor | None, grad_weights: Tensor | None
) -> Gradients:
    """Return gradients in the order of tensors in :func:`fused_steps`; products with weights in `dtype`."""
    exact, count = record.feeds.dtype, len(steps.layers)
    tgt, batch, d_model = record.feeds.shape
    memory, keys = upcast(steps.memory), upcast(steps.keys)
    weights = [torch.cat([layer.weight, layer.recurrent], 1).to(dtype) for layer in steps.layers]
    combine = steps.combine.to(dtype)
    backend = choose_direct(steps.alpha, record.probs)
    assert backend is not None  # no one follows the operations
    # The gradients of all steps, of which those of weights, memory and keys are products.
    of_gates = [torch.empty_like(x) for x in record.gates]
    of_mixed = record.feeds.new_empty(tgt, batch, d_model, dtype=dtype)  # before tanh
    of_context = torch.empty_like(record.feeds)
    of_scores = torch.empty_like(record.probs)
    of_hidden = [torch.zeros_like(record.feeds[0]) for _ in range(count)]
    of_cell = [torch.zeros_like(record.feeds[0]) for _ in range(count)]
    of_feed = torch.zeros_like(record.feeds[0])
    for t in reversed(range(tgt)):
        if grad is not None:
            of_feed = of_feed + grad[:, t]
        if steps.out is not None:
            of_feed = of_feed * steps.out[t]
        of_mixed[t] = torch.ops.aten.tanh_backward(of_feed, record.feeds[t])
        both = (of_mixed[t] @ combine).to(exact)  # [batch, 2 * d_model]
        context = of_context[t].copy_(both[:, :d_model]).unsqueeze(1)
        of_probs = torch.bmm(context, memory.mT).squeeze(1)
        if grad_weights is not None:
            of_probs += grad_weights[:, t]
        scores = backend.entmax_gradient(record.probs[t], of_probs, steps.alpha, False)[0]
        of_scores[t] = scores
        above = both[:, d_model:] + torch.bmm(scores.unsqueeze(1), keys).squeeze(1)
        for i in reversed(range(count)):
            of_state = of_hidden[i].add_(above)
            own = record.gates[i][t], record.cells[i][t], record.tanh_cells[i][t]
            of_cell[i] = cell_backward(*own, of_state, of_cell[i], of_gates[i][t])
            below = (of_gates[i][t].to(dtype) @ weights[i]).to(exact)  # [batch, d_below + d_model]
            above, of_hidden[i] = below[:, :-d_model], below[:, -d_model:]
            if i and steps.between is not None:
                above = above * steps.between[t, i - 1]
        of_feed = above
    flat_gates = [x.flatten(0, 1) for x in of_gates]
    of_layers: list[Tensor | None] = []
    for i, layer in enumerate(steps.layers):
        of_weight = (flat_gates[i].to(dtype).t() @ record.inputs[i].flatten(0, 1)).to(layer.weight.dtype)
        of_bias = None if layer.bias is None else flat_gates[i].sum(0).to(layer.bias.dtype)
        of_layers += [of_weight[:, :-d_model], of_weight[:, -d_model:], of_bias]
    mixed = record.mixed.flatten(0, 1).to(dtype)
    states = record.mixed[:, :, d_model:]
    return (
        of_gates[0].to(steps.token_gates.dtype),
        torch.bmm(record.probs.permute(1, 2, 0), of_context.transpose(0, 1)).to(steps.memory.dtype),
        torch.bmm(of_scores.permute(1, 2, 0), states.transpose(0, 1)).to(steps.keys.dtype),
        None,
        of_feed.to(steps.feed.dtype),
        (of_mixed.flatten(0, 1).t() @ mixed).to(steps.combine.dtype),
        None,
        None,
        *of_layers,
        *(x.to(own.dtype) for x, own in zip(of_hidden, steps.hidden, strict=True)),
        *(x.to(own.dtype) for x, own in zip(of_cell, steps.cell, strict=True)),
    )
