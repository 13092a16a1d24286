"""Continuations beside those of the texts: which texts they are of, what is drawn, and the rates of repetition."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tsallis.errors import InputError
from tsallis.models import LanguageModel
from tsallis.symbols import BOS, EOS
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.packing import TextCorpus, pack
from tsallis.toolkit.evaluation.continuations import compare_continuations, repetition_rates, split_texts

VOCAB = 12


def small_model(forbidden: Sequence[int] = (0, 1, 3)) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(VOCAB, d_model=8, heads=2, layers=1, d_ff=8, forbidden=forbidden).eval()


def test_texts_end_where_another_begins_and_where_a_row_ends() -> None:
    corpus = pack([[7, 8], [9], [5] * 7], 5, VOCAB)
    assert split_texts(corpus) == [[7, 8], [9], [5] * 4, [5] * 3]
    assert split_texts(TextCorpus([[], []], [[4, 5], []])) == [[4, 5]]


def test_what_is_drawn_is_as_long_as_the_rest_of_each_text() -> None:
    model = small_model(forbidden=[symbol for symbol in range(VOCAB) if symbol != 7])
    texts = [[4, 5, 6, 8, 9, 10, 11, 4], [5] * 4, [4, 8] * 10]
    report = compare_continuations(model, TextCorpus([[]] * 3, texts), 3)
    assert report["samples"] == 2  # the one of four tokens is too short
    assert report["drawn"]["tokens"] == report["text"]["tokens"] == (6 + 15) / 2
    assert report["drawn"]["distinct_1"] == pytest.approx((1 / 6 + 1 / 15) / 2)
    assert report["drawn"]["repetition_16"] == pytest.approx((5 / 6 + 14 / 15) / 2)
    assert report["text"]["distinct_2"] == pytest.approx((1 + 2 / 14) / 2)


def test_the_longest_texts_are_continued_and_draws_repeat() -> None:
    model, corpus = small_model(), pack([[5] * 20, [6, 7] * 5, [8, 9] * 12], 40, VOCAB)
    report = compare_continuations(model, corpus, 2)
    assert report["samples"] == 2 and report["text"]["tokens"] == (18 + 15) / 2
    assert compare_continuations(model, corpus, 2) == report != compare_continuations(model, corpus, 2, seed=1)


def test_rates_of_texts_that_end_at_once() -> None:
    rates = repetition_rates([[], [7]])
    assert rates["tokens"] == 0.5 and rates["distinct_1"] == 1 and rates["distinct_2"] == 0


def test_no_text_that_is_long_enough_is_an_error() -> None:
    with pytest.raises(InputError, match="at least 8 tokens"):
        compare_continuations(small_model(), Corpus([[]], [[BOS, 4, 5, EOS]]), 1)
