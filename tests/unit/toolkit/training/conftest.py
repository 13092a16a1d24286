"""A run that was killed, for tests of what a run folder may hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from small_run import Killed, at, index_of, kill, train


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its seventh update; its last checkpoint is of the sixth."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    with pytest.raises(Killed):
        train(folder, at(7, kill))
    assert index_of(folder)["last"] == "step-00000006"
    return folder


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(half, tmp_path / "run"))
