"""Define sparse rows of probabilities: targets of the losses, and supports of an output layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.functional.rows import check_floating, check_integers, integer
from tsallis.ops.sparse_rows import row_numbers
from tsallis.ops.transforms import traced

TOLERANCE = 1e-3  # maximum difference of a row's sum from 1


class SparseRows:
    r"""Rows of probabilities that store only their non-zero entries, at 8 bytes per entry.

    Row `r` has the classes `indices[offsets[r]:offsets[r + 1]]` with the probabilities at the same positions. The
    losses accept such rows as targets. An empty row is an ignored target. Leading dimensions are merged: targets for
    scores [batch, length, classes] are `batch * length` rows.

    The distribution of a sparse model fits completely. If entries of a dense distribution were cut, `tail` is their
    mass `t`. The losses divide each row by its sum. This target and the full distribution have the L1 distance `2t`. So
    have the gradients of the scores:

    .. math:: \lVert (p - q_{\text{kept}} / (1 - t)) - (p - q) \rVert_1 = 2t

    Args:
        indices: classes [entries], integers in any order; they are stored in int32.
        probs: probabilities [entries], at least 0; they are stored in float32, without a gradient. Those in bfloat16
            are divided by their sum.
        offsets: positions [rows + 1] at which the rows begin, from 0 to the number of entries.
        tail: mass that was cut from each row [rows], at least 0 and below 1.

    Raises:
        ValueError: wrong shapes or offsets, a class that is negative or repeated in its row, a negative probability, a
            row that with its tail does not sum to 1 within 0.001 (bfloat16: 0.008).
        TypeError: indices or offsets that are not integers, probabilities that are not floating point.

    Example:
        >>> rows = SparseRows(torch.tensor([0, 2, 1]), torch.tensor([0.75, 0.25, 1.0]), torch.tensor([0, 2, 3, 3]))
        >>> rows.dense(3)
        tensor([[0.7500, 0.0000, 0.2500],
                [0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
        >>> rows[1:]
        SparseRows(rows=2, entries=1)
    """

    indices: Tensor
    probs: Tensor
    offsets: Tensor
    tail: Tensor | None
    largest: int  # upper bound of the indices; -1 if there are none

    def __init__(self, indices: Tensor, probs: Tensor, offsets: Tensor, tail: Tensor | None = None) -> None:
        check_integers(indices, "indices")
        check_integers(offsets, "offsets")
        check_floating(probs, "probs")
        if indices.dim() != 1 or probs.shape != indices.shape:
            raise ValueError(
                f"indices and probs must have one shape [entries], got {tuple(indices.shape)} and {tuple(probs.shape)}"
            )
        if offsets.dim() != 1 or len(offsets) == 0:
            raise ValueError(f"offsets must have the shape [rows + 1], got {tuple(offsets.shape)}")
        if tail is not None:
            check_floating(tail, "tail")
            if tail.shape != (len(offsets) - 1,):
                raise ValueError(f"tail must have the shape ({len(offsets) - 1},), got {tuple(tail.shape)}")
            tail = tail.detach().to(probs.device, torch.float32)
        self.probs, self.tail = probs.detach().float(), tail
        self.offsets = offsets.to(probs.device, torch.long)
        self.largest = -1
        if not traced():
            tolerance = max(TOLERANCE, torch.finfo(probs.dtype).eps)
            self.largest = _check(indices.to(probs.device, torch.long), self.probs, self.offsets, tail, tolerance)
        if probs.dtype == torch.bfloat16:
            row = row_numbers(self.offsets, len(indices))
            sums = self.probs.new_zeros(len(offsets) - 1).index_add_(0, row, self.probs)
            self.probs *= ((1 if tail is None else 1 - tail) / sums)[row]
        self.indices = indices.to(probs.device, torch.int32)

    @classmethod
    def from_dense(cls, probs: Tensor, top_k: int | None = None) -> SparseRows:
        """Return the non-zero entries of probabilities [..., classes]; rows of zeros become empty.

        Args:
            probs: probabilities [..., classes].
            top_k: number of the largest entries that are kept per row, at least 1; `tail` is the mass of the others.
                None keeps all entries.

        Example:
            >>> SparseRows.from_dense(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])).offsets
            tensor([0, 2, 2])
            >>> SparseRows.from_dense(torch.tensor([[0.25, 0.75]]), top_k=1).tail
            tensor([0.2500])

        Raises:
            ValueError: a row that does not sum to 1, see :class:`SparseRows`, a `top_k` below 1.
        """
        check_floating(probs, "probs")
        if probs.dim() == 0:
            raise ValueError("probs must be [..., classes], got a tensor without dimensions")
        rows = probs.reshape(math.prod(probs.shape[:-1]), probs.shape[-1])
        columns = tail = None
        if top_k is not None:
            if integer("top_k", top_k) < 1:
                raise ValueError(f"top_k must be at least 1, got {top_k}")
            mass = rows.float().sum(-1)
            rows, columns = rows.topk(min(top_k, rows.shape[-1]))
            tail = (mass - rows.float().sum(-1)).clamp(min=0)
        row, column = rows.nonzero(as_tuple=True)
        offsets = torch.nn.functional.pad(torch.bincount(row, minlength=len(rows)).cumsum(0), (1, 0))
        return cls(column if columns is None else columns[row, column], rows[row, column], offsets, tail)

    def dense(self, classes: int) -> Tensor:
        """Return the probabilities [rows, classes] in float32.

        Raises:
            ValueError: `classes` is too small.
            TypeError: `classes` is not an integer.
        """
        self.check_classes(integer("classes", classes))
        rows = self.probs.new_zeros(len(self), classes)
        rows[row_numbers(self.offsets, len(self.indices)), self.indices.long()] = self.probs
        return rows

    def check_classes(self, classes: int) -> None:
        """Raise a ValueError unless all indices are below the number of classes."""
        if self.largest >= classes and len(self.indices) and (largest := int(self.indices.max())) >= classes:
            raise ValueError(f"indices must be classes from 0 to {classes - 1}, got {largest}")

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SparseRows:
        """Return the rows on a device; `non_blocking` is as in `Tensor.to`."""
        if isinstance(device, torch.dtype):
            raise TypeError(f"device must be a device, got {device}; probabilities are always in float32")
        parts = (self.indices, self.probs, self.offsets, self.tail)
        return self._from_entries(*(x if x is None else x.to(device, non_blocking=non_blocking) for x in parts))  # type: ignore

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | Tensor) -> SparseRows:
        """Return a slice of the rows, the rows of these numbers [n], or the rows where a mask [rows] is True.

        A negative number returns an empty row.
        """
        if isinstance(rows, slice):
            rows = torch.arange(len(self), device=self.offsets.device)[rows]
        if not isinstance(rows, Tensor):
            raise TypeError(f"rows must be a slice or a tensor of integers [n], got {type(rows).__name__}")
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise ValueError(f"a mask of rows must have the shape [{len(self)}], got {list(rows.shape)}")
            rows = rows.nonzero().squeeze(1)
        check_integers(rows, "rows")
        if rows.dim() != 1:
            raise ValueError(f"rows must have the shape [n], got {tuple(rows.shape)}; use rows[n : n + 1] for one row")
        empty, rows = rows < 0, rows.long().clamp(min=0)  # PyTorch takes numbers in uint8 for a mask
        counts = self.offsets.diff()[rows].masked_fill(empty, 0)
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        entries = (self.offsets[:-1][rows] - offsets[:-1]).repeat_interleave(counts)
        entries += torch.arange(len(entries), device=entries.device)
        tail = None if self.tail is None else self.tail[rows].masked_fill(empty, 0)
        return self._from_entries(self.indices[entries], self.probs[entries], offsets, tail)

    def _from_entries(self, indices: Tensor, probs: Tensor, offsets: Tensor, tail: Tensor | None) -> SparseRows:
        """Return rows made from entries of these rows, without checks."""
        rows = object.__new__(SparseRows)
        rows.indices, rows.probs, rows.offsets, rows.tail, rows.largest = indices, probs, offsets, tail, self.largest
        return rows

    def __repr__(self) -> str:
        return f"SparseRows(rows={len(self)}, entries={len(self.indices)})"


def _check(indices: Tensor, probs: Tensor, offsets: Tensor, tail: Tensor | None, tolerance: float) -> int:
    """Check the values and return the largest index."""
    counts = offsets.diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(indices) or (counts < 0).any():
        raise ValueError(f"offsets must rise from 0 to {len(indices)}, the number of entries")
    row = row_numbers(offsets, len(indices))
    least, largest = (int(x) for x in indices.aminmax()) if len(indices) else (0, -1)
    if least < 0 or largest >= 2**31:
        raise ValueError(f"indices must be classes from 0 to 2**31 - 1, got {least if least < 0 else largest}")
    keys = row * (largest + 1) + indices
    if (keys.diff() <= 0).any():  # the classes of a row are usually sorted
        keys = keys.sort().values
        repeated = keys[1:][keys.diff() == 0]
        if len(repeated):
            key = int(repeated[0])
            raise ValueError(
                f"indices must be different within a row, got {key % (largest + 1)} twice in row {key // (largest + 1)}"
            )
    if not (probs >= 0).all():
        raise ValueError(f"probs must be at least 0, got {float(probs[~(probs >= 0)][0]):g}")
    sums = torch.zeros(len(counts), dtype=torch.float64, device=probs.device).index_add_(0, row, probs.double())
    if (zero := (counts > 0) & (sums == 0)).any():
        raise ValueError(f"probs must be above 0 for a class of each row, got only 0 in row {int(zero.nonzero()[0])}")
    if tail is not None:
        if not ((tail >= 0) & (tail < 1)).all():
            raise ValueError(f"tail must be at least 0 and below 1, got {float(tail[~((tail >= 0) & (tail < 1))][0])}")
        sums += tail
    invalid = (counts > 0) & ~((sums - 1).abs() <= tolerance)
    if invalid.any():
        first = int(invalid.nonzero()[0])
        raise ValueError(
            f"probs must sum to 1 within {tolerance:.1g} in each row, got {float(sums[first]):.4g} in row {first}"
            + ("; if entries were cut, pass their mass as tail" if tail is None else " with its tail")
        )
    return largest
