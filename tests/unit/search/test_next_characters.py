"""The probabilities of next characters equal those from an enumeration of all outputs, for any spellings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from contract.tables import A, B, C, TableModel, random_table, sources, trie
from tsallis.models.spellings import Spellings
from tsallis.search import complete, next_characters
from tsallis.symbols import EOS

LONGEST = 4


class Pieces(list[bytes]):
    """A vocabulary given by the bytes of its symbols."""

    def spellings(self, numbers: Sequence[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        pieces = {number: self[number] for number in numbers}
        return pieces, pieces


def spellings(*pieces: str | bytes) -> Spellings:
    encoded = (piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    return Spellings(Pieces([b"", b"", b"", b"", *encoded]))


def ending_model(alpha: float, seed: int) -> TableModel:
    """Return a random model whose outputs have at most LONGEST tokens."""
    rows = random_table("entmax" if alpha > 1 else "softmax", alpha, seed).row
    return TableModel(lambda source, prefix: rows(source, prefix) if len(prefix) < LONGEST else {EOS: 1.0})


@pytest.mark.parametrize(
    "texts", [("a", "b", "c"), ("a", "b", "ab"), ("a", "ba", "ab"), ("a", "", "ab"), ("é", "a", "aé")]
)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_next_characters_match_an_enumeration(texts: tuple[str, ...], alpha: float) -> None:
    for seed, typed in itertools.product(range(3), ("", "a", "ab", "ba", "aba")):
        model, joint = ending_model(alpha, seed), dict[str, float]()
        for tokens, log_prob in model.enumerate(0, LONGEST).items():
            text = "".join(texts[token - A] for token in tokens)
            if text.startswith(typed):
                key = text[len(typed) : len(typed) + 1]
                joint[key] = joint.get(key, 0.0) + math.exp(log_prob)
        found = next_characters(model, *sources(0), typed, spellings(*texts))
        completions = complete(model, *sources(0), typed, spellings(*texts), str)
        assert completions.characters == (None if texts == ("a", "b", "c") else found)
        assert found.missing < 2e-6 and set(found.probs) == set(joint)  # the search skips improbable spellings
        for key, prob in joint.items():
            expected = prob / sum(joint.values())
            assert found.probs[key] - 1e-9 <= expected <= found.probs[key] + found.missing + 1e-9


def test_partial_characters_and_empty_tokens_count_as_missing() -> None:
    model = trie({(): {A: 0.5, B: 0.25, C: 0.25}, (A,): {EOS: 1.0}, (B,): {B: 1.0}, (B, B): {B: 1.0}})
    found = next_characters(model, *sources(0), "", spellings("a", "", b"\xc3"), longest=1)
    assert found.probs == pytest.approx({"a": 0.5}) and found.missing == pytest.approx(0.5)


def test_impossible_texts_have_no_next_character() -> None:
    found = next_characters(trie({(): {A: 1.0}, (A,): {EOS: 1.0}}), *sources(0), "b", spellings("a", "b", "c"))
    assert found.probs == {} and found.missing == 0


def test_wrong_arguments_are_refused() -> None:
    model = trie({(): {EOS: 1.0}})
    with pytest.raises(ValueError, match="one source, got 2"):
        next_characters(model, *sources(0, 1), "", spellings("a", "b", "c"))
    with pytest.raises(ValueError, match="sum to 1"):
        next_characters(trie({}, normalized=False), *sources(0), "", spellings("a", "b", "c"))
