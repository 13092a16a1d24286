"""Check and benchmark the library on a new type of GPU in about five minutes, and print a table of the results.

    python benchmarks/gpu_first_run.py --out OUT             # on the machine with the GPU
    python benchmarks/gpu_first_run.py --out OUT --rehearse  # on the CPU, with tiny sizes and Triton's interpreter

Each stage runs in separate processes, which are killed at a time limit. A failure in one stage does not stop the next:

- machine: software versions and the model of the GPU.
- kernels: forward and backward of each family of kernels against float64, the most used first. Several processes run
  at the same time, because most of the time is spent on compilation.
- tests: `tests/unit/ops/triton`, at the same time as the kernels.
- rows: short versions of the benchmarks `gpu_maps`, `gpu_linear` and `gpu_attention`, which compare with PyTorch and
  the installed peers.

Every result is written to OUT immediately: `kernels-*.jsonl` and their rows in `kernels.csv`, `tests.xml`, `maps.csv`,
`linear.csv`, `attention.csv`, the printed output of each process (`*.log`) and the table (`summary.txt`).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
LIMITS = {"machine": 20, "kernels": 120, "maps": 50, "linear": 50, "attention": 60}  # seconds
TEST_LIMIT = 60  # seconds for one test
GRACE = 10  # seconds between SIGINT and SIGKILL for a stage that has reached its limit
LINES = 40  # maximum number of lines of the table
LOSS_CLASSES, ROW = 5000, 1000
VALUE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}  # error limits, relative to the largest expected number
DTYPES = ("float32", "bfloat16", "float16")


class Case(NamedTuple):
    """A call of a public function and its float64 reference, which take the same tensors in the same order."""

    name: str
    inputs: Sequence[tuple[int, ...]]  # shapes of the input tensors, which need gradients
    ours: Callable[..., object]
    exact: Callable[..., object]
    alphas: tuple[float, ...] = ()  # values of a further input, the last one, which needs a gradient
    gradients: bool = True


def cases(group: str, tiny: bool) -> list[Case]:
    """Return the cases of a group, the most used functions first."""
    return {"maps": _maps, "losses": _losses, "attention": _attention, "layer": _layer}[group](tiny)


GROUPS = ("maps", "losses", "attention", "layer")


def _maps(tiny: bool) -> list[Case]:
    import tsallis
    from tsallis.ops import reference

    widths = (40, 70) if tiny else (ROW, 8200)
    learned = (1.1, 1.5, 1.9, 2.0)
    result = []
    for width in widths:
        shape = [(4, width)]
        result += [
            Case(f"entmax15 {width}", shape, tsallis.entmax15, reference.entmax),
            Case(f"sparsemax {width}", shape, tsallis.sparsemax, lambda x: reference.entmax(x, 2.0)),
            Case(
                f"entmax 1.25 {width}",
                shape,
                lambda x: tsallis.entmax(x, 1.25),
                lambda x: reference.entmax(x, 1.25),
            ),
            Case(
                f"learned alphas {width}",
                shape,
                lambda x, a: tsallis.entmax(x, a.view(-1, 1)),
                lambda x, a: reference.entmax(x, a.view(-1, 1)),
                learned,
            ),
        ]
    return result


def _losses(tiny: bool) -> list[Case]:
    import torch

    import tsallis
    from tsallis.ops import reference

    classes = 60 if tiny else LOSS_CLASSES
    target = torch.arange(6) * 7 % classes

    def ours(alpha: float) -> Callable[..., object]:
        return lambda x: tsallis.entmax_loss(x, target.to(x.device), alpha, reduction="none")

    def exact(alpha: float) -> Callable[..., object]:
        return lambda x: reference.entmax_loss(x, target.to(x.device), alpha)

    shape = [(6, classes)]
    return [
        *(Case(f"entmax_loss {alpha}", shape, ours(alpha), exact(alpha)) for alpha in (1.5, 2.0, 1.25, 1.0)),
        Case(
            "alpha_relu_loss 1.5",
            shape,
            lambda x: tsallis.alpha_relu_loss(x, target.to(x.device), 1.5, 0.75, reduction="none"),
            lambda x: reference.alpha_relu_loss(x, target.to(x.device), 1.5, 0.75),
        ),
    ]


def _attention(tiny: bool) -> list[Case]:
    import torch

    import tsallis
    from tsallis.ops import reference

    keys, size = (24, 16) if tiny else (1100, 64)
    queries = 8 if tiny else 130
    mask = torch.arange(queries * keys).view(queries, keys) % 7 != 3
    lengths = torch.tensor([keys, keys // 2])

    def dense(q, k, v, alpha=1.5, *, mask=None, causal=False, lengths=None, slopes=None, offset=0):  # type: ignore[no-untyped-def]
        group = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
        rows, columns = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        rows = rows.unsqueeze(-1) + offset
        if slopes is not None:
            scores = scores - slopes.view(-1, 1, 1) * (rows - columns).abs()
        if mask is not None:
            scores = scores.masked_fill(~mask.to(q.device), -math.inf)
        if causal:
            scores = scores.masked_fill(columns > rows, -math.inf)
        if lengths is not None:
            scores = scores.masked_fill(columns >= lengths.to(q.device).view(-1, 1, 1, 1), -math.inf)
        if isinstance(alpha, torch.Tensor):
            alpha = alpha.view(1, -1, 1, 1)
        return reference.entmax(scores, alpha) @ v.repeat_interleave(group, 1)

    def shapes(queries: int = queries, heads: int = 4, key_heads: int = 4) -> list[tuple[int, ...]]:
        return [(2, heads, queries, size), (2, key_heads, keys, size), (2, key_heads, keys, size)]

    ours = tsallis.entmax_attention
    alphas = (1.1, 1.5, 1.8, 2.0)
    back = keys - queries
    return [
        Case("attention 1.5", shapes(), ours, dense),
        Case("learned alphas", shapes(), ours, dense, alphas),
        Case("causal", shapes(), lambda *x: ours(*x, is_causal=True), lambda *x: dense(*x, causal=True)),
        Case(
            "causal learned alphas",
            shapes(),
            lambda *x: ours(*x, is_causal=True),
            lambda *x: dense(*x, causal=True),
            alphas,
        ),
        Case("grouped queries", shapes(key_heads=2), lambda *x: ours(*x, enable_gqa=True), dense),
        Case(
            "mask",
            shapes(),
            lambda q, k, v: ours(q, k, v, attn_mask=mask.to(q.device)),
            lambda *x: dense(*x, mask=mask),
        ),
        Case(
            "key lengths",
            shapes(),
            lambda q, k, v: ours(q, k, v, key_lengths=lengths.to(q.device)),
            lambda *x: dense(*x, lengths=lengths),
        ),
        Case(
            "slopes",
            [*shapes(), (4,)],
            lambda q, k, v, s: ours(q, k, v, slopes=s.abs() / 8, is_causal=True, query_offset=back),
            lambda q, k, v, s: dense(q, k, v, slopes=s.abs() / 8, causal=True, offset=back),
        ),
        Case("softmax", shapes(), lambda *x: ours(*x, 1.0), lambda *x: dense(*x, 1.0)),
        Case("sparsemax", shapes(), lambda *x: ours(*x, 2.0), lambda *x: dense(*x, 2.0)),
        Case("decode", shapes(1, key_heads=2), lambda *x: ours(*x, enable_gqa=True), dense, gradients=False),
        Case(
            "decode learned alphas",
            shapes(1, key_heads=2),
            lambda *x: ours(*x, enable_gqa=True),
            dense,
            alphas,
            gradients=False,
        ),
        Case("few keys", [(2, 4, 9, size), (2, 4, 20, size), (2, 4, 20, size)], ours, lambda *x: dense(*x), alphas),
    ]


def _layer(tiny: bool) -> list[Case]:
    import torch

    import tsallis
    from tsallis.ops import reference

    tokens, size, classes = (12, 16, 60) if tiny else (300, 128, LOSS_CLASSES)
    target = torch.arange(tokens) * 7 % classes
    shape = [(tokens, size), (classes, size)]

    small = 2**-4  # keeps scores near 1: the rounding errors of larger ones would be too large in half precision

    def ours(function: Callable[..., object], *options: float) -> Callable[..., object]:
        return lambda h, w: function(small * h, w, target.to(h.device), *options, reduction="sum")

    return [
        *(
            Case(
                f"linear_entmax_loss {alpha}",
                shape,
                ours(tsallis.linear_entmax_loss, alpha),
                lambda h, w, alpha=alpha: reference.entmax_loss(small * h @ w.mT, target.to(h.device), alpha).sum(),
            )
            for alpha in (1.5, 2.0, 1.25)
        ),
        Case(
            "linear_alpha_relu_loss 1.5",
            shape,
            ours(tsallis.linear_alpha_relu_loss, 1.5, 0.75),
            lambda h, w: reference.alpha_relu_loss(small * h @ w.mT, target.to(h.device), 1.5, 0.75).sum(),
        ),
    ]


def compare(case: Case, device: str, dtype: str) -> dict[str, float]:
    """Return the largest error of the result and of each gradient, relative to the largest expected number."""
    import torch

    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in case.inputs]
    kind = getattr(torch, dtype)
    ours = [x.to(device, kind).requires_grad_(case.gradients) for x in numbers]
    exact = [x.detach().double().requires_grad_(case.gradients) for x in ours]
    names = ["result", *(f"gradient {i}" for i in range(len(ours)))]
    if case.alphas:
        ours.append(torch.tensor(case.alphas, device=device, requires_grad=case.gradients))
        exact.append(ours[-1].detach().double().requires_grad_(case.gradients))
        names.append("gradient of alpha")
    result, expected = case.ours(*ours), case.exact(*exact)
    assert isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor)
    pairs = [(result.detach(), expected.detach())]
    if case.gradients:
        upstream = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
        rounded = upstream.to(device, result.dtype)
        mine = torch.autograd.grad(result, ours, rounded)
        pairs += zip(mine, torch.autograd.grad(expected, exact, rounded.double()), strict=True)
    errors = {}
    for name, (x, y) in zip(names, pairs, strict=False):
        error = (x.double() - y).abs().max() / y.abs().max().clamp(min=1)
        errors[name] = float(error) if bool(x.isfinite().all()) else math.inf
    return errors


def check_kernels(group: str, out: Path, rehearse: bool) -> None:
    """Compare the cases of a group in every dtype, and write one JSON line per case immediately."""
    import torch

    import tsallis

    device = "cpu" if rehearse else "cuda"
    with tsallis.backend("triton"), (out / f"kernels-{group}.jsonl").open("w", encoding="utf-8") as stream:
        for dtype in DTYPES[:1] if rehearse else DTYPES:
            for case in cases(group, rehearse):
                start = time.perf_counter()
                row: dict[str, object] = {"group": group, "case": case.name, "dtype": dtype, "limit": VALUE[dtype]}
                try:
                    errors = compare(case, device, dtype)
                    if not rehearse:
                        torch.cuda.synchronize()
                    worst = max(errors, key=lambda name: errors[name])
                    row |= {"error": errors[worst], "in": worst, "right": errors[worst] <= VALUE[dtype]}
                except Exception as error:  # any error: the other cases must still be compared
                    message = " ".join(str(error).split())
                    row |= {"error": None, "in": f"{type(error).__name__}: {message}"[:200], "right": False}
                row["seconds"] = round(time.perf_counter() - start, 2)
                print(json.dumps(row), file=stream, flush=True)


def describe_machine(out: Path) -> None:
    """Write the software versions and the model of the GPU."""
    from gpu import machine

    facts = {key: str(value) for key, value in machine().items()}
    (out / "machine.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def child(*arguments: str, rehearse: bool) -> list[str]:
    """Return the command that runs a stage of this script."""
    return [sys.executable, str(Path(__file__).resolve()), *arguments, *(["--rehearse"] if rehearse else [])]


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
        sizes = {
            "maps": [
                "--sizes",
                "64",
                "--classes",
                "64",
                "--scores",
                "256",
                "--dtypes",
                "bfloat16",
                "--inputs",
                "normal",
            ],
            "linear": ["--shapes", "16x16x64", "--inputs", "trained"],
            "attention": ["--groups", "accuracy", "--quick"],
        }
        return {
            name: [*start, f"gpu_{name}.py", *sizes[name], "--rounds", "1", "--out", f"{out}/{name}.csv"]
            for name in sizes
        }
    full = {
        "maps": "--sizes 2048 32768 131072 --classes 131072 --inputs normal --peer-sizes 2048 --rounds 8",
        "linear": "--shapes 8192x1024x128000 --inputs trained --rounds 5",
        "attention": "--groups long decode --quick --lengths 8192 32768",
    }
    return {
        name: [sys.executable, str(ROOT / f"benchmarks/gpu_{name}.py"), *options.split(), "--out", f"{out}/{name}.csv"]
        for name, options in full.items()
    }


def run_together(commands: dict[str, list[str]], out: Path, limit: float) -> dict[str, str]:
    """Run commands at the same time, kill those that exceed the time limit, and return how each one ended."""
    paths = [str(ROOT / "src"), str(TESTS), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    start = time.monotonic()
    processes = {}
    for name, command in commands.items():
        with (out / f"{name}.log").open("w", encoding="utf-8") as log:
            processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
            )
    result = {}
    for name, process in processes.items():
        try:
            status = process.wait(max(0.0, limit - (time.monotonic() - start)))
            result[name] = "ended" if status == 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest then writes its results so far
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            result[name] = f"killed after {limit:.0f} s"
    return result


def collect_kernels(out: Path) -> None:
    """Collect the finished comparisons in `kernels.csv`, with a description of the machine."""
    from common import write

    machine = out / "machine.json"
    facts = json.loads(machine.read_text(encoding="utf-8")) if machine.exists() else {}
    paths = [path for group in GROUPS if (path := out / f"kernels-{group}.jsonl").exists()]
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    write(out / "kernels.csv", [{**row, **facts} for row in rows])


def summarize(out: Path, ended: dict[str, str]) -> list[str]:
    """Return a table of the results, from the existing files."""
    lines = []
    if (out / "machine.json").exists():
        facts = json.loads((out / "machine.json").read_text(encoding="utf-8"))
        lines.append(", ".join(f"{key} {value}" for key, value in facts.items() if value))
    lines.append("; ".join(f"{name}: {how}" for name, how in ended.items()))
    lines += [*_summarize_kernels(out), *_summarize_tests(out), *_summarize_rows(out)]
    return [line[:200] for line in lines[:LINES]]


def _summarize_kernels(out: Path) -> list[str]:
    lines, wrong = [], []
    for group in GROUPS:
        path = out / f"kernels-{group}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        if not rows:
            lines.append(f"kernels {group}: no result")
            continue
        right = sum(row["right"] for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        lines.append(f"kernels {group}: {right} of {len(rows)} right, {seconds:.0f} s")
        wrong += [f"  WRONG {r['case']} {r['dtype']}: {r['error']} in {r['in']}" for r in rows if not r["right"]]
    return [*lines, *wrong[:12]]


def _summarize_tests(out: Path) -> list[str]:
    path = out / "tests.xml"
    if not path.exists():
        return ["tests: no result (see tests.log)"]
    found = list(ElementTree.parse(path).iter("testcase"))
    failed = [case for case in found if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in found)
    names = [f"  FAILED {case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in failed]
    return [f"tests: {len(found) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped", *names[:8]]


def _summarize_rows(out: Path) -> list[str]:
    lines = []
    for name, columns in {
        "maps": ("dtype", "d", "operation", "owner", "ms", "to_dense", "share"),
        "linear": ("shape", "operation", "owner", "ms", "time_ratio", "memory_ratio"),
        "attention": ("shape", "owner", "alpha", "forward_ms", "both_ms", "peak_mb"),
    }.items():
        path = out / f"{name}.csv"
        if not path.exists():
            lines.append(f"rows {name}: no result")
            continue
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        lines.append(f"rows {name}: {len(rows)}; " + " ".join(columns))
        lines += ["  " + " ".join(_short(row[column]) for column in columns) for row in rows[:9]]
    return lines


def _short(text: str) -> str:
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--rehearse", action="store_true", help="run tiny sizes on the CPU, with Triton's interpreter")
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # only for child processes
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.stage == "machine":
        return describe_machine(out)
    if arguments.stage:
        return check_kernels(arguments.stage, out, arguments.rehearse)
    if not arguments.rehearse:
        from gpu import require_gpu

        require_gpu()
    rehearse: bool = arguments.rehearse
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    stages = [
        (LIMITS["machine"], {"machine": child("--stage=machine", f"--out={out}", rehearse=rehearse)}),
        (
            LIMITS["kernels"],
            {
                **{f"kernels-{g}": child(f"--stage={g}", f"--out={out}", rehearse=rehearse) for g in GROUPS},
                "tests": test_command(out, rehearse),
            },
        ),
    ]
    ended: dict[str, str] = {}
    slowness = 5 if rehearse else 1  # a busy CPU needs longer limits
    for limit, commands in stages:
        ended |= run_together(commands, out, limit * slowness)
        collect_kernels(out)
        (out / "summary.txt").write_text("\n".join(summarize(out, ended)) + "\n", encoding="utf-8")
    for name, command in row_commands(out, rehearse).items():  # not at the same time: they are timed
        ended |= run_together({name: command}, out, LIMITS[name] * slowness)
        (out / "summary.txt").write_text("\n".join(summarize(out, ended)) + "\n", encoding="utf-8")
    print(*summarize(out, ended), sep="\n")


if __name__ == "__main__":
    main()
