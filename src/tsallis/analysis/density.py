"""Compute the density of attention: the share of keys with non-zero weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.tables import Histogram, Record
from tsallis.analysis.weights import AttentionLayer, Floats, Sentence, SparseWeights

BINS = 20
EDGES = np.linspace(0, 1, BINS + 1)


@dataclass(frozen=True)
class HeadDensity(Record):
    """Density of one head; layers and heads count from 0.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer.
        head: Number of the head.
        alpha: Alpha of the head.
        density: Mean over sentences.
        histogram: Histogram of the densities of sentences.
    """

    kind: str
    layer: int
    head: int
    alpha: float
    density: float
    histogram: Histogram


@dataclass(frozen=True)
class Densities(Record):
    """Densities of all heads.

    Args:
        sentences: Number of sentences.
        heads: One record per head.

    Example:
        >>> histogram = Histogram.of([0.25, 0.5], bins=2)
        >>> densities = Densities(2, (HeadDensity("encoder", 0, 0, 1.5, density=0.375, histogram=histogram),))
        >>> densities.by_layer(), densities.by_kind()["encoder"].counts
        ({'encoder': [[0.375]]}, (1, 1))
    """

    sentences: int
    heads: tuple[HeadDensity, ...]

    def by_kind(self) -> dict[str, Histogram]:
        """Return a histogram per kind, over its heads and all sentences (Correia et al. 2019, fig. 4 and 12)."""
        kinds: dict[str, list[HeadDensity]] = {}
        for head in self.heads:
            kinds.setdefault(head.kind, []).append(head)
        return {
            kind: Histogram(
                heads[0].histogram.edges,
                tuple(map(sum, zip(*(head.histogram.counts for head in heads), strict=True))),
            )
            for kind, heads in kinds.items()
        }

    def by_layer(self) -> dict[str, list[list[float]]]:
        """Return the sorted mean densities of the heads of each layer, by kind (Correia et al. 2019, fig. 5 and 14)."""
        layers: dict[str, dict[int, list[float]]] = {}
        for head in self.heads:
            layers.setdefault(head.kind, {}).setdefault(head.layer, []).append(head.density)
        return {kind: [sorted(heads) for _, heads in sorted(layer.items())] for kind, layer in layers.items()}


def sentence_density(layer: AttentionLayer, weights: SparseWeights) -> Floats:
    r"""Return the density of each head on one sentence (Correia et al. 2019, sec. 5.1).

    .. math:: d_h = \frac{\sum_i |\{j : p^h_{ij} > 0\}|}{\sum_i n_i}

    where :math:`n_i` is the number of keys that query :math:`i` can attend to. The density of softmax is 1.

    Args:
        layer: Attention module.
        weights: Weights of the module.

    Returns:
        Densities [heads], from 0 to 1.

    Example:
        >>> layer = AttentionLayer("encoder", 0, (1.5,), causal=True)
        >>> sentence_density(layer, Sentence.of([[[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5]]]).weights[0])
        array([0.66666667])
    """
    _, queries, keys = weights.shape
    return weights.support.sum(1) / layer.visible(queries, keys).sum()


class Density(Statistic[Densities]):
    """Statistic for :func:`density`: densities of all heads over sentences.

    Args:
        layers: Attention modules of the recording.

    Example:
        >>> statistic = Density([AttentionLayer("encoder", 0, (1.5, 2.0))])
        >>> statistic.update(Sentence.of([[[1, 0], [1, 0]], [[0.5, 0.5], [0, 1]]]))
        >>> [head.density for head in statistic.result().heads]
        [0.5, 0.75]
    """

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers)
        self._sums = [np.zeros(layer.heads) for layer in layers]
        self._counts = [np.zeros((layer.heads, BINS), np.int64) for layer in layers]
        self._read = [0] * len(layers)  # sentences with keys

    def _update(self, sentence: Sentence) -> None:
        for number, (layer, weights) in enumerate(zip(self.layers, sentence.weights, strict=True)):
            if not weights.shape[2]:
                continue
            densities = sentence_density(layer, weights)
            self._read[number] += 1
            self._sums[number] += densities
            bins = np.searchsorted(EDGES, densities, "right") - 1
            self._counts[number][np.arange(layer.heads), np.minimum(bins, BINS - 1)] += 1

    def _result(self) -> Densities:
        edges = tuple(EDGES.tolist())
        heads = tuple(
            HeadDensity(
                layer.kind,
                layer.layer,
                head,
                layer.alphas[head],
                float(sums[head] / max(read, 1)),
                Histogram(edges, tuple(counts[head].tolist())),
            )
            for layer, sums, counts, read in zip(self.layers, self._sums, self._counts, self._read, strict=True)
            for head in range(layer.heads)
        )
        return Densities(self.sentences, heads)


def density(recording: Recording) -> Densities:
    """Compute the mean density of each head, and a histogram of its densities over sentences.

    The density on a sentence is the share of visible keys with a weight above zero, see :func:`sentence_density`
    (Correia et al. 2019, sec. 5.1 and fig. 4, 5, 12, 14). Histograms have 20 bins of width 0.05.

    Args:
        recording: Recording of a model.

    Returns:
        One record per head.

    Raises:
        InputError: The recording has no sentences.

    Example:
        >>> sentence = Sentence.of([[[1, 0], [1, 0]], [[0.5, 0.5], [0, 1]]])
        >>> densities = density(Recording([AttentionLayer("encoder", 0, (1.5, 2.0))], [sentence]))
        >>> [(head.head, head.alpha, head.density) for head in densities.heads]
        [(0, 1.5, 0.5), (1, 2.0, 0.75)]
        >>> densities.by_layer()
        {'encoder': [[0.5, 0.75]]}
    """
    (densities,) = collect(recording, Density(recording.layers))
    return densities
