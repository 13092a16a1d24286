"""Patterns match the texts that tokenizers decode."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordPiece
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tsallis.huggingface import TransformersDecoder
from tsallis.search import Pattern, match, restrict, sample
from tsallis.search.patterns import UNKNOWN

from .test_spelling import byte_level

SETTINGS = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}


def word_pieces() -> Any:
    words = Tokenizer(WordPiece({"[UNK]": 0, "a": 1, "b": 2, "##a": 3, "##bc": 4, ".": 5}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def cyrillic() -> Any:
    """Return a tokenizer without Latin letters, and with gaps between its ids."""
    words = Tokenizer(WordPiece({"[UNK]": 0, "б": 3, "в": 5, "##б": 8}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def sentence_pieces() -> Any:
    """Return a tokenizer like Llama's: words begin with ▁, and bytes replace unknown characters."""
    vocabulary = {"<s>": 0, "</s>": 1, "▁": 2, "▁a": 3, "a": 4, "b": 5, "é": 6}
    vocabulary |= {f"<0x{byte:02X}>": 7 + byte for byte in range(256)}
    pieces = Tokenizer(BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>")


def decoder_of(size: int, end: int | list[int] = 1) -> TransformersDecoder:
    config = GPT2Config(vocab_size=size, n_embd=8, n_head=2, n_layer=1, bos_token_id=0, eos_token_id=0)
    return TransformersDecoder(GPT2LMHeadModel(config), alpha=1, end=end)


@pytest.mark.parametrize("make", [word_pieces, cyrillic, sentence_pieces, lambda: byte_level(["a bad cab", "é a"])])
def test_patterns_match_decoded_texts(make: Any) -> None:
    tokenizer, chance = make(), random.Random(0)
    known = sorted(tokenizer.get_vocab().values())
    decoder = decoder_of(known[-1] + 4, end=known[-1] + 3)  # the last ids have no token
    texts = decoder.texts(tokenizer)
    expressions = ("(?s:.*[bб].*)", " ?[aб].*", "([aбв]| )*", ".", "é?")
    patterns = [(regex, Pattern(regex, texts)) for regex in expressions]
    parts = {n for n in known if UNKNOWN in tokenizer.decode([n], **SETTINGS)}
    seen = set()
    for _ in range(600):
        ids = chance.choices([*known[:12], chance.choice(known), known[-1] + 1], k=chance.randrange(5))
        text = tokenizer.decode([number for number in ids if number in known], **SETTINGS)
        for regex, pattern in patterns:
            expected = not parts & {*ids} and re.fullmatch(regex, text) is not None
            assert pattern.matches(decoder.symbols(ids)) == expected, (regex, ids)
            seen.add(expected)
    assert seen == {True, False}


def test_searches_of_a_model_accept_the_texts() -> None:
    tokenizer = byte_level(["a bad cab"])
    end = [n for n in range(len(tokenizer)) if not re.search("[a-z]", tokenizer.decode([n], **SETTINGS))]
    decoder = decoder_of(len(tokenizer), end)
    sources = decoder.sources({"input_ids": torch.tensor([[5, 6, 7]])})
    letters = Pattern("(?s:.*[a-z].*)", decoder.texts(tokenizer))
    ((bounds,),) = match(decoder, *sources, [letters], budget=300, max_length=3)
    assert 0 < bounds.lower <= bounds.upper < 1
    draws = sample(restrict(decoder, letters), *sources, 200, max_length=4, seeds=[0])[0]
    texts = [tokenizer.decode(decoder.ids(draw.tokens), **SETTINGS) for draw in draws if draw is not None]
    assert texts and all(re.search("[a-z]", text) for text in texts)
