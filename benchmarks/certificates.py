"""Measure how often beam search proves its results, and compare with the sum of the printed probabilities.

Without certificates, one can add the printed probabilities of a beam: a sum of 1 suggests that the list is complete.
Each run is evaluated at its best checkpoint on a split of its own data.

    python benchmarks/certificates.py runs/entmax runs/softmax --folder data/sigmorphon2018 --commit a67f850 \
        --out benchmarks/results/certificates-cpu.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch
from common import Row, announce, machine, table, write
from torch import Tensor
from trained import open_split

from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.beams import Beams
from tsallis.search import Result, beam_search
from tsallis.toolkit.evaluation.metrics import CERTAIN

BATCH = 64
PRINTED = (
    *("attention", "output", "samples", "accuracy", "complete", "optimal", "single"),
    *("sum_one", "sum_missed", "sum_wrong", "rows_to_full"),
)


class CountingBeams(Beams):
    """Beams that count the rows of all search steps, and the rows that beams of full width would have."""

    rows = full = 0

    def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
        type(self).rows += len(num_attended)
        type(self).full += len(self._active) * (self.size if self._length else 1)
        return super().follow(best, num_attended)


def adds_up(result: Result, digits: int) -> bool:
    """Return whether a beam's probabilities, rounded to `digits` decimals, have a sum that rounds to 1."""
    return round(sum(round(h.prob, digits) for h in result.hypotheses), digits) == 1


def measure(folder: Path, options: argparse.Namespace) -> Row:
    """Return the row of one run."""
    config, run, corpus = open_split(folder, options.split, f"data.folder={options.folder}")
    by_row: dict[int, Result] = {}
    CountingBeams.rows = CountingBeams.full = 0
    with mock.patch("tsallis.search.beam.choose_beams", lambda _: mock.Mock(Beams=CountingBeams)):
        for batch in corpus.batches(BATCH):
            results = beam_search(run.model, batch.src, batch.src_lengths, beam_size=options.beam)
            by_row.update(zip(batch.index, results, strict=True))
    results = [by_row[i] for i in range(len(corpus))]
    best = [result.best for result in results]
    complete = [result.certificate.kind == "complete" for result in results]
    sums = [adds_up(result, options.digits) for result in results]
    pairs = list(zip(complete, sums, strict=True))
    count, model = len(results), config.model
    return {
        "attention": model.attention,
        "output": model.output,
        "seed": config.training.seed,
        "step": run.facts["step"],
        "split": options.split,
        "languages": len(config.data.languages) if isinstance(config.data.languages, list) else config.data.languages,
        "beam": options.beam,
        "samples": count,
        "accuracy": sum(h is not None and list(h.tokens) == list(x) for h, x in zip(best, corpus.tgt, strict=True))
        / count,
        "complete": sum(complete) / count,
        "optimal": sum(result.certificate.kind == "optimal" for result in results) / count,
        "single": sum(h is not None and h.prob >= CERTAIN for h in best) / count,
        "digits": options.digits,
        "sum_one": sum(sums) / count,
        "sum_missed": sum(whole and not one for whole, one in pairs) / max(sum(complete), 1),
        "sum_wrong": sum(one and not whole for whole, one in pairs) / max(sum(sums), 1),
        "rows_to_full": CountingBeams.rows / CountingBeams.full,
        "commit": options.commit,
        **machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--folder", default=".", help="folder of the runs' data")
    parser.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--digits", type=int, default=4, help="number of decimals of a printed probability")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = [measure(run, options) for run in options.runs]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
