"""Run a model over all sentences for statistics, and again over the sentences that a report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tsallis.analysis.contrasts import Contrasts
from tsallis.analysis.density import Density
from tsallis.analysis.diversity import Diversity
from tsallis.analysis.head_roles import HeadRoles, Roles
from tsallis.analysis.record import AttentionReader, RecordedBatch, record_batches
from tsallis.analysis.statistics import Statistic
from tsallis.analysis.weights import Sentence, SparseWeights
from tsallis.analysis.words import PieceCounts

HeadKey = tuple[str, int, int]  # kind, layer and head


class AttentionPass:
    """Pass of a model over sentences, which updates all statistics of attention.

    Args:
        reader: Adapter of the model.
        batches: Batches for the adapter. Their sentences are numbered from 0, each number once.
        examples: Number of sentences that show the role of a head.
        counts: Frequencies of pieces, see :func:`~tsallis.analysis.head_roles`.
    """

    def __init__(
        self, reader: AttentionReader, batches: Iterable[Any], examples: int, counts: PieceCounts | None = None
    ) -> None:
        self.reader, self.batches = reader, batches
        layers = reader.layers
        self.roles = Roles(layers, counts, examples=examples)
        self.densities, self.diversity, self.contrasts = Density(layers), Diversity(layers), Contrasts(layers)

    def __iter__(self) -> Iterator[list[Sentence]]:
        """Update all statistics with each batch, then yield its sentences."""
        for batch in record_batches(self.reader, self.batches):
            self.update(batch)
            yield batch.sentences

    def update(self, batch: RecordedBatch) -> None:
        """Update all statistics with a batch."""
        statistics: tuple[Statistic[Any], ...] = (self.roles, self.densities, self.diversity, self.contrasts)
        for sentence in batch.sentences:
            for statistic in statistics:
                statistic.update(sentence)

    def choose(self, count: int, preferred: Iterable[int] = ()) -> list[int]:
        """Choose the sentences that a report shows with the weights of all heads.

        Up to half are the sentences that illustrate the most heads. Up to a quarter are the first of `preferred`. The
        remaining ones are the first of the corpus.
        """
        roles: HeadRoles = self.roles.result()
        cited = Counter(example.text.index for head in roles.heads for example in head.examples)
        selection = {index for index, _ in cited.most_common(count // 2)}
        selection.update(list(dict.fromkeys(preferred))[: count // 4])
        for index in range(self.roles.sentences):
            if len(selection) >= count:
                break
            selection.add(index)
        return sorted(selection)


class ReportWeights:
    """Weights that a report shows, from a second pass: all heads on some sentences, single heads on others.

    Args:
        reader: Adapter of the model.
        batches: Batches that contain these sentences.
        rows: Sentences that the report shows with all heads.
        heads: Single heads that the report shows, by sentence.
    """

    def __init__(
        self, reader: AttentionReader, batches: Iterable[Any], rows: Iterable[int], heads: dict[int, set[HeadKey]]
    ) -> None:
        numbers = {(layer.kind, layer.layer): number for number, layer in enumerate(reader.layers)}
        self.rows = frozenset(rows)
        self.sentences: dict[int, Sentence] = {}
        self._heads: dict[tuple[HeadKey, int], SparseWeights] = {}
        for batch in record_batches(reader, batches):
            for sentence in batch.sentences:
                index = sentence.text.index
                if index in self.rows:
                    self.sentences[index] = sentence
                for key in heads.get(index, ()):
                    self._heads[key, index] = sentence.weights[numbers[key[:2]]].head(key[2])
            self.read_outputs(batch)

    def read_outputs(self, batch: RecordedBatch) -> None:
        """Read the outputs of a batch; a subclass may override this method, which does nothing."""

    def head(self, key: HeadKey, row: int) -> SparseWeights:
        """Return the weights of one head on one sentence."""
        return self._heads[key, row]
