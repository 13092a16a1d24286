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
        self._joints = {pair for _, p in spelled for pair in map("".join, zip(p.text, p.text[1:], strict=False))}
        fixed = sorted((p.text for _, p in spelled if p.type == USER_DEFINED), key=len, reverse=True)
        self._fixed = re.compile(f"({'|'.join(map(re.escape, fixed))})") if fixed else None

    def draw(self, text: str, alpha: float, seed: int) -> list[int]:
        """Return a random segmentation of a normalised text."""
        chance = Random(seed).random
        tokens: list[int] = []
        for stretch in self._stretches(text):
            whole = len(stretch) == 1 or (self._fixed and self._fixed.fullmatch(stretch))
            for token in self.spell(stretch) if whole else self.draw_stretch(stretch, alpha, chance):
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
        parts = self._fixed.split(text) if self._fixed else [text]
        for position, part in enumerate(parts):
            if position % 2:  # odd parts are user-defined pieces, which are never split
                yield part
                continue
            start = 0
            for i in range(1, len(part)):
                if part[i - 1 : i + 1] not in self._joints:
                    yield part[start:i]
                    start = i
            if part:
                yield part[start:]


class MergeSampler(Sampler):
    """Sampler of BPE-dropout, which skips each merge with probability `alpha` (Provilkov et al. 2020)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self._merged = lru_cache(CACHE_SIZE)(self._merge)

    def draw_stretch(self, stretch: str, alpha: float, chance: Chance) -> Sequence[int]:
        turns, tokens = self._merged(stretch, ())
        if alpha == 0:
            return tokens
        left_out: tuple[int, ...] = ()
        turn = _next(-1, alpha, chance)
        # Few merges of a word are skipped, so the same combinations of skipped merges repeat, and caching saves time.
        while turn < turns:
            left_out = (*left_out, turn)
            turns, tokens = self._merged(stretch, left_out)
            turn = _next(turn, alpha, chance)
        return tokens

    def _merge(self, stretch: str, left_out: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Merge a stretch without the merges `left_out`. Return the number of possible merges, and the pieces."""
        parts: list[str] = list(stretch)
        after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
        waiting: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right == len(parts):
                return
            both = parts[left] + parts[right]
            if both in self.scores:
                heapq.heappush(waiting, (-self.scores[both], left, right, both))

        for i in range(len(parts) - 1):
            offer(i, i + 1)
        turns = 0
        while waiting:
            _, left, right, both = heapq.heappop(waiting)
            if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != len(both):
                continue  # one of the two parts was merged with another part
            turns += 1
            if turns - 1 in left_out:
                continue
            parts[left], parts[right] = both, ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return turns, tuple(i for part in parts if part for i in self.spell(part))


def _next(turn: int, alpha: float, chance: Chance) -> int:
    """Draw the next skipped merge after `turn`; each merge is skipped with probability `alpha`, which is above 0."""
    return turn + 1 + (int(math.log(1.0 - chance()) / math.log1p(-alpha)) if alpha < 1 else 0)


class LatticeSampler(Sampler):
    r"""Sampler of unigram segmentations :math:`x`, with probability :math:`\propto p(x)^\alpha` (Kudo 2018)."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self._longest = max(map(len, self.numbers), default=1)
        self._unknown = min(self.scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._weighed = lru_cache(CACHE_SIZE)(self._weigh)

    def draw_stretch(self, stretch: str, alpha: float, chance: Chance) -> Sequence[int]:
        lattice = self._weighed(stretch, alpha)
        tokens: list[int] = []
        end = len(stretch)
        while end:
            starts, sums = lattice[end]
            start = starts[min(bisect(sums, chance() * sums[-1]), len(starts) - 1)]
            tokens += reversed(self.spell(stretch[start:end]))
            end = start
        return tokens[::-1]

    def _weigh(self, stretch: str, alpha: float) -> list[tuple[list[int], list[float]]]:
        """Return, for every end position, the possible starts of the last piece and their cumulative weights."""
        logs = [0.0]  # log of the total weight before each position
        lattice: list[tuple[list[int], list[float]]] = [([], [])]
        for end in range(1, len(stretch) + 1):
            starts: list[int] = []
            weights: list[float] = []
            for start in range(max(0, end - self._longest), end):
                score = self.scores.get(stretch[start:end], self._unknown if start == end - 1 else None)
                if score is not None:
                    starts.append(start)
                    weights.append(logs[start] + alpha * score)
            highest = max(weights)
            sums = list(accumulate(math.exp(w - highest) for w in weights))
            logs.append(highest + math.log(sums[-1]))
            lattice.append((starts, sums))
        return lattice
