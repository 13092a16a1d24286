"""Batches: padding that is never scored, and an order that depends on seed and epoch alone."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsallis.data import BatchPlan, InflectionExample, Vocabulary, make_batch
from tsallis.data.batching import IGNORED
from tsallis.data.corpus import Corpus
from tsallis.data.vocabulary import BOS, EOS, PAD

SENTENCES = st.lists(st.integers(4, 99), min_size=1, max_size=6)


@given(st.lists(st.tuples(SENTENCES, st.lists(st.integers(4, 99), max_size=6)), min_size=1, max_size=8), st.randoms())
def test_rows_come_back_whole(rows: list[tuple[list[int], list[int]]], chance: random.Random) -> None:
    index = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
    batch = make_batch([s for s, _ in rows], [t for _, t in rows], index)
    assert batch.index == tuple(index)
    assert batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == batch.src_lengths.dtype == torch.long
    assert batch.src.shape == (len(index), max(len(rows[i][0]) for i in index))
    assert batch.tgt_in.shape == batch.tgt_out.shape == (len(index), 1 + max(len(rows[i][1]) for i in index))
    for row, i in enumerate(index):
        src, tgt = rows[i]
        length = int(batch.src_lengths[row])
        assert batch.src[row, :length].tolist() == src and (batch.src[row, length:] == PAD).all()
        end = len(tgt) + 1
        assert batch.tgt_in[row, :end].tolist() == [BOS, *tgt] and (batch.tgt_in[row, end:] == PAD).all()
        assert batch.tgt_out[row, :end].tolist() == [*tgt, EOS] and (batch.tgt_out[row, end:] == IGNORED).all()
    assert batch.tokens == sum(len(rows[i][1]) + 1 for i in index)


def test_rows_that_make_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make_batch([[4]], [[4]], [])
    with pytest.raises(ValueError, match="row 1 has an empty source"):
        make_batch([[4], []], [[4], [4]], [0, 1])


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=70),
    st.integers(1, 9),
    st.integers(0, 2**40),
    st.integers(1, 4),
    st.integers(0, 50),
)
def test_every_row_once_an_epoch(lengths: list[int], size: int, seed: int, bucket: int, epoch: int) -> None:
    plan = BatchPlan(lengths, size, seed, bucket)
    batches = plan.epoch(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(batches) == len(plan)
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)
    assert 1 <= min(map(len, batches)) <= size


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    lengths = [random.randint(1, 20) for _ in range(500)]
    plan = BatchPlan(lengths, 8, seed=3)
    later = plan.epoch(5)
    torch.manual_seed(77)
    for _ in range(5):
        plan.epoch(0)
    assert plan.epoch(5) == later == BatchPlan(lengths, 8, seed=3).epoch(5)
    assert later != plan.epoch(4) and later != BatchPlan(lengths, 8, seed=4).epoch(5)
    before = torch.random.get_rng_state()
    plan.epoch(6)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_order_stays_what_it_was() -> None:
    """A run goes on inside an epoch by position: another order would show it some rows twice."""
    plan = BatchPlan([5, 3, 8, 1, 9, 2, 7, 4], batch_size=2, seed=1)
    assert plan.epoch(0) == [[1, 7], [3, 5], [2, 4], [0, 6]]
    assert plan.epoch(1) == [[2, 4], [3, 5], [1, 7], [0, 6]]


def test_rows_of_like_length_share_a_batch() -> None:
    lengths = [random.randint(1, 40) for _ in range(1000)]

    def padding(bucket: int) -> int:
        batches = BatchPlan(lengths, 10, seed=0, bucket=bucket).epoch(0)
        return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)

    assert padding(40) < padding(5) < padding(1)
    assert padding(40) < 0.1 * sum(lengths)
    order = [max(lengths[i] for i in b) for b in BatchPlan(lengths, 10, seed=0).epoch(0)]
    assert order != sorted(order)


def test_arguments_of_a_plan() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        BatchPlan([1], 0)
    with pytest.raises(ValueError, match="bucket must be at least 1, got 0"):
        BatchPlan([1], bucket=0)
    with pytest.raises(ValueError, match="no rows"):
        BatchPlan([])
    assert BatchPlan([1] * 65).batch_size == 64 and len(BatchPlan([1] * 65)) == 2


def test_a_corpus_in_numbers() -> None:
    examples = [InflectionExample("ab", ("V",), "abc"), InflectionExample("a", ("V",)), InflectionExample("x", ("N",))]
    src = Vocabulary.build(e.src_tokens() for e in examples[:2])
    tgt = Vocabulary.build([examples[0].tgt_tokens()])
    corpus = Corpus.encode(examples, src, tgt)
    assert corpus.src == [src.encode(["<tag:V>", "a", "b"]), src.encode(["<tag:V>", "a"]), [3, 3]]
    assert corpus.tgt == [tgt.encode("abc"), [], []]
    assert corpus.lengths() == [6, 2, 2] and len(corpus) == 3
    assert corpus.batch([1]).tgt_out.tolist() == [[EOS]]
    assert [batch.index for batch in corpus.batches(2)] == [(1, 2), (0,)]
