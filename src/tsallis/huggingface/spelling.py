"""Convert a tokenizer's pieces to readable text: `▁` starts a word, and bytes become characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsallis.analysis.spelling import BYTE_SPACE, CONTINUATION, spell_bytes, spell_word_piece


class Spelling:
    """Spelling of a tokenizer's pieces.

    Args:
        tokenizer: Tokenizer with the methods `convert_ids_to_tokens` and `get_vocab`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, vocabulary = tokenizer, tokenizer.get_vocab()
        self._marks_continuations = any(token.startswith(CONTINUATION) for token in vocabulary)
        self._spells_bytes = any(token.startswith(BYTE_SPACE) for token in vocabulary)
        self._special = frozenset(getattr(tokenizer, "all_special_tokens", ()))

    def spell(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the pieces of a sentence."""
        return tuple(map(self._spell, self.tokenizer.convert_ids_to_tokens(numbers)))

    def _spell(self, token: str) -> str:
        if token in self._special:
            return token
        if self._marks_continuations:
            return spell_word_piece(token)
        return spell_bytes(token) if self._spells_bytes else token
