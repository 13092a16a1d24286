"""Held-out data: whole groups, chosen by name and seed, with the same share of each stratum."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsallis.toolkit.data.splits import hold_out


class Example(NamedTuple):
    label: str
    name: str


Sides = tuple[list[Example], list[Example]]
PAIRS = st.lists(st.tuples(st.sampled_from("ab"), st.text("xyz", min_size=1, max_size=3)), max_size=60)


def by_class(examples: list[Example], share: float = 0.1, seed: int = 0) -> Sides:
    return hold_out(examples, share, seed, group=lambda e: e.name, stratify=lambda e: e.label)


def by_name(examples: list[Example], share: float = 0.1, seed: int = 0) -> Sides:
    return hold_out(examples, share, seed, group=lambda e: e.name)


@given(PAIRS, st.randoms())
def test_no_group_is_on_both_sides(pairs: list[tuple[str, str]], chance: random.Random) -> None:
    examples = [Example(*pair) for pair in pairs]
    for split in (by_class, by_name):
        rest, dev = split(examples, 0.25, 4)
        assert sorted(rest + dev) == sorted(examples)
        names = [{e.name for e in side} for side in (rest, dev)]
        assert not names[0] & names[1]
        assert split is by_class or len(names[1]) == round(0.25 * len(names[0] | names[1]))
        shuffled = split(chance.sample(examples, len(examples)), 0.25, 4)
        assert [sorted(side) for side in shuffled] == [sorted(rest), sorted(dev)]


def test_strata_are_held_out_proportionally() -> None:
    examples = [Example("ab"[i % 4 == 0], f"text {i}") for i in range(400)]
    rest, dev = by_class(examples)
    assert [sum(e.label == label for e in dev) for label in "ab"] == [30, 10] and len(rest) == 360
    assert by_class(examples) == (rest, dev) != by_class(examples, seed=1)
    assert [e for e in examples if e in set(rest)] == rest


def test_hold_out_stratifies_numbers() -> None:
    labels = {i * 3: int(i < 20) for i in range(100)}
    rest, dev = hold_out(sorted(labels), 0.25, stratify=labels.__getitem__)
    assert sorted(rest + dev) == sorted(labels) and rest == sorted(rest) and dev == sorted(dev)
    assert sum(labels[i] for i in dev) == 5 and len(dev) == 25


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_invalid_shares_raise(share: float) -> None:
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        by_name([Example("a", "x")], share)


def test_splits_are_stable_across_versions() -> None:
    """Accuracies are comparable across machines and versions only on the same development set."""
    examples = [Example("a", f"text {i}") for i in range(12)]
    assert [e.name for e in by_class(examples, 0.25)[1]] == ["text 3", "text 9", "text 10"]
