"""Compute an LSTM layer in one or two directions as one operation with its own backward pass.

The operation returns the cell at the end of each row, without packing rows. For packed rows, PyTorch needs some twenty
operations per step and direction, and PyTorch's fast layers return only the cell of the last step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.autograd.recompute import recompute_saved_gradients
from tsallis.ops.dtypes import autocast_dtype, compute_dtype, without_autocast
from tsallis.ops.eager.lstm_cell import cell_backward, cell_forward, cell_step
from tsallis.ops.transforms import differentiable

Gradients = tuple[Tensor | None, ...]


def plain_layer(gates: Tensor, recurrent: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Compute :func:`fused_layer` with PyTorch's operations."""
    hidden = cell = gates.new_zeros(gates.shape[0], gates.shape[2], recurrent.shape[-1])
    states, cells = [], []
    for input_gates in gates.unbind(1):
        hidden, cell = cell_step(input_gates + hidden @ recurrent.mT, cell)
        states.append(hidden)
        cells.append(cell)
    return torch.stack(states, 1), torch.stack(cells, 1)[:, last, torch.arange(len(last), device=last.device)]


def fused_layer(gates: Tensor, recurrent: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Run an LSTM layer over rows, starting from zero states.

    Matrix products use the dtype of autocast or of the weight. Everything else is computed in float32 or float64. Under
    autocast, the results are also in float32 or float64.

    Args:
        gates: Input part of the gates with the bias, in PyTorch's order [directions, src, batch, 4 * size].
        recurrent: Recurrent weights [directions, 4 * size, size].
        last: Index of each row's last symbol [batch]. Later states are undefined.

    Returns:
        States [directions, src, batch, size], and the cells at the end of each row [directions, batch, size].
    """
    states, cells = _Layer.apply(gates, recurrent, last)
    return states, cells


class _SavedForBackward(NamedTuple):
    """Data of all steps that forward saves for backward."""

    gates: Tensor  # [directions, src, batch, 4 * size], after the activations
    hidden: Tensor  # [directions, src + 1, batch, size] in the dtype of products; the first is the initial state
    cells: Tensor  # [directions, src + 1, batch, size]; the first is the initial state
    tanh_cells: Tensor  # [directions, src, batch, size]


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, recurrent: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        ctx.autocast = autocast_dtype(gates.device)
        ctx.save_for_backward(gates, recurrent, last)
        ctx.set_materialize_grads(False)
        exact, products = compute_dtype(gates.dtype), ctx.autocast or recurrent.dtype
        directions, src, batch, d_gates = gates.shape
        shape = directions, src, batch, d_gates // 4
        states = gates.new_empty(shape, dtype=exact)
        ctx.record = record = _SavedForBackward(
            gates.new_empty(gates.shape, dtype=exact),
            gates.new_zeros(directions, src + 1, *shape[2:], dtype=products),
            gates.new_zeros(directions, src + 1, *shape[2:], dtype=exact),
            torch.empty_like(states),
        )
        with without_autocast(gates.device.type):
            weight = recurrent.to(products).mT
            for t in range(src):
                step_gates = torch.add(record.hidden[:, t] @ weight, gates[:, t], out=record.gates[:, t])
                cells = record.cells[:, t], record.cells[:, t + 1]
                record.hidden[:, t + 1] = cell_forward(step_gates, *cells, record.tanh_cells[:, t], states[:, t])
        ends = record.cells[:, 1:][:, last, torch.arange(batch, device=last.device)]
        return (states, ends) if ctx.autocast is not None else (states.to(gates.dtype), ends.to(gates.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_ends: Tensor | None) -> Gradients:
        gates, recurrent, last = ctx.saved_tensors
        any_grad = grad if grad is not None else grad_ends
        if any_grad is None:
            return None, None, None
        if differentiable(any_grad):
            return recompute_saved_gradients(plain_layer, ctx, (grad, grad_ends))
        record: _SavedForBackward = ctx.record
        directions, src, batch, size = record.tanh_cells.shape
        gates_grad = torch.empty_like(record.gates)
        cells_grad = None
        if grad_ends is not None:
            cells_grad = torch.zeros_like(record.tanh_cells)
            cells_grad[:, last, torch.arange(batch, device=last.device)] = grad_ends.to(cells_grad.dtype)
        with without_autocast(any_grad.device.type):
            weight = recurrent.to(record.hidden.dtype)
            state_grad = cell_grad = torch.zeros_like(record.tanh_cells[:, 0])
            for t in reversed(range(src)):
                state_grad = state_grad if grad is None else state_grad + grad[:, t]
                cell_grad = cell_grad if cells_grad is None else cell_grad + cells_grad[:, t]
                saved_step = record.gates[:, t], record.cells[:, t], record.tanh_cells[:, t]
                cell_grad = cell_backward(*saved_step, state_grad, cell_grad, gates_grad[:, t])
                state_grad = (gates_grad[:, t].to(weight.dtype) @ weight).to(cell_grad.dtype) if t else state_grad
            flat = gates_grad.flatten(1, 2).to(weight.dtype)  # [directions, src * batch, 4 * size]
            weight_grad = flat.mT @ record.hidden[:, :-1].reshape(directions, src * batch, size)
        return gates_grad.to(gates.dtype), weight_grad.to(recurrent.dtype), None
