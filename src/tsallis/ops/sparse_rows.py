"""Define the format of sparse rows for all backends."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class CsrRows(NamedTuple):
    """Rows in compressed form; row r has the columns and values at offsets[r] to offsets[r + 1] - 1."""

    offsets: Tensor  # [rows + 1], int64
    column: Tensor  # int32
    value: Tensor


def row_numbers(offsets: Tensor, size: int) -> Tensor:
    """Return the row of each entry [size], where `size` is the last offset."""
    return torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff(), output_size=size)


def concatenate_rows(first: CsrRows, second: CsrRows) -> CsrRows:
    """Return rows that have the entries of both arguments."""
    counts = first.offsets.diff(), second.offsets.diff()
    offsets = F.pad((counts[0] + counts[1]).cumsum(0), (1, 0))
    column = first.column.new_empty(len(first.column) + len(second.column))
    value = first.value.new_empty(len(column))
    other_offsets = (second.offsets, first.offsets)  # entries of a row: those of `first`, then those of `second`
    for number, part in enumerate((first, second)):
        row = row_numbers(part.offsets, len(part.column))
        start = other_offsets[number][:-1] + (counts[0] if number else 0)
        position = torch.arange(len(row), device=row.device) + start[row]
        column[position], value[position] = part.column, part.value.to(value.dtype)
    return CsrRows(offsets, column, value)
