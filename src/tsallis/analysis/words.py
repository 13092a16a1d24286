"""Find words, punctuation and special symbols among the pieces of a sentence."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping, Sequence

PieceCounts = Mapping[str, Mapping[str, int]]  # counts of pieces by side, "source" and "target"

WORD_START = "▁"
STARTS = ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>")
ENDS = ("</s>", "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>")
QUESTION_MARKS = ("?", "？", "؟", "\u037e")
INTERROGATIVES = frozenset(("what", "who", "whom", "whose", "which", "when", "where", "why", "how"))


def spelling(piece: str) -> str:
    """Return a piece without the mark `▁`."""
    return piece.removeprefix(WORD_START)


def is_special(piece: str) -> bool:
    """Return whether a piece is the start or the end of a sentence."""
    return piece in STARTS or piece in ENDS


@functools.lru_cache(maxsize=1 << 16)
def is_punctuation(piece: str) -> bool:
    """Return whether all characters of a piece are punctuation.

    >>> [is_punctuation(piece) for piece in ("▁«", ".", "▁a.", "</s>", "▁")]
    [True, True, False, False, False]
    """
    text = spelling(piece)
    return bool(text) and not is_special(piece) and all(unicodedata.category(c).startswith("P") for c in text)


def is_question_mark(piece: str) -> bool:
    """Return whether a piece is a question mark."""
    return spelling(piece) in QUESTION_MARKS


def word_clusters(pieces: Sequence[str]) -> list[range]:
    """Split pieces into words, each of which begins with `▁`.

    A piece of punctuation before or after a word is a separate cluster, and so is the start or end of a sentence.
    Punctuation inside a word, such as a hyphen, belongs to the word. If no piece begins with `▁`, every piece is a
    cluster.

    Args:
        pieces: Pieces of a sentence.

    Returns:
        Indices of the pieces of each word.

    Example:
        >>> [list(word) for word in word_clusters(["▁well", "-", "know", "n", "▁lam", "p", ".", "</s>"])]
        [[0, 1, 2, 3], [4, 5], [6], [7]]
    """
    if not any(piece.startswith(WORD_START) for piece in pieces):
        return [range(i, i + 1) for i in range(len(pieces))]
    starts = [i for i, piece in enumerate(pieces) if i == 0 or piece.startswith(WORD_START) or is_special(piece)]
    starts += [i + 1 for i, piece in enumerate(pieces[:-1]) if is_special(piece)]
    starts = sorted(set(starts))
    clusters: list[range] = []
    for begin, end in zip(starts, [*starts[1:], len(pieces)], strict=True):
        clusters += _split_punctuation(pieces, begin, end)
    return clusters


def _split_punctuation(pieces: Sequence[str], begin: int, end: int) -> list[range]:
    first, last = begin, end
    while first < last and is_punctuation(pieces[first]):
        first += 1
    while last > first and is_punctuation(pieces[last - 1]):
        last -= 1
    single_pieces = [range(i, i + 1) for i in range(begin, end)]
    word = [range(first, last)] if first < last else []
    return [*single_pieces[: first - begin], *word, *single_pieces[last - begin :]]


def word_of(pieces: Sequence[str], cluster: range) -> str:
    """Return the spelling of a word.

    >>> word_of(["▁lam", "p"], range(2))
    'lamp'
    """
    return "".join(spelling(pieces[i]) for i in cluster)
