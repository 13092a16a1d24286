"""Examples turned into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsallis.data.batching import Batch, make_batch
from tsallis.data.inflection import InflectionExample
from tsallis.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class Corpus:
    """Encoded sources and targets; targets are empty where an example has no form."""

    src: list[list[int]]
    tgt: list[list[int]]

    @classmethod
    def encode(cls, examples: Sequence[InflectionExample], src: Vocabulary, tgt: Vocabulary) -> Corpus:
        sources = [src.encode(e.src_tokens()) for e in examples]
        return cls(sources, [tgt.encode(e.tgt_tokens()) if e.form is not None else [] for e in examples])

    def __len__(self) -> int:
        return len(self.src)

    def lengths(self) -> list[int]:
        """Of source and target together: what a batch should have in common."""
        return [len(s) + len(t) for s, t in zip(self.src, self.tgt, strict=True)]

    def batch(self, index: Sequence[int]) -> Batch:
        return make_batch(self.src, self.tgt, index)

    def batches(self, size: int) -> list[Batch]:
        """All rows, like lengths together."""
        lengths = self.lengths()
        order = sorted(range(len(self)), key=lambda i: lengths[i])
        return [self.batch(order[i : i + size]) for i in range(0, len(order), size)]
