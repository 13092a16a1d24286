"""Passes of a run's model over a corpus, which take outputs from the batches that weights are taken from."""

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

BATCH = 32  # sentences that are recorded together
WORDS = 12  # of a forced step, at most


class CorpusPass(AttentionPass):
    """One pass of a run's model over a corpus: weights and outputs are taken from the same batches.

    Args:
        run: of an encoder-decoder with discrete attention, or of a language model.
        corpus: as the run's own vocabularies number it.
        count: sentences that are read, the first ones.
        examples, counts: as of :class:`AttentionPass`.

    Raises:
        InputError: a run of another kind.
    """

    def __init__(self, run: Run, corpus: Corpus, count: int, examples: int, counts: PieceCounts | None) -> None:
        super().__init__(_reader(run), corpus.batches(BATCH, count), examples, counts)
        self.run, self.corpus, self.outputs = run, corpus, Outputs(run.model)

    def update(self, batch: RecordedBatch) -> None:
        """Take a batch into all statistics, those of outputs among them."""
        super().update(batch)
        self.outputs.update(batch.result, batch.batch)


def _reader(run: Run) -> Any:
    try:
        return read_model(run.model, run.src_vocab, run.tgt_vocab)
    except ValueError as error:
        raise InputError(f"{run.folder}: {error}") from error


class ShownSentences(ReportWeights):
    """The weights and the steps of the targets that a report on a run shows.

    Args:
        corpus_pass: the first one.
        rows, heads: as of :class:`ReportWeights`.
    """

    def __init__(self, corpus_pass: CorpusPass, rows: Sequence[int], heads: dict[int, set[HeadKey]]) -> None:
        self.run, corpus = corpus_pass.run, corpus_pass.corpus
        self.steps: dict[int, tuple[TeacherForcedStep, ...]] = {}
        lengths = corpus.lengths()
        order = sorted({*rows, *heads}, key=lambda row: (int(lengths[row].sum()), row))
        batches = (corpus.batch(order[first : first + BATCH]) for first in range(0, len(order), BATCH))
        super().__init__(corpus_pass.reader, batches, rows, heads)

    def read_outputs(self, batch: RecordedBatch) -> None:
        """Take the steps of the targets."""
        run = self.run
        self.steps.update(describe_steps(run.model, batch.result, batch.batch, run.tgt_vocab, WORDS, self.rows))
