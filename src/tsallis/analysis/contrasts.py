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
NAMED_KEYS = 5  # of a word, those with the largest weights


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
        shortest: keys that a sentence has at least.

    Raises:
        ValueError: `count` or `shortest` below 1.

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
        self._ends: dict[tuple[int, int, int], tuple[Example, Example]] = {}  # by layer, head and keys

    def _update(self, sentence: Sentence) -> None:
        for number, (layer, weights) in enumerate(zip(self.layers, sentence.weights, strict=True)):
            if weights.shape[2] < self.shortest:
                continue
            for head, density in enumerate(sentence_density(layer, weights).tolist()):
                key = (number, head, weights.shape[2])
                ends = self._ends.get(key)
                if ends is None or not ends[0].score < density < ends[1].score:
                    self._extend(key, (Example(sentence.text, density),) * 2)

    def _extend(self, key: tuple[int, int, int], more: tuple[Example, Example]) -> None:
        low, high = self._ends.get(key, more)
        # Break ties by the order of the corpus.
        self._ends[key] = (
            min(low, more[0], key=lambda example: (example.score, example.text.index)),
            max(high, more[1], key=lambda example: (example.score, -example.text.index)),
        )

    def _result(self) -> tuple[DensityContrast, ...]:
        best: dict[tuple[int, int], DensityContrast] = {}  # of each head
        for (number, head, _), ends in sorted(self._ends.items(), key=lambda item: item[0]):
            layer = self.layers[number]
            contrast = DensityContrast(layer.kind, layer.layer, head, layer.alphas[head], *ends)
            known = best.get((number, head))
            if known is None or contrast.difference > known.difference:
                best[number, head] = contrast
        ranked = sorted(best.values(), key=lambda contrast: -contrast.difference)
        return tuple(contrast for contrast in ranked[: self.count] if contrast.difference > 0)


def density_contrasts(
    recording: Recording, count: int = EXAMPLES, shortest: int = SHORTEST
) -> tuple[DensityContrast, ...]:
    """Find heads that are sparse on one sentence and dense on another of the same length.

    They are confident on the one and not on the other (Correia et al. 2019, fig. 10).

    Args:
        recording: of a model.
        count: the largest number of pairs.
        shortest: keys that a sentence has at least.

    Returns:
        At most `count` pairs, one per head, the largest differences of density first.

    Raises:
        InputError: a recording without sentences.
        ValueError: `count` or `shortest` below 1.

    Example:
        >>> sentences = [Sentence.of([[[1, 0], [1, 0]]]), Sentence.of([[[0.5, 0.5], [1, 0]]], index=1)]
        >>> (pair,) = density_contrasts(Recording([AttentionLayer("encoder", 0, (1.5,))], sentences), shortest=2)
        >>> pair.sparse.text.index, pair.dense.text.index, pair.difference
        (0, 1, 0.25)
    """
    (contrasts,) = collect(recording, Contrasts(recording.layers, count, shortest))
    return contrasts


Keys = tuple[tuple[str, float], ...]  # pieces with their weights, the largest first


