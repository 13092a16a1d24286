"""Passes of a run's model over a corpus, which record attention weights and outputs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsallis.analysis.outputs import Outputs, TeacherForcedStep, describe_steps
from tsallis.analysis.passes import AttentionPass, HeadKey, ReportWeights
from tsallis.analysis.record import RecordedBatch, read_model
from tsallis.analysis.words import PieceCounts
from tsallis.errors import InputError
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.training.run_folder import Run

BATCH = 32  # number of sentences in a batch
WORDS = 12  # largest number of listed words per teacher-forced step


class CorpusPass(AttentionPass):
    """Pass of a run's model over a corpus, which records weights and outputs from the same batches.

    Args:
        run: Run of an encoder-decoder with discrete attention, or of a language model.
        corpus: Corpus encoded by the run's vocabularies.
        count: Number of sentences to read from the beginning.
        examples, counts: See :class:`AttentionPass`.

    Raises:
        InputError: If the run has another kind of model.
    """

    def __init__(self, run: Run, corpus: Corpus, count: int, examples: int, counts: PieceCounts | None) -> None:
        super().__init__(_reader(run), corpus.batches(BATCH, count), examples, counts)
        self.run, self.corpus, self.outputs = run, corpus, Outputs(run.model)

    def update(self, batch: RecordedBatch) -> None:
        """Update all statistics by a batch, including those of outputs."""
        super().update(batch)
        self.outputs.update(batch.result, batch.batch)


def _reader(run: Run) -> Any:
    try:
        return read_model(run.model, run.src_vocab, run.tgt_vocab)
    except ValueError as error:
        raise InputError(f"{run.folder}: {error}") from error


class ShownSentences(ReportWeights):
    """Weights and teacher-forced steps of the sentences that a report shows.

    Args:
        corpus_pass: Pass over the corpus, which gives the run and its reader.
        rows, heads: See :class:`ReportWeights`.
    """

    def __init__(self, corpus_pass: CorpusPass, rows: Sequence[int], heads: dict[int, set[HeadKey]]) -> None:
        self.run, corpus = corpus_pass.run, corpus_pass.corpus
        self.steps: dict[int, tuple[TeacherForcedStep, ...]] = {}
        lengths = corpus.lengths()
        order = sorted({*rows, *heads}, key=lambda row: (int(lengths[row].sum()), row))
        batches = (corpus.batch(order[first : first + BATCH]) for first in range(0, len(order), BATCH))
        super().__init__(corpus_pass.reader, batches, rows, heads)

    def read_outputs(self, batch: RecordedBatch) -> None:
        """Record the teacher-forced steps of a batch."""
        run = self.run
        self.steps.update(describe_steps(run.model, batch.result, batch.batch, run.tgt_vocab, WORDS, self.rows))
