"""Compare `linear_entmax_loss` with `F.linear` and `F.cross_entropy`: an output layer with its loss.

    python benchmarks/linear.py --out benchmarks/results/linear-cpu.csv

Forward and backward are measured, with gradients of hidden states, weight and bias. Time: all candidates run in one
process, in a different order each round. Memory: one process per candidate; the growth of its peak is measured. At the
end, the script prints the ratios and which of the project's targets are met.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import Candidate, Row, announce, interleave, machine, table, verdict, write
from torch import Tensor

import tsallis

INPUTS = ("untrained", "trained")
COLUMNS = ("classes", "input", "operation", "seconds", "time_ratio", "hard_time_ratio", "extra_mb", "hard_extra_ratio")
CHUNK = 256  # number of tokens to process at once outside the timed code

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def tensors(name: str, tokens: int, d: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Create hidden states, weight, bias and target, in place to avoid temporary copies that would raise the peak."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, d, generator=generator).div_(d**0.5)
    target = torch.randint(classes, (tokens,), generator=generator)
    hidden = torch.randn(tokens, d, generator=generator)
    if name == "trained":  # the target's score is about 8, all others are N(0, 0.6^2)
        for chunk, classes_ in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True):
            chunk.mul_(0.5).add_(weight[classes_], alpha=8)
    return hidden, weight, torch.zeros(classes), target


def losses(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> dict[str, tuple[str, Loss]]:
    """Return the owner of each loss, and the loss as a function of hidden states, weight and bias."""

    def both(loss: Callable[..., Tensor], y: Any = target) -> Loss:
        return lambda h, w, b: loss(F.linear(h, w, b), y)

    def fused(alpha: float, y: Any = target) -> Loss:
        return lambda h, w, b: tsallis.linear_entmax_loss(h, w, y, alpha, bias=b)

    def relu(tau: float) -> Loss:
        return lambda h, w, b: tsallis.linear_alpha_relu_loss(h, w, target, 1.5, tau, bias=b)

    def peer(options: Any) -> Loss:
        return lambda h, w, b: F.linear_cross_entropy(h, w, target, linear_bias=b, options=options)

    formula, data = thresholds(hidden, weight, bias)
    rows = sparse_rows(target, len(weight))
    new = hasattr(F, "linear_cross_entropy")  # missing in the oldest supported PyTorch
    peers = {"": None, "-chunked": torch.nn.LinearCrossEntropyOptions()} if new else {}
    return {
        "cross-entropy": ("torch", both(F.cross_entropy)),
        **{f"linear-cross-entropy{end}": ("torch", peer(options)) for end, options in peers.items()},
        **{f"entmax-loss-{a}": ("tsallis", both(partial(tsallis.entmax_loss, alpha=a))) for a in (1.5, 2.0)},
        **{f"linear-entmax-loss-{a}": ("tsallis", fused(a)) for a in (1.5, 2.0, 1.25)},
        **{f"linear-entmax-loss-sparse-{a}": ("tsallis", fused(a, rows)) for a in (1.5, 2.0)},
        **{
            f"entmax-loss-sparse-{a}": ("tsallis", both(partial(tsallis.entmax_loss, alpha=a), rows))
            for a in (1.5, 2.0)
        },
        "linear-alpha-relu-loss": ("tsallis", relu(formula)),
        "linear-alpha-relu-loss-data": ("tsallis", relu(data)),
    }


def sparse_rows(target: Tensor, classes: int, entries: int = 8) -> tsallis.SparseRows:
    """Create a teacher's distributions: the target has 0.65, the following classes have 0.05 each."""
    indices = (target.unsqueeze(-1) + torch.arange(entries)) % classes
    probs = torch.full(indices.shape, 0.35 / (entries - 1))
    probs[:, 0] = 0.65
    return tsallis.SparseRows(indices.flatten(), probs.flatten(), torch.arange(len(target) + 1) * entries)


def thresholds(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, float]:
    """Return tau of alpha-ReLU, estimated from the layer's sizes, and from the scores of a few tokens."""
    classes, d = weight.shape
    return tsallis.estimate_tau(d, classes), tsallis.estimate_tau_from_scores(F.linear(hidden[:16], weight, bias))


