"""What tests of the kernels for GPUs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tsallis


@pytest.fixture
def triton() -> Iterator[None]:
    with tsallis.backend("triton"):
        yield
