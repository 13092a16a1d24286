"""Contrasts of attention: sparse and dense sentences of one head, and words about which two models differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from tsallis.analysis.density import sentence_density
from tsallis.analysis.diversity import jensen_shannon
from tsallis.analysis.head_roles import Example
from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.tables import Record
from tsallis.analysis.weights import AttentionLayer, Floats, Sentence
from tsallis.errors import InputError
from tsallis.search.step import at_least_one

if TYPE_CHECKING:
    from typing_extensions import Self

EXAMPLES = 10


@dataclass(frozen=True)
class DensityContrast(Record):
    """Two sentences of as many keys on which one head is sparse and dense; their scores are densities.

    Args:
        kind: of attention: "encoder", "decoder" or "cross".
        layer: its number, from 0.
        head: its number, from 0.
        alpha: of the head.
        sparse: the sentence of the smaller density.
        dense: the sentence of the larger density.

    Example:
        >>> text = Sentence.of([[[1]]]).text
        >>> DensityContrast("encoder", 0, 0, 1.5, sparse=Example(text, 0.25), dense=Example(text, 0.75)).difference
        0.5
    """

    kind: str
    layer: int
    head: int
    alpha: float
    sparse: Example
    dense: Example

    @property
    def difference(self) -> float:
        """The density of the dense sentence above that of the sparse one."""
        return self.dense.score - self.sparse.score


class Contrasts(Statistic[tuple[DensityContrast, ...]]):
    """The statistic of :func:`density_contrasts`: for each head, the sparsest and the densest sentence of each length.

    Args:
        layers: of the recording.
        count: the largest number of pairs in the result.

    Raises:
        ValueError: `count` below 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> contrasts = Contrasts([layer], count=1)
        >>> contrasts.update(Sentence.of([[[1, 0], [1, 0]]]))
        >>> contrasts.update(Sentence.of([[[0.5, 0.5], [1, 0]]], index=1))
        >>> [(pair.sparse.score, pair.dense.score) for pair in contrasts.result()]
        [(0.5, 0.75)]
    """

    def __init__(self, layers: Sequence[AttentionLayer], count: int = EXAMPLES) -> None:
        super().__init__(layers)
        at_least_one(count=count)
        self.count = count
        self._ends: dict[tuple[int, int, int], tuple[Example, Example]] = {}  # by layer, head and keys

    def _update(self, sentence: Sentence) -> None:
        for number, (layer, weights) in enumerate(zip(self.layers, sentence.weights, strict=True)):
            for head, density in enumerate(sentence_density(layer, weights).tolist()):
                key = (number, head, weights.shape[2])
                ends = self._ends.get(key)
                if ends is None or not ends[0].score < density < ends[1].score:
                    self._extend(key, (Example(sentence.text, density),) * 2)

    def _merge(self, other: Self) -> None:
        for key, ends in other._ends.items():
            self._extend(key, ends)

    def _extend(self, key: tuple[int, int, int], more: tuple[Example, Example]) -> None:
        low, high = self._ends.get(key, more)
        # Of equal ones the first of the corpus, whatever the order they come in.
        self._ends[key] = (
            min(low, more[0], key=lambda example: (example.score, example.text.index)),
            max(high, more[1], key=lambda example: (example.score, -example.text.index)),
        )

    def _result(self) -> tuple[DensityContrast, ...]:
        contrasts = []
        for (number, head, _), ends in sorted(self._ends.items(), key=lambda item: item[0]):
            layer = self.layers[number]
            contrasts.append(DensityContrast(layer.kind, layer.layer, head, layer.alphas[head], *ends))
        ranked = sorted(contrasts, key=lambda contrast: -contrast.difference)
        return tuple(contrast for contrast in ranked[: self.count] if contrast.difference > 0)


def density_contrasts(recording: Recording, count: int = EXAMPLES) -> tuple[DensityContrast, ...]:
    """Find heads that are sparse on one sentence and dense on another of the same length.

    They are confident on the one and not on the other (Correia et al. 2019, fig. 10).

    Args:
        recording: of a model.
        count: the largest number of pairs.

    Returns:
        At most `count` pairs, the largest differences of density first.

    Raises:
        InputError: a recording without sentences.
        ValueError: `count` below 1.

    Example:
        >>> sentences = [Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[0.5, 0.5], [1, 0]]], index=1)]
        >>> (pair,) = density_contrasts(Recording([AttentionLayer("encoder", 0, (1.5,))], sentences))
        >>> pair.sparse.text.index, pair.dense.text.index, pair.difference
        (0, 1, 0.25)
    """
    (contrasts,) = collect(recording, Contrasts(recording.layers, count))
    return contrasts


@dataclass(frozen=True)
class WordContrast(Record):
    """A word, and how much heads disagree about it: from 0 to 1, see :func:`~tsallis.analysis.jensen_shannon`.

    Args:
        sentence: its number in the corpus.
        position: of the word's query, from 0.
        piece: the piece at that position.
        between: the divergence of the two models' mean heads.
        first: the divergence among the heads of the first model.
        second: the divergence among the heads of the second model.
    """

    sentence: int
    position: int
    piece: str
    between: float
    first: float
    second: float


@dataclass(frozen=True)
class ModelContrast(Record):
    """The words about which two models agree most and least.

    Args:
        kind: of attention: "encoder", "decoder" or "cross".
        words: the number of words that were compared.
        agree: words, the smallest divergence first.
        differ: words, the largest divergence first.
    """

    kind: str
    words: int
    agree: tuple[WordContrast, ...]
    differ: tuple[WordContrast, ...]


def compare_models(first: Recording, second: Recording, kind: str, count: int = EXAMPLES) -> ModelContrast:
    """Find the words about which the heads of two models agree and differ most, both having read the same sentences.

    At each query the heads of all layers of a kind are pooled: heads of two models have no common order. Queries that
    can attend to one key only are left out. The divergence is that of Correia et al. 2019, eq. 11.

    Args:
        first, second: recordings of the same corpus in the same order, as by the same vocabulary.
        kind: "encoder", "decoder" or "cross".
        count: words of each list.

    Returns:
        The words of least and of largest divergence between the models.

    Raises:
        InputError: a model without attention of the kind, other sentences, or none.
        ValueError: `count` below 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> one, other = Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[1, 0], [0, 1]]])
        >>> contrast = compare_models(Recording([layer], [one]), Recording([layer], [other]), "encoder", count=1)
        >>> contrast.differ[0].piece, contrast.differ[0].between, contrast.agree[0].piece
        ('▁2', 1.0, '▁1')
    """
    at_least_one(count=count)
    agree: list[WordContrast] = []
    differ: list[WordContrast] = []
    words = 0
    layers = [_of_kind(recording, kind) for recording in (first, second)]
    for one, other in zip_longest(first, second):
        if one is None or other is None or one.text != other.text:
            number = (one or other).text.index
            raise InputError(f"the recordings have not read the same sentences: sentence {number} is in one alone")
        contrasts = _compare(first.layers[layers[0][0]], _heads(one, layers[0]), _heads(other, layers[1]), one)
        words += len(contrasts)
        agree = sorted([*agree, *contrasts], key=lambda word: word.between)[:count]
        differ = sorted([*differ, *contrasts], key=lambda word: -word.between)[:count]
    if not words:
        raise InputError(f"there is no word to compare: no query of {kind} attention sees two keys")
    return ModelContrast(kind, words, tuple(agree), tuple(differ))


def _of_kind(recording: Recording, kind: str) -> list[int]:
    numbers = [number for number, layer in enumerate(recording.layers) if layer.kind == kind]
    if not numbers:
        kinds = ", ".join(dict.fromkeys(layer.kind for layer in recording.layers))
        raise InputError(f"the recording has no attention of kind {kind!r}, only {kinds}")
    return numbers


def _heads(sentence: Sentence, layers: Sequence[int]) -> Floats:
    """Return the heads of some layers together [heads, queries, keys]."""
    return np.concatenate([sentence.weights[number].dense() for number in layers])


def _compare(layer: AttentionLayer, first: Floats, second: Floats, sentence: Sentence) -> list[WordContrast]:
    visible = layer.visible(*first.shape[1:])
    means = np.stack([first.mean(0), second.mean(0)])  # [2, queries, keys]
    columns = [jensen_shannon(heads, visible).tolist() for heads in (means, first, second)]
    pieces = sentence.text.sides(layer.kind)[0]
    rows = zip(range(len(pieces)), pieces, *columns, strict=True)
    return [WordContrast(sentence.text.index, *row) for row in rows if visible[row[0]] > 1]
