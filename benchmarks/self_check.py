"""The cost of the self-check of kernels: a comparison once, and every call afterwards.

    python benchmarks/self_check.py --out benchmarks/results/self-check-cpu.csv

The compiled kernels for the CPU stand for those of a GPU: what is compared, and who computes afterwards, is decided by
the same code. `once` has the seconds of each family's comparison in each dtype, without any compilation; `afterwards`
the time of a call on a short row with the self-check and without, in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import Row, announce, machine, table, write

import tsallis
from tsallis.ops import choice, cpu
from tsallis.ops.self_check.families import families_of, measure

CALLS = 200  # in a batch


def once(rounds: int) -> list[Row]:
    rows = []
    for dtype in cpu.CAPABILITIES.dtypes:
        for family in families_of("cpu", dtype):
            seconds = []
            for _ in range(rounds):
                start = time.perf_counter()
                measure("cpu", torch.device("cpu"), dtype, family)
                seconds.append(time.perf_counter() - start)
            name = f"{family} in {str(dtype).removeprefix('torch.')}"
            rows.append(row("once", name, statistics.median(seconds), None, rounds))
    return rows


def row(group: str, name: str, seconds: float, without: float | None, rounds: int) -> Row:
    ratio = "" if without is None else seconds / without
    columns = {"seconds": seconds, "seconds_without": "" if without is None else without, "ratio": ratio}
    return {"group": group, "operation": name, **columns, "rounds": rounds, "backend": choice.explain(), **machine()}


def guarded(enabled: bool) -> None:
    """Let tensors on the CPU be computed after a check, or at once."""
    choice._UNCHECKED["cpu"] = () if enabled else ("cpu",)
    choice._SELF_CHECKED["cpu"] = ("cpu",) if enabled else ()
    choice._CHECK_FIRST = frozenset({"cpu"} if enabled else ())


def afterwards(rounds: int) -> list[Row]:
    cpu.device_kind = lambda device: {"device": "CPU"}  # type: ignore[attr-defined]
    x, leaf = torch.randn(1, 32), torch.randn(1, 32, requires_grad=True)
    heads = torch.randn(1, 2, 4, 8)
    calls: dict[str, Callable[[], object]] = {
        "choose": lambda: choice.choose("maps", 1.5, x),
        "entmax15 of 32 scores": lambda: tsallis.entmax15(x),
        "entmax15 of 32 scores, both passes": lambda: tsallis.entmax15(leaf).sum().backward(),
        "choose_attention": lambda: choice.choose_attention(heads, heads, heads, (1.5, 1.5)),
        "entmax_attention of 4 queries": lambda: tsallis.entmax_attention(heads, heads, heads),
    }
    times: dict[tuple[str, bool], list[float]] = {(name, enabled): [] for name in calls for enabled in (True, False)}
    for number in range(rounds + 1):
        for name, call in calls.items():
            for enabled in (True, False) if number % 2 else (False, True):
                guarded(enabled)
                call()  # the first one compares
                start = time.process_time()  # others on the machine don't count
                for _ in range(CALLS):
                    call()
                times[name, enabled].append((time.process_time() - start) / CALLS)
    guarded(False)
    medians = {key: statistics.median(each[1:]) for key, each in times.items()}
    return [row("afterwards", name, medians[name, True], medians[name, False], rounds) for name in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    announce()
    if not cpu.status().available:
        print(f"this benchmark needs the compiled kernels: {cpu.status().reason}", file=sys.stderr)
        raise SystemExit(2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        rows = once(min(arguments.rounds, 5)) + afterwards(arguments.rounds)
    write(arguments.out, rows)
    print(table(rows, ("group", "operation", "seconds", "seconds_without", "ratio")))


if __name__ == "__main__":
    main()
