"""Passes of a run's model: one over a whole corpus, which feeds every statistic, and one over sentences to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tsallis.analysis.contrasts import Contrasts
from tsallis.analysis.density import Density
from tsallis.analysis.diversity import Diversity
from tsallis.analysis.head_roles import HeadRoles, Roles
from tsallis.analysis.outputs import Outputs, TeacherForcedStep, describe_steps
from tsallis.analysis.record import read_model, record_batches
from tsallis.analysis.statistics import Statistic
from tsallis.analysis.weights import Sentence, SparseWeights
from tsallis.analysis.words import PieceCounts
from tsallis.data.corpus import Corpus
from tsallis.errors import InputError
from tsallis.training.run_folder import Run

BATCH = 32  # sentences that are recorded together
WORDS = 12  # of a forced step, at most
HeadKey = tuple[str, int, int]  # kind, layer and head


class CorpusPass:
    """One pass of a run's model over a corpus: weights and outputs are taken from the same batches.

    Args:
        run: of an encoder-decoder with discrete attention.
        corpus: as the run's own vocabularies number it.
        count: sentences that are read, the first ones.
        examples: sentences that show the role of a head.
        counts: of pieces, as of :func:`~tsallis.analysis.head_roles`.

    Raises:
        InputError: a run of another kind.
    """

    def __init__(self, run: Run, corpus: Corpus, count: int, examples: int, counts: PieceCounts | None) -> None:
        self.run, self.corpus, self.reader = run, corpus, _reader(run)
        layers = self.reader.layers
        self.batches = corpus.batches(BATCH, count)
        self.roles = Roles(layers, counts, examples=examples)
        self.densities, self.diversity, self.contrasts = Density(layers), Diversity(layers), Contrasts(layers)
        self.outputs = Outputs(run.model)

    def __iter__(self) -> Iterator[list[Sentence]]:
        """Yield the sentences of each batch once all statistics have taken them in."""
        statistics: tuple[Statistic[Any], ...] = (self.roles, self.densities, self.diversity, self.contrasts)
        for batch in record_batches(self.reader, self.batches):
            for sentence in batch.sentences:
                for statistic in statistics:
                    statistic.update(sentence)
            self.outputs.update(batch.result, batch.batch)
            yield batch.sentences

    def choose(self, count: int, others: Iterable[int] = ()) -> list[int]:
        """Choose sentences that are shown with all weights.

        Half of them are those that most heads have as an example, a quarter some of `others`, in their order, the rest
        the first of the corpus.
        """
        roles: HeadRoles = self.roles.result()
        cited = Counter(example.text.index for head in roles.heads for example in head.examples)
        chosen = {index for index, _ in cited.most_common(count // 2)}
        chosen.update(list(dict.fromkeys(others))[: count // 4])
        for index in range(self.roles.sentences):
            if len(chosen) >= count:
                break
            chosen.add(index)
        return sorted(chosen)


def _reader(run: Run) -> Any:
    try:
        return read_model(run.model, run.src_vocab, run.tgt_vocab)
    except ValueError as error:
        raise InputError(f"{run.folder}: {error}") from error


class ShownSentences:
    """A second pass, over the sentences that a report shows: all weights of some, single heads' of others.

    Args:
        corpus_pass: the first one.
        rows: of sentences with all weights.
        heads: by row, the heads whose weights alone are needed.
    """

    def __init__(self, corpus_pass: CorpusPass, rows: Sequence[int], heads: dict[int, set[HeadKey]]) -> None:
        run, corpus, reader = corpus_pass.run, corpus_pass.corpus, corpus_pass.reader
        numbers = {(layer.kind, layer.layer): number for number, layer in enumerate(reader.layers)}
        chosen = set(rows)
        lengths = corpus.lengths()
        order = sorted(chosen | heads.keys(), key=lambda row: (int(lengths[row].sum()), row))
        batches = (corpus.batch(order[first : first + BATCH]) for first in range(0, len(order), BATCH))
        self.sentences: dict[int, Sentence] = {}
        self.steps: dict[int, tuple[TeacherForcedStep, ...]] = {}
        self._heads: dict[tuple[HeadKey, int], SparseWeights] = {}
        for batch in record_batches(reader, batches):
            for sentence in batch.sentences:
                index = sentence.text.index
                if index in chosen:
                    self.sentences[index] = sentence
                for key in heads.get(index, ()):
                    self._heads[key, index] = sentence.weights[numbers[key[:2]]].head(key[2])
            self.steps.update(describe_steps(run.model, batch.result, batch.batch, run.tgt_vocab, WORDS, chosen))

    def head(self, key: HeadKey, row: int) -> SparseWeights:
        """Return the weights of one head on one sentence."""
        return self._heads[key, row]
