"""Check and benchmark the library on a new type of GPU within minutes, and print a table of the results.

    python benchmarks/gpu_first_run.py --out OUT             # on the machine with the GPU
    python benchmarks/gpu_first_run.py --out OUT --rehearse  # on the CPU, with tiny sizes and Triton's interpreter

`--stages` chooses the stages. If a command may take at most ten minutes, use two: `--stages kernels tests` and
`--stages maps linear attention`. Each stage runs in separate processes, which are killed at a time limit. A failure in
one stage does not stop the next:

- kernels: forward and backward of each family of kernels against float64, the most used first. There is one process per
  family and dtype, and all run at the same time, because most of the time is spent on compilation.
- tests: `tests/unit/ops/triton`, at the same time as the kernels.
- maps, linear, attention: short versions of the benchmarks `gpu_maps`, `gpu_linear` and `gpu_attention`, which compare
  with PyTorch and the installed peers.

Every result is written to OUT immediately: `machine.json`, `kernels-*.jsonl` and their rows in `kernels.csv`,
`tests.xml`, `maps.csv`, `linear.csv`, `attention.csv` and the printed output of each process (`*.log`). After every
stage, also if it was interrupted, the table is in `summary.txt` and all other files are in `results.tar.gz`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the package may not be installed
TESTS = ROOT / "tests"
ROWS = ("maps", "linear", "attention")  # benchmarks
STAGES = ("kernels", "tests", *ROWS)
# Limits in seconds, for an empty cache of kernels: each takes one to several seconds to compile.
LIMITS = {"machine": 30, "kernels": 200, "tests": 400, "maps": 150, "linear": 90, "attention": 120}
TEST_LIMIT = 60  # seconds for one test
GRACE = 20  # seconds between SIGINT and SIGKILL; pytest-xdist waits ten seconds for its workers
ARCHIVE = "results.tar.gz"
LINES = 40  # maximum number of lines of the table
VALUE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}  # error limits, relative to the largest expected number
DTYPES = ("float32", "bfloat16", "float16")
GROUPS = ("maps", "losses", "attention", "layer")


def check_kernels(group: str, dtype: str, out: Path, rehearse: bool) -> None:
    """Compare the cases of a group, and write one JSON line per case immediately."""
    from gpu import broken
    from gpu_cases import cases, compare

    import tsallis

    device = "cpu" if rehearse else "cuda"
    every = cases(group, rehearse)
    path = out / f"kernels-{group}-{dtype}.jsonl"
    with tsallis.backend("triton"), path.open("w", encoding="utf-8") as stream:
        for number, case in enumerate(every, start=1):
            start, stopped = time.perf_counter(), False
            row: dict[str, object] = {"group": group, "case": case.name, "dtype": dtype, "limit": VALUE[dtype]}
            try:
                errors = compare(case, device, dtype)
                worst = max(errors, key=lambda name: errors[name])
                row |= {"error": errors[worst], "in": worst, "right": errors[worst] <= VALUE[dtype]}
            except Exception as error:  # any error: the other cases must still be compared
                message = f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
                stopped = not rehearse and broken()
                if stopped:
                    message += f"; the GPU fails from here on, so {len(every) - number} cases did not run"
                row |= {"error": None, "in": message, "right": False}
            row["seconds"] = round(time.perf_counter() - start, 2)
            print(json.dumps(row), file=stream, flush=True)
            if stopped:
                break


def describe_machine(out: Path) -> None:
    """Write the software versions and the model of the GPU."""
    from gpu import machine

    facts = {key: str(value) for key, value in machine().items()}
    (out / "machine.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def child(work: str, out: Path, rehearse: bool) -> list[str]:
    """Return the command that does a part of this script's work."""
    command = [sys.executable, str(Path(__file__).resolve()), f"--child={work}", f"--out={out}"]
    return [*command, *(["--rehearse"] if rehearse else [])]


