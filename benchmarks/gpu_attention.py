"""Compare sparse attention on a GPU with AdaSplash, PyTorch's flash attention and other settings of itself.

    python benchmarks/gpu_attention.py --out benchmarks/results/gpu-attention.csv

Groups: `accuracy` (errors against float64 at a small length), `short` (rows of 64 to 1,024 keys), `decode` (one query,
a long cache), `long` (causal, 4k to 64k tokens) and `powers` (other alphas, compared with AdaSplash 1). In the last two
groups, inputs make a given share of the key blocks empty, and the actual share is measured. All cases of a setting run
in one process, in a different order each round. The CSV file is written after every setting. Quote ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import Row, verdict, write
from gpu import Case, Report, error_of, exit_if_broken, interleaved, machine, medians, peak, peer, require_gpu
from torch import Tensor

import tsallis
from tsallis.ops import reference

GROUPS = ("accuracy", "short", "decode", "long", "powers")
COLUMNS = ("group", "shape", "empty", "owner", "alpha", "forward_ms", "both_ms", "peak_mb", "output_error")
MARGIN = 12.0  # score advantage of keys that share the query's topic
BLOCK = 128  # number of consecutive tokens with the same topic
MIB = 1 << 20

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    group: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    empty: float = 0.0  # share of empty key blocks
    dtype: torch.dtype = torch.bfloat16

    def shape(self) -> str:
        heads = f"{self.heads}" if self.heads == self.key_heads else f"{self.heads}/{self.key_heads}"
        return f"{self.batch}x{heads}x{self.queries}x{self.keys}x{self.size}"

    def label(self) -> str:
        return f"{self.group} {self.shape()} {self.empty:g} empty"


@dataclass
class Contender:
    """An attention function to compare; `learned` needs a gradient in addition to queries, keys and values."""

    owner: str
    alpha: str
    call: Attend
    learned: Tensor | None = None
    causes_gradient: bool = True

    def name(self) -> str:
        return f"{self.owner} {self.alpha}"


def topics(blocks: int, empty: float, generator: torch.Generator) -> Tensor:
    """Choose a topic for each block, so that two blocks share their topic with probability `1 - empty`."""
    if not empty:
        return torch.zeros(blocks, dtype=torch.long)
    many = math.ceil(1 / (1 - empty)) + 1
    # One topic has share a, the others have equal shares: a^2 + (1 - a)^2 / (many - 1) = 1 - empty.
    a = (1 + math.sqrt(1 - many * (1 - (many - 1) * (1 - empty)))) / many
    shares = torch.tensor([a] + [(1 - a) / (many - 1)] * (many - 1))
    bounds = (shares.cumsum(0) * blocks).round().long()
    return torch.bucketize(torch.arange(blocks), bounds, right=True).clamp(max=many - 1)[
        torch.randperm(blocks, generator=generator)
    ]


def inputs(setting: Setting, seed: int, device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Create queries, keys and values; scores within a topic deviate by about 1, all others are much lower."""
    noise, order = torch.Generator(device).manual_seed(seed), torch.Generator().manual_seed(seed)
    batch, size, key_heads = setting.batch, setting.size, setting.key_heads
    result = []
    for heads, length in ((setting.heads, setting.queries), (key_heads, setting.keys)):
        x = torch.randn(batch, heads, length, size, generator=noise, device=device)
        if setting.empty:
            blocks = -(-length // BLOCK)
            own = torch.stack([topics(blocks, setting.empty, order) for _ in range(batch * key_heads)])
            own = own.view(batch, key_heads, blocks).repeat_interleave(heads // key_heads, 1)
            one_hot = F.one_hot(own.repeat_interleave(BLOCK, -1)[..., :length].to(device))
            x[..., : one_hot.shape[-1]] = one_hot * math.sqrt(MARGIN * math.sqrt(size))
        result.append(x.to(setting.dtype))
    value = torch.randn(batch, key_heads, setting.keys, size, generator=noise, device=device)
    return result[0], result[1], value.to(setting.dtype)


def empty_share(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> float:
    """Return the share of visible key blocks without support at alpha 1.5, with the block sizes of the kernels."""
    from tsallis.ops.triton import attention
    from tsallis.ops.triton.attention import launch as attention_launch

    with long_kernels(), torch.no_grad():
        _, _, saved = attention.attention(arguments(q, k, v, causal), True)
    memory = attention_launch.shared_memory(q.device)
    tiling = attention_launch.tilings(q.shape[-1], v.shape[-1], q.dtype, memory).forward
    blocks = torch.arange(1, saved.bits.shape[2] + 1)
    ends = (blocks * tiling.queries if causal else blocks * 0 + k.shape[2]).clamp(max=k.shape[2])
    visible = int((-(-ends // tiling.keys)).sum()) * q.shape[0] * q.shape[1]
    return 1 - int(saved.bits.sum(dtype=torch.int64)) / visible


def arguments(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
    """Return the arguments of attention at alpha 1.5."""
    from tsallis.ops.arguments import AttentionArgs

    return AttentionArgs(q, k, v, None, None, None, None, None, None, 1.5, q.shape[-1] ** -0.5, causal, 0.0)


@contextlib.contextmanager
def long_kernels() -> Iterator[None]:
    """Use the kernels for long rows at every length."""
    from tsallis.ops.triton.attention import launch as attention_launch

    own = attention_launch.short_tiling
    attention_launch.short_tiling = lambda *_: None
    try:
        yield
    finally:
        attention_launch.short_tiling = own


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def ours(q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, long: bool = False) -> Tensor:
    with long_kernels() if long else contextlib.nullcontext():
        result = tsallis.entmax_attention(q, k, v, alpha, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    assert isinstance(result, Tensor)
    return result


def spread(heads: int) -> Tensor:
    """Return a different alpha for each head."""
    return torch.linspace(1.25, 1.75, heads, device="cuda")


def contenders(setting: Setting, quick: bool = False) -> list[Contender]:
    """Return the attention functions to compare; `quick` drops those that need much compilation."""
    causal, group = setting.causal, setting.group
    alphas = spread(setting.heads)
    learned = alphas.clone().requires_grad_()
    own = partial(ours, causal=causal)
    result = [Contender("tsallis", "1.5", partial(own, alpha=1.5))]
    if group == "powers":
        result = [Contender("tsallis", f"{a}", partial(own, alpha=a)) for a in (1.25, 1.75)]
    elif group == "decode":
        result.append(Contender("tsallis", "mixed", partial(own, alpha=alphas)))
    elif group != "accuracy":
        result.append(Contender("tsallis", "mixed", partial(own, alpha=alphas)))
        result.append(Contender("tsallis", "learned", partial(own, alpha=learned), learned))
    if group == "accuracy":
        result += [Contender("tsallis", f"{a}", partial(own, alpha=a)) for a in (1.0, 1.25, 1.75, 2.0)]
        result += [Contender("tsallis long kernels", f"{a}", partial(own, alpha=a, long=True)) for a in (1.25, 1.5)]
        result.append(Contender("flex_attention", "1.5", partial(flex, causal=causal), causes_gradient=False))
    else:
        result.append(Contender("sdpa", "1", partial(flash, causal=causal)))
    if group == "short":
        result += [Contender("tsallis long kernels", "1.5", partial(own, alpha=1.5, long=True))]
        result += [Contender("tsallis long kernels", "mixed", partial(own, alpha=alphas, long=True))]
    adasplash = peer_once("adasplash") if group in ("accuracy", "long", "powers") else None
    if adasplash is not None:
        if causal and group != "powers":
            result.append(Contender("adasplash 2", "1.5", adasplash.adasplash_v2))
        for a in {"powers": (1.25, 1.75), "accuracy": (1.25, 1.5, 1.75)}.get(group, ()):
            result.append(Contender("adasplash 1", f"{a}", partial(adasplash.adasplash_v1, alpha=a, is_causal=causal)))
    slow = ("tsallis mixed", "flex_attention 1.5", "tsallis 1.0", "tsallis 2.0", "tsallis 1.75", "adasplash 1 1.75")
    return [each for each in result if not quick or each.name() not in slow]


@cache
def peer_once(name: str) -> Any:
    return peer(name)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Run PyTorch's FlexAttention at alpha 1.5 with our thresholds, which should give the same output."""
    from torch.nn.attention.flex_attention import flex_attention

    from tsallis.ops.triton import attention

    _, _, saved = attention.attention(arguments(q, k, v, causal), True)
    shift = saved.stats.sum(0)

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        x = 0.5 * (score - shift[b, h, i])
        visible = (x > -1) & ((j <= i) | (not causal))
        return torch.where(visible, 2 * torch.log1p(torch.where(visible, x, 0.0)), -float("inf"))

    result = torch.compile(flex_attention)(q, k, v, score_mod=modified)
    assert isinstance(result, Tensor)
    return result


def settings(groups: Sequence[str], lengths: Sequence[int], quick: bool) -> Iterator[Setting]:
    if "accuracy" in groups:
        for dtype in (torch.bfloat16, torch.float32) if quick else (torch.bfloat16, torch.float16, torch.float32):
            for size in (64,) if quick else (32, 64, 128):
                yield Setting("accuracy", 1, 4, 4, 1024, 1024, size, True, dtype=dtype)
    if "short" in groups:
        for length in (512,) if quick else (64, 128, 256, 512, 1024):
            for heads in (8,) if quick else (8, 16):
                yield Setting("short", 32, heads, heads, length, length, 64)
    if "long" in groups:
        for size in (64,) if quick else (64, 128):
            for length in lengths:
                for empty in (0.7,) if quick else (0.0, 0.7, 0.85):
                    yield Setting("long", 1, 8, 8, length, length, size, True, empty)
    if "decode" in groups:
        for keys in (65536,) if quick else (4096, 8192, 16384, 32768, 65536):
            for batch, heads, key_heads in ((1, 32, 8),) if quick else ((1, 32, 8), (8, 32, 8), (8, 16, 16)):
                yield Setting("decode", batch, heads, key_heads, 1, keys, 128)
    if "powers" in groups:
        for length in [n for n in lengths if n <= 16384]:
            yield Setting("powers", 1, 8, 8, length, length, 64, True, 0.7)


def passes(contender: Contender, leaves: Sequence[Tensor], upstream: Tensor) -> tuple[Callable[[], object], ...]:
    """Return two functions to time: forward as in training, and forward with backward."""

    def forward() -> Tensor:
        return contender.call(*leaves)  # type: ignore[call-arg, arg-type]

    def both() -> tuple[Tensor, ...]:
        expected = [*leaves, *([contender.learned] if contender.learned is not None else [])]
        return torch.autograd.grad(contender.call(*leaves), expected, upstream)  # type: ignore[call-arg, arg-type]

    return forward, both


def measure(setting: Setting, rounds: int, seed: int, quick: bool = False) -> list[Row]:
    q, k, v = inputs(setting, seed)
    learns = setting.group != "decode"
    leaves = [x.requires_grad_(learns) for x in (q, k, v)]
    upstream = torch.randn(*q.shape[:-1], v.shape[-1], device=q.device).to(q.dtype)
    every = contenders(setting, quick)
    cases = []
    for contender in every:
        forward, both = passes(contender, leaves, upstream)
        cases.append(Case(f"{contender.name()} forward", contender.owner, forward))
        if learns:
            cases.append(Case(f"{contender.name()} both", contender.owner, both))
    times = medians(interleaved(cases, rounds))
    sparse = setting.group in ("long", "powers")
    share = empty_share(q.detach(), k.detach(), v.detach(), setting.causal) if sparse else math.nan
    rows = []
    for contender in every:
        forward, both = passes(contender, leaves, upstream)
        timed = [times.get(f"{contender.name()} {what}", math.nan) for what in ("forward", "both")]
        last = both if learns else forward
        most = peak(last) / MIB if not math.isnan(timed[1] if learns else timed[0]) else math.nan
        rows.append(row(setting, contender, share, timed, most))
    return rows


def row(
    setting: Setting, contender: Contender, share: float, timed: Sequence[float], most: float, *errors: float
) -> Row:
    return {
        "group": setting.group,
        "shape": setting.shape(),
        "dtype": str(setting.dtype).removeprefix("torch."),
        "causal": setting.causal,
        "empty": setting.empty,
        "measured_empty": share,
        "owner": contender.owner,
        "alpha": contender.alpha,
        "forward_ms": timed[0],
        "both_ms": timed[1],
        "peak_mb": most,
        "output_error": errors[0] if errors else math.nan,
        "query_error": errors[1] if errors else math.nan,
        "key_error": errors[2] if errors else math.nan,
        "value_error": errors[3] if errors else math.nan,
        **machine(),
    }


def accuracy(setting: Setting, seed: int, quick: bool = False) -> list[Row]:
    """Compare output and gradients with float64; the errors are relative to the largest entry."""
    leaves = [x.requires_grad_() for x in inputs(setting, seed)]
    upstream = torch.randn(*leaves[0].shape, device="cuda").to(setting.dtype)
    rows = []
    for contender in contenders(setting, quick):
        exact = exactly([x.detach() for x in leaves], upstream, float(contender.alpha), setting.causal)
        try:
            result = contender.call(*leaves)  # type: ignore[call-arg]
            grads = torch.autograd.grad(result, leaves, upstream) if contender.causes_gradient else ()
        except Exception as error:  # any error: the others must still be compared
            print(
                f"left out: {contender.name()} ({setting.dtype}): {type(error).__name__}: {error}"[:300],
                file=sys.stderr,
            )
            exit_if_broken()
            continue
        errors = [
            error_of(x, right) / float(right.abs().max()) for x, right in zip((result, *grads), exact, strict=False)
        ]
        errors += [math.nan] * (4 - len(errors))
        rows.append(row(setting, contender, math.nan, (math.nan, math.nan), math.nan, *errors))
    return rows


def exactly(leaves: Sequence[Tensor], upstream: Tensor, alpha: float, causal: bool) -> tuple[Tensor, ...]:
    """Compute output and gradients in float64, with the full matrix of weights."""
    q, k, v = (x.double().requires_grad_() for x in leaves)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf
        )
    out = reference.entmax(scores, alpha) @ v
    return out.detach(), *torch.autograd.grad(out, (q, k, v), upstream.double())


def ratios(rows: list[Row], of: tuple[str, str], to: tuple[str, str], column: str, *groups: str) -> dict[str, float]:
    """Divide a column of one contender (owner, alpha) by that of another, for each setting."""
    result: dict[str, dict[tuple[str, str], float]] = {}
    for each in rows:
        if each["group"] in groups:
            columns = f"{each['group']} {each['shape']} {each['empty']:g} empty"
            result.setdefault(columns, {})[each["owner"], each["alpha"]] = each[column]
    pairs = {columns: (by.get(of, math.nan), by.get(to, math.nan)) for columns, by in result.items()}
    return {columns: a / b for columns, (a, b) in pairs.items() if b and not math.isnan(a / b)}


def verdicts(rows: list[Row]) -> list[str]:
    fixed, sdpa, two = ("tsallis", "1.5"), ("sdpa", "1"), ("adasplash 2", "1.5")
    lengths = {f"{r['group']} {r['shape']} {r['empty']:g} empty": int(r["shape"].split("x")[3]) for r in rows}
    empties = {f"{r['group']} {r['shape']} {r['empty']:g} empty": r["empty"] for r in rows}
    beside = ratios(rows, fixed, sdpa, "both_ms", "long")
    sparse = {p: x for p, x in beside.items() if empties[p] == 0.7 and lengths[p] >= 16384}
    dense = {p: x for p, x in beside.items() if empties[p] == 0}

    def filled(result: dict[str, float]) -> dict[str, float]:
        return {p: x for p, x in result.items() if empties[p] > 0}

    lines = verdict("forward, AdaSplash 2 / ours", 2.0, filled(ratios(rows, two, fixed, "forward_ms", "long")), True)
    lines += verdict("both, AdaSplash 2 / ours", 1.5, filled(ratios(rows, two, fixed, "both_ms", "long")), True)
    for alpha in ("1.25", "1.75"):
        others = ratios(rows, ("adasplash 1", alpha), ("tsallis", alpha), "both_ms", "powers")
        lines += verdict(f"both, AdaSplash 1 / ours at alpha {alpha}", 3.0, others, True)
    lines += verdict("both, ours / SDPA from 16k tokens, 70 % empty", 1.0, sparse)
    lines += verdict("both, ours / SDPA, nothing empty", 2.0, dense)
    learned, mixed = ("tsallis", "learned"), ("tsallis", "mixed")
    lines += verdict("both, learned / the same alphas fixed", 1.15, ratios(rows, learned, mixed, "both_ms", "long"))
    lines += verdict("both, learned / 1.5", 1.15, ratios(rows, learned, fixed, "both_ms", "long"))
    lines += verdict("peak memory of both, ours / SDPA", 1.1, ratios(rows, fixed, sdpa, "peak_mb", "long"))
    lines += verdict("decoding, ours / SDPA", 1.0, ratios(rows, fixed, sdpa, "forward_ms", "decode"))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="run only a few settings, as a check")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--lengths", nargs="+", type=int, default=None, help="lengths of the groups long and powers")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    require_gpu()
    lengths = arguments.lengths or ([4096] if arguments.quick else [4096, 8192, 16384, 32768, 65536])
    rows: list[Row] = []
    report = Report(COLUMNS)
    for setting in settings(arguments.groups, lengths, arguments.quick):
        new: list[Row] = []
        try:
            if setting.group == "accuracy":
                new = accuracy(setting, arguments.seed, arguments.quick)
            else:
                new = measure(setting, 3 if arguments.quick else arguments.rounds, arguments.seed, arguments.quick)
        except Exception as error:  # any error: the other settings must still be measured
            print(f"left out: {setting.label()}: {type(error).__name__}: {error}"[:400], file=sys.stderr)
            exit_if_broken()
        torch.cuda.empty_cache()
        rows += new
        write(arguments.out, rows)
        report.show(new)
        print(f"done: {setting.label()}", file=sys.stderr, flush=True)
    print("\n".join(verdicts(rows)))


if __name__ == "__main__":
    main()