@torch.no_grad()
def support(operation: str, hidden: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Return the mean number of classes with a non-zero probability or alpha-ReLU value."""
    formula, data = thresholds(hidden, weight, bias)
    count = 0
    for chunk in hidden.split(CHUNK):
        scores = F.linear(chunk, weight, bias)
        if "cross-entropy" in operation:
            values = scores.softmax(-1)
        elif "relu" in operation:
            values = scores.mul(0.5).sub_(data if operation.endswith("data") else formula)
        else:
            values = tsallis.entmax(scores, float(operation.rsplit("-", 1)[1]))
        count += int((values > 0).sum())
    return count / len(hidden)


def resident() -> int:
    """Return the resident memory of this process in bytes, or its peak if /proc is not available."""
    if Path("/proc/self/statm").exists():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return peak()


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def extra(operation: str, name: str, sizes: tuple[int, int, int], seed: int) -> int:
    """Return by how many bytes one run of a candidate, with its gradients, raises this process's peak memory."""
    # Run a tiny layer first, so that one-time costs such as threads don't count.
    for layer in ((4, 8, 64), sizes):
        *leaves, target = tensors(name, *layer, seed)
        _, loss = losses(leaves[0], leaves[1], leaves[2], target)[operation]
        candidate = Candidate(operation, "", loss, tuple(leaves))
        before = resident()
        candidate.run()
    return peak() - before


def extra_of_a_process(operation: str, classes: int, name: str, arguments: argparse.Namespace) -> int:
    """Run `extra` in a new process."""
    sizes = [f"--{size}={getattr(arguments, size)}" for size in ("tokens", "d", "threads", "seed")]
    command = [sys.executable, __file__, "--memory", operation, "--inputs", name, f"--classes={classes}", *sizes]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(name: str, sizes: tuple[int, int, int], memory: dict[str, int], rounds: int, seed: int) -> list[Row]:
    """Time the candidates whose memory has been measured, and return their rows."""
    *leaves, target = tensors(name, *sizes, seed)
    hidden, weight, bias = leaves
    saved = sum(x.numel() * x.element_size() for x in leaves)  # bytes of the gradients
    result = [
        Candidate(operation, owner, loss, (hidden, weight, bias))
        for operation, (owner, loss) in losses(hidden, weight, bias, target).items()
        if operation in memory
    ]
    interleave(result, rounds, rounds, seed)
    formula, data = thresholds(hidden, weight, bias)
    dense_time, dense_memory = result[0].medians(), memory["cross-entropy"]
    by_name = {candidate.operation: candidate for candidate in result}
    rows = []
    for candidate in result:
        forward, both = candidate.medians()
        bytes_ = memory[candidate.operation]
        hard = by_name.get(candidate.operation.replace("sparse-", ""), candidate)  # the same loss with class targets
        tau = data if candidate.operation.endswith("data") else formula
        rows.append(
            {
                **dict(zip(("tokens", "d", "classes"), sizes, strict=True)),
                "input": name,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "tau": tau if "relu" in candidate.operation else "",
                "forward_seconds": forward,
                "seconds": both,
                "time_ratio": both / dense_time[1],
                "hard_time_ratio": both / hard.medians()[1],
                "hard_extra_ratio": bytes_ / max(memory[hard.operation], 1),
                "extra_mb": bytes_ / 1e6,
                "extra_ratio": dense_memory / max(bytes_, 1),
                "extra_without_gradients_mb": (bytes_ - saved) / 1e6,
                "extra_without_gradients_ratio": (dense_memory - saved) / max(bytes_ - saved, 1),
                "support": support(candidate.operation, hidden, weight, bias),
                "rounds": len(candidate.both),
                "backend": candidate.backend(),
                **machine(),
            }
        )
    return rows


def verdicts(measured: list[Row]) -> list[str]:
    """Return lines that say which of the project's targets are met."""

    def values(column: str, *operations: str) -> dict[str, float]:
        return {
            f"{r['operation']} {r['input']} {r['classes']}": r[column] for r in measured if r["operation"] in operations
        }

    sparse = ("linear-entmax-loss-1.5", "linear-entmax-loss-2.0")
    fused = tuple({r["operation"] for r in measured if r["operation"].startswith("linear") and r["owner"] == "tsallis"})
    targets = tuple({r["operation"] for r in measured if "sparse" in r["operation"]})
    with_, without = "cross-entropy's extra memory / ours", "the same, without the gradients"
    return [
        *verdict("time / linear and cross-entropy, 1.5 and 2", 0.4, values("time_ratio", *sparse)),
        *verdict("time / the same loss of classes", 1.15, values("hard_time_ratio", *targets)),
        *verdict("memory / the same loss of classes", 1.15, values("hard_extra_ratio", *targets)),
        *verdict(f"{with_}", 15, values("extra_ratio", *fused), at_least=True),
        *verdict(f"{without}", 15, values("extra_without_gradients_ratio", *fused), at_least=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096, help="number of tokens (default: %(default)s)")
    parser.add_argument("--d", type=int, default=512, help="size of the hidden state (default: %(default)s)")
    parser.add_argument("--classes", type=int, nargs="*", default=[32000], help="numbers of classes (default: 32000)")
    parser.add_argument("--inputs", nargs="*", choices=INPUTS, default=list(INPUTS), help="inputs (default: both)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of tensors and orders (default: %(default)s)")
    parser.add_argument("--operations", nargs="*", help="operations to add to cross-entropy (default: all)")
    parser.add_argument("--memory", metavar="OPERATION", help="only print the extra bytes of one run of this candidate")
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        sizes = arguments.tokens, arguments.d, arguments.classes[0]
        print(extra(arguments.memory, arguments.inputs[0], sizes, arguments.seed))
        return
    announce()
    # Measure memory first: the peak of a child process starts at its parent's size.
    known = list(losses(*tensors("untrained", 4, 8, 64, 0)))
    if unknown := set(arguments.operations or ()) - set(known):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    operations = [o for o in known if not arguments.operations or o in ("cross-entropy", *arguments.operations)]
    cases = [(classes, name) for classes in arguments.classes for name in arguments.inputs]
    memory = {case: {o: extra_of_a_process(o, *case, arguments) for o in operations} for case in cases}
    measured: list[Row] = []
    for classes, name in cases:
        print(name, classes, file=sys.stderr)
        sizes = arguments.tokens, arguments.d, classes
        measured += measure(name, sizes, memory[classes, name], arguments.rounds, arguments.seed)
        write(arguments.out, measured)
    print(table(measured, COLUMNS))
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
