"""Compare probability functions on a GPU with `torch.softmax` and `adasplash`, and losses with cross-entropy.

    python benchmarks/gpu_maps.py --out maps-gpu.csv --accuracy maps-accuracy-gpu.csv

Forward and backward of about 2**28 scores are measured, with interleaved cases and flushed caches. `bandwidth` counts
the bytes that must be read and written (probability functions: scores, probabilities twice, both gradients; losses:
scores twice, their gradient). `share` divides it by the bandwidth of a copy on the device. Quote ratios, not
milliseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from common import Row, verdict, write
from gpu import Case, Report, bandwidth, exit_if_broken, interleaved, machine, medians, peer, require_gpu
from torch import Tensor

import tsallis
from tsallis.ops import choice, reference

SCORES = 1 << 28
SIZES = [512, 2048, 8192, 32768, 131072]
CLASSES = [32768, 65536, 131072]
INPUTS = {"normal": 1.0, "normal3": 3.0, "peaked": 10.0}
PEER_SIZES = [2048, 32768]  # adasplash compiles about thirty kernels per size
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CHECKED = 1 << 21  # number of scores to compare with the float64 reference
CHECKED_ROWS = 140  # minimum number of rows: the kernels split fewer rows, and would not be those that were timed
COLUMNS = ("group", "dtype", "d", "input", "operation", "owner", "ms", "to_dense", "share")

softmax = partial(torch.softmax, dim=-1)


def both(call: Callable[..., Tensor], leaves: tuple[Tensor, ...], upstream: Tensor | None) -> Callable[[], object]:
    """Return a function that runs forward and backward and keeps no tensors."""

    def run() -> None:
        call(*leaves).backward(upstream)
        for leaf in leaves:
            leaf.grad = None

    return run


def scores_of(rows: int, d: int, name: str, dtype: torch.dtype) -> Tensor:
    scores = torch.empty(rows, d, device="cuda", dtype=dtype).normal_(0, INPUTS[name])
    return scores.requires_grad_()


Calls = dict[tuple[str, str], tuple[Callable[..., Tensor], tuple[Tensor, ...], float | Tensor]]


def map_calls(scores: Tensor, adasplash: ModuleType | None) -> Calls:
    """Return the probability functions to time, each with the tensors that need gradients, and its alpha."""
    rows = len(scores)
    alphas = torch.linspace(1.05, 1.95, rows, device="cuda").view(-1, 1).requires_grad_()
    one = (scores,)
    result: Calls = {
        ("softmax", "torch"): (softmax, one, 1.0),
        ("entmax15", "tsallis"): (tsallis.entmax15, one, 1.5),
        ("sparsemax", "tsallis"): (tsallis.sparsemax, one, 2.0),
        ("entmax-1.25", "tsallis"): (partial(tsallis.entmax, alpha=1.25), one, 1.25),
        ("entmax-1.75", "tsallis"): (partial(tsallis.entmax, alpha=1.75), one, 1.75),
        ("entmax-learned", "tsallis"): (tsallis.entmax, (scores, alphas), alphas),
    }
    if adasplash is not None:
        result[("entmax15", "adasplash")] = (partial(adasplash.triton_entmax, alpha=1.5), one, 1.5)
    return result


def loss_calls(scores: Tensor, target: Tensor) -> Calls:
    one = (scores,)
    result: Calls = {("cross-entropy", "torch"): (partial(F.cross_entropy, target=target), one, 1.0)}
    for alpha in (1.25, 1.5, 2.0):
        ours = partial(tsallis.entmax_loss, target=target, alpha=alpha)
        result[(f"entmax-loss-{alpha}", "tsallis")] = (ours, one, alpha)
    tau = tsallis.estimate_tau_from_scores(scores.detach()[:64].float())
    relu = partial(tsallis.alpha_relu_loss, target=target, tau=tau)
    result[("alpha-relu-loss", "tsallis")] = (relu, one, 1.5)
    return result


def measured(location: Row, calls: Calls, upstream: Tensor | None, moved: int, copy: float, rounds: int) -> list[Row]:
    """Time the cases and return their rows; `moved` is the minimum number of bytes to read and write."""
    cases = {key: Case(" ".join(key), key[1], both(call, leaves, upstream)) for key, (call, leaves, _) in calls.items()}
    times = medians(interleaved(list(cases.values()), rounds))
    dense = next(times.get(case.name) for key, case in cases.items() if key[1] == "torch")
    rows = []
    for (operation, owner), case in cases.items():
        ms = times.get(case.name)
        ours = times.get(f"{operation} tsallis")
        speed = "" if ms is None else moved / (ms * 1e-3)
        rows.append(
            {
                **location,
                "operation": operation,
                "owner": owner,
                "ms": "" if ms is None else ms,
                "to_dense": "" if ms is None or dense is None else ms / dense,
                "to_ours": ms / ours
                if ms is not None and ours is not None and owner not in ("torch", "tsallis")
                else "",
                "bandwidth": speed,
                "share": "" if ms is None else float(speed) / copy,
                "rounds": rounds,
                "error": case.error,
                **machine(),
            }
        )
    return rows


@torch.no_grad()
def accuracy(columns: Row, calls: Calls) -> list[Row]:
    """Return the largest errors of probabilities and of their sums against float64, over some rows."""
    rows = []
    for (operation, owner), (call, leaves, alpha) in calls.items():
        some = max(CHECKED_ROWS, CHECKED // leaves[0].shape[-1])
        inputs = [x[:some] for x in leaves]
        try:
            result = call(*inputs).double()
        except Exception as error:  # a peer's error: already printed when it was timed
            print(f"no accuracy of {operation} ({owner}): {type(error).__name__}", file=sys.stderr)
            exit_if_broken()
            continue
        exact = reference.entmax(inputs[0], alpha[:some] if isinstance(alpha, Tensor) else alpha)
        errors = {"error": (result - exact).abs().max().item(), "sum_error": (result.sum(-1) - 1).abs().max().item()}
        rows.append({**columns, "operation": operation, "owner": owner, "rows": len(inputs[0]), **errors, **machine()})
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    def values(column: str, chosen: Callable[[Row], Any]) -> dict[str, float]:
        picked = [row for row in rows if row[column] != "" and chosen(row)]
        return {f"{r['owner']} {r['operation']} {r['dtype']} {r['d']} {r['input']}": r[column] for r in picked}

    maps = values("to_dense", lambda r: r["group"] == "maps" and r["owner"] == "tsallis")
    losses = values("to_dense", lambda r: r["group"] == "losses" and r["owner"] == "tsallis")
    theirs = values("to_ours", lambda r: r["owner"] == "adasplash")
    return [
        *verdict("maps / softmax", 1.3, maps),
        *verdict("adasplash / maps", 1.0, theirs, at_least=True),
        *verdict("losses / cross-entropy", 0.7, losses),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="row sizes of functions; skipped if empty")
    parser.add_argument("--peer-sizes", type=int, nargs="*", default=PEER_SIZES, help="row sizes for adasplash")
    parser.add_argument(
        "--classes", type=int, nargs="*", default=CLASSES, help="numbers of classes of the losses; skipped if empty"
    )
    parser.add_argument("--inputs", nargs="*", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=list(DTYPES), help="dtypes of the functions")
    parser.add_argument("--scores", type=int, default=SCORES, help="total number of scores (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run only a few shapes and rounds, as a check")
    parser.add_argument("--no-peer", action="store_true", help="do not measure adasplash")
    parser.add_argument("--out", type=Path, help="output file of the times (CSV)")
    parser.add_argument("--accuracy", type=Path, help="also measure errors, and write them to this CSV file")
    arguments = parser.parse_args()
    require_gpu()
    if arguments.quick:
        arguments.sizes, arguments.classes = arguments.sizes[1::3], arguments.classes[:1]
        arguments.inputs, arguments.rounds, arguments.scores = arguments.inputs[:1], 5, min(arguments.scores, 1 << 26)
        arguments.dtypes, arguments.peer_sizes = arguments.dtypes[:1], []
    print(f"tsallis on {choice.explain_gpu()}", file=sys.stderr)
    copy = bandwidth()
    print(f"a copy on the device moves {copy / 1e12:.3g} TB/s", file=sys.stderr)
    adasplash = None if arguments.no_peer else peer("adasplash")
    rows: list[Row] = []
    errors: list[Row] = []
    report = Report(COLUMNS)
    for dtype in arguments.dtypes:
        for d in arguments.sizes:
            for name in arguments.inputs:
                columns: Row = {"group": "maps", "dtype": dtype, "d": d, "rows": arguments.scores // d, "input": name}
                print(*columns.values(), file=sys.stderr)
                scores = scores_of(columns["rows"], d, name, DTYPES[dtype])
                calls = map_calls(scores, adasplash if d in arguments.peer_sizes else None)
                upstream = torch.randn(scores.shape, device="cuda", dtype=scores.dtype)
                rows += (new := measured(columns, calls, upstream, 5 * scores.nbytes, copy, arguments.rounds))
                write(arguments.out, rows)
                report.show(new)
                if arguments.accuracy:
                    errors += accuracy({k: v for k, v in columns.items() if k != "rows"}, calls)
                    write(arguments.accuracy, errors)
                del scores, calls, upstream
    for d in arguments.classes:
        for name in arguments.inputs:
            columns = {"group": "losses", "dtype": "bfloat16", "d": d, "rows": arguments.scores // d, "input": name}
            print(*columns.values(), file=sys.stderr)
            scores = scores_of(columns["rows"], d, name, torch.bfloat16)
            target = torch.randint(d, (columns["rows"],), device="cuda")
            if name == "peaked":
                target = scores.detach().argmax(-1)
            calls = loss_calls(scores, target)
            rows += (new := measured(columns, calls, None, 3 * scores.nbytes, copy, arguments.rounds))
            write(arguments.out, rows)
            report.show(new)
            del scores, calls, target
    print("", *verdicts(rows), sep="\n")


if __name__ == "__main__":
    main()
