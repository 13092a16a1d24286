"""Batches: padding is never scored, and the order depends only on seed and epoch."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsallis.errors import InputError
from tsallis.symbols import BOS, EOS, IGNORE_INDEX, PAD
from tsallis.toolkit.data import BatchPlan, Vocabulary, make_batch
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.tasks.strings import StringsExample, encode_examples

ORDERS = [[[2], [1, 0], [4], [5], [3]], [[4], [2], [1, 0], [3], [5]]]
SENTENCES = st.lists(st.integers(4, 99), min_size=1, max_size=6)
Pairs = list[tuple[int, int]]
PLACES = st.integers(0, 2**40), st.integers(1, 4), st.integers(0, 50)  # seed, bucket and epoch


@given(st.lists(st.tuples(SENTENCES, st.lists(st.integers(4, 99), max_size=6)), min_size=1, max_size=8), st.randoms())
def test_batches_contain_the_rows_with_padding(rows: list[tuple[list[int], list[int]]], chance: random.Random) -> None:
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
        assert batch.tgt_out[row, :end].tolist() == [*tgt, EOS] and (batch.tgt_out[row, end:] == IGNORE_INDEX).all()
    assert batch.tokens == sum(len(rows[i][1]) + 1 for i in index)
    assert batch.src_tokens == sum(len(rows[i][0]) for i in index)
    mapped = make_batch(*(RaggedRows.of(side, np.uint16) for side in zip(*rows, strict=True)), torch.tensor(index))
    for name in ("src", "src_lengths", "tgt_in", "tgt_out"):
        one, other = getattr(batch, name), getattr(mapped, name)
        assert torch.equal(one, other) and one.dtype == other.dtype
    assert mapped.index == batch.index and all(type(i) is int for i in mapped.index)


def test_empty_batches_and_empty_sources_raise() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make_batch([[4]], [[4]], [])
    with pytest.raises(ValueError, match="empty source in row 1"):
        make_batch([[4], []], [[4], [4]], [0, 1])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=70), st.integers(1, 9), *PLACES)
def test_every_row_occurs_once_per_epoch(lengths: list[int], size: int, seed: int, bucket: int, epoch: int) -> None:
    plan = BatchPlan(lengths, size, seed=seed, bucket=bucket)
    batches = plan.epoch(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(batches) == len(plan)
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)
    assert 1 <= min(map(len, batches)) <= size


def test_epochs_depend_only_on_seed_and_number() -> None:
    lengths = [random.randint(1, 20) for _ in range(500)]
    plan = BatchPlan(lengths, 8, seed=3)
    later = list(plan.epoch(5))
    torch.manual_seed(77)
    for _ in range(5):
        plan.epoch(0)
    assert list(plan.epoch(5)) == later == list(BatchPlan(lengths, 8, seed=3).epoch(5))
    assert later not in (list(plan.epoch(4)), list(BatchPlan(lengths, 8, seed=4).epoch(5)))
    before = torch.random.get_rng_state()
    plan.epoch(6)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_order_is_stable_across_versions() -> None:
    """A run resumes inside an epoch by position: with another order, some rows would occur twice."""
    plan = BatchPlan([5, 3, 8, 1, 9, 2, 7, 4], batch_size=2, seed=1)
    assert list(plan.epoch(0)) == [[1, 7], [3, 5], [2, 4], [0, 6]]
    assert list(plan.epoch(1)) == [[2, 4], [3, 5], [1, 7], [0, 6]]


def test_sort_by_target_reduces_padding() -> None:
    generator = random.Random(1)
    lengths = [[generator.randint(1, 20), generator.randint(1, 20)] for _ in range(1003)]

    def padding(side: int, **options: Any) -> int:
        batches = BatchPlan(lengths, 10, seed=0, **options).epoch(0)
        assert sorted(i for batch in batches for i in batch) == list(range(1003))
        return sum(max(lengths[i][side] for i in b) * len(b) - sum(lengths[i][side] for i in b) for b in batches)

    for options in ({}, {"bucket": 200}):
        assert padding(1, sort_by="target", **options) < padding(1, **options) / 3
    assert padding(0, sort_by="target", bucket=200) < padding(0, bucket=200)


def test_larger_buckets_reduce_padding() -> None:
    lengths = [random.randint(1, 40) for _ in range(1000)]

    def padding(bucket: int) -> int:
        batches = BatchPlan(lengths, 10, seed=0, bucket=bucket).epoch(0)
        return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)

    assert padding(40) < padding(5) < padding(1)
    assert padding(40) < 0.1 * sum(lengths)
    order = [max(lengths[i] for i in b) for b in BatchPlan(lengths, 10, seed=0).epoch(0)]
    assert order != sorted(order)


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([1], {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ([1], {"bucket": 0}, "bucket must be at least 1, got 0"),
        ([1], {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ([], {}, "at least one row"),
        (torch.empty(0, 2), {}, "at least one row"),
        ([[1, 2, 3]], {}, r"lengths must have shape \[rows\] or \[rows, 2\], got \[1, 3\]"),
    ],
)
def test_invalid_plan_arguments_raise(lengths: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchPlan(lengths, **options)


def test_a_batch_has_64_rows_by_default() -> None:
    assert BatchPlan([1] * 65).batch_size == 64 and len(BatchPlan([1] * 65)) == 2


PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=80)


@given(PAIRS, st.integers(31, 200), *PLACES)
def test_batches_stay_within_max_tokens(lengths: Pairs, budget: int, seed: int, bucket: int, epoch: int) -> None:
    plan = BatchPlan(torch.tensor(lengths), max_tokens=budget, seed=seed, bucket=bucket)
    batches = plan.epoch(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    costs = [len(b) * max(max(lengths[i][0], lengths[i][1] + 1) for i in b) for b in batches]
    assert max(costs) <= budget and batches.costs.tolist() == costs
    again = BatchPlan(lengths, max_tokens=budget, seed=seed, bucket=bucket).epoch(epoch)
    assert list(again) == list(batches)


def test_batches_fill_max_tokens() -> None:
    lengths = [(random.randint(1, 60), random.randint(1, 60)) for _ in range(5000)]
    batches = BatchPlan(lengths, max_tokens=1000, bucket=50).epoch(0)
    assert batches.costs.mean() > 950
    padded = sum(max(max(lengths[i][0], lengths[i][1] + 1) for i in b) * len(b) for b in batches)
    assert padded < 1.05 * sum(max(s, t + 1) for s, t in lengths)
    # Inside a pool each batch takes as many rows as fit. With one pool, only the last batch is not full.
    whole = BatchPlan(lengths, max_tokens=1000, bucket=10**6).epoch(0)
    ordered = [whole[i] for i in np.argsort(whole.starts)]
    widths = [[max(lengths[i][0], lengths[i][1] + 1) for i in batch] for batch in ordered]
    for batch, after in itertools.pairwise(widths):
        assert sorted(batch) == batch and batch[-1] <= after[0] and (len(batch) + 1) * after[0] > 1000
    with pytest.raises(TypeError, match="the number of batches depends on the epoch"):
        len(BatchPlan([1], max_tokens=1))


def test_rows_longer_than_max_tokens_raise() -> None:
    with pytest.raises(InputError, match="max_tokens must be at least 9, the number of symbols in row 1, got 8"):
        BatchPlan([(3, 3), (4, 8), (2, 2)], max_tokens=8)
    assert BatchPlan([(3, 3), (4, 8)], max_tokens=9).epoch(0).costs.max() == 9


def test_the_order_with_max_tokens_is_stable_across_versions() -> None:
    plan = BatchPlan([(5, 3), (3, 3), (8, 2), (1, 6), (9, 9), (2, 1)], max_tokens=12, seed=1, bucket=2)
    assert [list(plan.epoch(number)) for number in range(2)] == ORDERS


def test_batches_of_an_epoch_can_be_indexed() -> None:
    batches = BatchPlan(range(1, 30), batch_size=4, seed=3).epoch(2)
    lists = list(batches)
    assert len(batches) == 8 and batches[-1] == lists[-1] and all(type(i) is int for i in batches[0])
    with pytest.raises(IndexError):
        batches[8]


@given(PAIRS, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_updates_distribute_batches_across_ranks(lengths: Pairs, accumulate: int, ranks: int, budget: bool) -> None:
    plan = BatchPlan(lengths, 3, 40 if budget else None, seed=5, bucket=2)
    batches = list(plan.epoch(1))
    updates = plan.updates(1, accumulate, ranks)
    width = accumulate * ranks
    assert len(updates) == -(-len(batches) // width) and list(updates) == list(plan.updates(1, accumulate, ranks))
    for number, update in enumerate(updates):
        window = batches[number * width : (number + 1) * width]
        assert sorted(b for mine in update for b in mine) == sorted(window)
        counts = list(map(len, update))
        assert len(update) == ranks and max(counts) - min(counts) <= 1
        assert max(counts) == accumulate if number + 1 < len(updates) else max(counts) <= accumulate
        assert counts == [accumulate] * ranks or number + 1 == len(updates)
    with pytest.raises(IndexError, match=f"from 0 to {len(updates) - 1}"):
        updates[len(updates)]
    # One process takes the batches in order. The content of an update depends only on ranks times accumulate.
    assert [b for update in plan.updates(1, accumulate) for b in update[0]] == batches
    others = plan.updates(1, ranks, accumulate)
    assert [sorted(b for m in u for b in m) for u in others] == [sorted(b for m in u for b in m) for u in updates]


def test_updates_balance_costs_across_ranks() -> None:
    (update,) = BatchPlan([1, 2, 3, 4, 5, 6], batch_size=1).updates(0, accumulate=2, ranks=3)
    assert update == [[[5], [0]], [[4], [1]], [[3], [2]]]
    lengths = [(random.randint(1, 60), random.randint(1, 60)) for _ in range(3000)]
    plan = BatchPlan(lengths, batch_size=10, seed=1)
    costs = {tuple(b): c for b, c in zip(plan.epoch(0), plan.epoch(0).costs.tolist(), strict=True)}
    dealt = [[sum(costs[tuple(b)] for b in mine) for mine in update] for update in plan.updates(0, 4, 3)]
    apart = sum(max(d) / (sum(d) / 3) for d in dealt[:-1]) / len(dealt[:-1])
    batches = list(plan.epoch(0))
    plain = [[sum(costs[tuple(b)] for b in batches[s : s + 4]) for s in range(u, u + 12, 4)] for u in range(0, 288, 12)]
    assert apart < 1.1 < sum(max(d) / (sum(d) / 3) for d in plain) / len(plain)


def test_encode_examples_returns_a_corpus() -> None:
    examples = [StringsExample("ab", ("V",), "abc"), StringsExample("a", ("V",)), StringsExample("x", ("N",))]
    src = Vocabulary.build(e.src_tokens() for e in examples[:2])
    tgt = Vocabulary.build([examples[0].tgt_tokens()])
    corpus = encode_examples(examples, src, tgt)
    assert corpus.src == [src.encode(["<tag:V>", "a", "b"]), src.encode(["<tag:V>", "a"]), [3, 3]]
    assert corpus.tgt == [tgt.encode("abc"), [], []]
    assert corpus.lengths().tolist() == [[3, 3], [2, 0], [2, 0]] and len(corpus) == 3
    assert corpus.batch([1]).tgt_out.tolist() == [[EOS]]
    assert [batch.index for batch in corpus.batches(2)] == [(1, 2), (0,)]
    batches = corpus.batches(1)
    assert len(batches) == 3 and batches[-1].index == (0,)
    assert [b.index for b in batches[1::2]] == [(2,)] and [b.index for b in corpus.batches(5, rows=2)] == [(1, 0)]
    assert list(Corpus([], []).batches(3)) == [] and Corpus([], []).lengths().shape == (0, 2)


def test_corpus_digests_depend_on_rows_and_sides() -> None:
    corpus = Corpus([[4, 5], [6]], [[7], []])
    same = Corpus(RaggedRows.of([[4, 5], [6]], np.uint16), [[7], []])
    assert corpus.digest() == same.digest() and corpus.digest() == Corpus(corpus.src, corpus.tgt).digest()
    others = [([[6], [4, 5]], [[7], []]), ([[4], [5, 6]], [[7], []]), ([[7], []], [[4, 5], [6]])]
    assert len({corpus.digest(), *(Corpus(*sides).digest() for sides in others)}) == 4
