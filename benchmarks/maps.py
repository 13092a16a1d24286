"""Compare the activations and losses of tsallis with PyTorch's softmax and cross-entropy and with PyPI `entmax`.

    python benchmarks/maps.py --out benchmarks/results/maps-cpu.csv --accuracy benchmarks/results/maps-accuracy-cpu.csv

All functions run in one process. In each round, every function runs forward and backward once, in a random order. The
CSV file has one row per function with its median times, their ratios to PyTorch's, versions and hardware. At the end,
the script prints the ratios and which of the project's targets are met. Quote ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import MEMORY, Candidate, Row, announce, interleave, machine, settle_memory, table, verdict, write
from torch import Tensor

import tsallis
from tsallis.ops import reference

INPUTS = {"normal": 1.0, "normal3": 3.0, "peaked": 10.0}
MAPS = ["25600x50", "8192x128", "4096x512", "8192x2048", "1024x10000", "512x32000", "256x60000"]
LEARNED = ["8x8x128x128", "64x8x50x50", "8x8x64x512", "4x8x256x2048"]
LOSSES = ["1024x10000", "512x32000", "256x60000", "64x128000"]
ALPHAS = (1.05, 1.1, 1.25, 1.3, 1.4, 1.75)
LOSS_ALPHAS = (1.0, 1.05, 1.15, 1.25, 1.3, 1.5, 1.75, 2.0)
SORTED, BISECTED = 4_000_000, 1_000_000  # maximum number of scores for the slow functions of PyPI entmax
CHECKED = 120_000  # number of scores used to measure the accuracy
COLUMNS = ("shape", "input", "operation", "owner", "forward_to_dense", "both_to_dense", "both_to_ours")

softmax = partial(torch.softmax, dim=-1)


def eager15(scores: Tensor) -> Tensor:
    with tsallis.backend("eager"):
        return tsallis.entmax15(scores)


def fewer(x: Tensor, limit: int) -> Tensor:
    """Return the first rows along dimension -2, so that about `limit` elements remain."""
    return x.narrow(-2, 0, max(1, min(x.shape[-2], x.shape[-2] * limit // x.numel()))).clone()


def maps(scores: Tensor, upstream: Tensor, peer: Any) -> list[Candidate]:
    inputs: dict[str, Any] = {"leaves": (scores,), "upstream": upstream}
    half: dict[str, Any] = {"leaves": (scores.bfloat16(),), "upstream": upstream.bfloat16(), "dense": "softmax-bf16"}
    result = [
        Candidate("softmax", "torch", softmax, **inputs),
        Candidate("softmax-bf16", "torch", softmax, **half),
        Candidate("entmax15", "tsallis", tsallis.entmax15, alpha=1.5, **inputs),
        Candidate("entmax15-bf16", "tsallis", tsallis.entmax15, alpha=1.5, **half),
        Candidate("sparsemax", "tsallis", tsallis.sparsemax, alpha=2.0, **inputs),
        *(Candidate(f"entmax-{a}", "tsallis", partial(tsallis.entmax, alpha=a), alpha=a, **inputs) for a in ALPHAS),
        Candidate("entmax15", "tsallis eager", eager15, alpha=1.5, few=True, **inputs),
    ]
    if peer:
        for name, alpha in (("entmax15", 1.5), ("sparsemax", 2.0)):
            call = getattr(peer, name)
            result.append(slow(Candidate(name, "entmax", partial(call, dim=-1), alpha=alpha, **inputs), SORTED))
            if scores.shape[-1] > 100:
                top = Candidate(name, "entmax k=100", partial(call, dim=-1, k=100), alpha=alpha, few=True, **inputs)
                result.append(top)
        bisect = partial(peer.entmax_bisect, alpha=1.25)
        result.append(slow(Candidate("entmax-1.25", "entmax", bisect, alpha=1.25, **inputs), BISECTED))
    return result


def learned(scores: Tensor, upstream: Tensor, peer: Any) -> list[Candidate]:
    """Return the functions for attention scores [batch, heads, queries, keys] with one learned alpha per head."""
    alpha = torch.linspace(1.05, 1.95, scores.shape[1]).view(1, -1, 1, 1)
    inputs: dict[str, Any] = {"leaves": (scores, alpha), "upstream": upstream, "alpha": alpha}
    result = [
        Candidate("softmax", "torch", softmax, (scores,), upstream),
        Candidate("entmax-learned", "tsallis", tsallis.entmax, **inputs),
    ]
    if peer:
        result.append(slow(Candidate("entmax-learned", "entmax", peer.entmax_bisect, **inputs), BISECTED))
    return result


def losses(scores: Tensor, target: Tensor, peer: Any) -> list[Candidate]:
    def inputs(alpha: float, limit: int | None = None) -> dict[str, Any]:
        some = scores if limit is None else fewer(scores, limit)
        return {"leaves": (some,), "alpha": alpha, "dense": "cross-entropy", "scaled": len(scores) / len(some)}

    def mean(name: str, rows: int, *arguments: float) -> Callable[[Tensor], Tensor]:
        each, some = getattr(peer, name), target[:rows].clone()
        return lambda z: each(z, some, *arguments).mean()

    result = [Candidate("cross-entropy", "torch", partial(F.cross_entropy, target=target), **inputs(1.0))]
    for a in LOSS_ALPHAS:
        ours = partial(tsallis.entmax_loss, target=target, alpha=a)
        result.append(Candidate(f"entmax-loss-{a}", "tsallis", ours, **inputs(a)))
    if peer:
        for a, name in ((1.5, "entmax15_loss"), (2.0, "sparsemax_loss")):
            sort = inputs(a, SORTED)
            rows = len(sort["leaves"][0])
            result.append(Candidate(f"entmax-loss-{a}", "entmax", mean(name, rows), few=True, **sort))
            top = mean(name, len(scores), 100)
            result.append(Candidate(f"entmax-loss-{a}", "entmax k=100", top, few=True, **inputs(a)))
        bisect = inputs(1.25, BISECTED)
        call = mean("entmax_bisect_loss", len(bisect["leaves"][0]), 1.25)
        result.append(Candidate("entmax-loss-1.25", "entmax", call, few=True, **bisect))
    return result


def slow(candidate: Candidate, limit: int) -> Candidate:
    """Limit a slow function to few rounds and to fewer rows; its time is scaled up."""
    scores, *others = candidate.leaves
    some = fewer(scores, limit)
    candidate.leaves, candidate.few, candidate.scaled = (some, *others), True, scores.shape[-2] / some.shape[-2]
    if candidate.upstream is not None:
        candidate.upstream = candidate.upstream.narrow(-2, 0, some.shape[-2]).clone()
    return candidate


def build(group: str, shape: tuple[int, ...], name: str, peer: Any, seed: int) -> list[Candidate]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, generator=generator) * INPUTS[name]
    if group == "losses":
        target = torch.randint(shape[-1], shape[:-1], generator=generator)
        return losses(scores, scores.argmax(-1) if name == "peaked" else target, peer)
    upstream = torch.randn(*shape, generator=generator)
    return (maps if group == "maps" else learned)(scores, upstream, peer)


def rows(location: Row, actual: list[Candidate]) -> list[Row]:
    result = []
    for candidate in actual:
        forward, both = candidate.medians()
        dense = next(c for c in actual if c.operation == candidate.dense).medians()
        ours = [c for c in actual if c.operation == candidate.operation and c.owner == "tsallis"]
        compared = ours and candidate.owner.startswith("entmax")
        result.append(
            {
                **location,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "forward_ms": forward * 1e3,
                "both_ms": both * 1e3,
                "forward_to_dense": forward / dense[0],
                "both_to_dense": both / dense[1],
                "forward_to_ours": forward / ours[0].medians()[0] if compared else "",
                "both_to_ours": both / ours[0].medians()[1] if compared else "",
                "scaled": candidate.scaled,
                "rounds": len(candidate.both),
                "backend": candidate.backend(),
                **machine(),
            }
        )
    return result


@torch.no_grad()
def accuracy(columns: Row, candidates: list[Candidate]) -> list[Row]:
    """Return the largest error of a probability, against the float64 reference, and of a row's sum."""
    exact: dict[tuple[torch.dtype, str], Tensor] = {}
    result = []
    for candidate in candidates:
        scores, *others = candidate.leaves
        scores = fewer(scores, CHECKED)
        key = scores.dtype, str(candidate.alpha)
        if key not in exact:
            exact[key] = reference.entmax(scores, candidate.alpha)
        probs = candidate.call(scores, *others).double()
        result.append(
            {
                **columns,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "rows": scores.numel() // scores.shape[-1],
                "error": (probs - exact[key]).abs().max().item(),
                "sum_error": (probs.sum(-1) - 1).abs().max().item(),
                "backend": candidate.backend(),
                **machine(),
            }
        )
    return result


