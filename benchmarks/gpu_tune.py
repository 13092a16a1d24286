"""Compare launch parameters of the kernels on a GPU, and print the best ones for each shape.

    python benchmarks/gpu_tune.py --out gpu-tune.csv
    python benchmarks/gpu_tune.py --groups attention --rounds 10 --out gpu-tune.csv

For each kernel and shape, the script times forward and backward with the current parameters ("today") and with the
candidates below, which replace the function that chooses the parameters. A candidate that does not compile gets an
error and no time. Rows are written immediately; `ratio` is relative to today. At the end, the script prints the best
candidate for each shape.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Row, write
from gpu import Case, Report, interleaved, machine, medians, require_gpu

import tsallis
from tsallis.ops.triton import alpha_relu, losses, maps
from tsallis.ops.triton.attention import launch

COLUMNS = ("group", "shape", "dtype", "candidate", "ms", "ratio")


class Setting(NamedTuple):
    """A call to time, and the attribute of a module (`module.name`) that chooses its parameters."""

    group: str
    shape: str
    dtype: torch.dtype
    module: Any
    name: str
    call: Callable[[], object]
    candidates: dict[str, Callable[..., object]]


def tuned(groups: list[str], tiny: bool) -> Iterator[Setting]:
    """Yield the settings to tune, the most used kernels first."""
    makers = {"maps": _maps, "losses": _losses, "attention": _attention, "layer": _layer}
    for group in groups:
        yield from makers[group](tiny)


GROUPS = ("maps", "losses", "attention", "layer")


def always(tiles: object) -> Callable[..., object]:
    """Return a function that ignores its arguments and returns the given parameters."""
    return lambda *_: tiles


def both(call: Callable[..., Any], *leaves: torch.Tensor) -> Callable[[], object]:
    """Return a function that runs forward and backward."""

    def run() -> object:
        result = call(*leaves)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    return run


def _row_candidates(today: Callable[..., Any]) -> dict[str, Callable[..., object]]:
    """Return variants of the current tiles, with halved or doubled parameters."""

    def changed(**factors: float) -> Callable[..., object]:
        def choose(*arguments: Any) -> object:
            tiles = today(*arguments)
            known = {name: factor for name, factor in factors.items() if name in tiles._fields}
            return tiles._replace(**{n: max(1, int(getattr(tiles, n) * f)) for n, f in known.items()})

        return choose

    return {
        "half the warps": changed(warps=0.5),
        "twice the warps": changed(warps=2),
        "half the rows or lanes": changed(rows=0.5, lanes=0.5),
        "twice the rows or lanes": changed(rows=2, lanes=2),
        "two stages": changed(stages=0.5),
        "half the programs": changed(programs=0.5),
        "twice the programs": changed(programs=2),
    }


def _maps(tiny: bool) -> Iterator[Setting]:
    for rows, d in [(8, 64)] if tiny else [(1 << 17, 512), (1 << 15, 4096), (1 << 13, 32768), (1 << 11, 131072)]:
        for dtype in (torch.float32,) if tiny else (torch.bfloat16, torch.float32):
            x = torch.randn(rows, d, device="cuda", dtype=dtype, requires_grad=True)
            call = both(tsallis.entmax15, x)
            candidates = _row_candidates(maps.tiling)
            yield Setting("maps", f"{rows}x{d}", dtype, maps, "tiling", call, candidates)
            if d <= 8192:
                call = both(partial(tsallis.entmax, alpha=1.25), x)
                yield Setting(
                    "powers", f"{rows}x{d}", dtype, maps, "tiling", call, {"on the chip": always(maps.short(d))}
                )


def _losses(tiny: bool) -> Iterator[Setting]:
    for rows, d in [(8, 64)] if tiny else [(1 << 14, 4096), (1 << 12, 32768), (1 << 11, 131072)]:
        x = torch.randn(rows, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        target = torch.randint(d, (rows,), device="cuda")
        call = both(partial(tsallis.entmax_loss, target=target), x)
        candidates = _row_candidates(losses.tiling)
        yield Setting("losses", f"{rows}x{d}", torch.bfloat16, losses, "tiling", call, candidates)


def _attention(tiny: bool) -> Iterator[Setting]:
    tiles = launch.Tiling
    forwards = [tiles(128, 64, 8, 3), tiles(128, 64, 4, 2), tiles(64, 64, 4, 3), tiles(128, 128, 8, 2)]
    backs = [tiles(64, 64, 4, 2), tiles(64, 64, 8, 1), tiles(32, 64, 4, 2)]
    for length in [24] if tiny else [2048, 8192, 32768]:
        size, dtype = (16, torch.float32) if tiny else (64, torch.bfloat16)
        q, k, v = (torch.randn(1, 8, length, size, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        today = launch.tilings(size, size, dtype)
        candidates: dict[str, Callable[..., object]] = {}
        for tile in forwards[-1:] if tiny else forwards:
            # All three tilings need the same number of keys.
            pair = (x._replace(keys=tile.keys) for x in (today.by_query, today.by_key))
            candidates[f"forward {tuple(tile)}"] = always(launch.Tilings(tile, *pair))
        for tile in backs[-1:] if tiny else backs:
            candidates[f"backward {tuple(tile)}"] = always(today._replace(by_query=tile, by_key=tile))
        call = both(partial(tsallis.entmax_attention, is_causal=True), q, k, v)
        yield Setting("attention", f"1x8x{length}x{size}", dtype, launch, "tilings", call, candidates)


def _layer(tiny: bool) -> Iterator[Setting]:
    tokens, size, classes = (12, 16, 60) if tiny else (8192, 1024, 128000)
    dtype = torch.float32 if tiny else torch.bfloat16
    hidden = torch.randn(tokens, size, device="cuda", dtype=dtype, requires_grad=True)
    weight = (torch.randn(classes, size, device="cuda", dtype=dtype) / size**0.5).requires_grad_()
    target = torch.randint(classes, (tokens,), device="cuda")
    tiles = alpha_relu.Tiling
    choices = [tiles(128, 128, 64, 16, 8, 3), tiles(128, 256, 64, 8, 8, 4), tiles(64, 256, 64, 16, 4, 4)]
    candidates: dict[str, Callable[..., object]] = {
        str(tuple(tile)): always(tile) for tile in (choices[:1] if tiny else choices)
    }
    call = both(lambda h, w: tsallis.linear_alpha_relu_loss(h, w, target, 1.5, 0.75), hidden, weight)
    yield Setting("layer", f"{tokens}x{size}x{classes}", dtype, alpha_relu, "tiling", call, candidates)


def measure(setting: Setting, rounds: int) -> list[Row]:
    """Time the current parameters and all candidates, interleaved."""
    today = getattr(setting.module, setting.name)

    def under(choose: Callable[..., object]) -> Callable[[], object]:
        def run() -> object:
            setattr(setting.module, setting.name, choose)
            try:
                return setting.call()
            finally:
                setattr(setting.module, setting.name, today)

        return run

    every = {"today": today, **setting.candidates}
    cases = [Case(name, "tsallis", under(choose)) for name, choose in every.items()]
    times = medians(interleaved(cases, rounds))
    where = {"group": setting.group, "shape": setting.shape, "dtype": str(setting.dtype).removeprefix("torch.")}
    rows = []
    for case in cases:
        ms = times.get(case.name)
        ratio = "" if ms is None or "today" not in times else ms / times["today"]
        measured = {"ms": "" if ms is None else ms, "ratio": ratio, "rounds": rounds, "error": case.error}
        rows.append({**where, "candidate": case.name, **measured, **machine()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="run only tiny shapes, as a check")
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    require_gpu()
    rows: list[Row] = []
    report = Report(COLUMNS)
    for setting in tuned(arguments.groups, arguments.tiny):
        print(setting.group, setting.shape, setting.dtype, file=sys.stderr, flush=True)
        rows += (new := measure(setting, arguments.rounds))
        write(arguments.out, rows)
        report.show(new)
        torch.cuda.empty_cache()
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = row["group"], row["shape"], row["dtype"]
        if row["ms"] != "" and (key not in best or row["ms"] < best[key]["ms"]):
            best[key] = row
    print(
        "\nbest", *(f"{' '.join(key)}: {row['candidate']} ({row['ratio']:.2f})" for key, row in best.items()), sep="\n"
    )


if __name__ == "__main__":
    main()
