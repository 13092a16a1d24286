"""What tests share: one thread, fixed seeds, Triton's interpreter, and the way to real data where there is some."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton looks when it is imported, whoever imports it, and again when a kernel is made: it is set once for all, in
    # this process and in those that it starts. Tensors on the CPU are computed by Triton where that is asked for alone.
    os.environ.setdefault("TRITON_INTERPRET", "1")


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
