"""Find sentences on which a head is sparse or dense, and words on which two models differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from tsallis.analysis.density import sentence_density
from tsallis.analysis.diversity import jensen_shannon
from tsallis.analysis.head_roles import Example
from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.tables import Record
from tsallis.analysis.weights import SIDES, AttentionLayer, Floats, Sentence
from tsallis.errors import InputError
from tsallis.search.checks import check_at_least_one

EXAMPLES = 10
SHORTEST = 6  # minimum number of keys for a meaningful density
NAMED_KEYS = 5  # number of keys to list per word: those with the largest weights


@dataclass(frozen=True)
class DensityContrast(Record):
    """Two sentences with the same number of keys. One head is sparse on the first sentence and dense on the second.

    The scores of the examples are densities.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer, from 0.
        head: Number of the head, from 0.
        alpha: Alpha of the head.
        sparse: Sentence with the smaller density.
        dense: Sentence with the larger density.

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
        """Return the density of the dense sentence minus that of the sparse sentence."""
        return self.dense.score - self.sparse.score


class Contrasts(Statistic[tuple[DensityContrast, ...]]):
    """Statistic for :func:`density_contrasts`.

    It stores the sparsest and the densest sentence of each length for every head.

    Args:
        layers: Attention modules of the recording.
        count: Maximum number of pairs in the result.
        shortest: Minimum number of keys per sentence.

    Raises:
        ValueError: `count` or `shortest` is below 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> contrasts = Contrasts([layer], count=1, shortest=2)
        >>> contrasts.update(Sentence.of([[[1, 0], [1, 0]]]))
        >>> contrasts.update(Sentence.of([[[0.5, 0.5], [1, 0]]], index=1))
        >>> [(pair.sparse.score, pair.dense.score) for pair in contrasts.result()]
        [(0.5, 0.75)]
    """

    def __init__(self, layers: Sequence[AttentionLayer], count: int = EXAMPLES, shortest: int = SHORTEST) -> None:
        super().__init__(layers)
        check_at_least_one(count=count, shortest=shortest)
        self.count, self.shortest = count, shortest
        self._extremes: dict[tuple[int, int, int], tuple[Example, Example]] = {}  # by layer, head and number of keys

    def _update(self, sentence: Sentence) -> None:
        for number, (layer, weights) in enumerate(zip(self.layers, sentence.weights, strict=True)):
            if weights.shape[2] < self.shortest:
                continue
            for head, density in enumerate(sentence_density(layer, weights).tolist()):
                key = (number, head, weights.shape[2])
                extremes = self._extremes.get(key)
                if extremes is None or not extremes[0].score < density < extremes[1].score:
                    self._extend(key, (Example(sentence.text, density),) * 2)

    def _extend(self, key: tuple[int, int, int], pair: tuple[Example, Example]) -> None:
        low, high = self._extremes.get(key, pair)
        # Break ties by the order of the corpus.
        self._extremes[key] = (
            min(low, pair[0], key=lambda example: (example.score, example.text.index)),
            max(high, pair[1], key=lambda example: (example.score, -example.text.index)),
        )

    def _result(self) -> tuple[DensityContrast, ...]:
        best: dict[tuple[int, int], DensityContrast] = {}  # best contrast of each head
        for (number, head, _), extremes in sorted(self._extremes.items(), key=lambda item: item[0]):
            layer = self.layers[number]
            contrast = DensityContrast(layer.kind, layer.layer, head, layer.alphas[head], *extremes)
            previous = best.get((number, head))
            if previous is None or contrast.difference > previous.difference:
                best[number, head] = contrast
        ranked = sorted(best.values(), key=lambda contrast: -contrast.difference)
        return tuple(contrast for contrast in ranked[: self.count] if contrast.difference > 0)


