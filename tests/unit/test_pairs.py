"""The helper that thins products of options covers every pair of values, in few and reproducible rows."""

from __future__ import annotations

import itertools
import math

import pytest

from pairs import pairwise


def pairs(rows: list[tuple[object, ...]]) -> set[tuple[int, int, object, object]]:
    return {(i, j, row[i], row[j]) for row in rows for i, j in itertools.combinations(range(len(row)), 2)}


@pytest.mark.parametrize(
    "sizes", [(2, 2), (3, 2, 2), (7, 3, 2, 2, 2), (5, 5, 5), (48, 4), (1, 4, 1), (2,) * 9], ids=str
)
def test_pairwise_covers_every_pair_in_few_rows(sizes: tuple[int, ...]) -> None:
    options = [
        [f"{letter}{number}" for number in range(size)] for letter, size in zip("abcdefghi", sizes, strict=False)
    ]
    rows = pairwise(*options)
    assert pairs(rows) == pairs(list(itertools.product(*options)))
    largest = sorted(sizes)[-2:]
    assert math.prod(largest) <= len(rows) <= 2 * math.prod(largest) + len(sizes)
    assert len(set(rows)) == len(rows) and rows == pairwise(*options)


def test_invalid_combinations_give_no_row() -> None:
    options = ("abc", range(3), range(2))
    rows = pairwise(
        *options, valid=lambda letter, number, bit: (letter, number) != ("b", 1) and not (number == bit == 1)
    )
    possible = [row for row in itertools.product(*options) if row[:2] != ("b", 1) and row[1:] != (1, 1)]
    assert set(rows) <= set(possible)
    assert pairs(rows) == pairs(possible)
