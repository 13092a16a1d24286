"""Vocabularies: the symbols of a model and their numbers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tsallis.errors import InputError, check_integer, describe
from tsallis.symbols import BOS, EOS, PAD, SPECIALS, UNK
from tsallis.toolkit.data.io import read_text, write_atomic

FORMAT = 1
GRAPHEMES = r"\X"  # special separator: each symbol is a grapheme cluster, a character with its combining marks


def split_symbols(text: str | Iterable[str], separator: str) -> Iterable[str]:
    """Return the symbols of a text: its characters, its graphemes, or the parts between separators.

    A list of symbols is returned unchanged.

    >>> split_symbols("d uː ", " "), [*split_symbols("do", "")], len(split_symbols("e\u0301a", GRAPHEMES))
    (['d', 'uː'], ['d', 'o'], 2)
    """
    if not separator or not isinstance(text, str):
        return text
    if separator == GRAPHEMES:
        import regex  # type: ignore[import-untyped]

        return regex.findall(GRAPHEMES, text)
    return [part for part in text.split(separator) if part]


class Vocabulary:
    """Vocabulary of symbols, which are numbered from 4. The numbers 0 to 3 are padding, start, end and unknown.

    The special symbols have no spelling: a symbol `<s>` in the data is an ordinary symbol.

    Args:
        symbols: Different symbols, in the order of their numbers.
        separator: Separator of the symbols in a text, such as a space between phones. By default, every character is a
            symbol. With `GRAPHEMES`, every character together with its combining marks is a symbol.

    Raises:
        InputError: If a symbol occurs more than once, is empty, or contains the separator.

    Example:
        >>> vocabulary = Vocabulary.build(["draw", "do"])
        >>> vocabulary.encode("dox"), vocabulary.decode([1, 4, 6, 2])
        ([4, 6, 3], 'do')
        >>> phones = Vocabulary.build(["d ɹ ɔː", "d uː"], separator=" ")
        >>> phones.encode("d ɔː"), phones.decode([4, 5])
        ([4, 6], 'd uː')
    """

    def __init__(self, symbols: Sequence[str], separator: str = "") -> None:
        self.symbols = tuple(symbols)
        self.separator = separator
        self.joiner = "" if separator == GRAPHEMES else separator
        if self.joiner and (wrong := next((s for s in self.symbols if not s or separator in s), None)) is not None:
            raise InputError(
                f"vocabulary: symbols must not be empty or contain {describe(separator)}, found {describe(wrong)}"
            )
        self._number = {symbol: i + len(SPECIALS) for i, symbol in enumerate(self.symbols)}
        if len(self._number) != len(self.symbols):
            duplicate = next(s for s, n in Counter(self.symbols).items() if n > 1)
            raise InputError(f"vocabulary: symbol {describe(duplicate)} occurs more than once")

    @classmethod
    def build(cls, sequences: Iterable[str | Iterable[str]], min_count: int = 1, separator: str = "") -> Vocabulary:
        """Build a vocabulary of frequent symbols. The most frequent one is first; ties are in code-point order.

        Args:
            sequences: Texts, or lists of symbols.
            min_count: Minimum number of occurrences of a symbol.
            separator: Separator of the symbols in a text.

        Raises:
            ValueError: If `min_count` is below 1.
        """
        check_integer("min_count", min_count, 1)
        counts = Counter(symbol for sequence in sequences for symbol in split_symbols(sequence, separator))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([symbol for symbol, count in ranked if count >= min_count], separator)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._number

    def __len__(self) -> int:
        return len(self.symbols) + len(SPECIALS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.symbols == other.symbols and self.separator == other.separator

    def __hash__(self) -> int:
        return hash((self.symbols, self.separator))

    def encode(self, text: str | Iterable[str]) -> list[int]:
        """Return the numbers of the symbols of a text or list; unknown symbols get the number 3."""
        return [self._number.get(symbol, UNK) for symbol in split_symbols(text, self.separator)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of encoded symbols, without padding, start and end; 3 becomes `<unk>`."""
        return self.joiner.join(self.name(token) for token in tokens if token not in (PAD, BOS, EOS))

    def split_typed(self, text: str) -> tuple[list[int], str]:
        """Return the encoded complete symbols of a typed text, and its last symbol, which may be incomplete.

        The last symbol includes the separator before it.

        >>> Vocabulary(["d", "uː"], " ").split_typed("d u")
        ([4], ' u')
        """
        if not (self.separator and text):
            return self.encode(text), ""
        if self.separator == GRAPHEMES:
            last = [*split_symbols(text, GRAPHEMES)][-1]
            return self.encode(text.removesuffix(last)), last
        complete, _, last = text.rpartition(self.separator)
        return self.encode(complete), self.separator + last

    def spellings(self, numbers: Sequence[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the UTF-8 bytes of symbols in two cases: at the beginning of a text, and after other symbols."""
        first = {number: self.name(number).encode() for number in numbers}
        return first, {number: self.joiner.encode() + spelling for number, spelling in first.items()}

    def name(self, number: int) -> str:
        """Return the spelling of a symbol, including special ones."""
        if not 0 <= number < len(self):
            raise IndexError(f"a symbol must be from 0 to {len(self) - 1}, got {number}")
        return SPECIALS[number] if number < len(SPECIALS) else self.symbols[number - len(SPECIALS)]

    def fingerprint(self) -> str:
        """Return a hash of the ordered symbols: vocabularies with equal fingerprints are equal."""
        content = [self.separator, self.symbols] if self.separator else self.symbols
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the symbols, their order and their fingerprint as text.

        >>> vocabulary = Vocabulary(["a", "b"])
        >>> Vocabulary.from_json(vocabulary.to_json()) == vocabulary
        True
        """
        separator = {"separator": self.separator} if self.separator else {}
        content = {"format": FORMAT, "fingerprint": self.fingerprint(), **separator, "symbols": self.symbols}
        return json.dumps(content, ensure_ascii=False, indent=0)

    @classmethod
    def from_json(cls, text: str, source: str = "vocabulary") -> Vocabulary:
        """Parse the text of :meth:`to_json`; raise an :class:`~tsallis.errors.InputError` for other texts."""
        try:
            content = json.loads(text)
            vocabulary = cls(content["symbols"], content.get("separator", ""))
            is_intact = content["format"] == FORMAT and content["fingerprint"] == vocabulary.fingerprint()
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{source}: not a vocabulary file (JSON with format, fingerprint and symbols)") from error
        if not is_intact:
            raise InputError(f"{source}: the symbols do not match the fingerprint; restore the file")
        return vocabulary

    def save(self, path: Path | str) -> None:
        """Write the vocabulary atomically, replacing an existing file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> Vocabulary:
        """Read the file of :meth:`save`; raise an :class:`~tsallis.errors.InputError` for other files."""
        return cls.from_json(read_text(path), str(path))