def density_contrasts(
    recording: Recording, count: int = EXAMPLES, shortest: int = SHORTEST
) -> tuple[DensityContrast, ...]:
    """Find heads that are sparse on one sentence and dense on another sentence of the same length.

    Such a head is confident on the first sentence, but not on the second (Correia et al. 2019, fig. 10).

    Args:
        recording: Recording of a model.
        count: Maximum number of pairs.
        shortest: Minimum number of keys per sentence.

    Returns:
        At most `count` pairs, one per head, the largest difference of density first.

    Raises:
        InputError: The recording has no sentences.
        ValueError: `count` or `shortest` is below 1.

    Example:
        >>> sentences = [Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[0.5, 0.5], [1, 0]]], index=1)]
        >>> (pair,) = density_contrasts(Recording([AttentionLayer("encoder", 0, (1.5,))], sentences), shortest=2)
        >>> pair.sparse.text.index, pair.dense.text.index, pair.difference
        (0, 1, 0.25)
    """
    (contrasts,) = collect(recording, Contrasts(recording.layers, count, shortest))
    return contrasts


Keys = tuple[tuple[str, float], ...]  # pieces and their weights, largest weight first


@dataclass(frozen=True)
class WordContrast(Record):
    """Divergences between heads at one word, from 0 to 1; see :func:`.jensen_shannon`.

    Args:
        sentence: Number of the sentence in the corpus.
        position: Position of the word's query, from 0.
        piece: Piece at that position.
        between: Divergence between the mean heads of the two models.
        first: Divergence between the heads of the first model.
        second: Divergence between the heads of the second model.
        first_keys: At most five keys with the largest weights in the first model's mean head.
        second_keys: The same for the second model.
    """

    sentence: int
    position: int
    piece: str
    between: float
    first: float
    second: float
    first_keys: Keys
    second_keys: Keys


@dataclass(frozen=True)
class ModelContrast(Record):
    """Words on which two models agree most and differ most.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        words: Number of compared words.
        mean: Mean over words of the divergence between the mean heads of the two models.
        agree: Words, smallest divergence first.
        differ: Words, largest divergence first.
    """

    kind: str
    words: int
    mean: float
    agree: tuple[WordContrast, ...]
    differ: tuple[WordContrast, ...]


class Comparison:
    """Comparison of two models, which collects the words on which they agree most and differ most.

    Both models must read the same sentences.

    Args:
        first: Attention modules of the first model.
        second: Attention modules of the second model.
        count: Number of words per list.
        kinds: Kinds of attention; default: all kinds that both models have.

    Raises:
        InputError: A model has no attention of a requested kind, or the models have no kind in common.
        ValueError: `count` is below 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> comparison = Comparison([layer], [layer], count=1)
        >>> comparison.update(Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[1, 0], [0, 1]]]))
        >>> (contrast,) = comparison.result()
        >>> contrast.mean, contrast.differ[0].second_keys
        (0.5, (('▁2', 1.0),))
    """

    def __init__(
        self,
        first: Sequence[AttentionLayer],
        second: Sequence[AttentionLayer],
        count: int = EXAMPLES,
        kinds: Sequence[str] | None = None,
    ) -> None:
        check_at_least_one(count=count)
        self.layers = tuple(first), tuple(second)
        shared = [kind for kind in SIDES if all(kind in {layer.kind for layer in layers} for layers in self.layers)]
        self.kinds = tuple(shared if kinds is None else kinds)
        if not self.kinds:
            raise InputError(
                "the two models must share a kind of attention (encoder, decoder or cross), but they share none"
            )
        self._numbers = {kind: [_layer_numbers(layers, kind) for layers in self.layers] for kind in self.kinds}
        self._words = {kind: _WordLists(count) for kind in self.kinds}

    def update(self, first: Sentence, second: Sentence) -> None:
        """Add the recordings of one sentence by both models.

        Raises:
            InputError: The recordings are of different sentences.
        """
        if first.text != second.text:
            raise InputError(
                "the two models must read the same sentences with the same tokens, but sentence "
                f"{first.text.index + 1} differs"
            )
        for kind in self.kinds:
            numbers = self._numbers[kind]
            heads = [_heads(sentence, part) for sentence, part in zip((first, second), numbers, strict=True)]
            self._words[kind].add(first, self.layers[0][numbers[0][0]], *heads)

    def result(self) -> tuple[ModelContrast, ...]:
        """Return the contrast of each kind of attention that has words to compare.

        Raises:
            InputError: There are no words to compare.
        """
        contrasts = tuple(words.result(kind) for kind, words in self._words.items() if words.count)
        if not contrasts:
            raise InputError(
                f"can't compare the models: every query of {', '.join(self.kinds)} attention has fewer than two keys"
            )
        return contrasts


