"""A device that "auto" computes on after a self-check, and a cache folder that is empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stand_in
from tsallis.ops import choice, registry
from tsallis.ops.self_check import guard


def forget() -> None:
    """Begin anew, as another process would."""
    guard._results.clear()
    guard._verdicts.clear()
    guard._backends.clear()
    guard.kind_of.cache_clear()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of what is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(guard.VARIABLE, raising=False)
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    forget()
    stand_in.FAULTS.clear()
    stand_in.CALLS.clear()
    yield tmp_path / "tsallis" / "self-check"
    forget()
    stand_in.FAULTS.clear()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on the CPU are those of the stand-in's device."""
    entry = registry.Entry("stand_in", ("cpu",), self_check=True)
    monkeypatch.setitem(registry.BACKENDS, "stand-in", entry)
    monkeypatch.setattr(choice, "_UNCHECKED", {"cpu": ()})
    monkeypatch.setattr(choice, "_SELF_CHECKED", {"cpu": ("stand-in",)})
    monkeypatch.setattr(choice, "_CHECK_FIRST", frozenset({"stand-in"}))
