"""The maps and losses beside PyPI `entmax` and PyTorch's own softmax and cross-entropy, in one process.

    python benchmarks/maps.py --out benchmarks/results/maps-cpu.csv

Every candidate of a shape is run in turn, round after round (interleaved, so that a noisy machine slows all of them),
forward alone and forward with backward; the file gets one row each with the median, its ratio to PyTorch's softmax (or
cross-entropy) and to the peer's function for the same map, versions and hardware. Quote ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import tsallis

SHAPES = [(8192, 128), (25600, 50), (4096, 512), (8192, 2048), (1024, 10000), (512, 32000), (256, 60000)]
INPUTS = {"normal": 1.0, "normal3": 3.0, "peaked": 10.0}
SLOW = 2.0  # seconds: a candidate that takes longer is run in fewer rounds


class Candidate:
    """One function under test: which operation it computes, whose it is, and what it is compared with."""

    def __init__(self, operation: str, owner: str, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.operation, self.owner, self.call = operation, owner, call
        self.times: dict[str, list[float]] = {"forward": [], "both": []}
        self.too_slow = False


def candidates(with_peer: bool) -> list[Candidate]:
    found = [
        Candidate("softmax", "torch", lambda z, y: z.softmax(-1)),
        Candidate("entmax15", "tsallis", lambda z, y: tsallis.entmax15(z)),
        Candidate("sparsemax", "tsallis", lambda z, y: tsallis.sparsemax(z)),
        Candidate("entmax-1.25", "tsallis", lambda z, y: tsallis.entmax(z, 1.25)),
        Candidate("entmax-rows", "tsallis", lambda z, y: tsallis.entmax(z, _alphas(z))),
        Candidate("cross-entropy", "torch", lambda z, y: F.cross_entropy(z, y, reduction="sum")),
        Candidate("entmax15-loss", "tsallis", lambda z, y: tsallis.entmax_loss(z, y, 1.5, reduction="sum")),
        Candidate("sparsemax-loss", "tsallis", lambda z, y: tsallis.entmax_loss(z, y, 2.0, reduction="sum")),
        Candidate("entmax-1.25-loss", "tsallis", lambda z, y: tsallis.entmax_loss(z, y, 1.25, reduction="sum")),
    ]
    if with_peer:
        import entmax as peer

        found += [
            Candidate("entmax15", "entmax", lambda z, y: peer.entmax15(z, -1)),
            Candidate("entmax15", "entmax k=100", lambda z, y: peer.entmax15(z, -1, 100)),
            Candidate("sparsemax", "entmax", lambda z, y: peer.sparsemax(z, -1)),
            Candidate("entmax-1.25", "entmax", lambda z, y: peer.entmax_bisect(z, 1.25)),
            Candidate("entmax-rows", "entmax", lambda z, y: peer.entmax_bisect(z, _alphas(z))),
            Candidate("entmax15-loss", "entmax", lambda z, y: peer.entmax15_loss(z, y).sum()),
            Candidate("entmax15-loss", "entmax k=100", lambda z, y: peer.entmax15_loss(z, y, 100).sum()),
            Candidate("sparsemax-loss", "entmax", lambda z, y: peer.sparsemax_loss(z, y).sum()),
            Candidate("entmax-1.25-loss", "entmax", lambda z, y: peer.entmax_bisect_loss(z, y, 1.25).sum()),
        ]
    return found


def _alphas(z: Tensor) -> Tensor:
    return torch.linspace(1.05, 2.0, z.shape[0]).unsqueeze(-1)  # [rows, 1]


def measure(candidate: Candidate, scores: Tensor, target: Tensor, upstream: Tensor) -> None:
    leaf = scores.detach().requires_grad_()
    start = time.perf_counter()
    result = candidate.call(leaf, target)
    middle = time.perf_counter()
    result.backward(upstream if result.dim() else None)
    end = time.perf_counter()
    candidate.times["forward"].append(middle - start)
    candidate.times["both"].append(end - start)
    candidate.too_slow = end - start > SLOW


def run_shape(shape: tuple[int, int], scale: float, rounds: int, with_peer: bool) -> list[Candidate]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(*shape, generator=generator) * scale
    target = torch.randint(shape[1], (shape[0],), generator=generator)
    upstream = torch.randn(*shape, generator=generator)
    found = candidates(with_peer)
    for candidate in found:  # warm up, but not what takes seconds: one of its runs is long enough
        if candidate.owner != "entmax" or shape[0] * shape[1] < 2_000_000:
            measure(candidate, scores, target, upstream)
            for times in candidate.times.values():
                times.clear()
    for round_ in range(rounds):
        for candidate in found:
            if not candidate.too_slow or round_ < 2:
                measure(candidate, scores, target, upstream)
    return found


def rows(shape: tuple[int, int], name: str, found: list[Candidate]) -> list[dict[str, object]]:
    result = []
    for candidate in found:
        base = "cross-entropy" if candidate.operation.endswith(("loss", "entropy")) else "softmax"
        for kind, times in candidate.times.items():
            median = statistics.median(times)
            dense = statistics.median(next(c.times[kind] for c in found if c.operation == base))
            peers = [c for c in found if c.operation == candidate.operation and c.owner == "entmax"]
            peer = statistics.median(peers[0].times[kind]) if peers and candidate.owner == "tsallis" else None
            result.append(
                {
                    "rows": shape[0],
                    "d": shape[1],
                    "input": name,
                    "operation": candidate.operation,
                    "owner": candidate.owner,
                    "what": kind,
                    "median_ms": f"{median * 1e3:.3f}",
                    "to_dense": f"{median / dense:.3f}",
                    "peer_to_ours": "" if peer is None else f"{peer / median:.2f}",
                    "repeats": len(times),
                    **machine(),
                }
            )
    return result


def machine() -> dict[str, object]:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    try:
        peer = version("entmax")
    except ImportError:
        peer = ""
    return {
        "threads": torch.get_num_threads(),
        "cpu": cpu,
        "torch": torch.__version__,
        "tsallis": tsallis.__version__,
        "entmax": peer,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def table(measured: list[dict[str, object]]) -> str:
    lines = [
        "| rows x d | input | operation | what | to softmax / cross-entropy | peer / ours |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured:
        if row["owner"] == "tsallis":
            lines.append(
                f"| {row['rows']}x{row['d']} | {row['input']} | {row['operation']} | {row['what']} "
                f"| {row['to_dense']} | {row['peer_to_ours']} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", help="such as 512x32000; default: all")
    parser.add_argument("--inputs", nargs="*", choices=INPUTS, default=["normal", "normal3"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-peer", action="store_true", help="without PyPI entmax")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = [tuple(int(n) for n in s.split("x")) for s in arguments.shapes] if arguments.shapes else SHAPES
    measured = []
    for shape in shapes:
        for name in arguments.inputs:
            found = run_shape(shape, INPUTS[name], arguments.rounds, not arguments.no_peer)
            measured += rows(shape, name, found)
            print(f"{shape[0]}x{shape[1]} {name}", file=sys.stderr)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(measured[0]))
            writer.writeheader()
            writer.writerows(measured)
    print(table(measured))


if __name__ == "__main__":
    main()
