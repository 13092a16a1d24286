"""Split sentence pairs with many paraphrases, so that no sentence occurs in two splits."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

Pair = tuple[str, str]
HELD_OUT = 4000  # minimum number of pairs in dev and in test
LARGEST = 20  # maximum number of pairs in a cluster of dev or test


def split_pairs(pairs: Iterable[Pair], held_out: int = HELD_OUT) -> dict[str, list[Pair]]:
    """Split sentence pairs into "train", "dev" and "test". Pairs with a side in common are in the same split.

    Two sides are equal if they differ only in case, punctuation or white space. Equal sides connect pairs into
    clusters. Clusters are sorted by the smallest SHA-1 of their first sides. They go to dev until it has `held_out`
    pairs, then to test, then to train; clusters of more than 20 pairs always go to train. Each split keeps the order of
    pairs. White space is collapsed, Unicode is composed, and duplicate pairs are removed.

    >>> splits = split_pairs([("Hi!", "Hallo!"), ("Hello!", "Hallo."), ("Run!", "Lauf!"), ("Go!", "Los!")], held_out=1)
    >>> [len(splits[split]) for split in ("train", "dev", "test")]
    [1, 1, 2]
    """
    clean = list(dict.fromkeys((_clean(first), _clean(second)) for first, second in pairs))
    clusters = _clusters(clean)
    order = sorted(clusters, key=lambda members: min(_sha1(_bare(clean[i][0])) for i in members))
    split_of = ["train"] * len(clean)
    counts = {"dev": 0, "test": 0}
    for members in order:
        unfilled = [split for split in counts if counts[split] < held_out]
        if len(members) <= LARGEST and unfilled:
            counts[unfilled[0]] += len(members)
            for i in members:
                split_of[i] = unfilled[0]
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for pair, split in zip(clean, split_of, strict=True):
        splits[split].append(pair)
    return splits


def _clusters(pairs: list[Pair]) -> list[list[int]]:
    """Return clusters of pairs that are connected by equal sides, computed with union-find."""
    parent = list(range(len(pairs)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for side in (0, 1):
        first: dict[str, int] = {}
        for i, pair in enumerate(pairs):
            parent[root(i)] = root(first.setdefault(_bare(pair[side]), i))
    clusters: dict[int, list[int]] = {}
    for i in range(len(pairs)):
        clusters.setdefault(root(i), []).append(i)
    return list(clusters.values())


def _clean(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _bare(text: str) -> str:
    letters = "".join(c for c in text.lower() if not unicodedata.category(c).startswith("P"))
    return " ".join(letters.split())


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
