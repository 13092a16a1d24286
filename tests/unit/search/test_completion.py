"""What may follow a beginning: all of it, with its probabilities, and on while there is no choice."""

from __future__ import annotations

import math

import pytest
import torch

from contract.tables import EOS, A, B, C, random_table, sources, trie
from tsallis.search import Ensemble, complete

NAMES = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "c"]
# b is certain after the start, then a or c; after c the output must go on with a and end.
ROWS = {
    (): {B: 1.0},
    (B,): {A: 0.3, C: 0.6, EOS: 0.1},
    (B, A): {EOS: 0.5, A: 0.5},
    (B, C): {A: 1.0},
    (B, C, A): {EOS: 1.0},
}


def test_it_runs_ahead_to_the_next_choice_and_behind_every_choice() -> None:
    result = complete(trie(ROWS), *sources(0), NAMES)
    assert result.certain == (B,) and result.log_prob == 0 and result.support == 3 and result.missing == 0
    assert [(c.tokens, round(c.prob, 12), c.ends) for c in result.choices] == [
        ((C, A), 0.6, True),
        ((A,), 0.3, False),
        ((), 0.1, True),
    ]
    assert result.mass == pytest.approx(1)


def test_typed_symbols_come_first() -> None:
    after_a = complete(trie(ROWS), *sources(0), NAMES, [B, A])
    assert after_a.log_prob == pytest.approx(math.log(0.3)) and after_a.certain == ()
    assert {c.tokens: c.prob for c in after_a.choices} == pytest.approx({(): 0.5, (A,): 0.5})
    end = complete(trie(ROWS), *sources(0), NAMES, [B, C])
    assert end.certain == (A,) and [(c.tokens, c.ends) for c in end.choices] == [((), True)]


def test_what_is_impossible_has_no_completions() -> None:
    result = complete(trie(ROWS), *sources(0), NAMES, [A, B])
    assert not result.possible and result.log_prob == -math.inf and result.choices == ()
    assert not complete(trie(ROWS), *sources(0), NAMES, [B], rest="x").possible


def test_what_would_follow_an_impossible_symbol_is_no_completion() -> None:
    result = complete(trie({**ROWS, (A,): {B: 0.5, EOS: 0.5}}), *sources(0), NAMES, [A])
    assert not result.possible and result.log_prob == -math.inf
    assert result.choices == () and result.certain == () and result.support == 0 and result.mass == 0


@pytest.mark.parametrize("transform", ["softmax", "entmax"])
def test_choices_are_the_support_with_its_probabilities(transform: str) -> None:
    for seed in range(20):
        table = random_table(transform, 1.0 if transform == "softmax" else 1.5, seed)
        first = max((A, B, C), key=table.row(0, ()).__getitem__)
        if not table.row(0, ())[first]:
            continue  # the empty output is the only one
        result = complete(table, *sources(0), NAMES, [first])
        expected = {token: prob for token, prob in table.row(0, (first, *result.certain)).items() if prob > 0}
        assert result.support == len(expected) == len(result.choices)
        actual = {c.tokens[0] if c.tokens else EOS: c.prob for c in result.choices}
        assert actual == pytest.approx(expected)
        assert [c.prob for c in result.choices] == sorted(actual.values(), reverse=True)
        short = complete(table, *sources(0), NAMES, [first], n_best=1)
        assert short.choices == result.choices[:1] and short.support == result.support


SPELLINGS = ["<pad>", "<s>", "</s>", "<unk>", "tr", "tree", "ees"]


def test_a_part_of_a_symbol_is_spelt_in_every_way() -> None:
    rows = {
        (): {A: 0.5, B: 0.3, C: 0.2},  # tr, tree, ees
        (A,): {C: 0.4, EOS: 0.6},
        (A, C): {EOS: 1.0},
        (B,): {EOS: 1.0},
    }
    result = complete(trie(rows), *sources(0), SPELLINGS, rest="tre")
    assert {(c.tokens, c.ends): round(c.prob, 12) for c in result.choices} == {((B,), True): 0.3, ((A, C), True): 0.2}
    assert result.mass == pytest.approx(0.5)
    # A whole symbol is followed by what comes next: the end of "tree", or "ees" after "tr".
    whole = complete(trie(rows), *sources(0), SPELLINGS, rest="tr")
    assert {(c.tokens, c.ends): round(c.prob, 12) for c in whole.choices} == {
        ((B,), True): 0.3,
        ((A,), True): 0.3,
        ((A, C), True): 0.2,
    }


def test_too_many_ways_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setattr(importlib.import_module("tsallis.search.completion"), "MOST_SPELLINGS", 2)
    rows = {(): {A: 0.5, B: 0.5}, (A,): {A: 0.5, B: 0.5}, (A, A): {EOS: 1.0}, (B,): {EOS: 1.0}, (A, B): {EOS: 1.0}}
    result = complete(trie(rows), *sources(0), [*NAMES[:4], "x", "xx", "c"], rest="xx")
    assert result.missing > 0 and result.mass + result.missing == pytest.approx(1)


def test_endless_certainty_ends() -> None:
    result = complete(trie({(A,) * n: {A: 1.0} for n in range(200)}), *sources(0), NAMES, longest=7)
    assert len(result.certain) == 7 and result.choices[0].tokens == (A,) * 7


def test_an_ensemble_completes_with_both_supports() -> None:
    other = trie({(): {A: 1.0}, (A,): {EOS: 1.0}})
    result = complete(Ensemble([trie(ROWS), other]), *sources(0), NAMES)
    assert result.support == 2 and result.certain == ()


def test_one_source_and_numbers_from_one_on() -> None:
    with pytest.raises(ValueError, match="completions are of one source, got 2"):
        complete(trie(ROWS), *sources(0, 1), NAMES)
    with pytest.raises(ValueError, match="n_best must be at least 1, got 0"):
        complete(trie(ROWS), *sources(0), NAMES, n_best=0)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([B, EOS], "what is typed holds padding, start or end"),
        ([-1], "what is typed holds -1, symbols are counted from 0"),
        ([99], "what is typed holds the symbol 99, there are names of 7"),
    ],
)
def test_what_no_output_begins_with_is_refused(tokens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        complete(trie(ROWS), *sources(0), NAMES, tokens)
