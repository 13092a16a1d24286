"""Tests of the spelling of tokens for display."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from tsallis.analysis.spelling import Spelling


def byte_level(texts: list[str]) -> Any:
    """Return a byte-level tokenizer like GPT-2's, trained on some texts."""
    pieces = Tokenizer(BPE())
    pieces.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=400, special_tokens=["</s>"], initial_alphabet=ByteLevel.alphabet())
    pieces.train_from_iterator(texts * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="</s>")


def test_byte_level_tokens_are_decoded_to_characters() -> None:
    tokenizer = byte_level(["the café is naïve", "a\tb \n\n日本"])
    spell = Spelling(tokenizer).spell
    assert spell(tokenizer("the café is naïve")["input_ids"]) == ("the", "▁café", "▁is", "▁naïve")
    assert "".join(spell(tokenizer("a\tb \n\n日本</s>")["input_ids"])) == r"a\tb▁\n\n日本</s>"
    assert "".join(spell(tokenizer("ж")["input_ids"])) == r"\xd0\xb6"  # each of its two bytes is a token
    assert set("".join(spell(range(256)))) & {"Ġ", "Ċ", "Ã"} == set()


def test_added_tokens_are_spelled_unchanged() -> None:
    tokenizer = byte_level(["a b"])
    tokenizer.add_tokens(["日本"])
    assert Spelling(tokenizer).spell(tokenizer("日本")["input_ids"]) == ("日本",)


def test_the_most_frequent_mark_in_the_vocabulary_counts() -> None:
    """GPT-2's vocabulary has `##`, and vocabularies of WordPiece and sentencepiece may have `Ġ`."""
    tokenizer = byte_level(["the lamp ## is ##"])
    assert "##" in tokenizer.get_vocab()
    assert Spelling(tokenizer).spell(tokenizer("the lamp")["input_ids"]) == ("the", "▁lamp")
