"""Split data sets into a remaining part and a held-out part."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Example = TypeVar("Example")


def hold_out(
    examples: Sequence[Example],
    share: float = 0.1,
    seed: int = 0,
    *,
    group: Callable[[Example], str] = str,
    stratify: Callable[[Example], Hashable] | None = None,
) -> tuple[list[Example], list[Example]]:
    """Split examples into a remaining part and a held-out part.

    The held-out part depends only on the names of groups and on the seed, not on the order of the examples.

    Args:
        examples: Examples; both parts keep their order.
        share: Share of groups to hold out, between 0 and 1.
        seed: Seed of the choice.
        group: Function that returns the name of an example's group. A group is never split.
        stratify: Function that returns the stratum of an example. The same share of each stratum is held out.

    Returns:
        The remaining examples and the held-out examples.

    Raises:
        ValueError: If the share is not between 0 and 1.

    Example:
        >>> lines = [f"{word} {i}" for word in ("a", "b", "c", "d") for i in range(2)]
        >>> rest, dev = hold_out(lines, 0.25, group=lambda line: line[0])
        >>> len(rest), len({line[0] for line in dev})
        (6, 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share:g}")
    digests = [hashlib.blake2b(f"{seed}\t{group(e)}".encode(), digest_size=8).digest() for e in examples]
    strata: dict[Hashable, set[bytes]] = defaultdict(set)
    for example, digest in zip(examples, digests, strict=True):
        strata[None if stratify is None else stratify(example)].add(digest)
    dev: set[bytes] = set()
    for members in strata.values():
        dev.update(sorted(members)[: round(share * len(members))])
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example, digest in zip(examples, digests, strict=True):
        sides[digest in dev].append(example)
    return sides
