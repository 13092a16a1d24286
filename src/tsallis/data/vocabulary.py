"""The symbols a model knows, and their numbers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tsallis.data.io import read_bytes, without_mark, write_atomic
from tsallis.errors import InputError, describe
from tsallis.special_symbols import BOS, EOS, PAD, SPECIALS, UNK

FORMAT = 1


class Vocabulary:
    """Symbols numbered from 4; 0 to 3 are padding, start, end and unknown.

    The four have no spelling: a symbol of the data that reads `<s>` is a symbol like any other.

    Args:
        symbols: different ones, in the order of their numbers.

    Raises:
        InputError: a symbol that stands in it more than once.

    Example:
        >>> vocabulary = Vocabulary.build([["d", "r", "a", "w"], ["d", "o"]])
        >>> vocabulary.encode(["d", "o", "x"])
        [4, 6, 3]
        >>> vocabulary.decode([1, 4, 6, 2])
        ['d', 'o']
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = tuple(symbols)
        self._number = {symbol: i + len(SPECIALS) for i, symbol in enumerate(self.symbols)}
        if len(self._number) != len(self.symbols):
            twice = next(s for s, n in Counter(self.symbols).items() if n > 1)
            raise InputError(f"vocabulary: symbol {describe(twice)} stands in it more than once")

    @classmethod
    def build(cls, sequences: Iterable[Sequence[str]], min_count: int = 1) -> Vocabulary:
        """Return a vocabulary of every symbol that occurs often enough, most frequent first, ties in code-point order.

        Args:
            sequences: of symbols.
            min_count: the least number of occurrences.

        Raises:
            ValueError: a `min_count` below 1.
        """
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        counts = Counter(symbol for sequence in sequences for symbol in sequence)
        return cls([s for s, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if n >= min_count])

    def __len__(self) -> int:
        return len(self.symbols) + len(SPECIALS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.symbols == other.symbols

    def __hash__(self) -> int:
        return hash(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._number

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """Return the numbers of symbols; that of an unknown one is 3."""
        return [self._number.get(symbol, UNK) for symbol in symbols]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the symbols of numbers, without padding, start and end; 3 is shown as `<unk>`."""
        return [self.name(i) for i in numbers if i not in (PAD, BOS, EOS)]

    def text(self, numbers: Iterable[int]) -> str:
        """Return the symbols written one after the other."""
        return "".join(self.decode(numbers))

    def name(self, number: int) -> str:
        """Return the spelling of one symbol, special ones too."""
        if not 0 <= number < len(self):
            raise IndexError(f"symbols are numbered from 0 to {len(self) - 1}, got {number}")
        return SPECIALS[number] if number < len(SPECIALS) else self.symbols[number - len(SPECIALS)]

    def fingerprint(self) -> str:
        """Return a hash of the symbols in their order: two vocabularies with one fingerprint are the same."""
        return hashlib.sha256(json.dumps(self.symbols).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the symbols, their order and their fingerprint as text.

        >>> vocabulary = Vocabulary(["a", "b"])
        >>> Vocabulary.from_json(vocabulary.to_json()) == vocabulary
        True
        """
        content = {"format": FORMAT, "fingerprint": self.fingerprint(), "symbols": self.symbols}
        return json.dumps(content, ensure_ascii=False, indent=0)

    @classmethod
    def from_json(cls, text: str, source: str = "vocabulary") -> Vocabulary:
        """Parse what :meth:`to_json` wrote; anything else is an :class:`~tsallis.errors.InputError` at `source`."""
        try:
            content = json.loads(text)
            symbols, fingerprint, version = content["symbols"], content["fingerprint"], content["format"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{source}: not a vocabulary file (JSON with format, fingerprint and symbols)") from error
        if version != FORMAT:
            raise InputError(f"{source}: vocabulary format {describe(version)}, this program reads {FORMAT}")
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise InputError(f"{source}: symbols must be a list of strings")
        try:
            vocabulary = cls(symbols)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        if vocabulary.fingerprint() != fingerprint:
            raise InputError(f"{source}: symbols and fingerprint don't belong together: the file was changed or cut")
        return vocabulary

    def save(self, path: Path | str) -> None:
        """Write the vocabulary in one step; a file that is there is replaced."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Read what :meth:`save` wrote; anything else is an :class:`~tsallis.errors.InputError`."""
        try:
            text = without_mark(read_bytes(path)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not a vocabulary file (JSON as UTF-8)") from error
        return cls.from_json(text, str(path))
