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
    """The divergence between the heads of one layer.

    Args:
        kind: of attention: "encoder", "decoder" or "cross".
        layer: its number, from 0.
        divergence: mean over queries, from 0 to 1; None where no query can attend to two keys.
        queries: the number of queries that can attend to at least two keys.
    """

    kind: str
    layer: int
    divergence: float | None
    queries: int


@dataclass(frozen=True)
class Diversities(Record):
    """The diversity of every layer's heads.

    Args:
        sentences: their number.
        layers: One record per layer.
    """

    sentences: int
    layers: tuple[LayerDiversity, ...]


def entropy(probs: Floats) -> Floats:
    """Return Shannon's entropy of distributions [..., n] in nats [...]."""
    return -np.sum(probs * np.log(np.where(probs > 0, probs, 1)), -1)


def jensen_shannon(weights: Floats, visible: ArrayLike) -> Floats:
    r"""Return the Jensen-Shannon divergence of heads at each query.

    .. math:: \mathrm{JS} = S\Big(\frac{1}{H}\sum_{j=1}^{H} p_j\Big) - \frac{1}{H}\sum_{j=1}^{H} S(p_j)

    of :math:`H` heads, with Shannon's entropy :math:`S` (Correia et al. 2019, eq. 11). Both entropies have the base
    :math:`n`, the number of keys that the query can attend to. The paper adjusts the base "based on the dimension" so
    that the divergence is at most 1; as all heads of a query have the same keys, that is one base for both. Heads on
    different keys reach :math:`\log_n H`, or 1 where the mean is even.

    Args:
        weights: [heads, queries, keys].
        visible: [queries] how many keys each query can attend to; where it is one, the divergence is 0.

    Returns:
        Divergences [queries], from 0 to 1.

    Example:
        >>> jensen_shannon(np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]), [2, 2])
        array([1., 0.])
    """
    nats = entropy(weights.mean(0)) - entropy(weights).mean(0)
    return np.maximum(nats, 0) / np.log(np.maximum(visible, 2))


class Diversity(Statistic[Diversities]):
    """The statistic of :func:`diversity`: the divergence of every layer's heads over sentences.

    Args:
        layers: of the recording.

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
    """Compute how much the heads of each layer disagree, as the mean over all queries of their divergence.

    The divergence is that of :func:`jensen_shannon` (Correia et al. 2019, eq. 11, fig. 6 and 13). Queries that can
    attend to one key only cannot disagree and do not count.

    Args:
        recording: of a model.

    Returns:
        One record per layer.

    Raises:
        InputError: a recording without sentences.

    Example:
        >>> sentence = Sentence.of([[[1, 0], [1, 0]], [[0, 1], [1, 0]]])
        >>> diversity(Recording([AttentionLayer("encoder", 0, (1.5, 1.5))], [sentence])).layers
        (LayerDiversity(kind='encoder', layer=0, divergence=0.5, queries=2),)
    """
    (diversities,) = collect(recording, Diversity(recording.layers))
    return diversities
