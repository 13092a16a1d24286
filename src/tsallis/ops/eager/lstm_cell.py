"""The cell of an LSTM: differentiable, and forward and backward in passes that write where the results are to stand."""

from __future__ import annotations

import torch
from torch import Tensor

_OPS = torch.ops.aten


def cell_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden state and cell [..., size] after a step, from gates [..., 4 * size] in PyTorch's order."""
    into, forget, candidate, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + into.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell


def cell_forward(gates: Tensor, cell: Tensor, new_cell: Tensor, tanh_cell: Tensor, hidden: Tensor) -> Tensor:
    """Apply a step's gates to a cell; return the hidden state.

    Args:
        gates: [..., 4 * size] before their functions, in PyTorch's order; after the call the values of these.
        cell: [..., size] before the step.
        new_cell: [..., size], written: the cell after it.
        tanh_cell: [..., size], written: its tanh.
        hidden: [..., size], written: the hidden state.
    """
    size = cell.shape[-1]
    gates[..., : 2 * size].sigmoid_()
    gates[..., 2 * size : 3 * size].tanh_()
    gates[..., 3 * size :].sigmoid_()
    into, forget, candidate, out = gates.chunk(4, -1)
    torch.mul(forget, cell, out=new_cell).addcmul_(into, candidate)
    return torch.mul(out, torch.tanh(new_cell, out=tanh_cell), out=hidden)


def cell_backward(
    gates: Tensor, cell: Tensor, tanh_cell: Tensor, of_hidden: Tensor, of_cell: Tensor, of_gates: Tensor
) -> Tensor:
    """Return the gradient [..., size] of the cell before a step.

    Args:
        gates: [..., 4 * size], the values of their functions.
        cell: [..., size] before the step.
        tanh_cell: [..., size] of the cell after it.
        of_hidden: [..., size], the gradient of the hidden state.
        of_cell: [..., size], that of the cell after the step, apart from what comes by the hidden state.
        of_gates: [..., 4 * size], written: that of the gates before their functions.
    """
    size = cell.shape[-1]
    into, forget, candidate, out = gates.chunk(4, -1)
    of_cell = _OPS.tanh_backward(of_hidden * out, tanh_cell).add_(of_cell)
    of_into, of_forget, of_candidate, of_out = of_gates.chunk(4, -1)
    torch.mul(of_cell, candidate, out=of_into)
    torch.mul(of_cell, cell, out=of_forget)
    torch.mul(of_cell, into, out=of_candidate)
    torch.mul(of_hidden, tanh_cell, out=of_out)
    both, own = of_gates[..., : 2 * size], gates[..., : 2 * size]
    _OPS.sigmoid_backward.grad_input(both, own, grad_input=both)
    _OPS.tanh_backward.grad_input(of_candidate, candidate, grad_input=of_candidate)
    _OPS.sigmoid_backward.grad_input(of_out, out, grad_input=of_out)
    return of_cell * forget
