"""Batches of sequences. The order of batches depends only on the seed and the epoch, so a run can resume anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tsallis.errors import InputError, check_integer, check_one_of
from tsallis.models.batch import Batch
from tsallis.symbols import BOS, EOS, IGNORE_INDEX, PAD
from tsallis.toolkit.data.ragged import RaggedRows, Rows

Ints = NDArray[np.int64]


def make_batch(src: Rows, tgt: Rows, index: Sequence[int], empty_sources: bool = False) -> Batch:
    """Return the given rows of encoded sources and targets as a padded batch.

    Args:
        src: Symbols of each source, as lists or :class:`~tsallis.toolkit.data.ragged.RaggedRows`.
        tgt: Symbols of each target, without start and end.
        index: Numbers of the rows.
        empty_sources: Whether a source may be empty.

    Returns:
        A padded batch with the rows in the order of `index`.

    Raises:
        ValueError: If there are no rows, or a source is empty.

    Example:
        >>> batch = make_batch([[4, 5], [4]], [[6], [6, 7]], [1, 0])
        >>> batch.src.tolist(), batch.tgt_in.tolist(), batch.tgt_out.tolist()
        ([[4, 0], [4, 5]], [[1, 6, 7], [1, 6, 0]], [[6, 7, 2], [6, 2, -100]])
    """
    rows = [int(i) for i in index]
    if not rows:
        raise ValueError("index must contain at least one row, got none")
    sources, src_lengths = _concatenate(src, rows)
    targets, tgt_lengths = _concatenate(tgt, rows)
    if not empty_sources and not src_lengths.all():
        raise ValueError(f"sources must not be empty, got an empty source in row {rows[int(src_lengths.argmin())]}")
    tgt_in = _pad(targets, tgt_lengths, PAD, start=BOS)
    tgt_out = _pad(targets, tgt_lengths, IGNORE_INDEX, end=EOS)
    return Batch(
        torch.from_numpy(_pad(sources, src_lengths, PAD)),
        torch.from_numpy(src_lengths),
        torch.from_numpy(tgt_in),
        torch.from_numpy(tgt_out),
        tuple(rows),
    )


def _concatenate(data: Rows, rows: list[int]) -> tuple[NDArray[Any], Ints]:
    """Return the concatenated symbols of the given rows, and the lengths of these rows."""
    if isinstance(data, RaggedRows):
        return data.rows(rows)
    selection = [data[i] for i in rows]
    lengths = np.fromiter(map(len, selection), np.int64, len(selection))
    return np.fromiter(chain.from_iterable(selection), np.int64, int(lengths.sum())), lengths


def _pad(flat: NDArray[Any], lengths: Ints, fill: int, start: int | None = None, end: int | None = None) -> Ints:
    """Return padded rows [rows, width]. Add `start` before each row and `end` after each row, unless they are None."""
    before = int(start is not None)
    padded = np.full((len(lengths), int(lengths.max()) + before + int(end is not None)), fill, np.int64)
    if start is not None:
        padded[:, 0] = start
    column = np.arange(padded.shape[1] - before)
    padded[:, before:][column < lengths[:, None]] = flat
    if end is not None:
        padded[np.arange(len(lengths)), lengths] = end
    return padded


class Batches:
    """Sequence of batches. Each batch is created on access, as a list of row numbers.

    Args:
        rows: Row numbers of all batches, concatenated.
        starts: [batches] Start of each batch in `rows`.
        stops: [batches] End of each batch in `rows`.
        costs: [batches] Cost of each batch in padded symbols.
    """

    def __init__(self, rows: Ints, starts: Ints, stops: Ints, costs: Ints) -> None:
        self.rows = rows
        self.starts = starts
        self.stops = stops
        self.costs = costs

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> list[int]:
        return self.rows[self.starts[index] : self.stops[index]].tolist()


class Updates:
    """Batches by update and rank: `updates[i][rank]` is a list of batches.

    Args:
        batches: Batches of the epoch, in order.
        accumulate: Number of batches per rank and update.
        ranks: Number of processes.
    """

    def __init__(self, batches: Batches, accumulate: int, ranks: int) -> None:
        self.batches = batches
        self.accumulate = accumulate
        self.ranks = ranks

    def __len__(self) -> int:
        return -(-len(self.batches) // (self.accumulate * self.ranks))

    def __getitem__(self, index: int) -> list[list[list[int]]]:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be an update from 0 to {len(self) - 1}, got {index}")
        width = self.accumulate * self.ranks
        window = range(len(self.batches))[index * width : (index + 1) * width]
        costs = self.batches.costs[window.start : window.stop]
        indices_by_rank: list[list[int]] = [[] for _ in range(self.ranks)]
        order = range(len(window)) if self.ranks == 1 else np.argsort(-costs, kind="stable").tolist()
        for turn, i in enumerate(order):
            round_number, rank = divmod(turn, self.ranks)
            # The rank with the most expensive batch of one round gets the cheapest batch of the next round.
            indices_by_rank[rank if round_number % 2 == 0 else self.ranks - 1 - rank].append(i)
        return [[self.batches[window[i]] for i in indices] for indices in indices_by_rank]


ORDERS = ("total", "target")  # allowed values of `sort_by`


class BatchPlan:
    """Division of rows into batches for every epoch. The batches depend only on the seed and the epoch.

    Args:
        lengths: [rows] Lengths of rows, or [rows, 2] lengths of sources and targets. Rows of similar length share a
            batch.
        batch_size: Number of rows per batch.
        max_tokens: Maximum number of padded symbols per batch: the number of rows times the length of the longest
            source or target. The end symbol of a target counts. Replaces `batch_size`.
        seed: Seed of the order of rows and batches.
        bucket: Number of batches whose rows are sorted by length together. With 1, rows of any length share a batch;
            larger numbers reduce padding.
        sort_by: Length by which pairs are sorted. "total" adds the lengths of both sides. "target" sorts by the target,
            then by the source; this saves steps of recurrent decoders, but does not support `max_tokens`.

    Raises:
        ValueError: If there are no rows, `lengths` have a wrong shape, a number is below 1, or `sort_by` is unknown or
            does not match `lengths` and `max_tokens`.
        InputError: If a row is longer than `max_tokens`.

    Example:
        >>> plan = BatchPlan([3, 1, 2, 5], batch_size=2, seed=1)
        >>> list(plan.epoch(0)) == list(plan.epoch(0)), sorted(i for batch in plan.epoch(3) for i in batch)
        (True, [0, 1, 2, 3])
        >>> plan = BatchPlan([[3, 2], [9, 4], [2, 2], [3, 3]], max_tokens=9)
        >>> sorted(plan.epoch(0))
        [[1], [2, 0], [3]]
    """

    def __init__(
        self,
        lengths: ArrayLike | Tensor,
        batch_size: int = 64,
        max_tokens: int | None = None,
        seed: int = 0,
        bucket: int = 40,
        sort_by: str = "total",
    ) -> None:
        for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens), ("bucket", bucket)):
            if value is not None:
                check_integer(name, value, 1)
        counts = np.asarray(lengths)
        if counts.size == 0:
            raise ValueError("lengths must contain at least one row, got none")
        if counts.ndim > 2 or (counts.ndim == 2 and counts.shape[1] != 2):
            raise ValueError(f"lengths must have shape [rows] or [rows, 2], got {list(counts.shape)}")
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.seed = seed
        self.bucket = bucket
        pairs = counts.ndim == 2
        check_one_of("sort_by", sort_by, ORDERS)
        if sort_by == "target" and (max_tokens is not None or not pairs):
            raise ValueError(
                "sort_by 'target' needs lengths of shape [rows, 2] and no max_tokens, "
                f"got shape {list(counts.shape)} and max_tokens {max_tokens}"
            )
        # `widths` contains the length of the longer side of each row. `totals` decides the order of rows with equal
        # widths.
        self.widths: Ints = (np.maximum(counts[:, 0], counts[:, 1] + 1) if pairs else counts).astype(np.int64)
        self.totals: Ints = (counts.sum(1, dtype=np.int64) if pairs else counts).astype(np.int64)
        # np.lexsort uses the last of these keys as the primary key.
        self.keys: tuple[Ints, ...] = (self.totals,) if sort_by == "total" else (counts[:, 0], counts[:, 1])
        longest = int(self.widths.argmax())
        if max_tokens is not None and self.widths[longest] > max_tokens:
            raise InputError(
                f"max_tokens must be at least {self.widths[longest]}, the number of symbols in row {longest}, "
                f"got {max_tokens}"
            )

    def __len__(self) -> int:
        """Return the number of batches per epoch.

        Raises:
            TypeError: If `max_tokens` is set, because epochs then have different numbers of batches.
        """
        if self.max_tokens is not None:
            raise TypeError("with max_tokens, the number of batches depends on the epoch: use len(plan.epoch(number))")
        return -(-len(self.widths) // self.batch_size)

    def epoch(self, number: int) -> Batches:
        """Return the batches of an epoch. Each batch is a list of row numbers."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        order = torch.randperm(len(self.widths), generator=generator).numpy()
        pool = np.arange(len(order)) // self._pool_size()
        if self.max_tokens is None:
            rows = order[np.lexsort((*(key[order] for key in self.keys), pool))]
            starts = np.arange(0, len(rows), self.batch_size)
        else:
            widths = self.widths[order]
            rows = order[np.lexsort((self.totals[order], widths, pool))]
            starts = self._batch_starts(self.widths[rows])
        stops = np.append(starts[1:], len(rows))
        costs = np.maximum.reduceat(self.widths[rows], starts) * (stops - starts)
        shuffled = torch.randperm(len(starts), generator=generator).numpy()
        return Batches(rows, starts[shuffled], stops[shuffled], costs[shuffled])

    def updates(self, number: int, accumulate: int = 1, ranks: int = 1) -> Updates:
        """Return the batches of an epoch by update and rank: `updates(...)[i][rank]` is a list of batches.

        Each update consists of the next `accumulate * ranks` batches. Twice as many ranks with half the accumulation
        therefore give the same updates. Batches of similar cost go to different ranks. The last update contains the
        remaining batches, so some ranks may get fewer batches, or none.

        >>> plan = BatchPlan([1, 2, 3, 4, 5], batch_size=1)
        >>> [[len(batches) for batches in update] for update in plan.updates(0, accumulate=2, ranks=2)]
        [[2, 2], [1, 0]]
        """
        return Updates(self.epoch(number), accumulate, ranks)

    def _pool_size(self) -> int:
        """Return the size of a pool: the number of rows that are sorted together."""
        if self.max_tokens is None:
            return self.batch_size * self.bucket
        return max(1, round(self.bucket * self.max_tokens / max(1.0, float(self.widths.mean()))))

    def _batch_starts(self, widths: Ints) -> Ints:
        """Return the start of each batch. Batches are as large as possible, but none contains rows of two pools."""
        assert self.max_tokens is not None
        budget, pool_size, count = self.max_tokens, self._pool_size(), len(widths)
        starts: list[int] = []
        start = 0
        while start < count:
            starts.append(start)
            # Widths ascend inside a pool, so the last row of a batch is its widest row.
            fits, over = (
                start + 1,
                min(start - start % pool_size + pool_size, count, start + budget // max(1, int(widths[start]))) + 1,
            )
            while over - fits > 1:
                middle = (fits + over) // 2
                if (middle - start) * int(widths[middle - 1]) <= budget:
                    fits = middle
                else:
                    over = middle
            start = fits
        return np.array(starts, np.int64)
