"""The pieces of a tokenizer, spelled for readers: `▁` begins a word, and bytes are characters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

# Bytes that byte-level tokenizers (GPT-2's, and most since) spell as themselves; others are characters from 256 on.
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t", " ": "▁"}


class Spelling:
    """The spelling of a tokenizer's pieces.

    Args:
        tokenizer: its method `convert_ids_to_tokens` gives the pieces, and `get_vocab` all that there are.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def spell(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the pieces of a sentence."""
        return tuple(map(self._spell, self.tokenizer.convert_ids_to_tokens(numbers)))

    def _spell(self, token: str) -> str:
        if token in self._special:
            return token
        if self._marks_continuations:
            return token.removeprefix("##") if token.startswith("##") else f"▁{token}"
        return _spell_bytes(token) if self._spells_bytes else token

    @functools.cached_property
    def _marks_continuations(self) -> bool:
        return any(token.startswith("##") for token in self.tokenizer.get_vocab())

    @functools.cached_property
    def _spells_bytes(self) -> bool:
        return any(token.startswith("Ġ") for token in self.tokenizer.get_vocab())

    @functools.cached_property
    def _special(self) -> frozenset[str]:
        return frozenset(getattr(self.tokenizer, "all_special_tokens", ()))


def _spell_bytes(token: str) -> str:
    """Return what a piece of a byte-level tokenizer stands for; `\\x` and two digits for part of a character."""
    table = _byte_table()
    if any(character not in table for character in token):  # added to the vocabulary as it is
        return token
    text = bytes(table[character] for character in token).decode("utf-8", "backslashreplace")
    return "".join(CONTROLS.get(character, character) for character in text)


@functools.cache
def _byte_table() -> dict[str, int]:
    """Return the byte that each character of a byte-level tokenizer stands for."""
    others = [byte for byte in range(256) if byte not in PRINTABLE]
    return {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(others)}
