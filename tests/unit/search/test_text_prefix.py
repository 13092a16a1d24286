"""Searches and draws restricted to a beginning of the text cover all spellings of it, and no other outputs."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from contract.tables import A, TableModel, random_table, sources
from tsallis.search import beam_search, exhaustive
from tsallis.search.patterns import RestrictedModel
from tsallis.search.spelling import sample_after
from tsallis.search.text_prefix import TextPrefix
from tsallis.symbols import EOS
from unit.search.test_next_characters import spellings

LONGEST = 4
TEXTS = [(b"a", b"b", b"ab"), (b"a", b"", b"ba"), (b"\xc3", b"\xa9", "é".encode()), (b" a", b"a", b" ")]


def model_of(transform: str, seed: int) -> TableModel:
    rows = random_table(transform, 1.0 if transform == "softmax" else 1.5, seed, sharpness=1.5).row
    return TableModel(
        lambda source, prefix: rows(source, prefix) if len(prefix) < LONGEST else {EOS: 1.0}, transform != "alpha_relu"
    )


def outputs_after(model: TableModel, pieces: tuple[bytes, ...], text: str) -> dict[tuple[int, ...], float]:
    spelled = {tokens: b"".join(pieces[token - A] for token in tokens) for tokens in model.enumerate(0, LONGEST)}
    return {
        tokens: log_prob
        for tokens, log_prob in model.enumerate(0, LONGEST).items()
        if spelled[tokens].startswith(text.encode())
    }


@pytest.mark.parametrize("pieces", TEXTS, ids=str)
@pytest.mark.parametrize("transform", ["softmax", "entmax", "alpha_relu"])
def test_restricted_searches_find_the_outputs_of_an_enumeration(transform: str, pieces: tuple[bytes, ...]) -> None:
    for seed in range(4):
        for text in ("a", "ab", "aba", "é", " a", "z"):
            model = model_of(transform, seed)
            expected = outputs_after(model, pieces, text)
            restricted = RestrictedModel(model, TextPrefix(text, spellings(*pieces), 1))
            (result,) = exhaustive(restricted, *sources(0), max_length=LONGEST, budget=2000)
            assert {h.tokens: h.log_prob for h in result.hypotheses} == pytest.approx(expected)
            assert result.certificate.kind == "complete" and result.scope == "limited"
            (beam,) = beam_search(restricted, *sources(0), beam_size=200, max_length=LONGEST)
            assert {h.tokens for h in beam.hypotheses} == set(expected)


@pytest.mark.parametrize("pieces", TEXTS, ids=str)
def test_draws_follow_the_conditional_distribution(pieces: tuple[bytes, ...]) -> None:
    model, count = model_of("softmax", 0), 2000
    prefix = TextPrefix({b"\xc3": "é", b" a": " a"}.get(pieces[0], "a"), spellings(*pieces), 1)
    expected = outputs_after(model, pieces, prefix.text.decode())
    draws = sample_after(model, *sources(0, 0), prefix, [3, 3], count, max_length=LONGEST)
    assert draws[0] == draws[1] and None not in draws[0]
    frequencies = Counter(draw.tokens for draw in draws[0] if draw is not None)
    total = math.fsum(map(math.exp, expected.values()))
    for tokens, log_prob in expected.items():
        share = math.exp(log_prob) / total
        assert abs(frequencies[tokens] / count - share) < 5 * math.sqrt(share / count) + 0.001
    assert set(frequencies) <= set(expected)


def test_draws_of_alpha_relu_and_impossible_texts() -> None:
    pieces, models = (b"a", b"b", b"ab"), (model_of("alpha_relu", seed) for seed in range(50))
    model = next(model for model in models if outputs_after(model, pieces, "ab"))
    draws = sample_after(model, *sources(0), TextPrefix("ab", spellings(*pieces), 1), [0], 50, max_length=LONGEST)
    found = {draw.tokens for draw in draws[0] if draw is not None}
    assert found and found <= set(outputs_after(model, pieces, "ab"))
    impossible = TextPrefix("z", spellings(*pieces), 1)
    assert sample_after(model_of("softmax", 1), *sources(0), impossible, [0], 2) == [[None] * 2]


def test_the_default_maximum_length_allows_for_the_prefix() -> None:
    model = TableModel(lambda source, prefix: {A: 1.0} if len(prefix) < 60 else {EOS: 1.0})
    restricted = RestrictedModel(model, TextPrefix("a" * 60, spellings("a", "b", "c"), 60))
    for search in (beam_search, exhaustive):
        (result,) = search(restricted, *sources(0))
        assert result.best is not None and len(result.best.tokens) == 60
