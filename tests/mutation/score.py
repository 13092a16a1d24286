"""Run the tests that reach each fault, in forks of one process, and print the faults that no test notices.

python -m mutation.score [--count 200] [--seed 0] [--workers 1] [--seconds 10] [--only FILE:LINE:COLUMN] PART ...
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

import tsallis
from mutation.mutants import Mutant, install, mutants
from process_fork import Child
from tsallis.ops.registry import BACKENDS

SOURCE = Path(tsallis.__file__).parent
TESTS = Path(__file__).resolve().parents[1]
# The tests of each part of the source, with the contract tests that use it.
CONTRACT = ("maps", "losses", "attention", "derivatives", "linear_losses", "properties")
UNITS = (
    "ops/eager",
    "ops/test_cpu_ranking.py",
    "ops/test_cpu_beams.py",
    "ops/test_tracing.py",
    "ops/test_lstm.py",
    "functional",
    "test_onnx.py",
)
SUITES = {
    "ops/eager": [*(f"contract/test_{name}.py" for name in CONTRACT), *(f"unit/{name}" for name in UNITS)],
    "search": [
        "unit/search",
        "contract/test_patterns.py",
        "contract/test_search.py",
        "contract/test_texts.py",
        "unit/ops/test_cpu_beams.py",
        "unit/toolkit/evaluation/test_teacher_forcing.py",
    ],
}
OTHERS = {*BACKENDS, "reference"} - {"eager"}  # their tests are skipped, although they also reach eager code
CASES = 12  # maximum number of cases per test; further cases only differ in numbers
MAX_SECONDS = 10.0  # limit of processor time, measured without a fault, for the tests of each fault
MIN_TIME = 20.0  # a fault's tests are too slow after MIN_TIME + PATIENCE * (their time without it) seconds
PATIENCE = 5
IDLE = 3600.0  # after this many seconds, the tests of a fault are considered blocked and are killed
MEMORY = 4 << 30  # address space in bytes that a child may use in addition to its parent's


@dataclass
class Reach:
    """The lines that a test runs, per file, and its processor time."""

    lines: dict[str, set[int]]
    seconds: float


class Session:
    """A pytest plugin that replaces the test run: for each fault, a child process runs the tests that reach it."""

    def __init__(
        self, parts: list[str], choose: Callable[[list[Mutant]], list[Mutant]], workers: int, max_seconds: float
    ) -> None:
        self.files = sorted(path for part in parts for path in files(SOURCE / part))
        self.choose, self.workers, self.max_seconds = choose, workers, max_seconds
        self.counts = Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = _relevant(session.items)
        started = time.monotonic()
        reach = self._trace(items)
        faults = self.choose([fault for path in self.files for fault in mutants(path)])
        print(f"{len(items)} tests, {time.monotonic() - started:.0f} s; {len(faults)} faults", flush=True)
        running: list[tuple[Mutant, Child, float]] = []
        for fault in faults:
            tests = _order(fault, items, reach, self.max_seconds)
            while len(running) >= self.workers:
                running = self._collect(running)
            if not tests:
                self._note(fault, "no test")
                continue
            limit = MIN_TIME + PATIENCE * sum(reach[item.nodeid].seconds for item in tests)
            child = Child(functools.partial(_try, fault, tests, limit))
            running.append((fault, child, time.monotonic() + IDLE))
        while running:
            running = self._collect(running)
        return True

    def _trace(self, items: list[pytest.Item]) -> dict[str, Reach]:
        """Run all tests without a fault in a child process, and return the lines that each test runs.

        Raises:
            SystemExit: a test fails without a fault.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "reach.json"
            child = Child(lambda: _trace(items, {str(path) for path in self.files}, out))
            ended = child.ended(7200)
            if ended.status:
                raise SystemExit(f"tests fail without a fault:\n{ended.text[-4000:]}")
            raw = json.loads(out.read_text(encoding="utf-8"))
        return {
            test: Reach({path: set(numbers) for path, numbers in lines.items()}, seconds)
            for test, (lines, seconds) in raw.items()
        }

    def _collect(self, running: list[tuple[Mutant, Child, float]]) -> list[tuple[Mutant, Child, float]]:
        """Record the faults whose tests have ended, and return those whose tests still run."""
        time.sleep(0.01)
        rest = []
        for fault, child, deadline in running:
            if child.running() and time.monotonic() < deadline:
                rest.append((fault, child, deadline))
                continue
            child.kill()
            status = child.ended().status
            slow = status in (-signal.SIGXCPU, -signal.SIGKILL)
            self._note(fault, "too slow" if slow else "survived" if status == 0 else "noticed")
        return rest

    def _note(self, fault: Mutant, outcome: str) -> None:
        self.counts[outcome] += 1
        if self.counts.total() % 10 == 0:
            print(dict(self.counts), flush=True)
        if outcome != "noticed":
            print(f"{outcome}: {fault}", flush=True)


