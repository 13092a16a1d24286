"""A local server for downloads, and copies of published data in the shared folder."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_server import Server, serve


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with serve() as behaviour:
        yield behaviour


def unpacked(path: Path) -> bytes:
    if not path.is_file():
        pytest.skip(f"needs data: {path}")
    return lzma.decompress(path.read_bytes())
