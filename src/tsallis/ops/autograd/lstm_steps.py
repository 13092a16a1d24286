"""Compute all steps of an LSTM decoder with input feeding and attention as one operation.

With autograd, a step would need some forty operations, each with a node, gradient sums and casts. Here, a step consists
of its matrix products and a few in-place passes. The gradient of each weight, of the memory and of the keys is one
product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from tsallis.ops.autograd.maps import entmax
from tsallis.ops.autograd.recompute import recompute_saved_gradients
from tsallis.ops.choice import choose_direct
from tsallis.ops.dtypes import autocast_dtype, upcast, without_autocast
from tsallis.ops.eager.lstm_cell import cell_backward, cell_forward, cell_step
from tsallis.ops.transforms import differentiable

Gradients = tuple[Tensor | None, ...]


class LSTMLayer(NamedTuple):
    """Weights of an LSTM layer; gates are in PyTorch's order: input, forget, candidate, output."""

    weight: Tensor  # [4 * d_model, d_below]; the input is the attentional state or the layer below
    recurrent: Tensor  # [4 * d_model, d_model]
    bias: Tensor | None  # [4 * d_model]; None in the first layer, whose bias is in the token gates


class LSTMSteps(NamedTuple):
    r"""Inputs of the steps of a decoder.

    Let :math:`\tilde h_0` be `feed`. Step t computes

    .. math:: s_t = \mathrm{LSTM}([x_t; \tilde h_{t-1}]), \quad w_t = \mathrm{entmax}_\alpha(K s_t), \quad
              \tilde h_t = m_t \odot \tanh(C [M^\top w_t; s_t])
    """

    token_gates: Tensor  # [tgt, batch, 4 * d_model]: token part of the first layer's gates, with its bias
    memory: Tensor  # [batch, src, d_model]
    keys: Tensor  # [batch, src, d_model]
    mask: Tensor  # boolean [batch, src]; True: attend
    feed: Tensor  # [batch, d_model]
    combine: Tensor  # [d_model, 2 * d_model]
    between: Tensor | None  # [tgt, layers - 1, batch, d_model]: dropout mask between layers
    out: Tensor | None  # [tgt, batch, d_model]: dropout mask of attentional states
    layers: Sequence[LSTMLayer]
    hidden: Sequence[Tensor]  # [batch, d_model] per layer
    cell: Sequence[Tensor]  # [batch, d_model] per layer
    alpha: float  # alpha of the attention


def plain_steps(steps: LSTMSteps) -> tuple[Tensor, Tensor]:
    """Return attentional states [batch, tgt, d_model] and weights [batch, tgt, src], with PyTorch's operations."""
    hidden, cell, feed = list(steps.hidden), list(steps.cell), steps.feed
    states, weights = [], []
    for t, gates in enumerate(steps.token_gates.unbind(0)):
        layer_input = feed
        for i, layer in enumerate(steps.layers):
            if i and steps.between is not None:
                layer_input = layer_input * steps.between[t, i - 1]
            input_gates = linear(layer_input, layer.weight, layer.bias) + (0 if i else gates)
            hidden[i], cell[i] = cell_step(input_gates + linear(hidden[i], layer.recurrent), cell[i])
            layer_input = hidden[i]
        scores = (layer_input.unsqueeze(1) @ steps.keys.mT).squeeze(1).masked_fill(~steps.mask, -torch.inf)
        probs = entmax(scores, steps.alpha)
        context = (probs.unsqueeze(1) @ steps.memory).squeeze(1)
        feed = torch.tanh(linear(torch.cat([context, layer_input], -1), steps.combine))
        feed = feed if steps.out is None else feed * steps.out[t]
        states.append(feed)
        weights.append(probs)
    return torch.stack(states, 1), torch.stack(weights, 1)


def fused_steps(steps: LSTMSteps) -> tuple[Tensor, Tensor]:
    """Compute :func:`plain_steps` as one operation.

    Matrix products use the dtype of autocast or of the weights. Everything else is computed in float32 or float64.
    Under autocast, the results are also in float32 or float64.
    """
    states, weights = _Steps.apply(steps.alpha, len(steps.layers), *_tensors(steps))
    return states, weights


def _tensors(steps: LSTMSteps) -> list[Tensor | None]:
    """Return the inputs of the Function, in the order of :func:`_steps_of`."""
    return [*steps[:8], *(x for layer in steps.layers for x in layer), *steps.hidden, *steps.cell]


def _steps_of(alpha: float, count: int, tensors: Sequence[Any]) -> LSTMSteps:
    """Rebuild the steps from the values of :func:`_tensors`."""
    layers = [LSTMLayer(*tensors[8 + 3 * i : 11 + 3 * i]) for i in range(count)]
    token_gates, memory, keys, mask, feed, combine, between, out, *states = [*tensors[:8], *tensors[8 + 3 * count :]]
    cells = states[:count], states[count:]
    return LSTMSteps(token_gates, memory, keys, mask, feed, combine, between, out, layers, *cells, alpha)


