"""Functions that the benchmarks share: interleaved timing, a description of the machine, CSV, and verdicts."""

from __future__ import annotations

import csv
import ctypes
import datetime
import gc
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tsallis
from tsallis.ops import choice
from tsallis.toolkit.evaluation.provenance import cpu_name

Row = dict[str, Any]


@dataclass
class Candidate:
    """A function under test: its operation, its owner, and its input tensors, which need gradients."""

    operation: str
    owner: str
    call: Callable[..., Tensor]
    leaves: tuple[Tensor, ...]
    upstream: Tensor | None = None
    alpha: float | Tensor = 1.0
    dense: str = "softmax"  # PyTorch's operation for comparison
    scaled: float = 1.0  # factor for the times of a candidate whose input is smaller than the others'
    few: bool = False  # slow: measure it in only a few rounds
    forward: list[float] = field(default_factory=list)
    both: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Run forward and backward once, and record the times. No tensor survives the call."""
        leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        start = time.perf_counter()
        result = self.call(*leaves)
        middle = time.perf_counter()
        result.backward(self.upstream)
        end = time.perf_counter()
        self.forward.append((middle - start) * self.scaled)
        self.both.append((end - start) * self.scaled)

    def backend(self) -> str:
        """Return the name of our backend that computes this, or an empty string for functions of others."""
        with tsallis.backend("eager" if self.owner == "tsallis eager" else choice.request()):
            return choice.explain() if self.owner.startswith("tsallis") else ""

    def medians(self) -> tuple[float, float]:
        """Return the median seconds of forward, and of forward with backward."""
        return statistics.median(self.forward), statistics.median(self.both)


MEMORY = ("default", "reused")


def settle_memory(kind: str) -> None:
    """Fix the behaviour of glibc's allocator, which otherwise depends on what ran before.

    "default" is the state that glibc reaches by itself: results over 32 MiB get fresh pages, smaller ones get reused
    memory. With "reused", all results get reused memory. Other C libraries are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim, mmap_threshold, mmap_max = -1, -3, -4
    if kind == "reused":
        mallopt(mmap_max, 0)
        mallopt(trim, 2**31 - 1)
    else:
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim, (32 << 20) - 1)


def interleave(candidates: Sequence[Candidate], rounds: int, few: int, seed: int) -> None:
    """Run all candidates in each round, in a new random order, so that disturbances affect all of them equally."""
    order = random.Random(seed)
    gc.collect()
    gc.freeze()  # makes garbage collection between two runs fast
    for candidate in candidates:  # warm up
        candidate.run()
        candidate.forward.clear()
        candidate.both.clear()
        gc.collect()
    for round_ in range(rounds):
        turn = [c for c in candidates if not c.few or round_ * few % rounds < few]  # few: spread over all rounds
        order.shuffle(turn)
        for candidate in turn:
            candidate.run()
            gc.collect()
    gc.unfreeze()


def announce() -> None:
    """Print the backend of our functions, so that an outdated or missing kernel is noticed before measuring."""
    print(f"tsallis on {choice.explain()}; threads: {torch.get_num_threads()}", file=sys.stderr)


def machine() -> Row:
    """Return the hardware, the software versions and the date of a measurement."""
    try:
        peer = version("entmax")
    except PackageNotFoundError:
        peer = ""
    return {
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "tsallis": tsallis.__version__,
        "entmax": peer,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def write(path: Path | None, rows: list[Row]) -> None:
    """Write rows as CSV, with four significant digits."""
    if path is None or not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def table(rows: list[Row], columns: Sequence[str]) -> str:
    """Format some columns of the rows as a Markdown table."""
    cells = [[f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(columns), ["---"] * len(columns), *cells])


def verdict(name: str, bound: float, values: dict[str, float], at_least: bool = False) -> list[str]:
    """Return a line that says whether all values (by setting) meet the bound, then a line for each missed one."""
    if not values:
        return []
    missed = [location for location, value in values.items() if not (value >= bound if at_least else value <= bound)]
    worst = (min if at_least else max)(values, key=lambda location: values[location])
    lines = [
        f"{'MISSED' if missed else 'met':6}  {name}: {'at least' if at_least else 'at most'} {bound:.3g}, "
        f"worst {values[worst]:.3f} ({worst}), kept in {len(values) - len(missed)} of {len(values)}"
    ]
    return lines + [f"          {values[location]:.3f}  {location}" for location in missed]
