"""Store the non-zero attention weights of sentences, with their texts and attention modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tsallis.errors import check_one_of

# Side of the queries and side of the keys, for each kind of attention.
SIDES = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AttentionLayer:
    """Heads of one attention module.

    Args:
        kind: "encoder" or "decoder" for self-attention, "cross" for attention of the decoder to the source.
        layer: Number of the layer, from 0.
        alphas: Alpha of each head; NaN if it is unknown.
        causal: Whether queries can't see later keys.

    Raises:
        ValueError: The kind is unknown, there are no heads, the layer is negative, or cross-attention is causal.

    Example:
        >>> layer = AttentionLayer("decoder", 2, (1.0, 1.5), causal=True)
        >>> layer.name, layer.heads, layer.visible(3, 3).tolist()
        ('decoder layer 3', 2, [1, 2, 3])
    """

    kind: str
    layer: int
    alphas: tuple[float, ...]
    causal: bool = False

    def __post_init__(self) -> None:
        check_one_of("kind", self.kind, SIDES)
        if self.layer < 0 or not self.alphas:
            raise ValueError(
                f"layer must be at least 0 and alphas must not be empty, got {self.layer} and {self.alphas}"
            )
        if self.causal and self.kind == "cross":
            raise ValueError("causal must be False for kind 'cross', got True")

    @property
    def heads(self) -> int:
        """Return the number of heads."""
        return len(self.alphas)

    @property
    def name(self) -> str:
        """Return a readable name of the module, in which layers count from 1."""
        return f"{self.kind} layer {self.layer + 1}"

    @property
    def to_itself(self) -> bool:
        """Return whether queries and keys are the same text."""
        queries, keys = SIDES[self.kind]
        return queries == keys

    def visible(self, queries: int, keys: int) -> NDArray[np.int64]:
        """Return the number n of keys that each query can attend to [queries]. These are the first n keys."""
        return np.minimum(np.arange(1, queries + 1), keys) if self.causal else np.full(queries, keys)


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Weights above zero of one attention module on one sentence, as CSR rows.

    Row `head * queries + query` has the columns and values from `offsets[row]` to `offsets[row + 1]`.

    Args:
        offsets: First index of each row, int64 [heads * queries + 1].
        columns: Keys, int32 [non-zeros], ascending in each row.
        values: Weights, float32 [non-zeros].
        shape: Numbers of heads, queries and keys.

    Example:
        >>> weights = SparseWeights.of(np.array([[[0.0, 1.0], [0.25, 0.75]]]))
        >>> weights.columns.tolist(), weights.support.tolist()
        ([1, 0, 1], [[1, 2]])
        >>> weights.dense()[0, 1].tolist()
        [0.25, 0.75]
    """

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, weights: NDArray[Any]) -> SparseWeights:
        """Compress dense weights [heads, queries, keys].

        Raises:
            ValueError: If a weight is NaN.
        """
        if np.isnan(weights.sum()):
            raise ValueError("weights must be numbers, got NaN: the model's parameters or inputs are not finite")
        heads, queries, keys = weights.shape
        rows = weights.reshape(heads * queries, keys)
        positive = rows > 0
        offsets = np.concatenate([[0], positive.sum(1).cumsum()]).astype(np.int64)
        columns = positive.nonzero()[1].astype(np.int32)
        return cls(offsets, columns, rows[positive].astype(np.float32), (heads, queries, keys))

    @property
    def support(self) -> NDArray[np.int64]:
        """Return the number of keys with a weight above zero [heads, queries]."""
        return np.diff(self.offsets).reshape(self.shape[:2])

    def dense(self) -> Floats:
        """Return all weights [heads, queries, keys] in float64."""
        heads, queries, keys = self.shape
        rows = np.zeros((heads * queries, keys))
        rows[np.repeat(np.arange(len(rows)), np.diff(self.offsets)), self.columns] = self.values
        return rows.reshape(self.shape)

    def head(self, number: int) -> SparseWeights:
        """Return the weights of one head [1, queries, keys]."""
        _, queries, keys = self.shape
        offsets = self.offsets[number * queries : (number + 1) * queries + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        return SparseWeights(
            offsets - offsets[0], self.columns[part].copy(), self.values[part].copy(), (1, queries, keys)
        )


@dataclass(frozen=True)
class Text:
    """Pieces of a sentence that a model has read; `▁` marks the first piece of a word.

    Args:
        index: Index of the sentence in its corpus, from 0.
        source: Pieces that the encoder reads; empty without an encoder.
        target: Pieces that the decoder reads, starting with `<s>`; empty without a decoder.

    Example:
        >>> text = Text(0, ("▁we", "▁saw"), ("<s>", "▁wir"))
        >>> text.sides("cross")  # of the queries, and of the keys
        (('<s>', '▁wir'), ('▁we', '▁saw'))
    """

    index: int
    source: tuple[str, ...]
    target: tuple[str, ...]

    def sides(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pieces of the queries and the pieces of the keys for a kind of attention."""
        queries, keys = SIDES[kind]
        return getattr(self, queries), getattr(self, keys)


@dataclass(frozen=True, eq=False)
class Sentence:
    """Sentence with the weights of every attention module.

    Args:
        text: Pieces of the sentence.
        weights: Weights in the order of the recording's layers.

    Example:
        >>> sentence = Sentence.of([[[1, 0], [0.5, 0.5]]])
        >>> sentence.text.source, sentence.weights[0].shape  # heads, queries, keys
        (('▁1', '▁2'), (1, 2, 2))
    """

    text: Text
    weights: tuple[SparseWeights, ...]

    @classmethod
    def of(cls, *weights: ArrayLike, pieces: Sequence[str] | None = None, index: int = 0) -> Sentence:
        """Create a sentence of an encoder from the dense weights [heads, queries, keys] of each layer.

        Args:
            weights: One array per layer.
            pieces: Pieces of the sentence; default: "▁1", "▁2" and so on.
            index: Index of the sentence in its corpus.

        Example:
            >>> sentence = Sentence.of([[[1, 0], [0.5, 0.5]]])
            >>> sentence.text.source, sentence.weights[0].support.tolist()
            (('▁1', '▁2'), [[1, 2]])
        """
        dense = [np.asarray(layer, np.float64) for layer in weights]
        source = pieces or [f"▁{number + 1}" for number in range(dense[0].shape[-1])]
        return cls(Text(index, tuple(source), ()), tuple(map(SparseWeights.of, dense)))