def _relevant(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return some cases of every test, except tests of other backends and tests that start processes."""
    cases, relevant = Counter[str](), []
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if item.get_closest_marker("process") or OTHERS & set(case.rstrip("]").split("-")):
            continue
        cases[test] += 1
        if cases[test] <= CASES:
            relevant.append(item)
    return relevant


def files(path: Path) -> Iterable[Path]:
    """Return all Python files in a folder, or the path itself if it is a file."""
    return [path] if path.is_file() else path.rglob("*.py")


def _trace(items: list[pytest.Item], paths: set[str], out: Path) -> None:
    """Run tests and write the lines of the given files that each test runs.

    Raises:
        SystemExit: a test fails.
    """
    reach: dict[str, tuple[dict[str, list[int]], float]] = {}
    for item, following in _pairs(items):
        lines: dict[str, set[int]] = {}
        started = time.process_time()
        sys.settrace(_tracer(paths, lines))
        reports = runtestprotocol(item, log=False, nextitem=following)
        sys.settrace(None)
        seconds = time.process_time() - started
        if failed := [report for report in reports if report.failed]:
            print(item.nodeid, failed[0].longreprtext)
            raise SystemExit(1)
        reach[item.nodeid] = ({path: sorted(numbers) for path, numbers in lines.items()}, seconds)
    out.write_text(json.dumps(reach), encoding="utf-8")


def _tracer(paths: set[str], lines: dict[str, set[int]]) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that records the lines of the given files and skips all other files."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def start(frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in paths:
            return None
        lines.setdefault(path, set())
        return local

    return start


def _order(fault: Mutant, items: list[pytest.Item], reach: dict[str, Reach], max_seconds: float) -> list[pytest.Item]:
    """Return the tests that reach a fault, in order, as long as their total time is at most `max_seconds` seconds.

    The first case of every test precedes the second case of any test. Tests of the changed file come first, then the
    fastest tests.
    """
    path = str(fault.path)

    def reaches(lines: set[int] | None) -> bool:
        if lines is None or fault.lines is None:
            return lines is not None
        return any(fault.lines[0] <= line <= fault.lines[1] for line in lines)

    tests = [item for item in items if reaches(reach[item.nodeid].lines.get(path))]
    tests.sort(key=lambda item: (fault.path.stem not in item.path.stem, reach[item.nodeid].seconds))
    cases = Counter[str]()  # number of cases so far, per test
    ranks = []
    for item in tests:
        ranks.append(cases[item.nodeid.partition("[")[0]])
        cases[item.nodeid.partition("[")[0]] += 1
    order = sorted(range(len(tests)), key=ranks.__getitem__)
    total = list(itertools.accumulate(reach[tests[i].nodeid].seconds for i in order))
    return [tests[i] for i, seconds in zip(order, total, strict=True) if seconds <= max_seconds or i == order[0]]


def _try(fault: Mutant, tests: list[pytest.Item], seconds: float) -> None:
    """Run tests with a fault, and stop at the first failure.

    Raises:
        SystemExit: a test fails.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), resource.RLIM_INFINITY))
    name = ".".join(fault.path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    install(fault, sys.modules[name])
    for item, following in _pairs(tests):
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            raise SystemExit(1)


def _pairs(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Yield each item with the next one, or None."""
    yield from zip(items, [*items[1:], None], strict=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(SUITES), help="folders or files of src/tsallis to change")
    parser.add_argument("--count", type=int, default=200, help="number of random faults to test")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the choice of faults")
    parser.add_argument("--workers", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="maximum seconds of tests per fault")
    parser.add_argument("--only", nargs="+", default=[], help="test only these faults, each as FILE:LINE:COLUMN")
    options = parser.parse_args()

    def choose(faults: list[Mutant]) -> list[Mutant]:
        if options.only:
            return [fault for fault in faults if any(str(fault).split()[0].endswith(place) for place in options.only)]
        return Random(options.seed).sample(faults, min(options.count, len(faults)))

    session = Session(options.parts, choose, options.workers, options.seconds)
    suites = dict.fromkeys(
        str(TESTS / test)
        for suite, tests in SUITES.items()
        if any(part.startswith(suite) for part in options.parts)
        for test in tests
    )
    arguments = ["-q", "-p", "no:cacheprovider", "-m", "not slow or sampled", *suites]
    status = pytest.main([*arguments, f"--rootdir={TESTS.parent}"], plugins=[session])
    total, counts = session.counts.total(), session.counts
    if status or not total:
        raise SystemExit(f"no score: pytest ended with {status}")
    noticed = counts["noticed"] + counts["too slow"]
    print(f"{noticed} of {total} faults are noticed, {100 * noticed / total:.1f} %: {dict(counts)}")


if __name__ == "__main__":
    main()