def verdicts(measured: list[Row]) -> list[str]:
    """Return one line per target of the project: whether the time of forward and backward meets it."""

    def values(column: str, chosen: Callable[[Row], bool], low: int = 0, high: float = math.inf) -> dict[str, float]:
        rows = [row for row in measured if low <= row["d"] < high and row[column] != "" and chosen(row)]
        return {f"{r['owner']} {r['operation']} {r['shape']} {r['input']}": r[column] for r in rows}

    def ours(*operations: str) -> Callable[[Row], bool]:
        return lambda row: row["owner"] == "tsallis" and row["operation"] in operations

    def peer(owner: str, *operations: str) -> Callable[[Row], bool]:
        return lambda row: row["owner"] == owner and row["operation"] in operations

    others = [f"entmax-{a}" for a in ALPHAS]
    each = [f"entmax-loss-{a}" for a in LOSS_ALPHAS]
    times = {k.replace("entmax15", "entmax15-bf16"): v for k, v in values("both_ms", ours("entmax15")).items()}
    halves = {k: v / times[k] for k, v in values("both_ms", ours("entmax15-bf16")).items()}
    sorted_ = ("entmax15", "entmax-loss-1.5")
    lines = []
    for operation in ("entmax15", "entmax15-bf16", "sparsemax"):
        for name, bound, low, high in (
            ("d >= 2048", 1.0, 2048, math.inf),
            ("512 <= d < 2048", 1.15, 512, 2048),
            ("d < 512", 1.3, 0, 512),
        ):
            result = values("both_to_dense", ours(operation), low, high)
            lines += verdict(f"{operation} / softmax, {name}", bound, result)
    dense, to_ours = partial(values, "both_to_dense"), partial(values, "both_to_ours")
    lines += verdict("other alphas / softmax, d >= 2048", 1.5, dense(ours(*others), 2048))
    lines += verdict("other alphas / softmax, d < 2048", 3, dense(ours(*others), 0, 2048))
    lines += verdict("learned alphas / softmax, d <= 512", 3, dense(ours("entmax-learned"), 0, 513))
    lines += verdict("learned alphas / softmax, d >= 2048", 1.3, dense(ours("entmax-learned"), 2048))
    lines += verdict("bfloat16's time / float32's", 1, halves)
    lines += verdict("losses / cross-entropy, every alpha", 0.6, dense(ours(*each)))
    lines += verdict("losses / cross-entropy, 1.5 and 2", 0.35, dense(ours("entmax-loss-1.5", "entmax-loss-2.0")))
    lines += verdict("peer's full sort / ours, 1.5", 20, to_ours(peer("entmax", *sorted_)), at_least=True)
    lines += verdict("peer's k=100 / ours, 1.5", 5, to_ours(peer("entmax k=100", *sorted_)), at_least=True)
    lines += verdict("peer's bisection / learned alphas", 50, to_ours(peer("entmax", "entmax-learned")), at_least=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes: dict[str, Any] = {"nargs": "*", "metavar": "SHAPE"}
    parser.add_argument("--maps", default=MAPS, help="shapes of scores, such as 512x32000", **shapes)
    parser.add_argument("--learned", default=LEARNED, help="for attention: batch x heads x queries x keys", **shapes)
    parser.add_argument("--losses", default=LOSSES, help="shapes of the scores of losses; may be empty", **shapes)
    parser.add_argument("--inputs", nargs="*", choices=INPUTS, default=list(INPUTS), help="scores (default: all kinds)")
    parser.add_argument("--rounds", type=int, default=31, help="number of rounds (default: %(default)s)")
    parser.add_argument("--memory", choices=MEMORY, default="default", help="see README (default: %(default)s)")
    parser.add_argument("--few", type=int, default=3, help="number of rounds for slow functions (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of scores and orders (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave out PyPI entmax")
    parser.add_argument("--out", type=Path, help="CSV file for the times")
    parser.add_argument("--accuracy", type=Path, help="also measure errors and write them to this CSV file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settle_memory(arguments.memory)
    peer = None if arguments.no_peer else importlib.import_module("entmax")
    announce()
    measured: list[Row] = []
    errors: list[Row] = []
    for group in ("maps", "learned", "losses"):
        for shape in getattr(arguments, group):
            sizes = tuple(int(n) for n in shape.split("x"))
            for name in arguments.inputs:
                print(group, shape, name, file=sys.stderr)
                location: Row = {
                    "group": group,
                    "shape": shape,
                    "d": sizes[-1],
                    "input": name,
                    "memory": arguments.memory,
                }
                result = build(group, sizes, name, peer, arguments.seed)
                interleave(result, arguments.rounds, min(arguments.few, arguments.rounds), arguments.seed)
                measured += rows(location, result)
                write(arguments.out, measured)
                if arguments.accuracy and group != "losses":
                    errors += accuracy(location, result)
                    write(arguments.accuracy, errors)
    print(table([r for r in measured if r["owner"] != "torch"], COLUMNS))
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
