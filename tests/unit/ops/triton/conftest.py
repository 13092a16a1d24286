"""Fixtures for the tests of the GPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tsallis


@pytest.fixture
def triton() -> Iterator[None]:
    with tsallis.backend("triton"):
        yield
