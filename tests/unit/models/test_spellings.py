"""Tests of the texts that symbols spell: whether spellings are unique, and spelling a text step by step."""

from __future__ import annotations

import random

import pytest

from tsallis.models.spellings import Place, Spellings
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.subwords import Subwords

LINES = ["low lower lowest new newest wide widest abc ä"] * 3


UNIQUE = [
    (["a", "b", "ä", " "], True),
    (["a", "b", "ab"], False),
    (["<tag:V>", "a"], True),
    ([" a", " ab", " b"], True),
    ([" a", " ab", "b"], False),
    (["a", ""], False),
]


@pytest.mark.parametrize(("symbols", "unique"), UNIQUE)
def test_unique_spellings_are_detected(symbols: list[str], unique: bool) -> None:
    assert Spellings(Vocabulary(symbols)).unique is unique


FOLLOWED = [
    ("bpe", 40, {}),
    ("unigram", 24, {}),
    ("bpe", 300, {"byte_fallback": True}),
    ("bpe", 40, {"normalization": "nmt_nfkc_cf", "split_digits": True}),
    ("word", 40, {}),
]


@pytest.mark.parametrize(("kind", "size", "options"), FOLLOWED)
def test_subword_sequences_are_followed_in_their_text(kind: str, size: int, options: dict[str, bool]) -> None:
    subwords = Subwords.train(LINES, size, kind=kind, **options)
    spellings, draw = Spellings(subwords), random.Random(3)
    assert spellings.unique is (kind == "word")
    texts: dict[str, tuple[int, ...]] = {}
    for _ in range(1500):
        tokens = tuple(draw.choice(range(4, len(subwords))) for _ in range(draw.randrange(5)))
        text = subwords.decode(tokens)
        if not spellings.are_all_of(text):  # skip incomplete byte sequences
            continue
        if kind == "word":
            assert texts.setdefault(text, tokens) == tokens
        place = Place()
        for token in tokens:
            following = dict(spellings.following(text.encode(), place))
            place = following[token]
        assert place.position == len(text.encode()) and spellings.can_spell(text)


def test_all_spellings_of_a_text_are_found() -> None:
    subwords = Subwords.train(["ab abc a b"] * 3, 12)
    spellings, text = Spellings(subwords), "ab abc"
    found, waiting = [], [((), Place())]
    while waiting:
        tokens, place = waiting.pop()
        if place.position == len(text):
            found.append(tokens)
        elif len(tokens) < 7:
            waiting += [((*tokens, token), after) for token, after in spellings.following(text.encode(), place)]
    assert len(found) == len(set(found)) > 5 and all(subwords.decode(tokens) == text for tokens in found)
    assert tuple(subwords.encode(text)) in found
    assert not spellings.can_spell("AB") and not spellings.can_spell("abx") and spellings.can_spell("")
