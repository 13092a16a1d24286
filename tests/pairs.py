"""Test cases that cover every pair of option values without testing every combination."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

Row = tuple[Any, ...]


def pairwise(*options: Iterable[Any], valid: Callable[..., bool] = lambda *_: True) -> list[Row]:
    """Return few rows with one value per option that contain every pair of values of two options.

    Repeatedly choose the combination with the most uncovered pairs, the first one in a tie, so the rows are the same
    in every process. Combinations that are not `valid` give no row, and pairs without a valid combination are left
    out.

    Args:
        options: Values of each option.
        valid: Function that returns whether the values, one per option, can be combined.

    Returns:
        Rows in the order of the product of the options.

    Example:
        >>> pairwise([1, 2], "ab", [True, False])
        [(1, 'a', True), (1, 'b', False), (2, 'a', False), (2, 'b', True)]
    """
    values = [list(option) for option in options]
    candidates = [row for row in itertools.product(*(range(len(v)) for v in values)) if valid(*pick(values, row))]
    places: dict[tuple[int, int, int, int], int] = {}
    # Each pair is one bit, so counting the uncovered pairs of a row takes one operation.
    rows = [sum(1 << places.setdefault(pair, len(places)) for pair in pairs_of(row)) for row in candidates]
    missing = (1 << len(places)) - 1
    # The number of uncovered pairs in a combination only decreases, so the count in the heap is an upper bound.
    heap = [(-row.bit_count(), number) for number, row in enumerate(rows)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while missing:
        _, number = heapq.heappop(heap)
        gain = (rows[number] & missing).bit_count()
        if heap and (-gain, number) > heap[0]:
            if gain:
                heapq.heappush(heap, (-gain, number))
            continue
        chosen.append(number)
        missing &= ~rows[number]
    return [pick(values, candidates[number]) for number in sorted(chosen)]


def every_pair(
    ids: Callable[[Any], str] = str,
    indirect: Sequence[str] = (),
    valid: Callable[..., bool] = lambda *_: True,
    **options: Iterable[Any],
) -> pytest.MarkDecorator:
    """Run a test with every pair of option values; the options have the names of its parameters."""
    rows = pairwise(*options.values(), valid=valid)
    return pytest.mark.parametrize(tuple(options), rows, ids=ids, indirect=indirect)


def pick(values: Sequence[Sequence[Any]], row: Sequence[int]) -> Row:
    return tuple(v[i] for v, i in zip(values, row, strict=True))


def pairs_of(row: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the pairs of a combination: the indices of two options and of their values."""
    for one, other in itertools.combinations(range(len(row)), 2):
        yield one, other, row[one], row[other]
