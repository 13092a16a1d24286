"""Compute the diversity of heads: how much the heads of a layer differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsallis.analysis.record import Recording
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.tables import Record
from tsallis.analysis.weights import AttentionLayer, Floats, Sentence


@dataclass(frozen=True)
class LayerDiversity(Record):
    """Divergence between the heads of one layer.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer, from 0.
        divergence: Mean over queries, from 0 to 1; None if no query can attend to two keys.
        queries: Number of queries that can attend to at least two keys.
    """

    kind: str
    layer: int
    divergence: float | None
    queries: int


@dataclass(frozen=True)
class Diversities(Record):
    """Diversity of the heads of each layer.

    Args:
        sentences: Number of sentences.
        layers: One record per layer.
    """

    sentences: int
    layers: tuple[LayerDiversity, ...]


def entropy(probs: Floats) -> Floats:
    """Return the Shannon entropy of distributions [..., n], in nats [...]."""
    return -np.sum(probs * np.log(np.where(probs > 0, probs, 1)), -1)


def jensen_shannon(weights: Floats, visible: ArrayLike) -> Floats:
    r"""Return the Jensen-Shannon divergence between heads at each query.

    .. math:: \mathrm{JS} = S\Big(\frac{1}{H}\sum_{j=1}^{H} p_j\Big) - \frac{1}{H}\sum_{j=1}^{H} S(p_j)

    for :math:`H` heads, where :math:`S` is the Shannon entropy (Correia et al. 2019, eq. 11). The base of both
    entropies is :math:`n`, the number of keys that the query can attend to, so that the divergence is at most 1. The
    paper chooses the base "based on the dimension"; here one base is enough, because all heads of a query have the same
    keys. One-hot heads on different keys reach :math:`\log_n H`. One-hot heads with a uniform mean reach 1.

    Args:
        weights: Weights [heads, queries, keys].
        visible: Number of keys that each query can attend to [queries]; the divergence at a single key is 0.

    Returns:
        Divergences [queries], from 0 to 1.

    Example:
        >>> jensen_shannon(np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]), [2, 2])
        array([1., 0.])
    """
    nats = entropy(weights.mean(0)) - entropy(weights).mean(0)
    return np.maximum(nats, 0) / np.log(np.maximum(visible, 2))


class Diversity(Statistic[Diversities]):
    """Statistic for :func:`diversity`: divergence between the heads of each layer over sentences.

    Args:
        layers: Attention modules of the recording.

    Example:
        >>> statistic = Diversity([AttentionLayer("encoder", 0, (1.5, 1.5))])
        >>> statistic.update(Sentence.of([[[1, 0], [1, 0]], [[0, 1], [1, 0]]]))
        >>> statistic.result().layers[0].divergence
        0.5
    """

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        super().__init__(layers)
        self._sums: Floats = np.zeros(len(self.layers))
        self._queries: NDArray[np.int64] = np.zeros(len(self.layers), np.int64)

    def _update(self, sentence: Sentence) -> None:
        for number, (layer, weights) in enumerate(zip(self.layers, sentence.weights, strict=True)):
            visible = layer.visible(*weights.shape[1:])
            self._sums[number] += jensen_shannon(weights.dense(), visible)[visible > 1].sum()
            self._queries[number] += (visible > 1).sum()

    def _result(self) -> Diversities:
        layers = tuple(
            LayerDiversity(layer.kind, layer.layer, float(total / queries) if queries else None, int(queries))
            for layer, total, queries in zip(self.layers, self._sums, self._queries, strict=True)
        )
        return Diversities(self.sentences, layers)


def diversity(recording: Recording) -> Diversities:
    """Compute how much the heads of each layer disagree: their mean divergence over all queries.

    :func:`jensen_shannon` defines the divergence (Correia et al. 2019, eq. 11, fig. 6 and 13). Queries that can attend
    to only one key are left out, because heads can't disagree there.

    Args:
        recording: Recording of a model.

    Returns:
        One record per layer.

    Raises:
        InputError: The recording has no sentences.

    Example:
        >>> sentence = Sentence.of([[[1, 0], [1, 0]], [[0, 1], [1, 0]]])
        >>> diversity(Recording([AttentionLayer("encoder", 0, (1.5, 1.5))], [sentence])).layers
        (LayerDiversity(kind='encoder', layer=0, divergence=0.5, queries=2),)
    """
    (diversities,) = collect(recording, Diversity(recording.layers))
    return diversities
