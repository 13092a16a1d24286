"""Compare attention whose scores fall with distance (slopes) with PyTorch attention and a bias tensor.

    python benchmarks/slopes.py --out benchmarks/results/slopes-cpu.csv

Group `slopes`: forward and backward of causal attention with a slope per head, compared with
`scaled_dot_product_attention` and the same bias as a tensor [heads, length, length], built once and without a gradient.
Group `windows`: the time per query for several numbers of keys, with slopes (heads see windows of keys) and without.
Group `decoding`: one query after many keys, without gradients, with and without known norms of the keys.
Times are processor times of all threads, so other programs have little effect; candidates take turns. Quote ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import Row, announce, machine, table, verdict, write
from torch import Tensor

import tsallis
from tsallis.nn.positions import head_slopes
from tsallis.ops import choice

SLOPES = ["4x8x512x64", "1x8x2048x64", "1x8x4096x64"]  # batch x heads x length x size of a head
WINDOWS = [1024, 4096, 16384, 65536]  # keys
HEADS, SIZE = 2, 64  # for the groups `windows` and `decoding`
TARGETS = {512: 0.5, 4096: 0.25}  # for each length, the largest allowed ratio to the time with a bias tensor
COLUMNS = ("group", "shape", "operation", "owner", "cpu_ms", "time_ratio", "query_us", "support")


class Candidate:
    """A function of queries, keys and values; it runs forward and backward, or `times` times without gradients."""

    def __init__(
        self, operation: str, owner: str, call: Callable[..., Tensor], inputs: Sequence[Tensor], times: int = 0
    ) -> None:
        self.operation, self.owner, self.call, self.inputs, self.times = operation, owner, call, inputs, times
        self.seconds: list[float] = []

    def run(self) -> None:
        """Measure forward and backward once, or only forward."""
        if self.times:
            with torch.no_grad():
                start = time.process_time()
                for _ in range(self.times):
                    self.call(*self.inputs)
                self.seconds.append((time.process_time() - start) / self.times)
            return
        leaves = [x.detach().requires_grad_() for x in self.inputs]
        start = time.process_time()
        result = self.call(*leaves)
        result.backward(torch.ones_like(result))
        self.seconds.append(time.process_time() - start)


def tensors(batch: int, heads: int, length: int, size: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, heads, length, size, generator=generator).unbind()


def slopes(shape: str, seed: int) -> list[Candidate]:
    batch, heads, length, size = (int(n) for n in shape.split("x"))
    inputs = tensors(batch, heads, length, size, seed)
    of_heads = head_slopes("alibi", heads)
    assert of_heads is not None
    distance = (torch.arange(length).unsqueeze(1) - torch.arange(length)).abs()
    bias = (-of_heads.view(-1, 1, 1) * distance).masked_fill_(
        torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf
    )
    ours = partial(tsallis.entmax_attention, is_causal=True)
    learned = torch.linspace(1.05, 1.95, heads)

    def learned_slopes(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, slopes: Tensor, **options: Any) -> Any:
        return ours(q, k, v, alpha, slopes=slopes, **options)

    return [
        Candidate("softmax, bias tensor", "torch", partial(F.scaled_dot_product_attention, attn_mask=bias), inputs),
        Candidate("softmax, slopes", "tsallis", partial(ours, alpha=1.0, slopes=of_heads), inputs),
        Candidate("entmax-1.5, slopes", "tsallis", partial(ours, slopes=of_heads), inputs),
        Candidate(
            "entmax-learned, learned slopes",
            "tsallis",
            learned_slopes,
            (*inputs, learned, of_heads),
        ),
        Candidate("entmax-1.5, bias tensor", "tsallis", partial(ours, attn_mask=bias), inputs),
    ]


def windows(keys: int, seed: int) -> list[Candidate]:
    inputs = tensors(1, HEADS, keys, SIZE, seed)
    ours = partial(tsallis.entmax_attention, is_causal=True)
    result = [
        Candidate(f"entmax-1.5, slope {slope:g}", "tsallis", partial(ours, slopes=torch.full((HEADS,), slope)), inputs)
        for slope in (1.0, 0.125)
    ]
    if keys <= 16384:
        result.append(Candidate("entmax-1.5", "tsallis", ours, inputs))
    return result


def decoding(keys: int, seed: int) -> list[Candidate]:
    query, key, value = tensors(1, HEADS, keys, SIZE, seed)
    inputs = (query[:, :, -1:].contiguous(), key, value)
    ours = partial(tsallis.entmax_attention, query_offset=keys - 1)
    one = torch.ones(HEADS)
    norms = key.norm(dim=-1).amax(-1)
    times = max(5, (1 << 20) // keys)
    return [
        Candidate("entmax-1.5", "tsallis", ours, inputs, times),
        Candidate("entmax-1.5, slope 1", "tsallis", partial(ours, slopes=one), inputs, times),
        Candidate("entmax-1.5, slope 1, norms", "tsallis", partial(ours, slopes=one, key_norms=norms), inputs, times),
    ]


def measure(group: str, shape: str, candidates: list[Candidate], rounds: int) -> list[Row]:
    for number in range(rounds + 1):
        for candidate in candidates[number % len(candidates) :] + candidates[: number % len(candidates)]:
            candidate.run()
    dense = statistics.median(candidates[0].seconds[1:])
    rows = []
    for candidate in candidates:
        seconds = statistics.median(candidate.seconds[1:])
        with torch.no_grad():
            counts = candidate.call(*candidate.inputs, return_support=True)[1] if candidate.owner == "tsallis" else None
        rows.append(
            {
                "group": group,
                "shape": shape,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "cpu_ms": seconds * 1e3,
                "time_ratio": seconds / dense,
                "query_us": seconds * 1e6 / candidate.inputs[0][..., 0].numel(),
                "support": "" if counts is None else counts.double().mean().item(),
                "rounds": rounds,
                "backend": choice.explain() if candidate.owner == "tsallis" else "",
                **machine(),
            }
        )
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    lines = []
    for length, target in TARGETS.items():
        values = {
            f"{row['shape']} {row['operation']}": row["time_ratio"]
            for row in rows
            if row["group"] == "slopes" and int(row["shape"].split("x")[2]) == length
            if row["operation"].startswith("entmax") and row["operation"].endswith("slopes")
        }
        lines += verdict(f"slopes at {length} keys / SDPA with a bias tensor", target, values)
    for group, operation in (("windows", "entmax-1.5, slope 1"), ("decoding", "entmax-1.5, slope 1, norms")):
        by_keys = [row["query_us"] for row in rows if row["group"] == group and row["operation"] == operation]
        if len(by_keys) > 1:
            values = {operation: by_keys[-1] / by_keys[0]}
            lines += verdict(f"{group}: a query's time at the most keys / at the fewest", 1.5, values)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slopes", nargs="*", default=SLOPES, metavar="SHAPE", help="batch x heads x length x size")
    parser.add_argument("--windows", nargs="*", type=int, default=WINDOWS, metavar="KEYS", help="numbers of keys")
    parser.add_argument("--decoding", nargs="*", type=int, default=WINDOWS, metavar="KEYS", help="numbers of keys")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="number of threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tensors (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="CSV file for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    announce()
    rows: list[Row] = []
    groups: dict[str, tuple[Callable[..., list[Candidate]], list[Any]]] = {
        "slopes": (slopes, arguments.slopes),
        "windows": (windows, arguments.windows),
    }
    for group, (build, shapes) in {**groups, "decoding": (decoding, arguments.decoding)}.items():
        for shape in shapes:
            print(group, shape, file=sys.stderr)
            rows += measure(group, str(shape), build(shape, arguments.seed), arguments.rounds)
            write(arguments.out, rows)
    print(table(rows, COLUMNS))
    print("", *verdicts(rows), sep="\n")


if __name__ == "__main__":
    main()
