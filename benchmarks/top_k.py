"""Measure the probability missing from top-k lists of a softmax teacher; lists of a sparse teacher are complete.

    python benchmarks/top_k.py runs/softmax runs/entmax --commit a67f850 --out benchmarks/results/top-k-cpu.csv

If a list omits the probability t, the gradient of the scores changes by 2t in L1 norm.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write
from trained import open_split, run_parser

from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.evaluation.teacher_forcing import MAX_SCORES

SIZES = (1, 4, 16, 64, 256, 1024)
PRINTED = ("run", "output", "entries", "bytes_per_symbol", "omitted", "bias", "bias_p90")


@torch.no_grad()
def measure(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Return a row for the list of all non-zero probabilities, and for a softmax teacher one row per top-k list."""
    config, run, corpus = open_split(folder, options.split)
    model: Any = run.model.eval()
    sizes = SIZES if config.model.output == "softmax" else ()
    tails, supports = [list[torch.Tensor]() for _ in sizes], list[torch.Tensor]()
    for first in range(0, min(options.lines, len(corpus)), 16):
        batch = corpus.batch(range(first, min(first + 16, len(corpus))))
        hidden = model(batch.src, batch.src_lengths, batch.tgt_in).hidden[batch.tgt_out != IGNORE_INDEX]
        for piece in hidden.split(max(1, MAX_SCORES // len(run.tgt_vocab))):
            probs = model.output.probs(model.output.scores(piece)).double()
            supports.append((probs > 0).sum(-1).double())
            sums = probs.sort(-1, descending=True).values.cumsum(-1)
            for kept, tail in zip(sizes, tails, strict=True):
                tail.append((sums[:, -1] - sums[:, kept - 1]).clamp(min=0))
    means: list[tuple[float, torch.Tensor]] = [(float(torch.cat(supports).mean()), torch.zeros(1))]
    means += [(kept, torch.cat(tail)) for kept, tail in zip(sizes, tails, strict=True)]
    return [
        {
            "run": folder.name,
            "output": config.model.output,
            "symbols": sum(map(len, supports)),
            "entries": round(entries, 1),
            "bytes_per_symbol": round(8 * entries),
            "omitted": round(float(tail.mean()), 4),
            "bias": round(2 * float(tail.mean()), 4),
            "bias_p90": round(2 * float(tail.quantile(0.9)), 4),
            "commit": options.commit,
            **machine(),
        }
        for entries, tail in means
    ]


def main() -> None:
    options = run_parser(__doc__, lines=500).parse_args()
    announce()
    rows = [row for run in options.runs for row in measure(run, options)]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
