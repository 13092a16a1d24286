"""Compute LSTM cells, with autograd or with in-place forward and backward functions."""

from __future__ import annotations

import torch
from torch import Tensor

_OPS = torch.ops.aten


def cell_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden state and cell [..., size] after a step, from gates [..., 4 * size] in PyTorch's order."""
    input_gate, forget, candidate, out = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell


def cell_forward(gates: Tensor, cell: Tensor, new_cell: Tensor, tanh_cell: Tensor, hidden: Tensor) -> Tensor:
    """Apply a step's gates to a cell; return the hidden state.

    Args:
        gates: Gates before the activations [..., 4 * size], in PyTorch's order; overwritten by their activations.
        cell: Cell before the step [..., size].
        new_cell: Buffer for the cell after the step [..., size].
        tanh_cell: Buffer for the tanh of the new cell [..., size].
        hidden: Buffer for the hidden state [..., size].
    """
    size = cell.shape[-1]
    gates[..., : 2 * size].sigmoid_()
    gates[..., 2 * size : 3 * size].tanh_()
    gates[..., 3 * size :].sigmoid_()
    input_gate, forget, candidate, out = gates.chunk(4, -1)
    torch.mul(forget, cell, out=new_cell).addcmul_(input_gate, candidate)
    return torch.mul(out, torch.tanh(new_cell, out=tanh_cell), out=hidden)


def cell_backward(
    gates: Tensor, cell: Tensor, tanh_cell: Tensor, hidden_grad: Tensor, cell_grad: Tensor, gates_grad: Tensor
) -> Tensor:
    """Return the gradient of the cell before a step [..., size].

    Args:
        gates: Gates after the activations [..., 4 * size].
        cell: Cell before the step [..., size].
        tanh_cell: Tanh of the cell after the step [..., size].
        hidden_grad: Gradient of the hidden state [..., size].
        cell_grad: Gradient of the cell after the step [..., size], without the part that comes from `hidden_grad`.
        gates_grad: Buffer for the gradient of the gates before the activations [..., 4 * size].
    """
    size = cell.shape[-1]
    input_gate, forget, candidate, out = gates.chunk(4, -1)
    cell_grad = _OPS.tanh_backward(hidden_grad * out, tanh_cell).add_(cell_grad)
    input_gate_grad, forget_grad, candidate_grad, out_grad = gates_grad.chunk(4, -1)
    torch.mul(cell_grad, candidate, out=input_gate_grad)
    torch.mul(cell_grad, cell, out=forget_grad)
    torch.mul(cell_grad, input_gate, out=candidate_grad)
    torch.mul(hidden_grad, tanh_cell, out=out_grad)
    input_forget_grad, input_forget = gates_grad[..., : 2 * size], gates[..., : 2 * size]
    _OPS.sigmoid_backward.grad_input(input_forget_grad, input_forget, grad_input=input_forget_grad)
    _OPS.tanh_backward.grad_input(candidate_grad, candidate, grad_input=candidate_grad)
    _OPS.sigmoid_backward.grad_input(out_grad, out, grad_input=out_grad)
    return cell_grad * forget
