"""Where the package caches what is costly to compute again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsallis.user_cache import user_cache


def test_the_environment_names_the_folder_else_it_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache() == Path("/somewhere/tsallis")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert user_cache() == Path("/home/someone/.cache/tsallis")
