"""Run cases in forked children of one interpreter, with limits on time and memory, and print those that fail.

python -m integration.fuzz.runner COUNT | TARGET:SEED ... [--from SEED] [--only PREFIX] [--folder SAMPLES]
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from integration.fuzz.samples import TASKS, write_samples
from integration.fuzz.targets import TARGETS, Case

SECONDS = 20  # limit of processor time
CLOCK = 60  # limit of elapsed time in seconds, for a busy machine
MEMORY = 3 << 30  # limit of address space in bytes, in addition to that of the parent
BATCH = 40  # cases per child
LONGEST = 2000  # maximum number of characters in a message
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def choose(count: int, first: int = 0, only: str = "") -> list[tuple[str, int]]:
    """Choose `count` cases of all targets by their shares, at least one per target; always the same ones."""
    targets = {name: target.share for name, target in TARGETS.items() if name.startswith(only)}
    total = sum(targets.values())
    sizes = {name: max(1, round(count * share / total)) for name, share in targets.items()}
    cases = [(name, first + seed) for name, size in sizes.items() for seed in range(size)]
    Random(first).shuffle(cases)
    return cases[:count] if count < len(targets) else cases


def prepare(folder: Path) -> None:
    """Write the samples, train the runs, and import the modules of the commands once for all children."""
    import tsallis.report.page
    import tsallis.toolkit.tasks
    import tsallis.toolkit.training  # noqa: F401
    from tsallis.toolkit.cli import main

    if (folder / "runs").exists():
        return
    write_samples(folder)
    for task in TASKS:
        config = folder / "config" / f"{task}.yaml"
        sys.argv = ["tsallis", "train", str(config), "--run-dir", str(folder / "runs" / task)]
        try:
            main()
        except SystemExit as leave:
            assert not leave.code, task


def run(cases: list[tuple[str, int]], folder: Path, report: Any = None) -> list[dict[str, Any]]:
    """Run cases and return the failures."""
    failures = []
    waiting = list(cases)
    while waiting:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        done, results = run_batch(batch, folder)
        if done < len(batch):  # the child died in this case, but an earlier one may be the cause: run it alone
            if done:
                _, alone = run_batch([batch[done]], folder)
            else:
                alone = results[done:]
            results = [*results[:done], *alone]
            waiting = [*batch[done + 1 :], *waiting]
        if report is not None:
            report(results)
        failures += [result for result in results if result["fault"]]
    return failures


def run_batch(batch: list[tuple[str, int]], folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Run cases in one child; return how many it survived, and all results, with that of the case that ended it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        scratch = Path(work)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _limit_memory()
                for number, (name, seed) in enumerate(batch):
                    result = run_case(name, seed, folder, scratch / str(number))
                    (scratch / f"{number}.json").write_text(json.dumps(result))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        results = []
        for number in range(len(batch)):
            path = scratch / f"{number}.json"
            if not path.exists():
                break
            results.append(json.loads(path.read_text()))
        done = len(results)
        if done < len(batch):
            killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            words = {signal.SIGPROF: "takes too long", signal.SIGALRM: "hangs"}.get(killer, f"ended by signal {killer}")
            name, seed = batch[done]
            errors = scratch / str(done) / "stderr"
            text = errors.read_text(errors="backslashreplace") if errors.exists() else ""
            seconds = time.monotonic() - started
            results.append({"case": f"{name}:{seed}", "fault": words, "stderr": text[-3000:], "seconds": seconds})
        return done, results


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def run_case(name: str, seed: int, folder: Path, case_folder: Path) -> dict[str, Any]:
    """Run one case in this process."""
    case_folder.mkdir()
    (case_folder / "work").mkdir()
    case = TARGETS[name].make(Random(f"{name}:{seed}"), folder, case_folder / "work")
    (case_folder / "stdin").write_bytes(case.stdin)
    before = _snapshot(case.watched)
    started = time.monotonic()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(CLOCK)
    status, trace = _run(case, case_folder)
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.monotonic() - started
    texts = {
        part: (case_folder / part).read_bytes()[: 1 << 20].decode("utf-8", "backslashreplace")
        for part in ("stdout", "stderr")
    }
    fault = "traceback" if trace else judge(status, **texts)
    if not fault and _snapshot(case.watched) != before:
        fault = "changed what it should only read"
    shutil.rmtree(case_folder / "work")
    described = [a[:200] for a in case.arguments] if case.call is None else str(case.call)[:400]
    return {
        "case": f"{name}:{seed}",
        "fault": fault,
        "status": status,
        "seconds": seconds,
        "command": described,
        "stdout": texts["stdout"][-500:],
        "stderr": (trace or texts["stderr"])[-3000:],
    }


def judge(status: object, stdout: str, stderr: str) -> str:
    """Return a description of the fault in a command's exit status or output, or "" if there is none."""
    if status not in (0, 1, 2, None):
        return f"exit status {status}"
    if status == 1 and not stderr.startswith("tsallis: "):  # bad lines were skipped
        return "no bad line on standard error"
    if CONTROL.search(stderr) or CONTROL.search(stdout):
        return "control characters in what is printed"
    if status == 2:
        *lines, end = stderr.split("\n")  # notes may precede the error
        if end or not 1 <= len(lines) <= 3 or not all(line.startswith("tsallis") for line in lines):
            return "not one error and its notes on standard error"
        if (longest := max(map(len, lines))) > LONGEST:
            return f"a message of {longest} characters"
    return "a traceback in what is printed" if "Traceback" in stderr else ""


