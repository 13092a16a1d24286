"""Batches of sequences, in an order that is a pure function of seed and epoch: a run can resume anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tsallis.data.vocabulary import BOS, EOS, PAD

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Padded sequences."""

    src: Tensor  # [batch, src], padded with 0
    src_lengths: Tensor  # [batch]
    tgt_in: Tensor  # [batch, tgt], starts with BOS, padded with 0
    tgt_out: Tensor  # [batch, tgt], ends with EOS, padded with -100
    index: tuple[int, ...]  # where the rows stand in the data

    @property
    def tokens(self) -> int:
        """Target symbols that count, ends included."""
        return int((self.tgt_out != IGNORED).sum())


def make_batch(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], index: Sequence[int]) -> Batch:
    """The rows `index` of encoded sources and targets.

    >>> batch = make_batch([[4, 5], [4]], [[6], [6, 7]], [1, 0])
    >>> batch.src.tolist(), batch.tgt_in.tolist(), batch.tgt_out.tolist()
    ([[4, 0], [4, 5]], [[1, 6, 7], [1, 6, 0]], [[6, 7, 2], [6, 2, -100]])
    """
    if not index:
        raise ValueError("a batch needs at least one row")
    sources = [src[i] for i in index]
    if not all(len(s) for s in sources):
        raise ValueError(f"row {next(i for i in index if not len(src[i]))} has an empty source")
    targets = [tgt[i] for i in index]
    return Batch(
        _pad(sources, PAD),
        torch.tensor([len(s) for s in sources]),
        _pad([[BOS, *t] for t in targets], PAD),
        _pad([[*t, EOS] for t in targets], IGNORED),
        tuple(index),
    )


def _pad(sequences: Sequence[Sequence[int]], fill: int) -> Tensor:
    width = max(len(s) for s in sequences)
    return torch.tensor([[*s, *([fill] * (width - len(s)))] for s in sequences], dtype=torch.long)


class BatchPlan:
    """Which rows make up which batch of which epoch.

    Args:
        lengths: of the rows; rows of like length share a batch.
        batch_size: rows a batch.
        seed: together with the epoch's number it decides the order, and nothing else does.
        bucket: batches among which rows are sorted by length; 1 leaves the order to chance, more means less padding.

    >>> plan = BatchPlan([3, 1, 2, 5], batch_size=2, seed=1)
    >>> plan.epoch(0) == plan.epoch(0), sorted(i for batch in plan.epoch(3) for i in batch)
    (True, [0, 1, 2, 3])
    """

    def __init__(self, lengths: Sequence[int], batch_size: int = 64, seed: int = 0, bucket: int = 40) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if bucket < 1:
            raise ValueError(f"bucket must be at least 1, got {bucket}")
        if not lengths:
            raise ValueError("there are no rows to make batches of")
        self.lengths, self.batch_size, self.seed, self.bucket = list(lengths), batch_size, seed, bucket

    def __len__(self) -> int:
        """Batches an epoch."""
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of one epoch, each a list of rows."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        pool = self.batch_size * self.bucket
        batches = []
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lambda i: self.lengths[i])
            batches += [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
