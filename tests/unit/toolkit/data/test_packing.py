"""Texts in rows of one length: every token and the end of every text is predicted once."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from tsallis.errors import InputError
from tsallis.symbols import BOS, EOS, IGNORE_INDEX, PAD
from tsallis.toolkit.data.packing import TextCorpus, pack

SYMBOLS = 300  # too many for one byte


def texts_of(seed: int, count: int = 40) -> list[list[int]]:
    chance = np.random.default_rng(seed)
    return [chance.integers(4, SYMBOLS, chance.integers(0, 30)).tolist() for _ in range(count)]


@pytest.mark.parametrize("length", [2, 3, 8, 29, 30, 64, 2000])
def test_every_token_and_text_end_is_predicted_once(length: int) -> None:
    texts = texts_of(length)
    corpus = pack(texts, length, SYMBOLS)
    assert corpus.lengths()[:, 1].max() < length
    batch = corpus.batch(range(len(corpus)))
    predicted = [row[row != IGNORE_INDEX].tolist() for row in batch.tgt_out]
    assert list(chain(*predicted)) == list(chain(*([*text, EOS] for text in texts if text)))
    for row, tokens in enumerate(batch.tgt_in.tolist()):
        count = len(predicted[row])
        assert tokens[count:] == [PAD] * (len(tokens) - count) and PAD not in tokens[:count]
        for here, after, answer in zip(tokens[:count], tokens[1:count], predicted[row], strict=False):
            assert answer == (EOS if after == BOS else after), here


def test_texts_that_fit_a_row_are_not_split() -> None:
    corpus = pack([[7] * 5, [8] * 5, [9] * 2], 8, SYMBOLS)
    assert [row.tolist() for row in corpus.tgt] == [[BOS, *[7] * 5], [BOS, *[8] * 5], [BOS, 9, 9]]


def test_batches_of_long_rows_are_small() -> None:
    assert max(len(batch.index) for batch in pack([[5] * 3000] * 20, 3000, SYMBOLS).batches(64)) == 7


def test_digests_depend_on_texts_and_length() -> None:
    texts = texts_of(1)
    corpora = pack(texts, 8, SYMBOLS), pack(texts, 9, SYMBOLS), pack(texts[1:], 8, 9)
    assert len({corpus.digest() for corpus in corpora}) == 3


def test_texts_without_symbols_raise() -> None:
    with pytest.raises(InputError, match="at least one text with symbols"):
        pack([[], []], 8, SYMBOLS)


def test_prompts_may_be_empty() -> None:
    batch = TextCorpus([[], [6]], [[4], [5, 6]]).batch([0, 1])
    assert batch.src_lengths.tolist() == [0, 1] and torch.equal(batch.tgt_in, torch.tensor([[1, 4, 0], [1, 5, 6]]))
