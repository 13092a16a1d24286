"""Parts of a data set that are held out."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

Example = TypeVar("Example")


def hold_out(
    examples: Sequence[Example],
    key: Callable[[Example], str],
    share: float,
    seed: int = 0,
    stratum: Callable[[Example], str] = lambda _: "",
) -> tuple[list[Example], list[Example]]:
    """A share of the keys of each stratum taken out of the rest, with all their examples: what stays, what was taken.

    Which ones depends on the keys and the seed alone, not on their order or on other examples, and one key is never on
    both sides.

    Raises:
        ValueError: a share that is not between 0 and 1.

    >>> rest, taken = hold_out([f"{word} {i}" for word in ("a", "b", "c", "d") for i in range(2)], lambda x: x[0], 0.25)
    >>> len(rest), len({example[0] for example in taken})
    (6, 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share:g}")
    marks = [hashlib.blake2b(f"{seed}\t{key(e)}".encode(), digest_size=8).digest() for e in examples]
    strata: dict[str, set[bytes]] = defaultdict(set)
    for example, mark in zip(examples, marks, strict=True):
        strata[stratum(example)].add(mark)
    taken: set[bytes] = set()
    for members in strata.values():
        taken.update(sorted(members)[: round(share * len(members))])
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example, mark in zip(examples, marks, strict=True):
        sides[mark in taken].append(example)
    return sides
