"""Invalid input must give results or a one-line error: no traceback, no hang, no changed files."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("yaml")
pytest.importorskip("PIL")

from integration.fuzz.guided import read_once
from integration.fuzz.readers import READERS, Reader
from integration.fuzz.runner import choose, judge
from integration.fuzz.samples import TASKS
from integration.fuzz.targets import TARGETS
from tsallis.toolkit.tasks import registry

TESTS = Path(__file__).resolve().parents[2]


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment)


def fuzz(*arguments: object, module: str = "runner") -> subprocess.CompletedProcess[str]:
    return python("-m", f"integration.fuzz.{module}", *arguments)


def test_every_task_has_samples() -> None:
    assert (*registry.TASKS,) == TASKS


def test_a_few_fuzz_cases_pass(tmp_path: Path) -> None:
    """A failing case is printed as TARGET:SEED; `python -m integration.fuzz.runner TARGET:SEED` repeats it."""
    done = fuzz(40, "--folder", tmp_path / "samples")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_many_fuzz_cases_pass() -> None:
    done = fuzz(2000)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_stored_files_of_guided_searches_pass() -> None:
    done = fuzz(module="guided")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 5 * len(READERS)


@pytest.mark.slow
def test_coverage_guided_search_finds_no_fault(tmp_path: Path) -> None:
    if find_spec("atheris") is None:
        pytest.skip("needs atheris: it has wheels for Linux on x86-64 and Python 3.11 to 3.13")
    done = fuzz("--seconds", 60, "--faults", tmp_path / "faults", module="guided")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "fault", ["raise KeyError(1)", "print(chr(155))", "sys.exit(3)", "print('Traceback', file=sys.stderr)"]
)
def test_guided_search_raises_for_faults(fault: str, tmp_path: Path) -> None:
    def read(path: Path) -> None:
        exec(fault)

    with pytest.raises((AssertionError, KeyError)):
        read_once(Reader("a", read), b"", tmp_path)


def test_chosen_cases_are_deterministic_and_cover_all_targets() -> None:
    cases = choose(5000)
    assert cases == choose(5000) and abs(len(cases) - 5000) < len(TARGETS)
    assert {name for name, _ in cases} == set(TARGETS) and len(set(cases)) == len(cases)


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "fault"),
    [
        (0, "walked\n", "", ""),
        (2, "walked\n", "tsallis: in:2: one column\n", ""),
        (1, "walked\n\n", "tsallis: in:2: one column\n", ""),
        (1, "", "", "no bad line"),
        (3, "", "tsallis: no\n", "exit status 3"),
        (2, "", "tsallis: in\nwrong\n", "not one error"),
        (2, "", "Warning: x\ntsallis: in\n", "not one error"),
        (2, "", "", "not one error"),
        (2, "", f"tsallis: {'x' * 2000}\n", "2009 characters"),
        (2, "", "tsallis: key \x1b[2J\n", "control characters"),
        (0, "a\x9bb\n", "", "control characters"),
        (0, "", "Traceback (most recent call last):\n", "a traceback"),
    ],
)
def test_judge_reports_faults(status: int, stdout: str, stderr: str, fault: str) -> None:
    result = judge(status, stdout, stderr)
    assert fault in result and bool(result) == bool(fault)


FAULTS = {
    "raise KeyError('x')": "traceback",
    "while True: pass": "takes too long",
    "time.sleep(99)": "hangs",
    "os.kill(os.getpid(), 11)": "ended by signal 11",
    "(path.parent / 'a').write_text('x')": "changed what it should only read",
    "print('\\x1b[2J')": "control characters in what is printed",
    "bytearray(8 << 30)": "",  # a clear error about memory
    "pass": "",
}


@pytest.mark.slow
def test_runner_reports_faults_of_the_right_case() -> None:
    """One of five cases fails; only this case must be reported, even if it ends the process."""
    code = f"""
import os, sys, time
from pathlib import Path
from random import Random
from integration.fuzz import runner, targets

def target(behaviour):
    def make(chance, base, own):
        (own / "a").write_text("a")
        bad = chance.random() == Random("x:3").random()
        return targets.Case(call=lambda: bad and exec(behaviour, globals() | {{"path": own / "b"}}), watched=[own])
    return targets.Target(make)

runner.SECONDS, runner.MEMORY = 1, 1 << 30
for behaviour in {[*FAULTS]}:
    runner.CLOCK = 2 if "sleep" in behaviour else 60
    targets.TARGETS.clear()
    targets.TARGETS["x"] = target(behaviour)
    print([(found["case"], found["fault"]) for found in runner.run([("x", seed) for seed in range(5)], Path("."))])
"""
    done = python("-c", code)
    expected = [[("x:3", fault)] if fault else [] for fault in FAULTS.values()]
    assert done.stdout.splitlines() == [*map(str, expected)], done.stderr
