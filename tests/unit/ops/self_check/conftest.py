"""A backend without faults that stands for the kernels of a device."""

from __future__ import annotations

import pytest

import stand_in
from tsallis.ops import choice, registry


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the stand-in to the table of backends, and take away its faults."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setitem(registry.BACKENDS, "stand-in", registry.Entry("stand_in", ("cpu",)))
    monkeypatch.setattr(choice, "_AUTO", {"cpu": ("stand-in",)})
    monkeypatch.setattr(stand_in, "FAULTS", {})
