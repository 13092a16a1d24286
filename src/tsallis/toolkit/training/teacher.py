"""Distributions of a teacher for the training data: `tsallis distill` writes them, `tsallis train` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsallis.distillation import part_columns, read_distributions, write_distributions
from tsallis.errors import InputError
from tsallis.functional import SparseRows
from tsallis.models.batch import Batch, has_loss
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import device_of
from tsallis.search import SearchOptions
from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.evaluation.search_results import search_batch
from tsallis.toolkit.evaluation.teacher_forcing import MAX_SCORES
from tsallis.toolkit.training.lock import locked

BATCH_ROWS = 64


@dataclass(frozen=True)
class Teacher:
    """Targets from the distributions of a teacher, for every target symbol of the training data.

    Args:
        rows: Targets of all symbols, in the order of the data.
        starts: Number of the first symbol of each row of the data, and the number of symbols [rows + 1].
        digest: Digest of all targets.
        corpus: Training data. If the teacher read its own outputs, they are the target symbols.
    """

    rows: SparseRows
    starts: Tensor
    digest: str
    corpus: Corpus

    def targets(self, batch: Batch) -> SparseRows:
        """Return the target of each position of a batch, in the order of `tgt_out.flatten()`.

        Positions without a loss are empty.
        """
        position = self.starts[torch.tensor(batch.index)].unsqueeze(1) + _target_mask(batch).cumsum(1) - 1
        return self.rows[torch.where(has_loss(batch.tgt_out), position, -1).flatten()]


def _target_mask(batch: Batch) -> Tensor:
    """Return a mask of the target symbols."""
    return batch.tgt_out != IGNORE_INDEX


def write_teacher(
    model: Any,
    corpus: Corpus,
    vocabulary: str,
    teachers: list[str],
    folder: Path,
    *,
    top_k: int | None = None,
    search: SearchOptions | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Write the distributions of a model for every target symbol, with teacher forcing, and return the manifest.

    If the folder contains parts of the same distributions, only the missing parts are computed.

    Args:
        model: Model or ensemble.
        corpus: Training data.
        vocabulary: Fingerprint of the target vocabulary.
        teachers: Digest of the parameters of each model.
        folder: Folder of the distributions.
        top_k: Number of stored probabilities per symbol; None: all that are not zero.
        search: Options of the search for the model's best outputs, which replace the references; None: no search.
        advance: Function that is called with the number of finished rows and of all rows.

    Raises:
        InputError: If the probabilities do not sum to 1, the data differ in every epoch, or the folder contains
            other distributions.
    """
    if not model.output.normalized:
        raise InputError("expected a teacher with entmax or softmax, found alpha-ReLU; its values do not sum to 1")
    _check_data(corpus)

    def batches(start: int, stop: int) -> Iterator[range]:
        for first in range(start, stop, BATCH_ROWS):
            advance(first, len(corpus))
            yield range(first, min(first + BATCH_ROWS, stop))

    def compute(start: int, stop: int) -> dict[str, Tensor]:
        return _compute_part(model, corpus, batches(start, stop), top_k, search)

    search_settings = None if search is None else search.given
    data = {"data": corpus.digest(), "vocabulary": vocabulary, "teachers": teachers}
    facts = {**data, "top_k": top_k, "search": search_settings}
    with locked(folder):
        return write_distributions(folder, facts, len(corpus), compute)


def _check_data(corpus: Corpus) -> None:
    if not corpus.same_every_epoch:
        raise InputError("expected data that are the same in every epoch; set data.subwords.sample to 0, or read files")


@torch.no_grad()
def _compute_part(
    model: Any, corpus: Corpus, batches: Iterable[range], top_k: int | None, search: SearchOptions | None
) -> dict[str, Tensor]:
    """Return the distributions for some rows, as a part."""
    device, rows, lengths, symbols = device_of(model), [], [], []
    with eval_mode(model):
        for index in batches:
            batch = corpus.batch(index)
            if search is not None:  # a search without an output keeps the reference
                results = zip(search_batch(model, batch, search), index, strict=True)
                outputs = RaggedRows.of(
                    x.hypotheses[0].tokens if x.hypotheses else corpus.tgt[row] for x, row in results
                )
                sources = RaggedRows.of(corpus.src[row] for row in index)
                batch = replace(corpus, src=sources, tgt=outputs).batch(range(len(index)))
            hidden = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device)).hidden
            mask = _target_mask(batch)
            hidden = hidden[mask.to(device)]  # [symbols, d_model]
            width = max(1, MAX_SCORES // model.output.scores(hidden[:1]).shape[-1])
            for piece in hidden.split(width):
                rows.append(SparseRows.from_dense(model.output.probs(model.output.scores(piece)).cpu(), top_k))
            lengths.append(mask.sum(1))
            symbols.append(batch.tgt_out[mask])
    return part_columns(rows, torch.cat(lengths), None if search is None else torch.cat(symbols))


def read_teacher(folder: Path, corpus: Corpus, vocabulary: str, weight: float) -> Teacher:
    """Read the distributions of a teacher.

    Args:
        folder: Folder that `tsallis distill` wrote.
        corpus: Training data.
        vocabulary: Fingerprint of the target vocabulary.
        weight: Share of the teacher in the targets; the reference, or the teacher's own output, has the rest.

    Raises:
        InputError: If the distributions are incomplete or damaged, or belong to other data or another vocabulary.
    """
    _check_data(corpus)
    stored = read_distributions(folder, corpus.digest(), vocabulary)
    if stored.symbols is not None:
        rows = stored.symbols.tensor_split(stored.starts[1:-1])
        corpus = replace(corpus, tgt=RaggedRows.of(row[:-1].numpy() for row in rows))
    symbols, lengths = [], []
    for start in range(0, len(corpus), BATCH_ROWS):
        batch = corpus.batch(range(start, min(start + BATCH_ROWS, len(corpus))))
        symbols.append(batch.tgt_out[_target_mask(batch)])
        lengths.append(_target_mask(batch).sum(1))
    if not torch.equal(torch.cat(lengths), stored.starts.diff()):
        raise InputError(f"{folder}: expected as many distributions as target symbols, found others; write them again")
    digest = hashlib.sha256(f"{stored.digest} {weight!r}".encode()).hexdigest()
    return Teacher(stored.mixed(torch.cat(symbols), weight), stored.starts, digest, corpus)
