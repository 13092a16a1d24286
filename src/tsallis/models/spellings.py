"""Find out whether several sequences of symbols spell a text, and which symbols may come next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tsallis.symbols import BOS, EOS, PAD, UNK


class Place(NamedTuple):
    """Position in a text that a sequence of symbols has reached."""

    position: int = 0  # in bytes
    begun: bool = False  # whether a space before the next symbol counts


START = Place()


class Spellings:
    """Spellings of texts by the symbols of a vocabulary.

    Args:
        vocabulary: Object with a length and a method `spellings(numbers)`. The method returns two dictionaries with the
            bytes that each symbol adds: to an empty text, and after other symbols.

    Example:
        >>> class Pieces(list):
        ...     def spellings(self, numbers):
        ...         pieces = {number: self[number].encode() for number in numbers}
        ...         return pieces, pieces
        >>> special = ["<pad>", "<s>", "</s>", "<unk>"]
        >>> Spellings(Pieces([*special, "a", "b"])).unique
        True
        >>> spellings = Spellings(Pieces([*special, "a", "b", "ab"]))
        >>> spellings.unique, [token for token, _ in spellings.following(b"abc", Place())]
        (False, [4, 6])
    """

    def __init__(self, vocabulary: Any) -> None:
        numbers = [number for number in range(len(vocabulary)) if number not in (PAD, BOS, EOS, UNK)]
        self._first, self._later = vocabulary.spellings(numbers)
        self._drops_spaces = getattr(vocabulary, "drops_leading_spaces", False)
        self._numbers = {False: _by_spelling(self._first), True: _by_spelling(self._later)}
        self._lengths = {begun: sorted(set(map(len, numbers))) for begun, numbers in self._numbers.items()}

    @cached_property
    def single(self) -> bool:
        """Return whether every symbol spells one character."""
        spellings = (*self._first.values(), *self._later.values())
        return all(len(spelling.decode(errors="replace")) == 1 for spelling in spellings)

    @cached_property
    def unique(self) -> bool:
        """Return whether different sequences of symbols always spell different texts, as for single characters."""
        spellings = sorted(self._later.values())
        if not all(spellings) or len(set(spellings)) < len(spellings):
            return False
        # Handle words: each word begins with a space and contains no other space.
        if all(spelling.rfind(b" ") == 0 and len(spelling) > 1 for spelling in spellings):
            return all(self._first[number] in (word, word[1:]) for number, word in self._later.items())
        prefix_free = not any(longer.startswith(shorter) for shorter, longer in pairwise(spellings))
        return prefix_free and self._first == self._later

    def following(self, text: bytes, place: Place) -> Iterator[tuple[int, Place]]:
        """Yield the symbols that may follow in a spelling of the text, each with the place that it reaches.

        Args:
            text: Spelled text in UTF-8.
            place: Place that the previous symbols have reached.
        """
        numbers = self._numbers[place.begun]
        for length in self._lengths[place.begun]:
            if (end := place.position + length) > len(text):
                return
            for number in numbers.get(text[place.position : end], ()):
                begun = place.begun or end > 0 or (not self._drops_spaces and self._later[number] != b"")
                yield number, Place(end, begun)

    def crossing(self, text: bytes, place: Place) -> Iterator[int]:
        """Yield the symbols that spell the non-empty rest of the text and continue after its end."""
        suffix = text[place.position :]
        if len(suffix) >= max(self._lengths[place.begun], default=0):
            return
        for number, spelling in (self._later if place.begun else self._first).items():
            if len(spelling) > len(suffix) and spelling.startswith(suffix):
                yield number

    def reached(self, number: int, begun: bool) -> tuple[bytes, bool]:
        """Return the bytes that a symbol adds after a text, and whether a space after it counts.

        Args:
            number: Number of the symbol.
            begun: Whether a space before the symbol counts.
        """
        added = (self._later if begun else self._first)[number]
        return added, begun or bool(added) or (not self._drops_spaces and self._later[number] != b"")

    def are_all_of(self, text: str) -> bool:
        """Return whether `following` finds every spelling; it misses unknown symbols and incomplete bytes."""
        return "\N{REPLACEMENT CHARACTER}" not in text and "\N{DOUBLE QUESTION MARK}" not in text

    def can_spell(self, text: str) -> bool:
        """Return whether any sequence of symbols spells the text."""
        encoded, seen, waiting = text.encode(), {START}, [START]
        while waiting:
            place = waiting.pop()
            if place.position == len(encoded):
                return True
            for _, reached in self.following(encoded, place):
                if reached not in seen:
                    seen.add(reached)
                    waiting.append(reached)
        return False


def _by_spelling(spellings: Mapping[int, bytes]) -> dict[bytes, list[int]]:
    numbers: dict[bytes, list[int]] = {}
    for number, spelling in spellings.items():
        numbers.setdefault(spelling, []).append(number)
    return numbers


def ambiguous_text(vocabulary: Any) -> Callable[[Sequence[int]], str] | None:
    """Return the function that spells sequences if several sequences may spell the same text, else None."""
    return None if spellings_of(vocabulary).unique else vocabulary.decode


def spellings_of(vocabulary: Any) -> Spellings:
    """Return the spellings of a vocabulary, computed once if it is hashable."""
    return _cached_spellings(vocabulary) if isinstance(vocabulary, Hashable) else Spellings(vocabulary)


_cached_spellings = lru_cache(maxsize=8)(Spellings)
