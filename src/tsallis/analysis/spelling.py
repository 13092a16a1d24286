"""Convert tokens to readable pieces: `▁` begins a word, and bytes become characters."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Sequence
from typing import Any

from tsallis.analysis.words import WORD_START

# Byte-level tokenizers (GPT-2 and later) write these bytes as themselves, and other bytes as characters from 256 on.
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t", " ": WORD_START}
BYTE_SPACE, CONTINUATION = "Ġ", "##"
SPECIAL = re.compile(r"\[[A-Z]+\]|<[^<>]+>")  # special tokens, as BERT and most models write them
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # control characters except tabs and line breaks


class Spelled(tuple[str, ...]):
    """Pieces of a sentence, which `spell_tokens` does not change."""

    __slots__ = ()


class Spelling:
    """Spelling of a tokenizer's pieces, recognized by the most frequent mark in its vocabulary.

    Args:
        tokenizer: Tokenizer with the methods `convert_ids_to_tokens` and `get_vocab`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, vocabulary = tokenizer, tokenizer.get_vocab()
        marks = (WORD_START, BYTE_SPACE, CONTINUATION)
        counts = {"": 0} | {mark: sum(token.startswith(mark) for token in vocabulary) for mark in marks}
        self._mark = max(counts, key=lambda mark: counts[mark])
        # An id without a token is None.
        self._unchanged: frozenset[Any] = frozenset((None, *getattr(tokenizer, "all_special_tokens", ())))

    def spell(self, numbers: Sequence[int]) -> Spelled:
        """Return the pieces of a sentence."""
        return Spelled(map(self._spell, self.tokenizer.convert_ids_to_tokens(numbers)))

    def _spell(self, token: str) -> str:
        if token in self._unchanged:
            return token
        if self._mark == CONTINUATION:
            return spell_word_piece(token)
        return spell_bytes(token) if self._mark == BYTE_SPACE else token


def spell_tokens(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Convert tokens to pieces, in which `▁` marks the beginning of a word.

    Tokenizers are recognized by the characters of byte-level tokenizers if the bytes are a text, by `▁` of
    sentencepiece, or by `##` of WordPiece before the continuation of a word. Other tokens stay as they are.

    Args:
        sentences: Tokens of each sentence, from one tokenizer.

    Example:
        >>> spell_tokens([["The", "Ġlamp", "Ã©"]]), spell_tokens([["[CLS]", "lamp", "##s"]])
        ([('The', '▁lamp', 'é')], [('[CLS]', '▁lamp', 's')])
    """
    if any(isinstance(sentence, Spelled) for sentence in sentences):
        return [tuple(sentence) for sentence in sentences]
    if _are_bytes(sentences):
        return [tuple(map(spell_bytes, sentence)) for sentence in sentences]
    tokens = [token for sentence in sentences for token in sentence]
    marks_words = any(token.startswith(WORD_START) for token in tokens)
    if not marks_words and any(token.startswith(CONTINUATION) and token != CONTINUATION for token in tokens):
        return [tuple(map(_mark_word, sentence)) for sentence in sentences]
    return [tuple(sentence) for sentence in sentences]


def _are_bytes(sentences: Sequence[Sequence[str]]) -> bool:
    """Return whether the bytes of each sentence are a text, and one has a space or a character that is not ASCII."""
    table, found = _byte_table(), False
    for sentence in sentences:
        characters = "".join(token for token in sentence if not SPECIAL.fullmatch(token))
        if not table.keys() >= {*characters}:
            return False
        try:  # the last character may be incomplete, because texts are cut between tokens
            text = codecs.getincrementaldecoder("utf-8")().decode(bytes(map(table.__getitem__, characters)))
        except UnicodeDecodeError:
            return False
        if CONTROL.search(text):
            return False
        found = found or " " in text or not text.isascii()
    return found


def _mark_word(token: str) -> str:
    return token if SPECIAL.fullmatch(token) else spell_word_piece(token)


def spell_word_piece(token: str) -> str:
    """Return a WordPiece token with `▁` if it begins a word, and without `##`.

    >>> spell_word_piece("lamp"), spell_word_piece("##s")
    ('▁lamp', 's')
    """
    return token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else f"{WORD_START}{token}"


def spell_bytes(token: str) -> str:
    r"""Return the text of a byte-level token; bytes of incomplete characters become `\x` and two digits.

    >>> spell_bytes("ĠcafÃ©")
    '▁café'
    """
    table = _byte_table()
    if any(character not in table for character in token):  # an added token, which is not written in bytes
        return token
    text = bytes(table[character] for character in token).decode("utf-8", "backslashreplace")
    return "".join(CONTROLS.get(character, character) for character in text)


@functools.cache
def _byte_table() -> dict[str, int]:
    """Return the byte of each character in byte-level tokens."""
    unprintable = [byte for byte in range(256) if byte not in PRINTABLE]
    return {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(unprintable)}
