"""The setting of all tests: one thread, fixed seeds, Triton's interpreter, slow cases, real data, a browser."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

TESTS = Path(__file__).parent
# Of each test of these files and folders every so manieth case runs in `make test`, the others in `make test-slow`.
SAMPLED_TESTS = {
    "contract/test_attention.py": 3,
    "contract/test_continuous_attention.py": 2,
    "contract/test_densities.py": 2,
    "contract/test_derivatives.py": 3,
    "contract/test_linear_losses.py": 2,
    "contract/test_losses.py": 2,
    "contract/test_maps.py": 2,
    "contract/test_models.py": 2,
    "integration/cli/test_page.py": 4,
    "unit/models/test_vqa.py": 3,
    "unit/ops/test_cpu_kernel.py": 2,
    "unit/ops/triton": 3,
}

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton looks when it is imported, whoever imports it, and again when a kernel is made: it is set once for all, in
    # this process and in those that it starts. Tensors on the CPU are computed by Triton where that is asked for alone.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(tryfirst=True)  # before those of a mark are chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what `SAMPLED_TESTS` leaves to the slow tests; the first case of a test never is.

    With `TSALLIS_PART=2/3` the second of three parts of these cases is run alone, of every test as many.
    """
    part, parts = read_part(os.environ.get("TSALLIS_PART", "1/1"))
    counts, sampled, others = Counter[str](), Counter[str](), []
    for item in items:
        test, _, case = item.nodeid.partition("[")
        name = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        step = next((step for part, step in SAMPLED_TESTS.items() if name == part or name.startswith(f"{part}/")), 1)
        if case and counts[test] % step:
            item.add_marker("slow")
            if sampled[test] % parts != part - 1:
                others.append(item)
            sampled[test] += 1
        counts[test] += 1
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = {*others}
        items[:] = [item for item in items if item not in left_out]


def read_part(text: str) -> tuple[int, int]:
    """Read the number of a part, from 1, and the number of parts."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"TSALLIS_PART={text}: expected a part of some, such as 2/3")
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
