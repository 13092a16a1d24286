"""Synthetic tasks: every example is what its task says, and a seed and a number are enough to make it again."""

from __future__ import annotations

import itertools

import pytest

from tsallis.toolkit.datasets.synthetic import (
    IGNORE,
    READ,
    SEPARATOR,
    SYNTHETIC_TASKS,
    WRITE,
    SyntheticExample,
    SyntheticStream,
)

LENGTHS = [8, 9, 10, 11, 31, 64]
every_task = pytest.mark.parametrize("name", SYNTHETIC_TASKS)


def examples(name: str) -> list[SyntheticExample]:
    return [SyntheticStream(name, length, length, 3).example(number) for length in LENGTHS for number in range(5)]


@every_task
def test_tokens_and_targets_have_the_numbers_and_lengths_of_the_task(name: str) -> None:
    task = SYNTHETIC_TASKS[name]
    for length in [task.shortest, *LENGTHS, 300]:
        tokens, targets = SyntheticStream(name, length, length, 1).example(0)
        assert length - 4 < len(tokens) <= length and len(targets) == len(tokens)
        assert all(0 <= token < task.symbols for token in tokens)
        assert all(target == IGNORE or 0 <= target < task.symbols for target in targets)
        assert any(target != IGNORE for target in targets)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)],
    ids=["copy", "reverse", "sort"],
)
def test_an_output_follows_the_separator(name: str, answer: object) -> None:
    assert callable(answer)
    for tokens, targets in examples(name):
        end = tokens.index(SEPARATOR)
        assert targets[:end] == [IGNORE] * end
        assert targets[end:] == answer(tokens[:end])
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


def test_two_back() -> None:
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
    assert skipped  # a skipped bit may be the other one


@every_task
def test_a_seed_and_a_number_are_an_example(name: str) -> None:
    examples, again, others = (
        [SyntheticStream(name, 8, 20, seed).example(number) for number in range(12)] for seed in (5, 5, 6)
    )
    assert examples == again != others
    assert len({len(tokens) for tokens, _ in examples}) > 1


def test_bad_arguments_are_errors() -> None:
    with pytest.raises(ValueError, match=r"one of recall, copy, .*got 'count'"):
        SyntheticStream("count", 8, 8)
    with pytest.raises(ValueError, match="at least 8 tokens, got a length of 4"):
        SyntheticStream("recall", 4, 9)
    with pytest.raises(ValueError, match="most must not be below least, got least 64 and most 16"):
        SyntheticStream("copy", 64, 16)
