"""Run steps and layers of LSTMs and GRUs with the parameters of PyTorch's modules."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsallis.errors import check_one_of
from tsallis.nn.dropout import dropout_mask
from tsallis.ops.autograd.lstm_layer import fused_layer
from tsallis.ops.dtypes import autocast_dtype, without_autocast
from tsallis.ops.eager.lstm_cell import cell_step

CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # names of a layer's parameters, without suffix


def check_cell(cell: str) -> None:
    """Raise if the name of a cell is unknown."""
    check_one_of("cell", cell, CELLS)


class CellWeights(NamedTuple):
    """Parameters of a layer, prepared once for all steps; an LSTM has four gates, a GRU three."""

    weight: Tensor | None  # [d_below, gates * d_model]; None if the inputs are already gates
    recurrent: Tensor  # [d_model, gates * d_model]
    bias: Tensor  # [gates * d_model]
    recurrent_bias: Tensor | None = None  # [3 * d_model] for a GRU, whose reset gate multiplies only the state's part

    def step(self, gates: Tensor | None, below: Tensor | None, hidden: Tensor, cell: Tensor | None) -> CellState:
        """Run a step from precomputed gates [batch, gates * d_model], from the layer `below`, or from both."""
        if self.weight is not None and below is not None:
            gates = torch.addmm(self.bias if gates is None else gates, below, self.weight)
        assert gates is not None
        if self.recurrent_bias is None:
            assert cell is not None
            return cell_step(torch.addmm(gates, hidden, self.recurrent), cell)
        return _gru(gates, torch.addmm(self.recurrent_bias, hidden, self.recurrent), hidden)


CellState = tuple[Tensor, Tensor | None]  # hidden state and cell [batch, d_model]; a GRU has no cell


def read_layers(module: nn.LSTM | nn.GRU, d_first: int) -> tuple[Tensor, list[CellWeights]]:
    """Return the first layer's weight for the first `d_first` inputs, and the layers without this weight.

    This weight is separate because it can be applied to all steps at once.
    """
    layers = []
    first = None
    for i in range(module.num_layers):
        weight, recurrent, bias, recurrent_bias = (getattr(module, f"{name}_l{i}") for name in PARAMETERS)
        below = weight
        if i == 0:
            first, remaining_weight = weight.split([d_first, weight.shape[1] - d_first], 1)
            below = remaining_weight if remaining_weight.shape[1] else None
        by_input = None if below is None else below.t()
        if isinstance(module, nn.LSTM):
            layers.append(CellWeights(by_input, recurrent.t(), bias + recurrent_bias))
        else:
            layers.append(CellWeights(by_input, recurrent.t(), bias, recurrent_bias))
    assert first is not None
    return first, layers


def run_layers(module: nn.LSTM | nn.GRU, x: Tensor, state: Any = None) -> Any:
    """Run PyTorch's layers; turn autocast off if the processor does not support an LSTM in autocast's dtype.

    On a CPU, PyTorch passes an LSTM to oneDNN in autocast's dtype without checking whether the processor supports this
    dtype. Unsupported dtypes fail: bfloat16 needs AVX-512, and float16 has no backward pass on any processor.
    """
    dtype = autocast_dtype(x.device)
    if x.device.type != "cpu" or dtype is None or _has_dtype(dtype):
        return module(x, state)
    with without_autocast("cpu"):
        module_dtype: torch.dtype = module.all_weights[0][0].dtype
        if state is not None:
            state = (
                tuple(part.to(module_dtype) for part in state) if isinstance(state, tuple) else state.to(module_dtype)
            )
        return module(x.to(module_dtype), state)


def _has_dtype(dtype: torch.dtype) -> bool:
    """Return whether oneDNN supports a half-precision dtype on this processor, with gradients if these are enabled."""
    if dtype == torch.float16 and torch.is_grad_enabled():
        return False
    query_name = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    return bool(getattr(torch.ops.mkldnn, query_name)())


def read_rows(module: nn.LSTM, x: Tensor, lengths: Tensor, dropout: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run a bidirectional LSTM on rows [batch, src, size] of given lengths, in fewer operations than PyTorch.

    Returns:
        States [batch, src, 2 * size], which are undefined after the end of a row, and the last hidden states and cells
        [layers * 2, batch, size].
    """
    last = lengths - 1
    position = torch.arange(x.shape[1], device=last.device).unsqueeze(1)  # [src, 1]
    row = torch.arange(len(last), device=last.device)
    # Reverse the valid positions of each row for the backward direction; reversing twice is the identity.
    reverse = torch.where(position <= last, last - position, position) * len(last) + row  # [src, batch]
    steps = x.transpose(0, 1)  # [src, batch, size]
    hidden, cells = [], []
    for i in range(module.num_layers):
        if i and dropout:
            steps = steps * dropout_mask(steps.shape, dropout, steps)
        directions = [[getattr(module, f"{name}_l{i}{suffix}") for name in PARAMETERS] for suffix in ("", "_reverse")]
        # Add the biases before stacking: adding two stacks would give both biases one gradient in the same memory.
        parts = [(weight, recurrent, bias + recurrent_bias) for weight, recurrent, bias, recurrent_bias in directions]
        weight, recurrent, bias = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
        inputs = torch.stack([steps, _permute(steps, reverse)]).flatten(1, 2)  # [2, src * batch, size]
        gates = torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)
        states, last_cells = fused_layer(gates.unflatten(1, (len(position), -1)), recurrent, last)
        hidden.append(states[:, last, row])
        cells.append(last_cells)
        steps = torch.cat([states[0], _permute(states[1], reverse)], -1)
    return steps.transpose(0, 1), (torch.cat(hidden), torch.cat(cells))


def _permute(steps: Tensor, order: Tensor) -> Tensor:
    """Permute the rows of steps [src, batch, size]."""
    return steps.flatten(0, 1)[order]


def open_forget_gates(module: nn.LSTM | nn.GRU) -> None:
    """Add 1 to the biases of an LSTM's forget gates: cells learn faster if they remember at first."""
    if isinstance(module, nn.LSTM):
        for name, parameter in module.named_parameters():
            if name.startswith("bias_ih"):
                parameter.chunk(4)[1].add_(1)


def _gru(by_input: Tensor, by_state: Tensor, hidden: Tensor) -> CellState:
    d_model = hidden.shape[-1]
    reset, update = (by_input[:, : 2 * d_model] + by_state[:, : 2 * d_model]).sigmoid().chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(by_input[:, 2 * d_model :], reset, by_state[:, 2 * d_model :]))
    # Under autocast, gates are bfloat16 and the state is float32, but lerp requires the same dtype.
    return torch.lerp(candidate.to(hidden.dtype), hidden, update.to(hidden.dtype)), None
