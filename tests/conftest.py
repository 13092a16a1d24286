"""The setting of all tests: one thread, fixed seeds, Triton's interpreter, slow cases, real data, a browser."""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

TESTS = Path(__file__).parent
hypothesis.settings.register_profile("tests", deadline=None)  # on a busy machine, an example may take long
hypothesis.settings.load_profile("tests")
# `make test` runs the first case of each test and one in so many of the others, by its folder; the rest are slow.
SAMPLED_TESTS = {
    "contract": 20,
    "contract/test_recorders.py": 24,
    "integration/cli": 20,
    "unit/continuous": 4,
    "unit/huggingface": 8,
    "unit/models": 10,
    "unit/nn": 8,
    "unit/ops": 16,
    "unit/ops/triton": 32,
    "unit/report": 10,
    "unit/search": 10,
    "unit/test_compat.py": 8,
    "unit/toolkit": 16,
}

torch.set_num_threads(1)
# No test outlives a crash of the machine; waiting for its disk would take half of the time of a training.
os.fsync = lambda handle: None
if not torch.cuda.is_available():
    # Triton looks when it is imported, whoever imports it, and again when a kernel is made: it is set once for all, in
    # this process and in those that it starts. Tensors on the CPU are computed by Triton where that is asked for alone.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which then skips all modules and tests for the rest of the session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before those of a mark are chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that `SAMPLED_TESTS` leaves out as slow; of slow tests, run the part that `TSALLIS_PART` names.

    A checksum of its name draws each case: neighbours that share an option are not left out together.
    """
    part, parts = read_part(os.environ.get("TSALLIS_PART", "1/1"))
    seen, others = set[str](), []
    for item in items:
        test, _, case = item.nodeid.partition("[")
        drawn = zlib.crc32(item.nodeid.encode())
        if test in seen and case and not item.get_closest_marker("slow") and drawn % sampling_step(item.path):
            item.add_marker("slow")
            item.add_marker("sampled")
        if item.get_closest_marker("slow") and drawn // 1000 % parts != part - 1:
            others.append(item)
        seen.add(test)
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = {*others}
        items[:] = [item for item in items if item not in left_out]


@functools.cache
def sampling_step(path: Path) -> int:
    """Return the number of the closest folder, or of the file itself; 1: every case runs."""
    places = (path, *path.parents)
    names = (place.relative_to(TESTS).as_posix() for place in places if place.is_relative_to(TESTS))
    return next((SAMPLED_TESTS[name] for name in names if name in SAMPLED_TESTS), 1)


def read_part(text: str) -> tuple[int, int]:
    """Read the number of a part, from 1, and the number of parts."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"TSALLIS_PART={text}: expected a part of some, such as 2/5")
    return part, parts


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    torch.manual_seed(0)
    # The first torch.compile of a process switches the checks of distributions off.
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def shared_data() -> Path:
    """The folder with public data sets; a test that needs it is skipped where there is none.

    It is the variable TSALLIS_DATA, or `shared/data` beside the repository.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TSALLIS_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs data: set TSALLIS_DATA to the folder of public data sets")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser of the machine, which opens reports, served pages and the documentation."""
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs chromium: no browser of that name is on the PATH")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
