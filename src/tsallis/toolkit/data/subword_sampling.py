"""Random segmentations of texts with a sentencepiece model; for a given text, they depend only on the seed.

sentencepiece can also sample segmentations, but its seed depends on the process, so a resumed run would differ.
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

from tsallis.symbols import UNK

NORMAL, USER_DEFINED, BYTE = 1, 4, 6  # types of pieces in the model file
UNKNOWN_PENALTY = 10.0  # difference between the lowest score and that of an unknown symbol, as in sentencepiece
CACHE_SIZE = 1 << 17  # number of cached stretches of text; words repeat, so the cache saves time

Chance = Callable[[], float]


class Piece(NamedTuple):
    """Entry of a sentencepiece model."""

    text: str
    score: float
    type: int


class Sampler:
    """Base class of samplers. It splits a text into stretches and segments each stretch independently.

    A text is split between two characters that are not adjacent in any piece, because no piece can cross this position.
    Such splits separate words. In texts without spaces, they separate most characters.

    Args:
        pieces: Pieces of the model, in the order of their numbers.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        spelled = [(i, p) for i, p in enumerate(pieces) if p.type in (NORMAL, USER_DEFINED)]
        self.numbers = {p.text: i for i, p in spelled}
        self.scores = {p.text: p.score for _, p in spelled}
        self.bytes = {int(p.text[3:5], 16): i for i, p in enumerate(pieces) if p.type == BYTE}  # such as <0x41>
        self._bigrams = {pair for _, p in spelled for pair in map("".join, zip(p.text, p.text[1:], strict=False))}
        user_defined = sorted((p.text for _, p in spelled if p.type == USER_DEFINED), key=len, reverse=True)
        self._user_defined = re.compile(f"({'|'.join(map(re.escape, user_defined))})") if user_defined else None

    def draw(self, text: str, alpha: float, seed: int) -> list[int]:
        """Return a random segmentation of a normalised text."""
        chance = Random(seed).random
        tokens: list[int] = []
        for stretch in self._stretches(text):
            indivisible = len(stretch) == 1 or (self._user_defined and self._user_defined.fullmatch(stretch))
            for token in self.spell(stretch) if indivisible else self.draw_stretch(stretch, alpha, chance):
                # Merge adjacent unknown symbols, as sentencepiece does.
                if token != UNK or tokens[-1:] != [UNK]:
                    tokens.append(token)
        return tokens

    def draw_stretch(self, stretch: str, alpha: float, chance: Chance) -> Sequence[int]:
        """Return a random segmentation of a stretch of text."""
        raise NotImplementedError

    def spell(self, part: str) -> list[int]:
        """Return the number of a piece, in a list. For other text, return its bytes or the unknown symbol."""
        if part in self.numbers:
            return [self.numbers[part]]
        return [self.bytes[b] for b in part.encode()] if self.bytes else [UNK]

    def _stretches(self, text: str) -> Iterator[str]:
        parts = self._user_defined.split(text) if self._user_defined else [text]
        for position, part in enumerate(parts):
            if position % 2:  # odd parts are user-defined pieces, which are never split
                yield part
                continue
            start = 0
            for i in range(1, len(part)):
                if part[i - 1 : i + 1] not in self._bigrams:
                    yield part[start:i]
                    start = i
            if part:
                yield part[start:]


class MergeSampler(Sampler):
    """Sampler of BPE-dropout, which skips each merge with probability `alpha` (Provilkov et al. 2020)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self._cached_merge = lru_cache(CACHE_SIZE)(self._merge)

    def draw_stretch(self, stretch: str, alpha: float, chance: Chance) -> Sequence[int]:
        num_merges, tokens = self._cached_merge(stretch, ())
        if alpha == 0:
            return tokens
        skipped: tuple[int, ...] = ()
        next_skipped = _next_skipped_merge(-1, alpha, chance)
        # Few merges of a word are skipped, so the same combinations of skipped merges repeat, and caching saves time.
        while next_skipped < num_merges:
            skipped = (*skipped, next_skipped)
            num_merges, tokens = self._cached_merge(stretch, skipped)
            next_skipped = _next_skipped_merge(next_skipped, alpha, chance)
        return tokens

    def _merge(self, stretch: str, skipped: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Merge a stretch without the merges `skipped`. Return the number of possible merges, and the pieces."""
        parts: list[str] = list(stretch)
        after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
        candidates: list[tuple[float, int, int, str]] = []

        def push_candidate(left: int, right: int) -> None:
            if left < 0 or right == len(parts):
                return
            merged = parts[left] + parts[right]
            if merged in self.scores:
                heapq.heappush(candidates, (-self.scores[merged], left, right, merged))

        for i in range(len(parts) - 1):
            push_candidate(i, i + 1)
        num_merges = 0
        while candidates:
            _, left, right, merged = heapq.heappop(candidates)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != len(merged):
                continue  # one of the two parts was merged with another part
            num_merges += 1
            if num_merges - 1 in skipped:
                continue
            parts[left], parts[right] = merged, ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            push_candidate(before[left], left)
            push_candidate(left, after[left])
        return num_merges, tuple(i for part in parts if part for i in self.spell(part))


def _next_skipped_merge(merge: int, alpha: float, chance: Chance) -> int:
    """Draw the next skipped merge after `merge`; each merge is skipped with probability `alpha`, which is above 0."""
    return merge + 1 + (int(math.log(1.0 - chance()) / math.log1p(-alpha)) if alpha < 1 else 0)


class LatticeSampler(Sampler):
    r"""Sampler of unigram segmentations :math:`x`, with probability :math:`\propto p(x)^\alpha` (Kudo 2018)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self._longest = max(map(len, self.numbers), default=1)
        self._unknown_score = min(self.scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._cached_lattice = lru_cache(CACHE_SIZE)(self._build_lattice)

    def draw_stretch(self, stretch: str, alpha: float, chance: Chance) -> Sequence[int]:
        lattice = self._cached_lattice(stretch, alpha)
        tokens: list[int] = []
        end = len(stretch)
        while end:
            starts, sums = lattice[end]
            start = starts[min(bisect(sums, chance() * sums[-1]), len(starts) - 1)]
            tokens += reversed(self.spell(stretch[start:end]))
            end = start
        return tokens[::-1]

    def _build_lattice(self, stretch: str, alpha: float) -> list[tuple[list[int], list[float]]]:
        """Return, for every end position, the possible starts of the last piece and their cumulative weights."""
        logs = [0.0]  # log of the total weight before each position
        lattice: list[tuple[list[int], list[float]]] = [([], [])]
        for end in range(1, len(stretch) + 1):
            starts: list[int] = []
            weights: list[float] = []
            for start in range(max(0, end - self._longest), end):
                score = self.scores.get(stretch[start:end], self._unknown_score if start == end - 1 else None)
                if score is not None:
                    starts.append(start)
                    weights.append(logs[start] + alpha * score)
            highest = max(weights)
            sums = list(accumulate(math.exp(w - highest) for w in weights))
            logs.append(highest + math.log(sums[-1]))
            lattice.append((starts, sums))
        return lattice
