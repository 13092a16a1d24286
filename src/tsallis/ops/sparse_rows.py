"""Define the format of sparse rows for all backends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class CsrRows(NamedTuple):
    """Rows in compressed form; row r has the columns and values at offsets[r] to offsets[r + 1] - 1."""

    offsets: Tensor  # [rows + 1], int64
    column: Tensor  # int32
    value: Tensor


def row_numbers(offsets: Tensor, size: int) -> Tensor:
    """Return the row of each entry [size], where `size` is the last offset."""
    return torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff(), output_size=size)
