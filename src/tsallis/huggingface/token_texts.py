"""Spell the ids of a tokenizer for patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PART = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """Texts of a decoder's symbols, as a tokenizer decodes them; a vocabulary for :class:`tsallis.search.Pattern`.

    Special tokens have no text. The decoder must not clean up spaces (`clean_up_tokenization_spaces=False`).

    Args:
        tokenizer: Tokenizer of the model.
        size: Number of ids of the model.
        offset: Symbol that stands for id 0.
    """

    def __init__(self, tokenizer: Any, size: int, offset: int) -> None:
        self.tokenizer, self.size, self.offset = tokenizer, size, offset

    def __len__(self) -> int:
        return self.offset + self.size

    def spellings(self, numbers: Sequence[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the UTF-8 bytes of symbols in two cases: at the beginning of a text, and after other symbols."""
        before = self.tokenizer.encode("a", add_special_tokens=False)
        return self._added([], numbers), self._added(before, numbers)

    def _added(self, context: list[int], numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the bytes that each symbol adds to the text of a context."""
        ids = [number - self.offset for number in numbers]
        rows = [context, *([*context, number] if number < len(self.tokenizer) else context for number in ids)]
        settings = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        start, *texts = self.tokenizer.batch_decode(rows, **settings)
        # Tokenizers write a part of a character as U+FFFD; patterns recognize such parts by invalid UTF-8.
        added = [text.removeprefix(start).encode() if PART not in text else b"\xff" for text in texts]
        return dict(zip(numbers, added, strict=True))
