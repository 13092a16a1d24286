"""Settings and fixtures of all tests: one thread, fixed seeds, Triton's interpreter, slow cases, data, a browser."""

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
# `make test` runs the first case of each test and one in n of its other cases; the remaining cases are marked slow.
# This table has n for a folder or a file.
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
# No test has to survive a crash of the machine, and waiting for the disk would take half of the training time.
os.fsync = lambda handle: None
if not torch.cuda.is_available():
    # Triton reads this variable when it is imported and again when a kernel is created, so it is set once, for this
    # process and its children. Triton computes CPU tensors only in tests that select it.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which then skips their objects for the rest of the session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cases that are not sampled as slow, and keep only the part of the slow tests set by `TSALLIS_PART`.

    A checksum of the name selects the cases, so neighbours that share an option are not all left out.
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
    """Return the entry of `SAMPLED_TESTS` for the file or its closest folder, 1 (run every case) if there is none."""
    places = (path, *path.parents)
    names = (place.relative_to(TESTS).as_posix() for place in places if place.is_relative_to(TESTS))
    return next((SAMPLED_TESTS[name] for name in names if name in SAMPLED_TESTS), 1)


def read_part(text: str) -> tuple[int, int]:
    """Parse "PART/PARTS" into the number of the part, from 1, and the number of parts."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"TSALLIS_PART={text}: expected a part of some, such as 2/5")
    return part, parts


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    torch.manual_seed(0)
    # The first torch.compile of a process disables the argument checks of distributions.
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of public data sets, or skip the test if there is none.

    The environment variable TSALLIS_DATA sets it; the default is `shared/data` next to the repository.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TSALLIS_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("needs data: set TSALLIS_DATA to the folder of public data sets")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start the browser that opens reports, served pages and the documentation."""
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs chromium: no browser of that name is on the PATH")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
