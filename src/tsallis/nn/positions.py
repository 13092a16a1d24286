"""Define position encodings of Transformers."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tsallis.errors import check_integer, check_one_of
from tsallis.ops.transforms import traced

AttentionPositions = Literal["none", "rope", "alibi", "nape"]


def check_positions(positions: str, extra_positions: tuple[str, ...] = ()) -> None:
    """Raise a ValueError unless attention supports these positions or `extra_positions` contains them."""
    known = (*get_args(AttentionPositions), *extra_positions)
    check_one_of("positions", positions, known)


def head_slopes(positions: str, num_heads: int) -> Tensor | None:
    r"""Return the slope of each head [heads] on the CPU, or None without slopes.

    A slope is the amount subtracted from a score per position of distance. With "alibi", head h of H has the slope
    :math:`2^{-8h/H}` (Press et al. 2022). With "nape", the first half of the heads has slope 0, and the other heads
    have slopes 1, 1/2, 1/3, ... (Vasylenko et al. 2026).

    Example:
        >>> head_slopes("nape", 4)
        tensor([0.0000, 0.0000, 1.0000, 0.5000])
    """
    if positions == "alibi":
        return 2.0 ** (-8 / num_heads * torch.arange(1, num_heads + 1, device="cpu"))
    if positions == "nape":
        half = num_heads // 2
        return torch.cat([torch.zeros(half, device="cpu"), 1 / torch.arange(1, num_heads - half + 1, device="cpu")])
    return None


class SinusoidalPositions(nn.Module):
    r"""Sinusoidal position encodings of any length, computed on demand and cached.

    .. math:: \mathrm{PE}(t, 2i) = \sin(t / 10000^{2i/d}), \qquad \mathrm{PE}(t, 2i+1) = \cos(t / 10000^{2i/d})

    (Vaswani et al. 2017, sec. 3.5.)

    Args:
        d_model: size of the encodings, even.

    Raises:
        ValueError: an odd size.

    Example:
        >>> SinusoidalPositions(4)(torch.zeros(1), 0, 2)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        if check_integer("d_model", d_model, 2) % 2:
            raise ValueError(f"d_model must be even, got {d_model}")
        self.d_model = d_model
        self._table: Tensor | None = None

    def forward(self, like: Tensor, first: int | Tensor, count: int) -> Tensor:
        """Return the encodings [count, d_model] from position `first`, or [batch, 1, d_model] for `first` [batch]."""
        if isinstance(first, Tensor):
            last = int(first.max()) + 1 if len(first) else 1
            return self._table_for(last, like)[first].unsqueeze(1)
        if traced():
            return self._compute(first, count, like)
        return self._table_for(first + count, like)[first : first + count]

    def _table_for(self, count: int, like: Tensor) -> Tensor:
        table = self._table
        if table is None or len(table) < count or table.dtype != like.dtype or table.device != like.device:
            with torch.inference_mode(False):  # a table made in inference mode would fail in other modes
                self._table = table = self._compute(0, max(64, 2 * count), like)
        return table

    def _compute(self, first: int, count: int, like: Tensor) -> Tensor:
        steps = torch.arange(first, first + count, dtype=torch.float64, device=like.device)
        power = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=like.device) / self.d_model
        angles = steps.unsqueeze(1) * torch.exp(-math.log(10000) * power)  # [count, d_model / 2]
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)


class RotaryPositions(nn.Module):
    r"""Rotary position encodings: rotate pairs of numbers by angles that grow with the position.

    .. math:: (x_{2i}, x_{2i+1}) \mapsto (x_{2i} \cos\theta - x_{2i+1} \sin\theta,\;
              x_{2i} \sin\theta + x_{2i+1} \cos\theta), \qquad \theta = t / 10000^{2i/d}

    (Su et al. 2021, eq. 34.) A score then depends on the distance between the positions t of query and key.

    Args:
        size: size of a head, even.

    Raises:
        ValueError: The size is odd.

    Example:
        >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
        >>> RotaryPositions(2)(x, 1).flatten()
        tensor([0.5403, 0.8415])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        if size % 2:
            raise ValueError(f"the head size must be even with positions='rope', got {size}")
        self._angles = SinusoidalPositions(size)

    def forward(self, x: Tensor, first: int | Tensor) -> Tensor:
        """Rotate a tensor [batch, heads, length, size] from position `first`; positions [batch] require length 1."""
        table = self._angles(x, first, x.shape[2])  # [length, size] or [batch, 1, size]
        if isinstance(first, Tensor):
            table = table.unsqueeze(1)
        sin, cos = table[..., 0::2], table[..., 1::2]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