def test_command(out: Path, rehearse: bool) -> list[str]:
    """Return the command of the kernel tests, in parallel and with a time limit per test if the plugins exist."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        f"--junitxml={out}/tests.xml",
    ]
    if importlib.util.find_spec("xdist"):
        command += ["-n", "1" if rehearse else "12"]
    if importlib.util.find_spec("pytest_timeout"):
        command += [f"--timeout={TEST_LIMIT}"]
    if rehearse:
        return [*command, str(TESTS / "unit/ops/triton/test_maps.py"), "-k", "matches_float64 and short", "--maxfail=1"]
    return [*command, str(TESTS / "unit/ops/triton"), "-m", "not slow or sampled"]  # slow tests compile for other GPUs


def row_commands(out: Path, rehearse: bool) -> dict[str, list[str]]:
    """Return the commands of short versions of the benchmarks."""
    if rehearse:
        start = [sys.executable, str(TESTS / "cuda_on_cpu.py")]
        options = {
            "maps": "--sizes 64 --classes 64 --scores 256 --dtypes bfloat16 --inputs normal --rounds 1",
            "linear": "--shapes 16x16x64 --inputs trained --quick",
            "attention": "--groups long decode --quick",
        }
    else:
        start = [sys.executable]
        options = {
            "maps": "--sizes 2048 32768 131072 --classes 131072 --inputs normal --peer-sizes 2048 --rounds 8",
            "linear": "--inputs trained --quick",
            "attention": "--groups long decode --quick --lengths 8192 32768",
        }
    result = {}
    for name, chosen in options.items():
        script = str(ROOT / f"benchmarks/gpu_{name}.py")
        result[name] = [*start, script, *chosen.split(), f"--out={out}/{name}.csv"]
    result["maps"].append(f"--accuracy={out}/maps-accuracy.csv")
    return result


def steps(stages: Sequence[str], out: Path, rehearse: bool) -> Iterator[dict[str, list[str]]]:
    """Yield commands that run at the same time, by name; the benchmarks run alone, because they measure time."""
    yield {"machine": child("machine", out, rehearse)}
    checks = {}
    if "kernels" in stages:
        names = [f"{group}-{dtype}" for group in GROUPS for dtype in (DTYPES[:1] if rehearse else DTYPES)]
        checks |= {f"kernels-{name}": child(name, out, rehearse) for name in names}
    if "tests" in stages:
        checks["tests"] = test_command(out, rehearse)
    if checks:
        yield checks
    yield from ({name: command} for name, command in row_commands(out, rehearse).items() if name in stages)


def run_together(commands: dict[str, list[str]], out: Path, slowness: float, ended: dict[str, str]) -> None:
    """Run commands at the same time, end those that exceed the longest limit, and store how each one ended."""
    limit = slowness * max(LIMITS[name.partition("-")[0]] for name in commands)
    paths = [str(ROOT / "src"), str(TESTS), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    ended |= dict.fromkeys(commands, "interrupted")
    end = time.monotonic() + limit
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (out / f"{name}.log").open("w", encoding="utf-8") as log:
                processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
                )
        for name, process in processes.items():
            try:
                status = process.wait(max(0.0, end - time.monotonic()))
                ended[name] = "ended" if status == 0 else f"ended with status {status}"
            except subprocess.TimeoutExpired:
                ended[name] = f"killed after {limit:.0f} s"
    finally:
        stop(processes.values())


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes and their children: with SIGINT, so that pytest writes its results so far, and then SIGKILL."""
    running = [process for process in processes if process.poll() is None]
    end = time.monotonic() + GRACE
    for process in running:
        process.send_signal(signal.SIGINT)
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def save(out: Path, stages: Sequence[str], ended: dict[str, str]) -> list[str]:
    """Write `kernels.csv`, the table and the archive of the finished results, and return the table."""
    from common import write

    facts = machine_facts(out)
    write(out / "kernels.csv", [{**row, **facts} for group in GROUPS for row in kernel_rows(out, group)])
    lines = summarize(out, stages, ended)
    (out / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    part = out / f"{ARCHIVE}.part"  # replaces the archive in one step, because the script may be killed now
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(out.iterdir()):
            if path.is_file() and not path.name.startswith(ARCHIVE):
                archive.add(path, path.name)
    part.replace(out / ARCHIVE)
    return lines


def machine_facts(out: Path) -> dict[str, str]:
    """Return the description of the machine; it is empty if the process did not finish writing it."""
    try:
        facts: dict[str, str] = json.loads((out / "machine.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return facts


def kernel_rows(out: Path, group: str) -> list[dict[str, Any]]:
    """Return the finished comparisons of a group, without lines that a killed process did not finish."""
    rows = []
    for path in sorted(out.glob(f"kernels-{group}-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def summarize(out: Path, stages: Sequence[str], ended: dict[str, str]) -> list[str]:
    """Return a table of the results, from the existing files."""
    lines = [", ".join(f"{key} {value}" for key, value in machine_facts(out).items() if value)]
    lines.append("; ".join(f"{name}: {how}" for name, how in ended.items()))
    lines += _summarize_kernels(out) if "kernels" in stages else []
    lines += _summarize_tests(out) if "tests" in stages else []
    for name in ROWS:
        lines += _summarize_rows(out, name) if name in stages else []
    return lines[:LINES]


def _summarize_kernels(out: Path) -> list[str]:
    lines, wrong = [], []
    for group in GROUPS:
        rows = kernel_rows(out, group)
        right = sum(row["right"] for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        lines.append(
            f"kernels {group}: {right} of {len(rows)} right, {seconds:.0f} s" if rows else f"kernels {group}: no result"
        )
        wrong += [f"  WRONG {r['case']} {r['dtype']}: {r['error']} in {r['in']}" for r in rows if not r["right"]]
    return [*lines, *wrong[:12]]


def _summarize_tests(out: Path) -> list[str]:
    try:
        found = list(ElementTree.parse(out / "tests.xml").iter("testcase"))
    except (FileNotFoundError, ElementTree.ParseError):  # pytest writes the file at its end
        return ["tests: no result (see tests.log)"]
    failed = [case for case in found if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in found)
    names = [f"  FAILED {case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in failed]
    return [f"tests: {len(found) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped", *names[:8]]


def _summarize_rows(out: Path, name: str) -> list[str]:
    columns = {
        "maps": ("dtype", "d", "operation", "owner", "ms", "to_dense", "share"),
        "linear": ("shape", "operation", "owner", "ms", "time_ratio", "memory_ratio"),
        "attention": ("shape", "owner", "alpha", "forward_ms", "both_ms", "peak_mb"),
    }[name]
    path = out / f"{name}.csv"
    if not path.exists():
        return [f"rows {name}: no result"]
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    lines = ["  " + " ".join(_short(row.get(column) or "") for column in columns) for row in rows[:9]]
    return [f"rows {name}: {len(rows)}; " + " ".join(columns), *lines]


def _short(text: str) -> str:
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--rehearse", action="store_true", help="run tiny sizes on the CPU, with Triton's interpreter")
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=list(STAGES), help="stages to run (default: all)"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)  # only for child processes
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rehearse: bool = arguments.rehearse
    if arguments.child == "machine":
        return describe_machine(out)
    if arguments.child:
        return check_kernels(*arguments.child.split("-"), out, rehearse)
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        from gpu import require_gpu

        require_gpu()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also saves the results
    slowness = 5 if rehearse else 1  # a busy CPU needs longer limits
    ended: dict[str, str] = {}
    lines: list[str] = []
    for commands in steps(arguments.stages, out, rehearse):
        try:
            run_together(commands, out, slowness, ended)
        finally:
            lines = save(out, arguments.stages, ended)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
