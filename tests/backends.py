"""The backends that tests compare on the CPU, from the table of backends."""

from __future__ import annotations

import pytest
import torch

from tsallis.ops.registry import BACKENDS, load


def backends_for(operation: str) -> tuple[str, ...]:
    """Return the names of backends that compute an operation on the CPU; interpreters of other devices are too slow."""
    names = [name for name, entry in BACKENDS.items() if not entry.devices or "cpu" in entry.devices]
    return tuple(name for name in names if operation in load(name).CAPABILITIES.operations)


def unusable(name: str) -> str | None:
    """Return why a backend can't compute tensors on the CPU here, as a reason to skip a test; None if it can."""
    status, devices = load(name).status(), BACKENDS[name].devices
    if status.available and not ("cuda" in devices and torch.cuda.is_available()):
        return None
    return f"needs {'kernel' if 'cpu' in devices else name}: {status.reason}"


def skip_unless_usable(name: str) -> None:
    """Skip a test of a backend that can't be used here."""
    if reason := unusable(name):
        pytest.skip(reason)