class _WordLists:
    """Words with the smallest and the largest divergence, for one kind of attention."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self.total = size, 0, 0.0
        self.agree: list[WordContrast] = []
        self.differ: list[WordContrast] = []

    def add(self, sentence: Sentence, layer: AttentionLayer, first: Floats, second: Floats) -> None:
        """Add a sentence, with the weights [heads, queries, keys] of both models."""
        visible = layer.visible(*first.shape[1:])
        means = np.stack([first.mean(0), second.mean(0)])  # [2, queries, keys]
        columns = np.stack([jensen_shannon(heads, visible) for heads in (means, first, second)])  # [3, queries]
        rows = np.flatnonzero(visible > 1)
        between = columns[0, rows]
        self.count += len(rows)
        self.total += float(between.sum())
        queries, keys = sentence.text.sides(layer.kind)

        def extend(words: list[WordContrast], order: Sequence[int], sign: int) -> list[WordContrast]:
            added = []
            for row in order:
                if len(words) < self.size or sign * columns[0, row] < sign * words[-1].between:
                    labels = (_largest_weights(mean[row], keys) for mean in means)
                    added.append(
                        WordContrast(sentence.text.index, row, queries[row], *columns[:, row].tolist(), *labels)
                    )
            return sorted([*words, *added], key=lambda word: sign * word.between)[: self.size]

        order = rows[np.argsort(between, kind="stable")].tolist()
        self.agree = extend(self.agree, order[: self.size], 1)
        self.differ = extend(self.differ, order[::-1][: self.size], -1)

    def result(self, kind: str) -> ModelContrast:
        return ModelContrast(kind, self.count, self.total / self.count, tuple(self.agree), tuple(self.differ))


def _largest_weights(weights: Floats, keys: Sequence[str]) -> Keys:
    order = [key for key in np.argsort(-weights, kind="stable")[:NAMED_KEYS].tolist() if weights[key] > 0]
    return tuple((keys[key], float(weights[key])) for key in order)


def compare_models(first: Recording, second: Recording, kind: str, count: int = EXAMPLES) -> ModelContrast:
    """Find the words on which the heads of two models agree most and differ most.

    Both models must have read the same sentences. The heads of all layers are pooled at each query, because the heads
    of two models have no common order. Queries that can attend to only one key are left out. The divergence is eq. 11
    of Correia et al. 2019.

    Args:
        first, second: Recordings of the same corpus, in the same order and with the same vocabulary.
        kind: Kind of attention: "encoder", "decoder" or "cross".
        count: Number of words per list.

    Returns:
        Words with the smallest and the largest divergence between the models.

    Raises:
        InputError: A model has no attention of the kind, the sentences differ, or there is no word to compare.
        ValueError: `count` is below 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> one, other = Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[1, 0], [0, 1]]])
        >>> contrast = compare_models(Recording([layer], [one]), Recording([layer], [other]), "encoder", count=1)
        >>> contrast.differ[0].piece, contrast.differ[0].between, contrast.agree[0].piece
        ('▁2', 1.0, '▁1')
    """
    comparison = Comparison(first.layers, second.layers, count, (kind,))
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            number = (one or other).text.index
            raise InputError(f"the two models must read the same sentences, but only one read sentence {number + 1}")
        comparison.update(one, other)
    (contrast,) = comparison.result()
    return contrast


def _layer_numbers(layers: Sequence[AttentionLayer], kind: str) -> list[int]:
    numbers = [number for number, layer in enumerate(layers) if layer.kind == kind]
    if not numbers:
        kinds = ", ".join(dict.fromkeys(layer.kind for layer in layers))
        raise InputError(f"kind must be one of {kinds} for this recording, got {kind!r}")
    return numbers


def _heads(sentence: Sentence, layers: Sequence[int]) -> Floats:
    """Return the weights of all heads of some layers [heads, queries, keys]."""
    return np.concatenate([sentence.weights[number].dense() for number in layers])
