"""Input of language models: texts after prompts, or texts packed into rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tsallis.errors import InputError
from tsallis.models.batch import Batch
from tsallis.symbols import BOS, EOS, IGNORE_INDEX, PAD
from tsallis.toolkit.data.batching import make_batch
from tsallis.toolkit.data.corpus import Corpus, LengthBatches
from tsallis.toolkit.data.ragged import RaggedRows, digest_of, type_for

MASK_LIMIT = 1 << 26  # maximum size of a batch's attention mask, in pairs of tokens


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """Corpus of prompts and the texts that follow them. Prompts may be empty.

    >>> TextCorpus([[]], [[4, 5]]).batch([0]).tgt_in.tolist()
    [[1, 4, 5]]
    """

    def batch(self, index: Sequence[int], epoch: int = 0) -> Batch:
        return make_batch(self.src, self.tgt, index, empty_sources=True)


@dataclass(frozen=True)
class PackedCorpus(Corpus):
    """Corpus whose rows contain several texts. Each text follows a start symbol; a row may begin or end inside a text.

    `tgt` contains the tokens that the model reads. The last token of a row predicts the first token of the next row.
    Therefore every token except start symbols is predicted exactly once, and so is the end of every text.

    Args:
        stream: All rows, concatenated, with a start symbol at the end.
    """

    stream: NDArray[np.generic] = field(default_factory=lambda: np.array([BOS]), compare=False)

    def lengths(self) -> torch.Tensor:
        """Return lengths [rows, 2]: 0 for sources; length minus 1 for targets, because `BatchPlan` adds 1."""
        counts = super().lengths()
        return counts - torch.tensor([0, 1], dtype=counts.dtype)

    def batch(self, index: Sequence[int], epoch: int = 0) -> Batch:
        assert isinstance(self.tgt, RaggedRows)
        rows = np.asarray(index, np.int64)
        starts = self.tgt.offsets[rows]
        lengths = self.tgt.offsets[rows + 1] - starts
        offsets = starts[:, None] + np.arange(int(lengths.max()) + 1)  # [batch, tgt + 1]
        tokens = self.stream[offsets.clip(max=len(self.stream) - 1)].astype(np.int64)
        mask = np.arange(tokens.shape[1] - 1) < lengths[:, None]
        tgt_in, next_tokens = np.where(mask, tokens[:, :-1], PAD), tokens[:, 1:]
        tgt_out = np.where(mask, np.where(next_tokens == BOS, EOS, next_tokens), IGNORE_INDEX)
        empty = torch.zeros(len(rows), 0, dtype=torch.long), torch.zeros(len(rows), dtype=torch.long)
        return Batch(*empty, torch.from_numpy(tgt_in), torch.from_numpy(tgt_out), tuple(map(int, rows)))

    def batches(self, size: int, rows: int | None = None) -> LengthBatches:
        """Return batches of all rows or of the first `rows` rows; batches of long rows are smaller than `size`."""
        longest = int(self.lengths()[:, 1].max()) + 1
        return LengthBatches(self, max(1, min(size, MASK_LIMIT // longest**2)), rows)

    def digest(self) -> str:
        """Return a hash of the rows."""
        return hashlib.sha256(f"packed {digest_of(self.tgt)}".encode()).hexdigest()


def pack(texts: Iterable[ArrayLike], length: int, symbols: int) -> PackedCorpus:
    """Pack texts in order into rows of at most `length` tokens.

    A text that fits into a row with its start symbol is not cut. A longer text fills rows of `length` tokens; the
    following texts may share its last row.

    Args:
        texts: Encoded texts, without start and end. Empty texts are skipped.
        length: Maximum number of tokens per row, at least 2.
        symbols: Size of the vocabulary.

    Raises:
        InputError: If no text has symbols.

    Example:
        >>> corpus = pack([[7, 8], [9], [5, 5, 5, 5, 5]], 5, 10)
        >>> [row.tolist() for row in corpus.tgt]
        [[1, 7, 8, 1, 9], [1, 5, 5, 5, 5], [5]]
        >>> corpus.batch([1, 2]).tgt_out.tolist()
        [[5, 5, 5, 5, 5], [2, -100, -100, -100, -100]]
    """
    dtype, start = np.dtype(type_for(symbols)), np.array([BOS])
    parts: list[NDArray[np.generic]] = []
    offsets = [0]
    total = 0
    for text in texts:
        tokens = np.asarray(text)
        if not len(tokens):
            continue
        parts.append(np.concatenate([start, tokens]).astype(dtype))
        begin, total = total, total + len(tokens) + 1
        if total - offsets[-1] > length and begin > offsets[-1]:
            offsets.append(begin)
        while total - offsets[-1] > length:
            offsets.append(offsets[-1] + length)
    if not parts:
        raise InputError("expected at least one text with symbols, found none")
    stream = np.concatenate([*parts, start.astype(dtype)])
    rows = RaggedRows(stream[:-1], np.array([*offsets, total], np.int64))
    empty_rows = RaggedRows(stream[:0], np.zeros(len(rows) + 1, np.int64))
    return PackedCorpus(empty_rows, rows, stream=stream)
