"""Passes of a model: one over all sentences, which feeds every statistic, and one over those that a report shows."""

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
    """One pass of a model over sentences, which feeds every statistic of attention.

    Args:
        reader: the adapter of the model.
        batches: of the kind that the adapter runs; their sentences are numbered from 0, each once.
        examples: sentences that show the role of a head.
        counts: of pieces, as of :func:`~tsallis.analysis.head_roles`.
    """

    def __init__(
        self, reader: AttentionReader, batches: Iterable[Any], examples: int, counts: PieceCounts | None = None
    ) -> None:
        self.reader, self.batches = reader, batches
        layers = reader.layers
        self.roles = Roles(layers, counts, examples=examples)
        self.densities, self.diversity, self.contrasts = Density(layers), Diversity(layers), Contrasts(layers)

    def __iter__(self) -> Iterator[list[Sentence]]:
        """Yield the sentences of each batch once all statistics have taken them in."""
        for batch in record_batches(self.reader, self.batches):
            self.update(batch)
            yield batch.sentences

    def update(self, batch: RecordedBatch) -> None:
        """Take a batch into all statistics."""
        statistics: tuple[Statistic[Any], ...] = (self.roles, self.densities, self.diversity, self.contrasts)
        for sentence in batch.sentences:
            for statistic in statistics:
                statistic.update(sentence)

    def choose(self, count: int, others: Iterable[int] = ()) -> list[int]:
        """Choose sentences that are shown with all weights.

        Half of them are those that most heads have as an example, a quarter some of `others`, in their order, the rest
        the first of the corpus.
        """
        roles: HeadRoles = self.roles.result()
        cited = Counter(example.text.index for head in roles.heads for example in head.examples)
        selection = {index for index, _ in cited.most_common(count // 2)}
        selection.update(list(dict.fromkeys(others))[: count // 4])
        for index in range(self.roles.sentences):
            if len(selection) >= count:
                break
            selection.add(index)
        return sorted(selection)


class ReportWeights:
    """The weights that a report holds, of a second pass: all of some sentences, single heads' of others.

    Args:
        reader: the adapter of the model.
        batches: that hold these sentences.
        rows: of sentences with all weights.
        heads: by row, the heads whose weights alone are needed.
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
        """Take from a batch what a report shows besides weights: nothing."""

    def head(self, key: HeadKey, row: int) -> SparseWeights:
        """Return the weights of one head on one sentence."""
        return self._heads[key, row]
