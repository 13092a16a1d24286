"""What the benchmarks share: candidates measured in turn in one process, the machine's description, CSV, verdicts."""

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
    """A function under test: what it computes, whose it is, and the tensors it is called with and gets gradients of."""

    operation: str
    owner: str
    call: Callable[..., Tensor]
    leaves: tuple[Tensor, ...]
    upstream: Tensor | None = None
    alpha: float | Tensor = 1.0
    dense: str = "softmax"  # PyTorch's operation that it is compared with
    scaled: float = 1.0  # how many times as much as it was given the others were given
    few: bool = False  # slow: in a few rounds only
    forward: list[float] = field(default_factory=list)
    both: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Forward and backward once. Everything made here is gone on return."""
        leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        start = time.perf_counter()
        result = self.call(*leaves)
        middle = time.perf_counter()
        result.backward(self.upstream)
        end = time.perf_counter()
        self.forward.append((middle - start) * self.scaled)
        self.both.append((end - start) * self.scaled)

    def backend(self) -> str:
        """Which of our backends computes this; nothing for the others' functions."""
        with tsallis.backend("eager" if self.owner == "tsallis eager" else choice.request()):
            return choice.explain() if self.owner.startswith("tsallis") else ""

    def medians(self) -> tuple[float, float]:
        """Seconds of forward, and of forward with backward."""
        return statistics.median(self.forward), statistics.median(self.both)


MEMORY = ("default", "reused")


def settle_memory(kind: str) -> None:
    """Hold glibc's allocator to one habit, which else depends on what ran before (elsewhere: nothing).

    "default" is where it ends up by itself: results above 32 MiB come in fresh pages, smaller ones in memory that was
    used before. "reused": all come in used memory.
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
    """Run all candidates round after round, each round in another order: what disturbs one disturbs all alike."""
    order = random.Random(seed)
    gc.collect()
    gc.freeze()  # collecting between two runs is then quick
    for candidate in candidates:  # warm up
        candidate.run()
        candidate.forward.clear()
        candidate.both.clear()
        gc.collect()
    for round_ in range(rounds):
        turn = [c for c in candidates if not c.few or round_ * few % rounds < few]  # the few are spread over all rounds
        order.shuffle(turn)
        for candidate in turn:
            candidate.run()
            gc.collect()
    gc.unfreeze()


def announce() -> None:
    """Say what computes ours, first of all: a kernel that wasn't compiled anew would be measured for nothing."""
    print(f"tsallis on {choice.explain()}; threads: {torch.get_num_threads()}", file=sys.stderr)


def machine() -> Row:
    """Where and with what something was measured."""
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
    """Rows as CSV, numbers to four digits."""
    if path is None or not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def table(rows: list[Row], columns: Sequence[str]) -> str:
    """Some columns of the rows, in Markdown."""
    cells = [[f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(columns), ["---"] * len(columns), *cells])


def verdict(name: str, bound: float, values: dict[str, float], at_least: bool = False) -> list[str]:
    """Whether all values (by place) keep to the bound: one line, and one for every value that doesn't."""
    if not values:
        return []
    missed = [location for location, value in values.items() if not (value >= bound if at_least else value <= bound)]
    worst = (min if at_least else max)(values, key=lambda location: values[location])
    lines = [
        f"{'MISSED' if missed else 'met':6}  {name}: {'at least' if at_least else 'at most'} {bound:.3g}, "
        f"worst {values[worst]:.3f} ({worst}), kept in {len(values) - len(missed)} of {len(values)}"
    ]
    return lines + [f"          {values[location]:.3f}  {location}" for location in missed]