class _SavedForBackward(NamedTuple):
    """Data of all steps that forward saves for backward."""

    inputs: list[Tensor]  # per layer: [tgt, batch, d_below + d_model], input and previous state
    gates: list[Tensor]  # per layer: [tgt, batch, 4 * d_model], after the activations
    cells: list[Tensor]  # per layer: [tgt + 1, batch, d_model]; the first is the initial cell
    tanh_cells: list[Tensor]  # per layer: [tgt, batch, d_model]
    probs: Tensor  # [tgt, batch, src]
    mixed: Tensor  # [tgt, batch, 2 * d_model]: context and state
    feeds: Tensor  # [tgt, batch, d_model], before dropout

    @classmethod
    def allocate(cls, steps: LSTMSteps, dtype: torch.dtype) -> _SavedForBackward:
        """Allocate the tensors; inputs of matrix products have the given dtype."""
        feed, src = upcast(steps.feed), steps.keys.shape[1]
        (tgt, batch), d_model = steps.token_gates.shape[:2], feed.shape[-1]
        empty = feed.new_empty
        return cls(
            [empty(tgt, batch, layer.weight.shape[1] + d_model, dtype=dtype) for layer in steps.layers],
            [empty(tgt, batch, 4 * d_model) for _ in steps.layers],
            [empty(tgt + 1, batch, d_model) for _ in steps.layers],
            [empty(tgt, batch, d_model) for _ in steps.layers],
            empty(tgt, batch, src),
            empty(tgt, batch, 2 * d_model),
            empty(tgt, batch, d_model),
        )


