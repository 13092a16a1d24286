"""What the benchmarks on a GPU share: cases timed in turn by its own clock, memory, the machine's description.

Without a GPU every benchmark ends at once, with one line and status 2.
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

FLUSHED = 256 << 20  # bytes written between two runs: more than any cache holds
MIB = 1 << 20
PEERS = ("adasplash", "liger-kernel")


@dataclass
class Case:
    """Something to time: `run` does all that is timed, on the current stream; what it returns is dropped."""

    name: str  # one of a kind among the cases that are timed together
    owner: str
    run: Callable[[], object]
    error: str = field(default="", compare=False)  # why it was left out


def require_gpu() -> None:
    """End the program with one line and status 2 where there is no GPU."""
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU that PyTorch can use, and there is none", file=sys.stderr)
        raise SystemExit(2)


class Report:
    """Rows as they come, in Markdown: what was measured is there when a time limit ends the program."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns, self.begun = columns, False

    def show(self, rows: list[Row]) -> None:
        """Print some more rows, at once."""
        lines = table(rows, self.columns).splitlines()
        print(*lines[2 if self.begun else 0 :], sep="\n", flush=True)
        self.begun = True


def interleaved(cases: Sequence[Case], rounds: int = 30, warm: int = 3) -> dict[str, list[float]]:
    """Milliseconds of every round of every case, by name: each round in another order, the caches emptied between.

    A case that raises, when it is warmed up or later, is left out, its `error` says why.
    """
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"the cases must have different names, got {', '.join(names)}")
    flush = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    going = [case for case in cases if all(_try(case, case.run) for _ in range(warm))]
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {case.name: [] for case in going}
    order = random.Random(0)
    gc.collect()
    gc.disable()  # a collection would fall into somebody's time
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
    """Whether a call went well; what went wrong is kept in the case."""
    if case.error:
        return False
    try:
        call()
    except Exception as error:  # of whatever kind: the others are still to be measured
        case.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        print(f"left out: {case.name} ({case.owner}): {case.error}", file=sys.stderr)
        return False
    return True


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """The median milliseconds of each case."""
    return {name: statistics.median(each) for name, each in times.items()}


def peak(run: Callable[[], object]) -> int:
    """Bytes allocated above what was there before, at the most, while it runs; its result counts."""
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
    """Bytes read and written a second by a copy on the device: what a kernel that computes nothing reaches."""
    source = torch.empty(size, dtype=torch.int8, device="cuda").zero_()
    target = torch.empty_like(source)
    times = interleaved([Case("copy", "torch", lambda: target.copy_(source))], rounds=20)["copy"]
    return 2 * size / (statistics.median(times) * 1e-3)


def peer(name: str) -> ModuleType | None:
    """A peer's package, or None and a note."""
    import importlib

    try:
        return importlib.import_module(name)
    except Exception as error:  # not there, or not able to live with what is there
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
    """Where and with what something was measured."""
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
    """The largest difference."""
    return float((result.double() - exact).abs().max())
