"""Compare sparse attention and Transformer layers of the base size with PyTorch's, in one process.

    python benchmarks/attention.py --out benchmarks/results/attention-cpu.csv

All candidates of a setting run forward and backward in many rounds, in a different order each round. Softmax uses
`scaled_dot_product_attention`; the peer (PyPI `entmax`) applies `entmax_bisect` to all scores. Memory is measured in
one process per candidate, as the growth of its peak. At the end, the script prints the ratios and whether the project's
targets are met. Quote ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import MEMORY, Candidate, Row, announce, interleave, machine, settle_memory, table, verdict, write
from linear import peak, resident
from torch import Tensor, nn

import tsallis

ATTENTION = ["32x8x64x64", "4x8x512x64", "1x8x2048x64", "1x4x4096x64"]  # batch x heads x length x head size
BIAS = ["32x8x64x64", "4x8x512x64", "1x8x2048x64"]  # same format
LAYERS = ["32x64", "4x512"]  # batch x length
COLUMNS = ("group", "shape", "causal", "dropout", "operation", "owner", "time_ratio", "tokens_ratio", "extra_ratio")
D, HEADS, HIDDEN = 512, 8, 2048  # sizes of a base Transformer layer
GROUPS = ("attention", "bias", "layers")
PEER_ROUNDS = 2, 8  # rounds of the slow peer in long and in short settings
SHORT = 1 << 20  # maximum number of attention weights of a short setting

Attend = Callable[..., Tensor]


def alphas(heads: int) -> Tensor:
    return torch.linspace(1.05, 1.95, heads)


def bisected(query: Tensor, key: Tensor, value: Tensor, alpha: Tensor, causal: bool = False) -> Tensor:
    """Compute attention with the peer's bisection, which stores all weights."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -1e9)
    weights: Tensor = importlib.import_module("entmax").entmax_bisect(scores, alpha.view(-1, 1, 1))
    return weights @ value


def attentions(shape: tuple[int, ...], causal: bool, peer: bool, seed: int, learned_bias: bool) -> list[Candidate]:
    """Return the candidates for attention; a learned bias [heads, length, length] is added to the scores."""
    batch, heads, length, size = shape
    generator = torch.Generator().manual_seed(seed)
    q, k, v, upstream = torch.randn(4, batch, heads, length, size, generator=generator).unbind()
    leaves: tuple[Tensor, ...] = (q, k, v)
    if learned_bias:
        leaves += (torch.randn(heads, length, length, generator=generator),)
    alpha = alphas(heads)

    def softmax(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, alpha: Any = 1.5) -> Tensor:
        return tsallis.entmax_attention(q, k, v, alpha, attn_mask=bias, is_causal=causal)  # type: ignore[return-value]

    def learned(*leaves: Tensor) -> Tensor:
        return ours(*leaves[:-1], alpha=leaves[-1])

    inputs: dict[str, Any] = {"upstream": upstream, "dense": "sdpa"}
    result = [
        Candidate("sdpa", "torch", softmax, leaves, **inputs),
        Candidate("entmax-1.0", "tsallis", partial(ours, alpha=1.0), leaves, **inputs),
        Candidate("entmax-1.5", "tsallis", ours, leaves, **inputs),
        Candidate("entmax-learned", "tsallis", learned, (*leaves, alpha), **inputs),
    ]
    if peer and not learned_bias:
        result.append(
            Candidate(
                "entmax-learned", "entmax", partial(bisected, causal=causal), (q, k, v, alpha), few=True, **inputs
            )
        )
    return result


class Bisected(nn.Module):
    """A module that uses the peer's attention with the parameters of our layer."""

    def __init__(self, attention: tsallis.nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        attention = self.attention
        q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)  # type: ignore[arg-type]
        q, k, v = (y.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for y in (q, k, v))
        return attention.out_proj(bisected(q, k, v, attention.alpha()).transpose(1, 2).flatten(2)), None  # type: ignore[operator]