class _Steps(Function):
    @staticmethod
    def forward(ctx: Any, alpha: float, count: int, *tensors: Any) -> tuple[Tensor, Tensor]:
        steps = _steps_of(alpha, count, tensors)
        ctx.autocast = autocast_dtype(steps.memory.device)
        ctx.alpha, ctx.count = alpha, count
        ctx.save_for_backward(*tensors)
        with without_autocast(steps.memory.device.type):
            ctx.record, states = _forward(steps, ctx.autocast or steps.combine.dtype)
        ctx.set_materialize_grads(False)
        dtype = states.dtype if ctx.autocast is not None else steps.memory.dtype
        return _batch_first(states, dtype), _batch_first(ctx.record.probs, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        steps = _steps_of(ctx.alpha, ctx.count, ctx.saved_tensors)
        any_grad = next((grad for grad in grads if grad is not None), None)
        if any_grad is None:
            return (None,) * len(ctx.needs_input_grad)
        if differentiable(any_grad):

            def recompute(*tensors: Any) -> tuple[Tensor, Tensor]:
                return plain_steps(_steps_of(ctx.alpha, ctx.count, tensors))

            return None, None, *recompute_saved_gradients(recompute, ctx, grads)
        with without_autocast(any_grad.device.type):
            return None, None, *_backward(steps, ctx.record, ctx.autocast or steps.combine.dtype, *grads)


def _batch_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy [batch, tgt, ...] of a tensor [tgt, batch, ...]; backward reads the original."""
    return x.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)


def _weights(steps: LSTMSteps, dtype: torch.dtype) -> list[Tensor]:
    """Return the joined input and recurrent weights per layer [4 * d_model, d_below + d_model]."""
    return [torch.cat([layer.weight, layer.recurrent], 1).to(dtype) for layer in steps.layers]


def _forward(steps: LSTMSteps, dtype: torch.dtype) -> tuple[_SavedForBackward, Tensor]:
    """Return the data for backward and the attentional states [tgt, batch, d_model]; products use `dtype`."""
    record, weights, combine = _SavedForBackward.allocate(steps, dtype), _weights(steps, dtype), steps.combine.to(dtype)
    memory, keys, feed = upcast(steps.memory), upcast(steps.keys), upcast(steps.feed)
    d_model, top = feed.shape[-1], len(weights) - 1
    masked = (~steps.mask).unsqueeze(1)
    states = record.feeds if steps.out is None else torch.empty_like(record.feeds)
    hidden = list(steps.hidden)
    for i, cell in enumerate(steps.cell):
        record.cells[i][0] = cell
    for t, (token_gates, mixed) in enumerate(zip(steps.token_gates, record.mixed, strict=True)):
        layer_input = feed
        for i, (layer, weight) in enumerate(zip(steps.layers, weights, strict=True)):
            if i and steps.between is not None:
                layer_input = layer_input * steps.between[t, i - 1]
            inputs, gates = record.inputs[i][t], record.gates[i][t]
            inputs[:, :-d_model] = layer_input
            inputs[:, -d_model:] = hidden[i]
            torch.add(inputs @ weight.t(), token_gates if layer.bias is None else layer.bias, out=gates)
            cells = record.cells[i][t], record.cells[i][t + 1], record.tanh_cells[i][t]
            layer_input = hidden[i] = cell_forward(
                gates, *cells, mixed[:, d_model:] if i == top else torch.empty_like(feed)
            )
        scores = torch.bmm(layer_input.unsqueeze(1), keys.mT).masked_fill_(masked, -torch.inf)
        probs = record.probs[t].copy_(entmax(scores.squeeze(1), steps.alpha))
        mixed[:, :d_model] = torch.bmm(probs.unsqueeze(1), memory).squeeze(1)
        feed = record.feeds[t].copy_(mixed.to(dtype) @ combine.t()).tanh_()
        if steps.out is not None:
            feed = torch.mul(feed, steps.out[t], out=states[t])
    return record, states


def _backward(
    steps: LSTMSteps, record: _SavedForBackward, dtype: torch.dtype, grad: Tensor | None, grad_weights: Tensor | None
) -> Gradients:
    """Return gradients in the order of :func:`_tensors`; products use `dtype`."""
    exact, zeros = record.feeds.dtype, torch.zeros_like(record.feeds[0])
    tgt, _, d_model = record.feeds.shape
    memory, keys = upcast(steps.memory), upcast(steps.keys)
    weights, combine = _weights(steps, dtype), steps.combine.to(dtype)
    backend = choose_direct("maps", steps.alpha, record.probs)
    assert backend is not None  # no tracer is active
    # Collect the gradients of all steps first: gradients of weights, memory and keys are products over all steps.
    gates_grad = [torch.empty_like(x) for x in record.gates]
    pre_tanh_grad = torch.empty_like(record.feeds, dtype=dtype)  # gradients before tanh
    context_grad, scores_grad = torch.empty_like(record.feeds), torch.empty_like(record.probs)
    hidden_grad, cell_grad, feed_grad = [zeros] * len(weights), [zeros] * len(weights), zeros
    for t in reversed(range(tgt)):
        feed_grad = feed_grad if grad is None else feed_grad + grad[:, t]
        feed_grad = feed_grad if steps.out is None else feed_grad * steps.out[t]
        pre_tanh_grad[t] = torch.ops.aten.tanh_backward(feed_grad, record.feeds[t])
        combine_grad = (pre_tanh_grad[t] @ combine).to(exact)  # [batch, 2 * d_model]
        context_grad[t] = combine_grad[:, :d_model]
        probs_grad = torch.bmm(context_grad[t].unsqueeze(1), memory.mT).squeeze(1)
        probs_grad = probs_grad if grad_weights is None else probs_grad + grad_weights[:, t]
        scores_grad[t] = backend.entmax_gradient(record.probs[t], probs_grad, steps.alpha, False)[0]
        output_grad = combine_grad[:, d_model:] + torch.bmm(scores_grad[t].unsqueeze(1), keys).squeeze(1)
        for i in reversed(range(len(weights))):
            saved = record.gates[i][t], record.cells[i][t], record.tanh_cells[i][t]
            cell_grad[i] = cell_backward(*saved, hidden_grad[i] + output_grad, cell_grad[i], gates_grad[i][t])
            inputs_grad = (gates_grad[i][t].to(dtype) @ weights[i]).to(exact)  # [batch, d_below + d_model]
            output_grad, hidden_grad[i] = inputs_grad[:, :-d_model], inputs_grad[:, -d_model:]
            if i and steps.between is not None:
                output_grad = output_grad * steps.between[t, i - 1]
        feed_grad = output_grad
    states, mixed = record.mixed[:, :, d_model:], record.mixed.flatten(0, 1).to(dtype)
    gradients = (
        gates_grad[0],
        torch.bmm(record.probs.permute(1, 2, 0), context_grad.transpose(0, 1)),  # gradient of the memory
        torch.bmm(scores_grad.permute(1, 2, 0), states.transpose(0, 1)),  # gradient of the keys
        None,
        feed_grad,
        pre_tanh_grad.flatten(0, 1).t() @ mixed,  # gradient of `combine`
        None,
        None,
        *_layer_gradients(steps, record, gates_grad),
        *hidden_grad,
        *cell_grad,
    )
    return tuple(
        x if x is None or tensor is None else x.to(tensor.dtype)
        for x, tensor in zip(gradients, _tensors(steps), strict=True)
    )


def _layer_gradients(steps: LSTMSteps, record: _SavedForBackward, gates_grad: list[Tensor]) -> list[Tensor | None]:
    """Return the gradients of each layer's weights and bias."""
    gradients: list[Tensor | None] = []
    for layer, inputs, layer_gates_grad in zip(steps.layers, record.inputs, gates_grad, strict=True):
        flat = layer_gates_grad.flatten(0, 1)  # [tgt * batch, 4 * d_model]
        weight_grad = flat.to(inputs.dtype).t() @ inputs.flatten(0, 1)
        d_below = layer.weight.shape[1]
        gradients += [weight_grad[:, :d_below], weight_grad[:, d_below:], None if layer.bias is None else flat.sum(0)]
    return gradients
