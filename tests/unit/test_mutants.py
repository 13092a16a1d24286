"""The faults that `make test-mutants` inserts into the code are real changes, and every caller sees them."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutation.mutants import Mutant, install, mutants

CODE = '''"""A module."""
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType

LIMIT = 3
LIMITS = MappingProxyType({"area": LIMIT})


def same(function):
    @wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call


def below(x: int, limit: int = 5) -> bool:
    """Compare two numbers, 1 and 2."""
    if x < 0:
        raise ValueError(f"got {x + 1}")
    return x < limit


@same
def first(values, by=LIMIT):
    return values[:by]


@dataclass(frozen=True)
class Box:
    size: int = 2

    @property
    def area(self):
        return self.size * self.size + LIMITS["area"]
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[types.ModuleType]:
    path = tmp_path / "of_mutants.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("of_mutants", path)
    sys.modules["of_mutants"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["of_mutants"]


def named(module: types.ModuleType) -> dict[str, Mutant]:
    return {f"{fault.before} -> {fault.after}": fault for fault in mutants(Path(str(module.__file__)))}


def test_mutants_skip_error_messages_and_decorators(module: types.ModuleType) -> None:
    faults = named(module)
    assert {"x < 0 -> x <= 0", "x < limit -> x <= limit", "3 -> 4", "5 -> 6", "2 -> 3", ":by -> :"} < set(faults)
    assert {"self.size * self.size -> self.size / self.size", "return x < limit -> return None"} < set(faults)
    texts = [name for name in faults if "x + 1" in name.split(" -> ")[0] and not name.startswith("if ")]
    assert not texts and "True -> False" not in faults  # no faults in error messages or decorators


def test_a_mutant_has_the_lines_of_its_statement(module: types.ModuleType) -> None:
    lines = CODE.splitlines()
    faults = named(module)
    first, last = faults["x < 0 -> x <= 0"].lines or (0, 0)
    assert first == last and lines[first - 1] == "    if x < 0:"
    assert faults["3 -> 4"].lines is None


REFERENCES = [
    ("x < limit -> x <= limit", False, True),
    ("5 -> 6", False, True),
    (":by -> :", [1, 2, 3], [1, 2, 3, 4]),
    ("3 -> 4", 7, 8),
    ("self.size * self.size -> self.size / self.size", 7, 4),
    ("2 -> 3", 7, 12),
]


@pytest.mark.parametrize(("fault", "before", "after"), REFERENCES)
def test_installed_faults_reach_existing_references(
    module: types.ModuleType, fault: str, before: object, after: object
) -> None:
    below, first, box = module.below, module.first, module.Box
    call = {bool: lambda: below(5), list: lambda: first([1, 2, 3, 4]), int: lambda: box().area}[type(before)]
    assert call() == before
    install(named(module)[fault], module)
    assert call() == after
    install(None, module)
    assert call() == before