def _run(case: Case, case_folder: Path) -> tuple[object, str]:
    """Run a case with its output redirected to files; return the exit status and the traceback, if there is one."""
    from tsallis.toolkit.cli import app, main

    os.chdir(case_folder / "work")  # paths of a case may be relative
    saved = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for number, part in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(case_folder / part, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(n, "w", closefd=False)), encoding="utf-8") for n in (1, 2)
    )
    sys.stderr.reconfigure(errors="backslashreplace")
    sys.argv = ["tsallis", *case.arguments]
    status: object = 0
    trace = ""
    try:
        main(app if case.call is None else case.call)
    except SystemExit as leave:
        status = leave.code
    except BaseException:
        trace = traceback.format_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.chdir("/")
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, copy in enumerate(saved):
            os.dup2(copy, number)
            os.close(copy)
    return status, trace


def _snapshot(watched: list[Path]) -> dict[str, str]:
    """Return the digests of the watched files by their paths."""
    files = [p for path in watched for p in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.is_file()}


def main() -> None:
    """Run cases and print those that fail."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", help="a number of cases, or TARGET:SEED")
    parser.add_argument("--from", dest="first", type=int, default=0, help="seeds begin here")
    parser.add_argument("--only", default="", help="targets whose names begin so")
    parser.add_argument("--folder", type=Path, help="samples made before, or to be made")
    parser.add_argument("--out", type=Path, help="failures as JSON")
    inputs = parser.parse_args()
    faulthandler.disable()  # a case that is too slow needs no stack trace
    os.environ["COLUMNS"] = "200"
    with tempfile.TemporaryDirectory(prefix="fuzz-samples-") as own:
        folder = (inputs.folder or Path(own) / "samples").resolve()
        prepare(folder)
        alone = not inputs.cases[0].isdecimal()
        named = [(name, int(seed)) for name, _, seed in (case.rpartition(":") for case in inputs.cases)]
        cases = named if alone else choose(int(inputs.cases[0]), inputs.first, inputs.only)
        started = time.monotonic()
        spent: dict[str, float] = defaultdict(float)

        def add(results: list[dict[str, Any]]) -> None:
            for result in results:
                spent[result["case"].rpartition(":")[0]] += result["seconds"]
                if result["fault"]:
                    print(json.dumps(result, indent=1) if alone else f"{result['case']}: {result['fault']}", flush=True)

        failures = run(cases, folder, add)
        seconds = time.monotonic() - started
    if alone and not failures:
        print("no fault")
    if inputs.out:
        inputs.out.write_text(json.dumps(failures, indent=1))
    slowest = sorted(spent, key=lambda name: -spent[name])[:8]
    print(", ".join(f"{name} {spent[name]:.1f} s" for name in slowest))
    print(f"{len(cases)} cases in {seconds:.0f} s, {len(failures)} failed")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
