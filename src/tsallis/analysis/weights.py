"""Attention weights of one sentence, non-zeros only, and what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The text that queries and keys of each kind of attention stand for.
SIDES = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AttentionLayer:
    """The heads of one attention module.

    Args:
        kind: "encoder" or "decoder" for self-attention, "cross" for attention of the decoder to the source.
        layer: number of its layer, counted from 0.
        alphas: one for each head; NaN where it is not known.
        causal: whether a query sees no later key.

    Raises:
        ValueError: an unknown kind, no heads, or causal attention to another text.

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
        if self.kind not in SIDES:
            raise ValueError(f"kind must be one of {', '.join(SIDES)}, got {self.kind!r}")
        if self.layer < 0 or not self.alphas:
            raise ValueError(f"an attention layer has a number from 0 on and heads, got {self.layer} and {self.alphas}")
        if self.causal and self.kind == "cross":
            raise ValueError("attention to the source cannot be causal")

    @property
    def heads(self) -> int:
        """The number of heads."""
        return len(self.alphas)

    @property
    def name(self) -> str:
        """Its name for people, who count from 1."""
        return f"{self.kind} layer {self.layer + 1}"

    @property
    def to_itself(self) -> bool:
        """True where queries and keys stand for the same text."""
        one, other = SIDES[self.kind]
        return one == other

    def visible(self, queries: int, keys: int) -> NDArray[np.int64]:
        """Return how many keys each query could attend to [queries]; they are the first ones."""
        return np.minimum(np.arange(1, queries + 1), keys) if self.causal else np.full(queries, keys)


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """The weights above zero of one attention module on one sentence, as CSR rows.

    Row `head * queries + query` holds the columns and values from `offsets[row]` to `offsets[row + 1]`.

    Args:
        offsets: int64 [heads * queries + 1].
        columns: int32 [non-zeros], ascending in each row.
        values: float32 [non-zeros].
        shape: heads, queries, keys.

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
        """Compress dense weights [heads, queries, keys]."""
        heads, queries, keys = weights.shape
        rows = weights.reshape(heads * queries, keys)
        positive = rows > 0
        offsets = np.concatenate([[0], positive.sum(1).cumsum()]).astype(np.int64)
        columns = positive.nonzero()[1].astype(np.int32)
        return cls(offsets, columns, rows[positive].astype(np.float32), (heads, queries, keys))

    @property
    def support(self) -> NDArray[np.int64]:
        """The number of keys with a weight above zero [heads, queries]."""
        return np.diff(self.offsets).reshape(self.shape[:2])

    def dense(self) -> Floats:
        """Return all weights [heads, queries, keys] in float64."""
        heads, queries, keys = self.shape
        rows = np.zeros((heads * queries, keys))
        rows[np.repeat(np.arange(len(rows)), np.diff(self.offsets)), self.columns] = self.values
        return rows.reshape(self.shape)

    def head(self, number: int) -> SparseWeights:
        """Return the weights of one head, as weights [1, queries, keys]."""
        _, queries, keys = self.shape
        offsets = self.offsets[number * queries : (number + 1) * queries + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        return SparseWeights(
            offsets - offsets[0], self.columns[part].copy(), self.values[part].copy(), (1, queries, keys)
        )


@dataclass(frozen=True)
class Text:
    """The pieces of a sentence that a model has read; a piece that begins a word begins with `▁`.

    Args:
        index: of the sentence in its corpus, from 0.
        source: pieces that the encoder reads; empty where there is none.
        target: pieces that the decoder reads, the start `<s>` first; empty where there is none.

    Example:
        >>> text = Text(0, ("▁we", "▁saw"), ("<s>", "▁wir"))
        >>> text.sides("cross")  # of the queries, and of the keys
        (('<s>', '▁wir'), ('▁we', '▁saw'))
    """

    index: int
    source: tuple[str, ...]
    target: tuple[str, ...]

    def sides(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the pieces of the queries and of the keys of a kind of attention."""
        queries, keys = SIDES[kind]
        return getattr(self, queries), getattr(self, keys)


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sentence with the weights of every attention module.

    Args:
        text: its pieces.
        weights: in the order of the recording's layers.

    Example:
        >>> sentence = Sentence.of([[[1, 0], [0.5, 0.5]]])
        >>> sentence.text.source, sentence.weights[0].shape  # heads, queries, keys
        (('▁1', '▁2'), (1, 2, 2))
    """

    text: Text
    weights: tuple[SparseWeights, ...]

    @classmethod
    def of(cls, *weights: ArrayLike, pieces: Sequence[str] | None = None, index: int = 0) -> Sentence:
        """Return a sentence of an encoder, from the dense weights [heads, queries, keys] of each layer.

        Args:
            weights: one array a layer.
            pieces: of the sentence; without them words are numbered.
            index: of the sentence in its corpus.

        Example:
            >>> sentence = Sentence.of([[[1, 0], [0.5, 0.5]]])
            >>> sentence.text.source, sentence.weights[0].support.tolist()
            (('▁1', '▁2'), [[1, 2]])
        """
        dense = [np.asarray(layer, np.float64) for layer in weights]
        source = pieces or [f"▁{number + 1}" for number in range(dense[0].shape[-1])]
        return cls(Text(index, tuple(source), ()), tuple(map(SparseWeights.of, dense)))
