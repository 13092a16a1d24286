"""Run tests on every instruction set for which the kernels are compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pairs import pairwise
from tsallis.ops import cpu

SETS = ("portable", "avx2", "avx512", "avx512bf16")
AROUND = (1, 7, 9, 15, 17, 33, 65, 1025)  # sizes just below and above one or several vectors, and a long one


def current_instructions() -> str:
    return cpu._load()[0].tsallis_isa().decode()  # type: ignore[no-any-return]


def use_instructions(instructions: str) -> bool:
    """Switch the kernels to another instruction set; return False if this machine lacks it."""
    return bool(cpu._load()[0].tsallis_use_isa(instructions.encode()))


def _present() -> tuple[str, ...]:
    """Return the instruction sets of this machine, or all of them if there are no compiled kernels."""
    if not cpu.status().available:
        return SETS
    default = current_instructions()
    sets = tuple(name for name in SETS if use_instructions(name))
    assert use_instructions(default)
    return sets


PRESENT = _present()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Use one of the machine's instruction sets, then restore the default."""
    default = current_instructions()
    assert use_instructions(name)
    try:
        yield
    finally:
        assert use_instructions(default)


@pytest.fixture(autouse=True, params=SETS)
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on one instruction set, then restore the default."""
    if request.param not in PRESENT:
        pytest.skip(f"needs instructions: {request.param}, which this machine has not")
    with use(request.param):
        yield request.param


def by_size(sizes: Iterable[int], name: str = "d") -> pytest.MarkDecorator:
    """Run a test with every size on the default and the portable set, and with the sizes in `AROUND` on all sets."""
    default = current_instructions() if cpu.status().available else SETS[0]
    cases = [(one, size) for size in sizes for one in SETS if one in (SETS[0], default) or size in AROUND]
    return pytest.mark.parametrize(("instructions", name), cases, indirect=["instructions"])


def in_pairs(**options: Iterable[Any]) -> pytest.MarkDecorator:
    """Run a test with every pair of option values, and with every value on each of the machine's instruction sets.

    Each instruction set that the machine lacks has one case, which is skipped.
    """
    values = [list(option) for option in options.values()]
    cases = pairwise(PRESENT, *values) + [(name, *(v[0] for v in values)) for name in SETS if name not in PRESENT]
    return pytest.mark.parametrize(("instructions", *options), cases, indirect=["instructions"], ids=str)
