"""Convert tokens to readable pieces: `▁` begins a word, and bytes become characters."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from tsallis.analysis.words import WORD_START

# Byte-level tokenizers (GPT-2 and later) write these bytes as themselves, and other bytes as characters from 256 on.
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
CONTROLS = {"\n": r"\n", "\r": r"\r", "\t": r"\t", " ": WORD_START}
BYTE_SPACE, CONTINUATION = "Ġ", "##"
SPECIAL = re.compile(r"\[[A-Z]+\]|<[^<>]+>")  # special tokens, as BERT and most models write them


def spell_tokens(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Convert tokens to pieces, in which `▁` marks the beginning of a word.

    Tokenizers are recognized by their marks: `Ġ` of byte-level tokenizers, `▁` of sentencepiece, or `##` of WordPiece
    before the continuation of a word. Tokens without any mark stay as they are.

    Args:
        sentences: Tokens of each sentence, from one tokenizer.

    Example:
        >>> spell_tokens([["The", "Ġlamp", "Ã©"]]), spell_tokens([["[CLS]", "lamp", "##s"]])
        ([('The', '▁lamp', 'é')], [('[CLS]', '▁lamp', 's')])
    """
    tokens = [token for sentence in sentences for token in sentence]
    if any(token.startswith(BYTE_SPACE) for token in tokens):
        return [tuple(map(spell_bytes, sentence)) for sentence in sentences]
    marks_words = any(token.startswith(WORD_START) for token in tokens)
    if not marks_words and any(token.startswith(CONTINUATION) and token != CONTINUATION for token in tokens):
        return [tuple(map(_mark_word, sentence)) for sentence in sentences]
    return [tuple(sentence) for sentence in sentences]


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
