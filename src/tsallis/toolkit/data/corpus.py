"""Encoded corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsallis.models.batch import Batch
from tsallis.toolkit.data.batching import make_batch
from tsallis.toolkit.data.ragged import RaggedRows, Rows, digest_of
from tsallis.toolkit.data.subwords import Subwords

PROBE_ROWS = 2048  # number of rows used to estimate how much longer sampled segmentations are than the best ones
UNCUT_SHARE = 0.99  # share of sampled segmentations that should satisfy the length limit
SPARE = 4  # number of symbols added to each length limit, because short rows grow by a larger factor than long rows


@dataclass(frozen=True)
class Counts:
    """Number of sentence pairs in the text, number of kept pairs, and numbers of skipped pairs."""

    read: int
    rows: int
    empty: int  # number of pairs skipped because a side is empty
    long: int  # number of pairs skipped because a side has too many subwords

    @property
    def left_out(self) -> list[str]:
        """A line about the skipped pairs; an empty list if there are none."""
        reasons = f"{self.long} longer than data.max_length, {self.empty} with an empty source or target"
        return [f"left out of {self.read} examples: {reasons}"] if self.rows < self.read else []


@dataclass(frozen=True)
class Corpus:
    """Encoded sources and targets, as lists or as :class:`~tsallis.toolkit.data.ragged.RaggedRows`.

    Targets of examples without a reference are empty.

    >>> corpus = Corpus([[4, 5], [4]], [[6], [6, 7]])
    >>> corpus.lengths().tolist(), [batch.index for batch in corpus.batches(1)]
    ([[2, 1], [1, 2]], [(0,), (1,)])
    """

    same_every_epoch: ClassVar[bool] = True  # whether a batch does not depend on the epoch

    src: Rows
    tgt: Rows
    counts: Counts | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.src)

    def lengths(self) -> Tensor:
        """Return the lengths [rows, 2] of sources and targets, as int32."""
        return torch.stack([_lengths(self.src), _lengths(self.tgt)], 1)

    def batch(self, index: Sequence[int], epoch: int = 0) -> Batch:
        """Return the given rows as a batch. The batch is the same in every epoch."""
        return make_batch(self.src, self.tgt, index)

    def batches(self, size: int, rows: int | None = None) -> LengthBatches:
        """Return batches of all rows or of the first `rows` rows, sorted by length."""
        return LengthBatches(self, size, rows)

    def digest(self) -> str:
        """Return a hash of all symbols in order. Rows in files have a stored hash, which is used instead."""
        return hashlib.sha256(f"{_digest(self.src)} {_digest(self.tgt)}".encode()).hexdigest()


class LengthBatches(Sequence[Batch]):
    """Batches of a corpus in ascending order of length. Each batch is created on access."""

    def __init__(self, corpus: Corpus, size: int, rows: int | None = None) -> None:
        order = torch.argsort(corpus.lengths()[:rows].sum(1), stable=True)
        self.corpus, self.parts = corpus, list(order.split(size)) if len(order) else []

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> LengthBatches: ...

    def __getitem__(self, index: int | slice) -> Batch | LengthBatches:
        if isinstance(index, slice):
            selection = object.__new__(LengthBatches)
            selection.corpus, selection.parts = self.corpus, self.parts[index]
            return selection
        return self.corpus.batch(self.parts[index].tolist())


@dataclass(frozen=True, kw_only=True)
class SampledCorpus(Corpus):
    """Corpus with new random segmentations in every epoch (subword regularisation, Kudo 2018).

    A batch depends only on the seed, the epoch and its rows. Each row has a length limit, which about 99 % of the
    segmentations satisfy. A segmentation above the limit is replaced by the best one, so batches never become larger
    than planned.

    Args:
        src: Best segmentations of the sources.
        tgt: Best segmentations of the targets.
        src_text: UTF-8 bytes of the sources.
        tgt_text: UTF-8 bytes of the targets.
        src_subwords: Subwords of the sources.
        tgt_subwords: Subwords of the targets.
        alpha: Parameter of the sampling, see :meth:`~tsallis.toolkit.data.subwords.Subwords.sample`.
        seed: Seed of all segmentations.
        max_length: Maximum length of a segmentation, unless the best segmentation is longer.
    """

    same_every_epoch: ClassVar[bool] = False

    src_text: RaggedRows
    tgt_text: RaggedRows
    src_subwords: Subwords
    tgt_subwords: Subwords
    alpha: float = 0.1
    seed: int = 0
    max_length: int | None = None

    @property
    def best(self) -> Corpus:
        """Corpus of the best segmentations, for evaluation."""
        return Corpus(self.src, self.tgt, self.counts)

    def lengths(self) -> Tensor:
        """Return the length limits [rows, 2] of sources and targets, as int32."""
        return torch.from_numpy(self._limits)

    def batch(self, index: Sequence[int], epoch: int = 0) -> Batch:
        """Return the given rows as a batch, segmented for this epoch."""
        rows = [int(i) for i in index]
        sides: list[list[Any]] = []
        for side, best in enumerate((self.src, self.tgt)):
            draws = self._draw(rows, epoch, side)
            limits = self._limits[rows, side].tolist()
            sides.append([d if len(d) <= n else best[i] for i, d, n in zip(rows, draws, limits, strict=True)])
        return replace(make_batch(sides[0], sides[1], range(len(rows))), index=tuple(rows))

    def batches(self, size: int, rows: int | None = None) -> LengthBatches:
        """Return batches of best segmentations, sorted by length, for all rows or the first `rows` rows."""
        return self.best.batches(size, rows)

    def digest(self) -> str:
        """Return a hash of everything that determines the batches."""
        models = f"{self.src_subwords.fingerprint()} {self.tgt_subwords.fingerprint()}"
        texts = f"{self.src_text.digest} {self.tgt_text.digest}"
        sampling = f"{self.alpha!r} {self.seed} {self.max_length}"
        return hashlib.sha256(f"{self.best.digest()} {models} {texts} {sampling}".encode()).hexdigest()

    @cached_property
    def _limits(self) -> NDArray[np.int32]:
        """The length limits [rows, 2]; they are the same in every epoch."""
        best = self.best.lengths().numpy()
        rows = np.linspace(0, len(self) - 1, min(len(self), PROBE_ROWS)).astype(np.int64)
        limits = best.copy()
        for side in range(2):
            draws = np.array([len(d) for d in self._draw(rows.tolist(), -1, side)])
            growth = (draws - SPARE) / np.maximum(best[rows, side], 1)
            limits[:, side] = best[:, side] * max(1.0, np.quantile(growth, UNCUT_SHARE)) + SPARE
        if self.max_length is not None:
            limits = np.minimum(limits, self.max_length)
        return np.maximum(limits, best)

    def _draw(self, rows: list[int], epoch: int, side: int) -> list[list[int]]:
        text, subwords = ((self.src_text, self.src_subwords), (self.tgt_text, self.tgt_subwords))[side]
        texts = [text[i].tobytes().decode("utf-8") for i in rows]
        return subwords.sample_many(texts, self.alpha, [_seed(self.seed, epoch, i, side) for i in rows])


def _seed(*parts: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def _lengths(rows: Rows) -> Tensor:
    counts = rows.lengths if isinstance(rows, RaggedRows) else np.fromiter(map(len, rows), np.int64, len(rows))
    return torch.from_numpy(counts.astype(np.int32))


def _digest(rows: Rows) -> str:
    return rows.digest if isinstance(rows, RaggedRows) else digest_of(rows)