@dataclass(frozen=True)
class WordContrast(Record):
    """A word, and how much heads disagree about it, from 0 to 1: see :func:`.jensen_shannon`.

    Args:
        sentence: its number in the corpus.
        position: of the word's query, from 0.
        piece: the piece at that position.
        between: the divergence of the two models' mean heads.
        first: the divergence among the heads of the first model.
        second: the divergence among the heads of the second model.
        first_keys: what the first model's mean head attends to most, at most five keys.
        second_keys: the same of the second model.
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
    """The words about which two models agree most and least.

    Args:
        kind: of attention: "encoder", "decoder" or "cross".
        words: the number of words that were compared.
        mean: the mean divergence of the two models' mean heads.
        agree: words, the smallest divergence first.
        differ: words, the largest divergence first.
    """

    kind: str
    words: int
    mean: float
    agree: tuple[WordContrast, ...]
    differ: tuple[WordContrast, ...]


class Comparison:
    """The words about which two models agree and differ most, from sentences that both have read.

    Args:
        first: the attention modules of the first model.
        second: those of the second.
        count: words of each list.
        kinds: of attention; by default all that both models have.

    Raises:
        InputError: a model without attention of a kind, or two models that share none.
        ValueError: `count` below 1.

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
            raise InputError("the two models have no kind of attention in common")
        self._numbers = {kind: [_of_kind(layers, kind) for layers in self.layers] for kind in self.kinds}
        self._words = {kind: _WordLists(count) for kind in self.kinds}

    def update(self, one: Sentence, other: Sentence) -> None:
        """Take in a sentence as both models have read it.

        Raises:
            InputError: two sentences.
        """
        if one.text != other.text:
            raise InputError(
                f"the models have not read the same sentences: they differ at sentence {one.text.index + 1}, "
                "or spell it by other pieces"
            )
        for kind in self.kinds:
            numbers = self._numbers[kind]
            heads = [_heads(sentence, part) for sentence, part in zip((one, other), numbers, strict=True)]
            self._words[kind].add(one, self.layers[0][numbers[0][0]], *heads)

    def result(self) -> tuple[ModelContrast, ...]:
        """Return the contrast of each kind that had words to compare.

        Raises:
            InputError: if there were none.
        """
        contrasts = tuple(words.result(kind) for kind, words in self._words.items() if words.count)
        if not contrasts:
            raise InputError(
                f"nothing to compare: each query of {', '.join(self.kinds)} attention sees fewer than two keys"
            )
        return contrasts


class _WordLists:
    """The words of one kind of attention with the smallest and the largest divergence."""

    def __init__(self, size: int) -> None:
        self.size, self.count, self.total = size, 0, 0.0
        self.agree: list[WordContrast] = []
        self.differ: list[WordContrast] = []

    def add(self, sentence: Sentence, layer: AttentionLayer, first: Floats, second: Floats) -> None:
        """Take in a sentence, with the heads [heads, queries, keys] of both models."""
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
                    labels = (_largest(mean[row], keys) for mean in means)
                    added.append(
                        WordContrast(sentence.text.index, row, queries[row], *columns[:, row].tolist(), *labels)
                    )
            return sorted([*words, *added], key=lambda word: sign * word.between)[: self.size]

        order = rows[np.argsort(between, kind="stable")].tolist()
        self.agree = extend(self.agree, order[: self.size], 1)
        self.differ = extend(self.differ, order[::-1][: self.size], -1)

    def result(self, kind: str) -> ModelContrast:
        return ModelContrast(kind, self.count, self.total / self.count, tuple(self.agree), tuple(self.differ))


def _largest(weights: Floats, keys: Sequence[str]) -> Keys:
    order = [key for key in np.argsort(-weights, kind="stable")[:NAMED_KEYS].tolist() if weights[key] > 0]
    return tuple((keys[key], float(weights[key])) for key in order)


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
    comparison = Comparison(first.layers, second.layers, count, (kind,))
    for one, other in zip_longest(first, second):
        if one is None or other is None:
            number = (one or other).text.index
            raise InputError(f"the models have not read the same sentences: sentence {number + 1} is in one alone")
        comparison.update(one, other)
    (contrast,) = comparison.result()
    return contrast


def _of_kind(layers: Sequence[AttentionLayer], kind: str) -> list[int]:
    numbers = [number for number, layer in enumerate(layers) if layer.kind == kind]
    if not numbers:
        kinds = ", ".join(dict.fromkeys(layer.kind for layer in layers))
        raise InputError(f"the recording has no attention of kind {kind!r}, only {kinds}")
    return numbers


def _heads(sentence: Sentence, layers: Sequence[int]) -> Floats:
    """Return the heads of some layers together [heads, queries, keys]."""
    return np.concatenate([sentence.weights[number].dense() for number in layers])