def layers(shape: tuple[int, ...], dropout: float, peer: bool, seed: int) -> list[Candidate]:
    batch, length = shape
    torch.manual_seed(seed)
    x, upstream = torch.randn(2, batch, length, D).unbind()
    sizes: dict[str, Any] = {"dim_feedforward": HIDDEN, "dropout": dropout, "batch_first": True}
    torchs = nn.TransformerEncoderLayer(D, HEADS, **sizes)

    def layer(alpha: Any) -> nn.Module:
        own = tsallis.nn.TransformerEncoderLayer(D, HEADS, alpha=alpha, **sizes)
        own.load_state_dict(torchs.state_dict())
        return own

    def trained(module: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            module.zero_grad(set_to_none=True)
            result: Tensor = module(x)
            return result

        return run

    inputs: dict[str, Any] = {"leaves": (x,), "upstream": upstream, "dense": "layer-softmax"}
    result = [
        Candidate("layer-softmax", "torch", trained(torchs), **inputs),
        Candidate("layer-1.5", "tsallis", trained(layer(1.5)), **inputs),
        Candidate("layer-learned", "tsallis", trained(layer("learned")), **inputs),
    ]
    if peer and not dropout:
        slow = layer("learned")
        slow.self_attn = Bisected(slow.self_attn)  # type: ignore[arg-type]
        result.append(Candidate("layer-learned", "entmax", trained(slow), few=True, **inputs))
    return result


def build(group: str, shape: tuple[int, ...], causal: bool, dropout: float, peer: bool, seed: int) -> list[Candidate]:
    if group == "layers":
        return layers(shape, dropout, peer, seed)
    return attentions(shape, causal, peer, seed, learned_bias=group == "bias")


def extra(number: int, group: str, shape: tuple[int, ...], setting: tuple[bool, float], peer: bool, seed: int) -> int:
    """Return by how many bytes one run of a candidate, with its gradients, raises this process's peak memory."""
    small = (1, 8) if group == "layers" else (1, 2, 8, 16)
    for sizes in (small, shape):
        candidate = build(group, sizes, *setting, peer, seed)[number]
        before = resident()
        candidate.run()
    return peak() - before


def extra_of_a_process(number: int, group: str, shape: str, setting: tuple[bool, float], arguments: Any) -> int:
    """Run `extra` in a new process."""
    causal, dropout = setting
    own = [f"--memory-of={number}", f"--{group}={shape}", f"--threads={arguments.threads}", f"--dropouts={dropout}"]
    own += ["--no-peer"] * arguments.no_peer + ["--causal"] * causal
    done = subprocess.run([sys.executable, __file__, *own], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


def count(group: str, shape: str, setting: tuple[bool, float], arguments: Any) -> int:
    """Return the number of candidates of a setting."""
    tiny = (1, 1) if group == "layers" else (1, 1, 1, 1)
    return len(build(group, tiny, *setting, not arguments.no_peer, arguments.seed))


def rows(location: Row, result: list[Candidate], bytes_: list[int]) -> list[Row]:
    dense_time, dense_bytes = result[0].medians()[1], bytes_[0]
    measured = []
    for candidate, extra_bytes in zip(result, bytes_, strict=True):
        forward, both = candidate.medians()
        measured.append(
            {
                **location,
                "operation": candidate.operation,
                "owner": candidate.owner,
                "forward_ms": forward * 1e3,
                "both_ms": both * 1e3,
                "time_ratio": both / dense_time,
                "tokens_ratio": dense_time / both,
                "extra_mb": extra_bytes / 1e6,
                "extra_ratio": dense_bytes / max(extra_bytes, 1),
                "rounds": len(candidate.both),
                "backend": candidate.backend(),
                **machine(),
            }
        )
    return measured


def verdicts(measured: list[Row]) -> list[str]:
    def pick(operation: str, owner: str, column: str) -> dict[str, float]:
        return {
            f"{r['shape']} causal={r['causal']} dropout={r['dropout']}": r[column]
            for r in measured
            if r["group"] != "bias" and r["operation"] == operation and r["owner"] == owner
        }

    def beside(operation: str) -> dict[str, float]:
        ours, theirs = pick(operation, "tsallis", "both_ms"), pick(operation, "entmax", "both_ms")
        return {location: theirs[location] / ours[location] for location in theirs if location in ours}

    return [
        *verdict(
            "a layer's tokens a second, learned / softmax", 0.9, pick("layer-learned", "tsallis", "tokens_ratio"), True
        ),
        *verdict("attention by the peer's bisection / ours", 20, beside("entmax-learned"), True),
        *verdict("a layer with the peer's bisection / with ours", 1, beside("layer-learned"), True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="*", default=None, metavar="SHAPE", help="batch x heads x length x size")
    parser.add_argument(
        "--bias",
        nargs="*",
        default=None,
        metavar="SHAPE",
        help="attention with a learned bias: batch x heads x length x size",
    )
    parser.add_argument("--layers", nargs="*", default=None, metavar="SHAPE", help="Transformer layers: batch x length")
    parser.add_argument(
        "--dropouts", nargs="*", type=float, default=[0.0, 0.1], help="dropout rates of the layers (default: 0 and 0.1)"
    )
    parser.add_argument("--causal", action="store_true", help="only causal attention (default: with and without)")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: %(default)s)")
    parser.add_argument("--memory", choices=MEMORY, default="default", help="see the README (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="do not measure PyPI entmax")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if all(getattr(arguments, group) is None for group in GROUPS):
        arguments.attention, arguments.bias, arguments.layers = ATTENTION, BIAS, LAYERS
    orders = [True] if arguments.causal else [False, True]
    settings = {
        "attention": [(c, 0.0) for c in orders],
        "bias": [(False, 0.0)],
        "layers": [(False, d) for d in arguments.dropouts],
    }
    if arguments.memory_of is not None:
        group = next(group for group in GROUPS if getattr(arguments, group))
        shape = tuple(int(n) for n in getattr(arguments, group)[0].split("x"))
        print(extra(arguments.memory_of, group, shape, settings[group][0], not arguments.no_peer, arguments.seed))
        return
    settle_memory(arguments.memory)
    announce()
    places = [
        (group, shape, setting)
        for group in GROUPS
        for shape in getattr(arguments, group) or []
        for setting in settings[group]
    ]
    # Measure memory first: a child's peak starts at its parent's size. Two processes may run together: none is timed.
    with ThreadPoolExecutor(2) as pool:
        started = [
            [pool.submit(extra_of_a_process, n, *location, arguments) for n in range(count(*location, arguments))]
            for location in places
        ]
        memory = [[one.result() for one in some] for some in started]
    measured: list[Row] = []
    for (group, shape, (causal, dropout)), bytes_ in zip(places, memory, strict=True):
        print(group, shape, f"causal={causal} dropout={dropout}", file=sys.stderr)
        sizes = tuple(int(n) for n in shape.split("x"))
        result = build(group, sizes, causal, dropout, not arguments.no_peer, arguments.seed)
        batch, heads, length = (sizes[0], HEADS, sizes[1]) if group == "layers" else sizes[:3]
        few = PEER_ROUNDS[batch * heads * length**2 <= SHORT]
        interleave(result, arguments.rounds, min(few, arguments.rounds), arguments.seed)
        location: Row = {"group": group, "shape": shape, "causal": causal, "dropout": dropout}
        measured += rows(location, result, bytes_)
        write(arguments.out, measured)
    print(table(measured, COLUMNS))
    print("", *verdicts(measured), sep="\n")


if __name__ == "__main__":
    main()
