"""Parts of a data set that are held out."""

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
    """Split examples in two parts: the rest, and a share that is held out.

    The choice depends on the groups' names and the seed alone, not on the order of the examples or on other examples.

    Args:
        examples: in any order, which both parts keep.
        share: of the groups, between 0 and 1.
        seed: for another choice.
        group: the name of an example's group; a group is never on both sides.
        stratify: the stratum of an example; of each stratum the same share is held out.

    Returns:
        The rest, and the examples that are held out.

    Raises:
        ValueError: a share that is not between 0 and 1.

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
