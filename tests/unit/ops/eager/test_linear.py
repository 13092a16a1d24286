"""Tests of sparse weighted sums of table rows against a dense matrix product."""

from __future__ import annotations

import torch

from tsallis.ops.eager.linear import spmm
from tsallis.ops.sparse_rows import CsrRows


def test_spmm_matches_a_dense_product_and_accumulates() -> None:
    table, there = torch.randn(3, 4, dtype=torch.double), torch.randn(2, 4, dtype=torch.double)
    dense = torch.tensor([[0.0, 0.0, 0.7], [0.2, 0.3, 0.0]], dtype=torch.double)
    column, value = torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor([0.7, 0.2, 0.3], dtype=torch.double)
    lists = CsrRows(torch.tensor([0, 1, 3]), column, value)
    sums, total = spmm(lists, table, need_total=True)
    torch.testing.assert_close(sums, dense @ table)
    torch.testing.assert_close(total, dense.sum(1))
    factor = torch.tensor([0.5], dtype=torch.double)
    added, total = spmm(lists, table, need_total=True, onto=there.clone(), factor=factor)
    torch.testing.assert_close(added, there * 0.5 + dense @ table)
    torch.testing.assert_close(total, dense.sum(1))
    scale = torch.tensor([2.0, -1.0], dtype=torch.double)
    scaled, _ = spmm(lists, table, scale=scale, minus=torch.tensor([1, -1]))
    expected = dense @ table
    expected[0] -= table[1]
    torch.testing.assert_close(scaled, expected * scale.unsqueeze(1))
