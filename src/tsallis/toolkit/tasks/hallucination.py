"""Invent training examples for inflection from those at hand (Anastasopoulos and Neubig 2019)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import cycle, islice
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.data.vocabulary import GRAPHEMES, split_symbols

SHORTEST = 3  # minimum number of symbols of a stem
SEED = 1


def hallucinate(examples: Sequence[Any], count: int, separators: Sequence[str]) -> list[Any]:
    """Return invented examples: stems are replaced by random symbols, and features and affixes are kept.

    A stem is a common substring of source and target with at least three symbols. The random symbols are drawn from
    those that occur in sources and in targets of the same language. The result depends only on the arguments.

    Args:
        examples: Examples with targets, see :class:`tsallis.toolkit.tasks.strings.StringsExample`.
        count: Number of examples to invent.
        separators: Separators between the symbols of sources and of targets.

    Raises:
        InputError: If no example has features and a stem.

    Example:
        >>> from tsallis.toolkit.tasks.strings import StringsExample
        >>> (new,) = hallucinate([StringsExample("walk", ("V", "PST"), "walked")], 1, ("", ""))
        >>> new.target == f"{new.source}ed", len(new.source), set(new.source) <= set("walk")
        (True, 4, True)
    """
    src, tgt = separators
    sides = [([*split_symbols(e.source, src)], [*split_symbols(e.target or "", tgt)]) for e in examples]
    alphabets: dict[str | None, tuple[set[str], set[str]]] = {}
    for example, side in zip(examples, sides, strict=True):
        for alphabet, symbols in zip(alphabets.setdefault(example.language, (set(), set())), side, strict=True):
            alphabet.update(symbols)
    shared = {
        language: sorted(symbol for symbol in sources & targets if not symbol.isspace())
        for language, (sources, targets) in alphabets.items()
    }
    stems = [_stems(*side) if e.features else [] for e, side in zip(examples, sides, strict=True)]
    rows = [row for row, row_stems in enumerate(stems) if row_stems]
    if not rows:
        raise InputError(
            "data.hallucinate: expected an example with features whose source and target share three successive "
            "symbols, found none in the training data"
        )
    rng = random.Random(SEED)
    rng.shuffle(rows)
    result = []
    for row in islice(cycle(rows), count):
        example, (source, target) = examples[row], map(list, sides[row])
        for start, end, length in stems[row]:
            random_symbols = rng.choices(shared[example.language], k=length)
            stem = [x if x.isspace() else new for x, new in zip(source[start:], random_symbols, strict=False)]
            source[start : start + length] = target[end : end + length] = stem
        result.append(replace(example, source=_join(source, src), target=_join(target, tgt)))
    return result


def _join(symbols: Sequence[str], separator: str) -> str:
    return ("" if separator == GRAPHEMES else separator).join(symbols)


def _stems(source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return the start in the source, the start in the target and the length of each stem."""
    blocks = SequenceMatcher(None, source, target, autojunk=False).get_matching_blocks()
    return [(block.a, block.b, block.size) for block in blocks if block.size >= SHORTEST]
