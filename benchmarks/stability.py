"""Measure how often beam search returns stable lists, and whether these are equal on every backend and batch size.

The script searches a split with every combination of batch size, number of threads, and instruction set or backend.
It compares the lists for batches of 1 on one thread with the others.

    python benchmarks/stability.py runs/entmax runs/softmax --commit a67f850 --out benchmarks/results/stability-cpu.csv
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write
from torch import Tensor
from trained import open_split, run_parser

import tsallis
from tsallis.ops import cpu
from tsallis.search import beam_search, stability
from tsallis.symbols import BOS

SETS = ("portable", "avx2", "avx512", "avx512bf16")
BATCHES = (1, 7, 64)
LISTED: dict[str, int] = {"beam_size": 5, "n_best": 5}
PRINTED = ("output", "dtype", "n_best", "settings", "stable", "equal", "equal_stable", "error", "ms", "search_ms")
List = list[tuple[int, ...]]


def settings(threads: int) -> Iterator[int]:
    """Set each combination in turn, and yield its batch size; the first combination is the reference."""
    library = cpu._load()[0]
    machine_set = library.tsallis_isa()
    present = [name.encode() for name in SETS if library.tsallis_use_isa(name.encode())]
    names = [machine_set, *(name for name in present if name != machine_set), b"eager"]
    for name, count, batch in itertools.product(names, (1, threads), BATCHES):
        torch.set_num_threads(count)
        library.tsallis_use_isa(machine_set if name == b"eager" else name)
        with tsallis.backend("eager" if name == b"eager" else "auto"):
            yield batch
    library.tsallis_use_isa(machine_set)
    torch.set_num_threads(1)


def search(model: Any, corpus: Any, rows: Sequence[int], batch: int) -> tuple[list[List], list[Tensor], float]:
    """Return the list of outputs per source, the scores [steps, d_vocab] of a fixed output, and the seconds of search.

    The fixed output has the indices of the source's symbols, modulo the size of the target vocabulary.
    """
    lists, scores, spent = list[List](), list[Tensor](), 0.0
    for first in range(0, len(rows), batch):
        one = corpus.batch(rows[first : first + batch])
        start = time.process_time()
        results = beam_search(model, one.src, one.src_lengths, **LISTED)
        spent += time.process_time() - start
        lists += [[hypothesis.tokens for hypothesis in result.hypotheses] for result in results]
        with torch.no_grad():
            state, steps = model.start(model.encode(one.src, one.src_lengths)), []
            token = torch.full((len(one.src),), BOS)
            for position in range(int(one.src_lengths.max())):
                step = model.step(state, token)
                steps.append(step.scores.double())
                state, token = step.state, one.src[:, position] % step.scores.shape[1]
        stacked = torch.stack(steps, 1)
        scores += [row[:length] for row, length in zip(stacked, one.src_lengths.tolist(), strict=True)]
    return lists, scores, spent


def relative_error(scores: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference of scores, in units of the dtype's epsilon times the largest score."""
    finite = expected.isfinite()
    difference, largest = (scores - expected)[finite].abs().max(), expected[finite].abs().max()
    return float(difference / (largest * torch.finfo(dtype).eps))


def measure(folder: Path, dtype: torch.dtype, options: argparse.Namespace) -> Row:
    """Return the row of one run in one dtype."""
    config, run, corpus = open_split(folder, options.split)
    model: Any = run.model.eval().to(dtype)
    rows = range(min(options.lines, len(corpus)))
    start = time.process_time()
    stable = []
    for row in rows:
        one = corpus.batch([row])
        stable += [found.stable for found in stability(model, one.src, one.src_lengths, **LISTED)]
    spent = time.process_time() - start
    (expected, scores, searched), *others = (search(model, corpus, rows, batch) for batch in settings(options.threads))
    equal = [all(lists[row] == expected[row] for lists, *_ in others) for row in rows]
    return {
        "output": config.model.output,
        "dtype": str(dtype).removeprefix("torch."),
        "split": options.split,
        "samples": len(rows),
        **LISTED,
        "settings": 1 + len(others),
        "stable": sum(stable) / len(rows),
        "equal": sum(equal) / len(rows),
        "equal_stable": sum(same for same, sure in zip(equal, stable, strict=True) if sure) / max(sum(stable), 1),
        "error": max(
            relative_error(one, reference, dtype)
            for _, each, _ in others
            for one, reference in zip(each, scores, strict=True)
        ),
        "ms": 1000 * spent / len(rows),
        "search_ms": 1000 * searched / len(rows),
        "commit": options.commit,
        **machine(),
    }


def main() -> None:
    parser = run_parser(__doc__, lines=1000)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2, help="largest number of threads")
    options = parser.parse_args()
    announce()
    rows = [measure(run, getattr(torch, dtype), options) for run in options.runs for dtype in options.dtypes]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
