"""List the supports of losses as sparse rows, and multiply sparse rows, with PyTorch operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.alpha_relu import ReluStats, alpha_relu
from tsallis.ops.eager.losses import LossStats
from tsallis.ops.sparse_rows import CsrRows, row_numbers


def support_sizes(scores: Tensor, alpha: Alpha, stats: LossStats | ReluStats, target: Tensor) -> Tensor:
    """Return the support size of each row [rows]; 0 for ignored targets."""
    return torch.where(target < 0, 0, (_values(scores, alpha, stats) != 0).sum(-1))


def support(
    scores: Tensor, alpha: Alpha, stats: LossStats | ReluStats, offsets: Tensor, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return classes (int32) and probabilities of all supports in one list; row r starts at offsets[r]."""
    values = _values(scores, alpha, stats)
    row, column = ((values != 0) & (offsets.diff() > 0).unsqueeze(-1)).nonzero(as_tuple=True)
    return column.to(torch.int32), values[row, column]


alpha_relu_support = support


def _values(scores: Tensor, alpha: Alpha, stats: LossStats | ReluStats) -> Tensor:
    wide = upcast(scores)
    if isinstance(stats, ReluStats):
        assert isinstance(alpha, float)
        return alpha_relu(wide, alpha - 1, stats.tau)
    return stats.rows(wide)


def spmm(
    lists: CsrRows,
    table: Tensor,
    *,
    scale: Tensor | None = None,
    minus: Tensor | None = None,
    need_total: bool = False,
    onto: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return `out[r] = scale[r] (sum_k value[k] table[column[k]] - table[minus[r]])`, and each row's sum of values."""
    wide = table.to(lists.value.dtype)
    out = _sparse_matrix(lists, len(table)) @ wide
    total = (
        lists.value.new_zeros(len(out)).index_add_(0, row_numbers(lists.offsets, len(lists.column)), lists.value)
        if need_total
        else None
    )
    if minus is not None:
        has_class = minus >= 0
        out -= torch.where(has_class.unsqueeze(-1), wide[minus.clamp(min=0)], 0)
        total = None if total is None else total - has_class.to(total.dtype)
    if scale is not None:
        out, total = out * scale.unsqueeze(-1), None if total is None else total * scale
    if onto is not None and factor is not None:
        return onto.mul_(factor[0]).add_(out), total
    return out.to(table.dtype), total


def transpose(lists: CsrRows, classes: int, weight: Tensor, target: Tensor) -> CsrRows:
    """Return one list per class: (row, value * weight[row]) per value, and (row, -weight[row]) per target."""
    rows = torch.arange(len(target), device=target.device)
    has_loss = target >= 0
    row = torch.cat([row_numbers(lists.offsets, len(lists.column)), rows[has_loss]])
    column = torch.cat([lists.column.long(), target[has_loss]])
    value = torch.cat([lists.value, lists.value.new_full((int(has_loss.sum()),), -1.0)]) * weight[row]
    order = column.argsort(stable=True)
    offsets = F.pad(torch.bincount(column, minlength=classes).cumsum(0), (1, 0))
    return CsrRows(offsets, row[order].to(torch.int32), value[order])


def _sparse_matrix(lists: CsrRows, width: int) -> Tensor:
    indices = torch.stack([row_numbers(lists.offsets, len(lists.column)), lists.column.long()])
    size = (len(lists.offsets) - 1, width)
    return torch.sparse_coo_tensor(indices, lists.value, size, is_coalesced=True, check_invariants=False)
