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
    gates: Tensor, cell: Tensor, tanh_cell: Tensor, hidden_grad: Tensor, cell_grad: Tensor, gates_grad: Tensor
) -> Tensor:
    """Return the gradient [..., size] of the cell before a step.

    Args:
        gates: [..., 4 * size], the values of their functions.
        cell: [..., size] before the step.
        tanh_cell: [..., size] of the cell after it.
        hidden_grad: [..., size], the gradient of the hidden state.
        cell_grad: [..., size], that of the cell after the step, apart from what comes by the hidden state.
        gates_grad: [..., 4 * size], written: that of the gates before their functions.
    """
    size = cell.shape[-1]
    into, forget, candidate, out = gates.chunk(4, -1)
    cell_grad = _OPS.tanh_backward(hidden_grad * out, tanh_cell).add_(cell_grad)
    into_grad, forget_grad, candidate_grad, out_grad = gates_grad.chunk(4, -1)
    torch.mul(cell_grad, candidate, out=into_grad)
    torch.mul(cell_grad, cell, out=forget_grad)
    torch.mul(cell_grad, into, out=candidate_grad)
    torch.mul(hidden_grad, tanh_cell, out=out_grad)
    both, own = gates_grad[..., : 2 * size], gates[..., : 2 * size]
    _OPS.sigmoid_backward.grad_input(both, own, grad_input=both)
    _OPS.tanh_backward.grad_input(candidate_grad, candidate, grad_input=candidate_grad)
    _OPS.sigmoid_backward.grad_input(out_grad, out, grad_input=out_grad)
    return cell_grad * forget
