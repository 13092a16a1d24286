"""Corpora of synthetic examples. Every epoch has new examples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from tsallis.models.batch import Batch
from tsallis.symbols import BOS, FIRST, IGNORE_INDEX, PAD
from tsallis.toolkit.data.corpus import Corpus, LengthBatches
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.datasets.synthetic import SYNTHETIC_TASKS, SyntheticStream

MAX_TOKENS = 1 << 16  # maximum number of tokens per batch in evaluation


def synthetic_vocabulary(name: str) -> Vocabulary:
    """Return the vocabulary of a task; its symbols are the numbers from 0."""
    return Vocabulary([str(number) for number in range(SYNTHETIC_TASKS[name].symbols)])


@dataclass(frozen=True)
class SyntheticCorpus(Corpus):
    """Corpus of synthetic examples. An example begins with a start symbol and is created on access.

    Args:
        streams: Streams of examples, with equal numbers of rows.
        num_examples: Number of rows per stream and epoch.

    Example:
        >>> corpus = synthetic_corpus("copy", 3, [(6, 6)])
        >>> batch = corpus.batch([0])
        >>> (batch.tgt_in[0, 4:] == 4).tolist(), (batch.tgt_out[0] >= 0).tolist()  # the separator; then the answer
        ([True, False, False], [False, False, False, False, True, True, True])
        >>> torch.equal(corpus.batch([0], epoch=1).tgt_in, batch.tgt_in)
        False
    """

    same_every_epoch: ClassVar[bool] = False

    streams: tuple[SyntheticStream, ...] = field(default=(), compare=False)
    num_examples: int = 0

    def lengths(self) -> torch.Tensor:
        """Return the lengths [rows, 2]: 0 for sources, and the maximum number of tokens for targets."""
        max_length = torch.tensor([stream.max_length for stream in self.streams], dtype=torch.int32).repeat_interleave(
            self.num_examples
        )
        return torch.stack([torch.zeros_like(max_length), max_length], 1)

    def batch(self, index: Sequence[int], epoch: int = 0) -> Batch:
        pairs = [divmod(int(row), self.num_examples) for row in index]
        examples = [self.streams[part].example(epoch * self.num_examples + row) for part, row in pairs]
        width = 1 + max(len(example.tokens) for example in examples)
        tgt_in, tgt_out = torch.full((len(index), width), PAD), torch.full((len(index), width), IGNORE_INDEX)
        tgt_in[:, 0] = BOS
        for row, (tokens, targets) in enumerate(examples):
            tgt_in[row, 1 : len(tokens) + 1] = torch.tensor(tokens) + FIRST
            numbers = torch.tensor(targets)
            tgt_out[row, 1 : len(tokens) + 1] = torch.where(numbers < 0, IGNORE_INDEX, numbers + FIRST)
        empty = torch.zeros(len(index), 0, dtype=torch.long), torch.zeros(len(index), dtype=torch.long)
        return Batch(*empty, tgt_in, tgt_out, tuple(map(int, index)))

    def batches(self, size: int, rows: int | None = None) -> LengthBatches:
        """Return batches of all rows or of the first `rows` rows; batches of long rows are smaller than `size`."""
        longest = max(stream.max_length for stream in self.streams)
        return LengthBatches(self, max(1, min(size, MAX_TOKENS // longest)), rows)

    def digest(self) -> str:
        """Return a hash of everything that determines the examples."""
        streams = [(stream.task.name, stream.min_length, stream.max_length, stream.seed) for stream in self.streams]
        return hashlib.sha256(f"{streams} {self.num_examples}".encode()).hexdigest()


def synthetic_corpus(
    name: str, num_examples: int, lengths: Sequence[tuple[int, int]], seed: int = 0
) -> SyntheticCorpus:
    """Return a corpus with `num_examples` examples per epoch for every pair (minimum length, maximum length).

    Raises:
        ValueError: If the task is unknown, or has no examples of these lengths.
    """
    streams = tuple(SyntheticStream(name, low, high, seed) for low, high in lengths)
    empty_rows = RaggedRows(np.empty(0, np.int64), np.zeros(num_examples * len(streams) + 1, np.int64))
    return SyntheticCorpus(empty_rows, empty_rows, streams=streams, num_examples=num_examples)
