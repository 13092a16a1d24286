"""Fixtures with a killed run, for tests of run folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from small_run import Killed, at, index_of, kill, train


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was killed after update 7; its last checkpoint is from update 6."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    with pytest.raises(Killed):
        train(folder, at(7, kill))
    assert index_of(folder)["last"] == "step-00000006"
    return folder


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    """Return a copy of the killed run, which a test may change."""
    return Path(shutil.copytree(half, tmp_path / "run"))
