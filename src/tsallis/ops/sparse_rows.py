"""Sparse rows, as all backends take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CsrRows(NamedTuple):
    """Rows in compressed form: entries [offsets[r], offsets[r + 1]) are row r's columns and values."""

    offsets: Tensor  # [rows + 1], int64
    column: Tensor  # int32
    value: Tensor
