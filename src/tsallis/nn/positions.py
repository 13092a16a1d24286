"""Position encodings of a Transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tsallis.ops.transforms import traced


class SinusoidalPositions(nn.Module):
    r"""Sinusoidal position encodings of any length: computed when they are first needed, then cached.

    .. math:: \mathrm{PE}(t, 2i) = \sin(t / 10000^{2i/d}), \qquad \mathrm{PE}(t, 2i+1) = \cos(t / 10000^{2i/d})

    (Vaswani et al. 2017, sec. 3.5.)

    Args:
        d_model: size; even.

    Example:
        >>> SinusoidalPositions(4)(torch.zeros(1), 0, 2)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self._table: Tensor | None = None

    def forward(self, like: Tensor, first: int | Tensor, count: int) -> Tensor:
        """Return the encodings [count, d_model] from `first` on, or [batch, 1, d_model] of a `first` [batch]."""
        if isinstance(first, Tensor):
            last = int(first.max()) + 1 if len(first) else 1
            return self._table_for(last, like)[first].unsqueeze(1)
        if traced():
            return self._computed(first, count, like)
        return self._table_for(first + count, like)[first : first + count]

    def _table_for(self, count: int, like: Tensor) -> Tensor:
        table = self._table
        if table is None or len(table) < count or table.dtype != like.dtype or table.device != like.device:
            with torch.inference_mode(False):  # serves any mode afterwards
                self._table = table = self._computed(0, max(64, 2 * count), like)
        return table

    def _computed(self, first: int, count: int, like: Tensor) -> Tensor:
        steps = torch.arange(first, first + count, dtype=torch.float64, device=like.device)
        power = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=like.device) / self.d_model
        angles = steps.unsqueeze(1) * torch.exp(-math.log(10000) * power)  # [count, d_model / 2]
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)
