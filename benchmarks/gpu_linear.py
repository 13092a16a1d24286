"""Compare `linear_entmax_loss` on a GPU with `F.linear` and `F.cross_entropy`: an output layer with its loss.

    python benchmarks/gpu_linear.py --out benchmarks/results/linear-gpu.csv

Forward and backward are measured in bfloat16, with gradients of hidden states and weight. Time: all candidates run in
one process, in a different order each round. Memory: the peak of one run, with and without its gradients. Candidates
that are not installed or fail are skipped with a note. At the end, the script prints which targets are met.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Row, verdict, write
from gpu import Case, Report, interleaved, machine, peak, peer, require_gpu
from torch import Tensor

import tsallis
from tsallis.ops.autograd import linear_chunks

SHAPES = ("8192x1024x128000", "8192x4096x128000", "16384x1024x128000", "16384x4096x128000")
INPUTS = {"trained": (1.0, 5.0), "flat": (0.1, 0.0)}  # deviation of the scores, and advantage of the target's score
DENSE = "cross-entropy"  # the baseline of all ratios
COMPILED = "cross-entropy-compiled"
MEMORY, TIMES = 8, {"trained": 0.7, "flat": 1.3}  # targets: minimum memory ratio, maximum time ratios
COLUMNS = ("shape", "input", "operation", "owner", "ms", "time_ratio", "extra_mb", "memory_ratio", "support")
SAMPLE = 64  # number of tokens for the mean support size

Loss = Callable[[Tensor, Tensor], Tensor]


def tensors(name: str, tokens: int, d: int, classes: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Create hidden states, weight and target; scores are N(0, deviation^2), the target's score is higher."""
    generator = torch.Generator(device).manual_seed(0)
    deviation, lead = INPUTS[name]
    weight = torch.randn(classes, d, generator=generator, device=device, dtype=torch.bfloat16).div_(d**0.5)
    target = torch.randint(classes, (tokens,), generator=generator, device=device)
    hidden = torch.randn(tokens, d, generator=generator, device=device, dtype=torch.bfloat16).mul_(deviation)
    if lead:
        hidden.add_(weight[target], alpha=lead)
    return hidden.requires_grad_(), weight.requires_grad_(), target


@contextmanager
def one_pass(enabled: bool) -> Iterator[None]:
    """Set whether alpha-ReLU may use one pass, without a buffer of scores."""
    before, linear_chunks.ONE_PASS = linear_chunks.ONE_PASS, enabled
    try:
        yield
    finally:
        linear_chunks.ONE_PASS = before


def losses(target: Tensor, tau: float) -> dict[str, tuple[str, Loss]]:
    """Return the owner of each loss, and the loss as a function of hidden states and weight."""

    def both(loss: Callable[..., Tensor]) -> Loss:
        return lambda h, w: loss(F.linear(h, w), target)

    def relu(expected: bool) -> Loss:
        def loss(h: Tensor, w: Tensor) -> Tensor:
            with one_pass(expected):
                return tsallis.linear_alpha_relu_loss(h, w, target, 1.5, tau)

        return loss

    def fused(h: Tensor, w: Tensor, alpha: float) -> Tensor:
        return tsallis.linear_entmax_loss(h, w, target, alpha)

    result: dict[str, tuple[str, Loss]] = {
        DENSE: ("torch", both(F.cross_entropy)),
        COMPILED: ("torch", lambda h, w: _compiled()(h, w, target)),
        "entmax-loss-1.5": ("tsallis", both(partial(tsallis.entmax_loss, alpha=1.5))),
        **{f"linear-entmax-loss-{a}": ("tsallis", partial(fused, alpha=a)) for a in (1.5, 2.0, 1.25)},
        "linear-alpha-relu-loss-one-pass": ("tsallis", relu(True)),
        "linear-alpha-relu-loss-chunks": ("tsallis", relu(False)),
    }
    if hasattr(F, "linear_cross_entropy"):  # missing in the oldest supported PyTorch
        chunked = partial(F.linear_cross_entropy, options=torch.nn.LinearCrossEntropyOptions())
        result["linear-cross-entropy"] = ("torch", lambda h, w: chunked(h, w, target))
    liger = peer("liger_kernel.ops.fused_linear_cross_entropy")
    if liger is not None:
        function = liger.LigerFusedLinearCrossEntropyFunction
        result["fused-cross-entropy"] = ("liger-kernel", lambda h, w: _first(function.apply(h, w, target)))
    return result


@cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Compile cross-entropy, separately for each shape."""

    def loss(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight), target)

    return torch.compile(loss, dynamic=False)


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@torch.no_grad()
def support(operation: str, hidden: Tensor, weight: Tensor, tau: float) -> float | str:
    """Return the mean number of classes with a non-zero probability or alpha-ReLU value, over some tokens."""
    scores = F.linear(hidden[:SAMPLE], weight).float()
    if "relu" in operation:
        return float((scores * 0.5 > tau).sum(-1).float().mean())
    if "entmax" in operation:
        return float((tsallis.entmax(scores, float(operation.rsplit("-", 1)[1])) > 0).sum(-1).float().mean())
    return ""


def measure(shape: str, name: str, rounds: int, compiled: bool = True) -> list[Row]:
    """Measure all candidates on one shape and input; return their rows."""
    tokens, d, classes = map(int, shape.split("x"))
    hidden, weight, target = tensors(name, tokens, d, classes)
    with torch.no_grad():
        tau = tsallis.estimate_tau_from_scores(F.linear(hidden[:16], weight))
    saved = sum(x.numel() * x.element_size() for x in (hidden, weight))  # bytes of the gradients

    def run(loss: Loss) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(hidden, weight), (hidden, weight))

    every = losses(target, tau)
    cases = [Case(n, owner, partial(run, loss)) for n, (owner, loss) in every.items() if compiled or n != COMPILED]
    times = interleaved(cases, rounds)
    rows: list[Row] = []
    for case in cases:
        if case.name not in times:
            continue
        each, extra = times[case.name], peak(case.run) - saved
        rows.append(
            {
                "shape": shape,
                "input": name,
                "operation": case.name,
                "owner": case.owner,
                "ms": statistics.median(each),
                "fastest_ms": min(each),
                "slowest_ms": max(each),
                "time_ratio": "",
                "peak_mb": (extra + saved) / 1e6,
                "extra_mb": extra / 1e6,
                "memory_ratio": "",
                "tau": tau if "relu" in case.name else "",
                "support": support(case.name, hidden, weight, tau),
                "rounds": len(each),
                **machine(),
            }
        )
    dense = next((row for row in rows if row["operation"] == DENSE), None)
    for row in rows if dense is not None else []:
        row["time_ratio"] = row["ms"] / dense["ms"]
        row["memory_ratio"] = dense["extra_mb"] / max(row["extra_mb"], 1e-6)
    return rows


def verdicts(measured: list[Row]) -> list[str]:
    """Return lines that say which of the project's targets are met."""

    def values(column: str, name: str | None = None) -> dict[str, float]:
        return {
            f"{r['operation']} {r['shape']} {r['input']}": r[column]
            for r in measured
            if r["operation"].startswith("linear") and r[column] != "" and name in (None, r["input"])
        }

    lines = verdict(f"memory of {DENSE}, beyond the gradients / ours", MEMORY, values("memory_ratio"), at_least=True)
    for name, bound in TIMES.items():
        lines += verdict(f"time / {DENSE}, {name}", bound, values("time_ratio", name))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), help="tokens x d x classes (default: %(default)s)")
    parser.add_argument("--inputs", nargs="*", choices=list(INPUTS), default=list(INPUTS), help="inputs; default: both")
    parser.add_argument("--rounds", type=int, default=30, help="number of rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only the smallest shape, five rounds, no torch.compile")
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    require_gpu()
    shapes, rounds = (arguments.shapes[:1], 5) if arguments.quick else (arguments.shapes, arguments.rounds)
    measured: list[Row] = []
    report = Report(COLUMNS)
    for shape in shapes:
        for name in arguments.inputs:
            print(shape, name, file=sys.stderr)
            measured += (new := measure(shape, name, rounds, compiled=not arguments.quick))
            write(arguments.out, measured)
            report.show(new)
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
