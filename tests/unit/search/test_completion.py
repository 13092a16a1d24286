"""Completion of a prefix: all continuations with their probabilities, and the part that is certain."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from contract.tables import EOS, A, B, C, TableModel, random_table, sources, trie
from tsallis.search import Ensemble, next_characters
from tsallis.search import complete as complete_text
from tsallis.search.spelling import score_texts
from unit.search.test_next_characters import spellings

NAMES = ["a", "b", "c"]
# b is certain after the start, then a or c; after c only a and the end are possible.
ROWS = {
    (): {B: 1.0},
    (B,): {A: 0.3, C: 0.6, EOS: 0.1},
    (B, A): {EOS: 0.5, A: 0.5},
    (B, C): {A: 1.0},
    (B, C, A): {EOS: 1.0},
}


def complete(model: Any, src: Any, lengths: Any, typed: str = "", names: list[str] = NAMES, **options: Any) -> Any:
    def decode(tokens: tuple[int, ...]) -> str:
        return "".join(names[token - A] for token in tokens)

    return complete_text(model, src, lengths, typed, spellings(*names), decode, **options)


def test_completions_extend_over_certain_symbols() -> None:
    result = complete(trie(ROWS), *sources(0))
    assert result.certain == (B,) and result.log_prob == 0 and result.support == 3 and result.missing == 0
    choices = [(c.tokens, round(c.prob, 12), c.ends) for c in result.choices]
    assert choices == [((C, A), 0.6, True), ((A,), 0.3, False), ((), 0.1, True)]
    assert result.mass == pytest.approx(1)


def test_completions_start_with_the_typed_symbols() -> None:
    after_a = complete(trie(ROWS), *sources(0), "ba")
    assert after_a.log_prob == pytest.approx(math.log(0.3)) and after_a.certain == ()
    assert {c.tokens: c.prob for c in after_a.choices} == pytest.approx({(B, A): 0.5, (B, A, A): 0.5})
    end = complete(trie(ROWS), *sources(0), "bc")
    assert end.certain == (B, C, A) and [(c.tokens, c.ends) for c in end.choices] == [((), True)]


def test_impossible_prefixes_have_no_completions() -> None:
    result = complete(trie(ROWS), *sources(0), "ab")
    assert not result.possible and result.log_prob == -math.inf and result.choices == ()
    assert not complete(trie(ROWS), *sources(0), "bx").possible


def test_continuations_of_impossible_symbols_are_ignored() -> None:
    result = complete(trie({**ROWS, (A,): {B: 0.5, EOS: 0.5}}), *sources(0), "a")
    assert not result.possible and result.log_prob == -math.inf
    assert result.choices == () and result.certain == () and result.support == 0 and result.mass == 0


@pytest.mark.parametrize("transform", ["softmax", "entmax"])
def test_choices_match_the_support_and_its_probabilities(transform: str) -> None:
    for seed in range(20):
        table = random_table(transform, 1.0 if transform == "softmax" else 1.5, seed)
        first = max((A, B, C), key=table.row(0, ()).__getitem__)
        if not table.row(0, ())[first]:
            continue  # the empty output is the only one
        result = complete(table, *sources(0), NAMES[first - A])
        expected = {token: prob for token, prob in table.row(0, result.certain or (first,)).items() if prob > 0}
        assert result.support == len(expected) == len(result.choices)
        symbols = [c.tokens if result.certain else c.tokens[1:] for c in result.choices]
        actual = {own[0] if own else EOS: c.prob for own, c in zip(symbols, result.choices, strict=True)}
        assert actual == pytest.approx(expected)
        assert [c.prob for c in result.choices] == sorted(actual.values(), reverse=True)
        short = complete(table, *sources(0), NAMES[first - A], n_best=1)
        assert short.choices == result.choices[:1] and short.support == result.support


def test_the_mass_of_unnormalized_values_is_their_sum() -> None:
    model = TableModel(lambda source, prefix: {B: 0.9, A: 0.5, EOS: 0.25}, normalized=False)
    assert complete(model, *sources(0)).mass == pytest.approx(1.65)


SPELLINGS = ["tr", "tree", "ees"]


def test_typed_text_matches_every_spelling() -> None:
    rows = {
        (): {A: 0.5, B: 0.3, C: 0.2},  # the symbols spell tr, tree and ees
        (A,): {C: 0.4, EOS: 0.6},
        (A, C): {EOS: 1.0},
        (B,): {EOS: 1.0},
    }
    result = complete(trie(rows), *sources(0), "tre", SPELLINGS)
    assert {(c.tokens, c.ends): round(c.prob, 12) for c in result.choices} == {((B,), True): 0.6, ((A, C), True): 0.4}
    assert math.exp(result.log_prob) == pytest.approx(0.5) and result.mass == pytest.approx(1)
    # After a whole symbol the choices are continuations of it: the end of "tree", or "ees" after "tr".
    whole = complete(trie(rows), *sources(0), "tr", SPELLINGS)
    choices = {(c.tokens, c.ends): round(c.prob, 12) for c in whole.choices}
    assert choices == {((B,), True): 0.375, ((A,), True): 0.375, ((A, C), True): 0.25}


def test_endless_certain_symbols_stop_at_longest() -> None:
    result = complete(trie({(A,) * n: {A: 1.0} for n in range(200)}), *sources(0), longest=7)
    assert len(result.certain) == 7 and result.choices[0].tokens == (A,) * 7


def test_ensemble_completions_unite_the_supports() -> None:
    other = trie({(): {A: 1.0}, (A,): {EOS: 1.0}})
    result = complete(Ensemble([trie(ROWS), other]), *sources(0))
    assert result.support == 2 and result.certain == ()


def test_several_sources_raise() -> None:
    with pytest.raises(ValueError, match="src must have exactly one source, got 2"):
        complete(trie(ROWS), *sources(0, 1))
    assert torch.is_grad_enabled()


def test_typed_text_may_have_an_underflowing_probability() -> None:
    rows = {(A,) * n: {A: 1e-30, B: 1 - 1e-30} for n in range(50)}
    result = complete(trie({**rows, (A,) * 50: {EOS: 0.25, B: 0.75}}), *sources(0), "a" * 50)
    assert result.log_prob == pytest.approx(50 * math.log(1e-30))
    assert sorted(choice.prob for choice in result.choices) == pytest.approx([0.25, 0.75])


def test_improbable_spellings_that_were_dropped_leave_nothing_certain() -> None:
    """With "ab", the beginning of the text is more probable; with single letters, the whole text is."""
    tiny = math.exp(-400)
    rows = {
        (): {B: 1 - 2 * tiny, A: tiny, C: tiny},
        (B,): {EOS: 1.0},
        (A,): {C: 1.0, B: math.exp(-401)},
        (A, B): {A: 1.0},
        (A, B, A): {EOS: 1.0},
        (C,): {B: 1.0, A: math.exp(-700)},
        (C, A): {EOS: 1.0},
    }
    result = complete(trie(rows), *sources(0), "aba", ["a", "b", "ab"])
    assert result.possible and result.certain == ()
    assert result.missing > 0.999 and result.mass < 0.001
    pieces = spellings("a", "b", "ab")
    assert next_characters(trie(rows), *sources(0), "aba", pieces).missing > 0.999
    (scored,) = score_texts(trie(rows), *sources(0), ["aba"], pieces)
    assert not scored.exact and scored.missing > 0 and scored.log_missing == pytest.approx(-801)
    dead_end = trie({**rows, (C, A): {}})
    assert complete(dead_end, *sources(0), "aba", ["a", "b", "ab"]).possible
    assert score_texts(dead_end, *sources(0), ["aba"], pieces)[0].possible is None
