"""Multiply sparse rows by a table on GPUs, and transpose sparse rows.

Each program sums the table rows of one list, a few entries at a time. Long lists, such as the list of a frequent word,
are cut into pieces, which other programs sum first. The order of sums is fixed, so results are reproducible. No
function waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tsallis.ops.sparse_rows import CsrRows
from tsallis.ops.triton.language import kernel, run, tl

PIECE = 256  # longer lists are cut into pieces
PIECES = 1024  # approximate maximum number of pieces; more entries make pieces longer
COLUMNS = 512  # table columns per step
ENTRIES = 8  # list entries per step


@kernel()
def _weighted_rows(
    column: tl.tensor,
    value: tl.tensor,
    count: tl.tensor,
    table: tl.tensor,
    size: tl.tensor,
    columns: tl.tensor,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> Any:
    """Return `sum_k value[k] table[column[k]]` over `count` entries, and the sum of the values."""
    lanes = tl.arange(0, ENTRIES)
    total = tl.zeros((ENTRIES, COLUMNS), tl.float32)
    values = tl.zeros((ENTRIES,), tl.float32)
    for k in range(0, count, ENTRIES):
        valid = k + lanes < count
        table_row = tl.load(column + k + lanes, mask=valid, other=0).to(tl.int64)
        weight = tl.load(value + k + lanes, mask=valid, other=0.0)
        inside = valid[:, None] & (columns < size)[None, :]
        row = tl.load(table + table_row[:, None] * size + columns[None, :], mask=inside, other=0.0)
        total += weight[:, None] * row.to(tl.float32)
        values += weight
    return tl.sum(total, 0), tl.sum(values, 0)


@kernel("rows", "piece")
def _gather_pieces(
    offsets: tl.tensor,  # [rows + 1]
    column: tl.tensor,
    value: tl.tensor,
    piece_row: tl.tensor,  # [pieces]: the row of each piece; `rows` marks unused pieces
    first: tl.tensor,  # [rows]: the first piece of a row
    table: tl.tensor,  # [number of table rows, size]
    partial: tl.tensor,  # [pieces, size]
    partial_total: tl.tensor,  # [pieces]
    rows: tl.tensor,
    size: tl.tensor,
    piece: tl.tensor,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    number = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.load(piece_row + number)
    if row < rows:
        begin = tl.load(offsets + row) + (number - tl.load(first + row)) * piece
        count = tl.minimum(tl.load(offsets + row + 1) - begin, piece).to(tl.int32)
        row_sum, values = _weighted_rows(column + begin, value + begin, count, table, size, columns, ENTRIES, COLUMNS)
        tl.store(partial + number * size + columns, row_sum, mask=columns < size)
        if tl.program_id(1) == 0:
            tl.store(partial_total + number, values)


@kernel("piece")
def _gather_rows(
    offsets: tl.tensor,
    column: tl.tensor,
    value: tl.tensor,
    first: tl.tensor,
    partial: tl.tensor,
    partial_total: tl.tensor,
    scale: tl.tensor,  # [rows]
    minus: tl.tensor,  # [rows]
    table: tl.tensor,
    out: tl.tensor,  # [rows, size]
    total: tl.tensor,  # [rows]
    factor: tl.tensor,  # one number
    size: tl.tensor,
    piece: tl.tensor,
    SCALE: tl.constexpr,
    MINUS: tl.constexpr,
    TOTAL: tl.constexpr,
    ONTO: tl.constexpr,  # whether to add `factor` times the previous content of `out`
    CUT: tl.constexpr,  # whether lists may be cut into pieces
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < size
    begin = tl.load(offsets + row)
    count = (tl.load(offsets + row + 1) - begin).to(tl.int32)
    uncut_count = count
    if CUT:
        uncut_count = tl.where(count > piece, 0, count)
    row_sum, values = _weighted_rows(column + begin, value + begin, uncut_count, table, size, columns, ENTRIES, COLUMNS)
    if CUT:  # noqa: SIM102 - the compiler decides this one, each program the next
        if count > piece:
            number = tl.load(first + row)
            lanes = tl.arange(0, ENTRIES)
            pieces = tl.cdiv(count, piece)
            sums = tl.zeros((ENTRIES, COLUMNS), tl.float32)
            for k in range(0, pieces, ENTRIES):
                valid = k + lanes < pieces
                offset = (number + k + lanes)[:, None] * size + columns[None, :]
                sums += tl.load(partial + offset, mask=valid[:, None] & inside[None, :], other=0.0)
                values += tl.sum(tl.load(partial_total + number + k + lanes, mask=valid, other=0.0), 0)
            row_sum += tl.sum(sums, 0)
    if MINUS:
        minus_row = tl.load(minus + row).to(tl.int64)
        if minus_row >= 0:
            row_sum -= tl.load(table + minus_row * size + columns, mask=inside, other=0.0).to(tl.float32)
            values -= 1.0
    if SCALE:
        weight = tl.load(scale + row)
        row_sum *= weight
        values *= weight
    target = out + row * size + columns
    if ONTO:
        row_sum += tl.load(factor) * tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, row_sum.to(out.dtype.element_ty), mask=inside)
    if TOTAL:  # noqa: SIM102
        if tl.program_id(1) == 0:
            tl.store(total + row, values)


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
    """Return `out[r] = scale[r] (sum_k value[k] table[column[k]] - table[minus[r]])`, and each row's sum of values.

    Rows with a negative `minus` subtract nothing. If `onto` [rows, size] is given, it is replaced by `factor` times
    `onto` plus the result; `factor` holds one number. Sums are float32, and the result has the dtype of `table`. Values
    after the last offset are unused.
    """
    rows, size = len(lists.offsets) - 1, table.shape[1]
    out = table.new_empty(rows, size) if onto is None else onto
    total = lists.value.new_empty(rows) if need_total else None
    if not out.numel():
        return out, None if total is None else total.zero_()
    piece = max(PIECE, len(lists.column) // PIECES)
    shared: dict[str, Any] = {
        **dict(zip(("offsets", "column", "value"), lists, strict=True)),
        "table": table,
        "size": size,
        "piece": piece,
        "ENTRIES": ENTRIES,
        "COLUMNS": min(COLUMNS, _power_of_two(size)),
    }
    blocks = -(-size // shared["COLUMNS"])
    cut = len(lists.column) > piece
    partial = partial_total = first = lists.value
    if cut:
        piece_row, first = _pieces(lists.offsets, piece, 2 * len(lists.column) // piece)
        partial, partial_total = (lists.value.new_empty(len(piece_row), *n) for n in ((size,), ()))
        shared |= {"first": first, "partial": partial, "partial_total": partial_total}
        run(_gather_pieces, (len(piece_row), blocks), table, **shared, piece_row=piece_row, rows=rows)
    shared |= {"first": first, "partial": partial, "partial_total": partial_total}
    run(
        _gather_rows,
        (rows, blocks),
        table,
        **shared,
        scale=lists.value if scale is None else scale,
        minus=lists.offsets if minus is None else minus,
        out=out,
        total=lists.value if total is None else total,
        factor=lists.value if factor is None else factor,
        SCALE=scale is not None,
        MINUS=minus is not None,
        TOTAL=need_total,
        ONTO=onto is not None,
        CUT=cut,
    )
    return out, total


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _pieces(offsets: Tensor, piece: int, num_pieces: int) -> tuple[Tensor, Tensor]:
    """Return the row of each of `num_pieces` pieces, and the first piece of each row.

    Only lists longer than a piece are cut. Together, they have fewer than 2 * entries / piece pieces.
    """
    lengths = offsets.diff()
    count = torch.where(lengths > piece, (lengths + (piece - 1)).div(piece, rounding_mode="floor"), 0)
    ends = count.cumsum(0)
    piece_row = torch.searchsorted(ends, torch.arange(num_pieces, device=ends.device), right=True)
    return piece_row, ends - count


def transpose(lists: CsrRows, classes: int, weight: Tensor, target: Tensor) -> CsrRows:
    """Return one list per class: (row, value * weight[row]) per value, and (row, -weight[row]) per target.

    Rows with a negative target get no -weight entry; a placeholder follows the last list instead.
    """
    rows = torch.arange(len(target), device=target.device, dtype=torch.int32)
    row = torch.cat([rows.repeat_interleave(lists.offsets.diff(), output_size=len(lists.column)), rows])
    gold = torch.where(target < 0, classes, target).to(torch.int32)
    column, order = torch.cat([lists.column, gold]).sort(stable=True)
    offsets = torch.searchsorted(column, torch.arange(classes + 1, device=column.device, dtype=torch.int32))
    row = row[order]
    value = torch.cat([lists.value, lists.value.new_full((len(target),), -1.0)])[order]
    return CsrRows(offsets, row, value.mul_(weight[row]))
