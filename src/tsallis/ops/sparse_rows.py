"""Define the format of sparse rows for all backends."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CsrRows(NamedTuple):
    """Rows in compressed form; row r has the columns and values at offsets[r] to offsets[r + 1] - 1."""

    offsets: Tensor  # [rows + 1], int64
    column: Tensor  # int32
    value: Tensor
