"""Spell the ids of a tokenizer for patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsallis.search.patterns import UNDECODABLE, UNKNOWN


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
        first = self._added([], numbers)
        visible = (number for number, text in first.items() if text.strip() and text != UNDECODABLE)
        before = [number - self.offset for number in (next(visible, None),) if number is not None]
        return first, self._added(before, numbers)

    def _added(self, context: list[int], numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the bytes that each symbol adds to the text of a context."""
        known, ids = {*self.tokenizer.get_vocab().values()}, [number - self.offset for number in numbers]
        rows = [context, *([*context, number] if number in known else context for number in ids)]
        settings = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        start, *texts = self.tokenizer.batch_decode(rows, **settings)
        # Tokenizers write a part of a character as U+FFFD. Such texts are unsure, and so are those that change others.
        added = [
            text[len(start) :].encode() if text.startswith(start) and UNKNOWN not in text else UNDECODABLE
            for text in texts
        ]
        return dict(zip(numbers, added, strict=True))
