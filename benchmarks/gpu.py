"""Functions that the GPU benchmarks share: interleaved timing with CUDA events, memory, a description of the machine.

Without a GPU, every benchmark prints one line and exits with status 2.
"""

from __future__ import annotations

import datetime
import gc
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch
from common import Row, table
from torch import Tensor

import tsallis

FLUSHED = 256 << 20  # bytes written between two runs, more than any cache can hold
MIB = 1 << 20
PEERS = ("adasplash", "liger-kernel")


@dataclass
class Case:
    """A function to time: `run` does the timed work on the current stream; its result is ignored."""

    name: str  # unique among the cases that are timed together
    owner: str
    run: Callable[[], object]
    error: str = field(default="", compare=False)  # why it was skipped


def require_gpu() -> None:
    """Exit with one line and status 2 if there is no GPU."""
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU that PyTorch can use, and there is none", file=sys.stderr)
        raise SystemExit(2)


class Report:
    """A Markdown table that is printed row by row, so that a time limit doesn't lose finished measurements."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns, self.begun = columns, False

    def show(self, rows: list[Row]) -> None:
        """Print new rows immediately."""
        lines = table(rows, self.columns).splitlines()
        print(*lines[2 if self.begun else 0 :], sep="\n", flush=True)
        self.begun = True


def interleaved(cases: Sequence[Case], rounds: int = 30, warm: int = 3) -> dict[str, list[float]]:
    """Return the milliseconds of every round by case; the order changes each round, and caches are flushed before runs.

    A case that raises, in a warm-up run or later, is left out of the result, and its `error` holds the reason.
    """
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"the cases must have different names, got {', '.join(names)}")
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    going = [case for case in cases if all(_try(case, case.run) for _ in range(warm))]
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {case.name: [] for case in going}
    order = random.Random(0)
    gc.collect()
    gc.disable()  # a collection would distort the time of a case
    try:
        for _ in range(rounds):
            for case in order.sample(going, len(going)):
                if case.error:
                    continue
                flush.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                if _try(case, case.run):
                    end.record()
                    events[case.name].append((start, end))
        torch.cuda.synchronize()
    finally:
        gc.enable()
    result = {case.name: events[case.name] for case in going if not case.error}
    return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in result.items()}


def _try(case: Case, call: Callable[[], object]) -> bool:
    """Return whether a call succeeded; store the error message in the case otherwise."""
    if case.error:
        return False
    try:
        call()
    except Exception as error:  # any error: the other cases must still be measured
        case.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        print(f"left out: {case.name} ({case.owner}): {case.error}", file=sys.stderr)
        exit_if_broken()
        return False
    return True


def broken() -> bool:
    """Return whether the GPU fails in the rest of this process, as it does after an illegal address."""
    try:
        torch.cuda.synchronize()
    except Exception:  # its type depends on PyTorch's version
        return True
    return False


def exit_if_broken() -> None:
    """Exit if all later cases of this process would fail."""
    if broken():
        raise SystemExit("stopped: after this error, the GPU fails in the rest of this process")


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """Return the median milliseconds of each case."""
    return {name: statistics.median(each) for name, each in times.items()}


def peak(run: Callable[[], object]) -> int:
    """Return the peak of newly allocated bytes during a run, including its result."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    del result
    return most - before


def bandwidth(size: int = 1 << 30) -> float:
    """Return the bytes per second that a copy on the device reads and writes, the practical limit of kernels."""
    source = torch.empty(size, dtype=torch.int8, device="cuda").zero_()
    target = torch.empty_like(source)
    times = interleaved([Case("copy", "torch", lambda: target.copy_(source))], rounds=20)["copy"]
    return 2 * size / (statistics.median(times) * 1e-3)


def peer(name: str) -> ModuleType | None:
    """Import a peer's package; print a note and return None if that fails."""
    import importlib

    try:
        return importlib.import_module(name)
    except Exception as error:  # not installed, or incompatible with an installed package
        print(f"without {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


@cache
def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return lines[0] if lines else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> Row:
    """Return the hardware, the software versions and the date of a measurement."""
    there = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if there else "",
        "driver": _driver() if there else "",
        "torch": torch.__version__,
        "triton": _installed("triton"),
        "tsallis": tsallis.__version__,
        **{name: _installed(name) for name in PEERS},
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def error_of(result: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference."""
    return float((result.double() - exact).abs().max())
