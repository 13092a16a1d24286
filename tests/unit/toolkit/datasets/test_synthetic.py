"""Synthetic tasks: examples follow the rules of their task, and a seed and a number determine each one."""

from __future__ import annotations

import itertools

import pytest
import torch

from tsallis.symbols import BOS, FIRST, IGNORE_INDEX, PAD
from tsallis.toolkit.datasets.synthetic import IGNORE, READ, SEPARATOR, SYNTHETIC_TASKS, WRITE, SyntheticStream
from tsallis.toolkit.datasets.synthetic_corpus import synthetic_corpus, synthetic_vocabulary

LENGTHS = [8, 9, 10, 11, 31, 64]
ANSWERS = {"copy": list, "reverse": lambda tokens: tokens[::-1], "sort": sorted}
every_task = pytest.mark.parametrize("name", SYNTHETIC_TASKS)


def examples(name: str) -> list[tuple[list[int], list[int]]]:
    return [SyntheticStream(name, length, length, 3).example(number) for length in LENGTHS for number in range(5)]


@every_task
def test_tokens_and_targets_have_valid_ranges_and_lengths(name: str) -> None:
    task = SYNTHETIC_TASKS[name]
    for length in [task.shortest, *LENGTHS, 300]:
        tokens, targets = SyntheticStream(name, length, length, 1).example(0)
        assert length - 4 < len(tokens) <= length and len(targets) == len(tokens)
        assert all(0 <= token < task.symbols for token in tokens)
        assert all(target == IGNORE or 0 <= target < task.symbols for target in targets)
        assert any(target != IGNORE for target in targets)


@pytest.mark.parametrize("name", ANSWERS)
def test_outputs_after_the_separator_match_the_task(name: str) -> None:
    for tokens, targets in examples(name):
        end = tokens.index(SEPARATOR)
        assert targets[:end] == [IGNORE] * end
        assert targets[end:] == ANSWERS[name](tokens[:end])
        assert tokens[end + 1 :] == targets[end:-1]  # a target is the next token


def test_recall_looks_keys_up() -> None:
    for tokens, targets in examples("recall"):
        end = tokens.index(SEPARATOR)
        groups = [tuple(tokens[i : i + 2]) for i in range(0, end, 2)]
        keys, values = groups[::2], groups[1::2]
        assert len(set(keys)) == len(keys)
        values_of = dict(zip(keys, values, strict=True))
        rest, answers = tokens[end + 1 :], targets[end + 1 :]
        for i in range(0, len(rest), 4):
            first, second = values_of[rest[i], rest[i + 1]]
            assert answers[i : i + 3] == [IGNORE, first, second] and rest[i + 2] == first
        assert [t for t in targets[: end + 1] if t != IGNORE] == []


def test_two_back_targets_are_two_tokens_earlier() -> None:
    for tokens, targets in examples("two-back"):
        assert targets == [IGNORE, IGNORE, *tokens[:-2]]


def test_local_count_counts_runs() -> None:
    for tokens, targets in examples("local-count"):
        runs = [len(list(run)) for _, run in itertools.groupby(tokens)]
        assert targets == [n for run in runs for n in range(1, run + 1)] and max(runs) <= 16


def test_flip_flop_reads_what_was_written_last() -> None:
    skipped = 0
    for tokens, targets in examples("flip-flop"):
        memory = None
        assert tokens[0] == WRITE and tokens[-2] == READ
        for i in range(0, len(tokens), 2):
            instruction, bit = tokens[i : i + 2]
            memory = bit if instruction == WRITE else memory
            assert targets[i : i + 2] == [memory if instruction == READ else IGNORE, IGNORE]
            assert instruction != READ or bit == memory
            skipped += instruction not in (READ, WRITE) and bit != memory
    assert skipped  # an ignored bit may differ from the memory


@every_task
def test_seed_and_number_determine_an_example(name: str) -> None:
    first, again, others = ([SyntheticStream(name, 8, 20, seed).example(n) for n in range(12)] for seed in (5, 5, 6))
    assert first == again != others
    assert len({len(tokens) for tokens, _ in first}) > 1


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match=r"one of recall, copy, .*got 'count'"):
        SyntheticStream("count", 8, 8)
    with pytest.raises(ValueError, match=r"min_length must be at least 8 .* got 4"):
        SyntheticStream("recall", 4, 9)
    with pytest.raises(ValueError, match="max_length must be at least min_length, 64, got 16"):
        SyntheticStream("copy", 64, 16)


@every_task
def test_corpus_rows_match_the_streams(name: str) -> None:
    corpus = synthetic_corpus(name, 3, [(16, 24), (40, 40)], seed=5)
    for part, (least, most) in enumerate([(16, 24), (40, 40)]):
        stream = SyntheticStream(name, least, most, 5)
        for epoch in range(2):
            batch = corpus.batch([3 * part + row for row in range(3)], epoch)
            for row in range(3):
                tokens, targets = map(torch.tensor, stream.example(3 * epoch + row))
                count = len(tokens)
                assert batch.tgt_in[row, 0] == BOS and (batch.tgt_in[row, count + 1 :] == PAD).all()
                assert torch.equal(batch.tgt_in[row, 1 : count + 1] - FIRST, tokens)
                own = batch.tgt_out[row, 1 : count + 1]
                assert torch.equal(torch.where(own == IGNORE_INDEX, IGNORE_INDEX, own - FIRST), targets)
                assert batch.tgt_out[row, 0] == IGNORE_INDEX and (batch.tgt_out[row, count + 1 :] == IGNORE_INDEX).all()
                assert count <= corpus.lengths()[3 * part + row, 1]
                assert batch.tgt_in[row].max() < len(synthetic_vocabulary(name))


def test_different_corpora_have_different_digests() -> None:
    corpora = [("copy", 3, [(16, 24)]), ("sort", 3, [(16, 24)]), ("copy", 4, [(16, 24)]), ("copy", 3, [(16, 25)])]
    digests = {synthetic_corpus(*corpus).digest() for corpus in corpora}
    assert len(digests | {synthetic_corpus("copy", 3, [(16, 24)], seed=1).digest()}) == 5


def test_batches_of_long_examples_are_small() -> None:
    assert max(len(batch.index) for batch in synthetic_corpus("copy", 50, [(16, 4096)]).batches(64)) == 16
