"""Measure how long it takes to compute the probabilities of the next characters after a prefix of a reference.

`exact` is the share of possible prefixes whose next-character probabilities are exact. Prefixes that end inside a word
also test tokens that extend beyond the prefix.

    python benchmarks/completions.py RUN... --commit COMMIT [--lines 100] [--out FILE.csv]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, verdict, write
from trained import open_split

from tsallis.models.spellings import Spellings
from tsallis.search.completion import next_characters

EVERY = 7  # step between prefix lengths of a reference, in characters
MAX_MS = 100
COLUMNS = ("run", "output", "beginnings", "possible", "exact", "missing_p90", "ms", "p90_ms", "max_ms")


def measure(folder: Path, split: str, lines: int, commit: str) -> Row:
    config, run, corpus = open_split(folder, split)
    model: Any = run.model.eval()
    spellings = Spellings(run.tgt_vocab)
    spent, missing = list[float](), list[float]()
    for row in range(min(lines, len(corpus))):
        one = corpus.batch([row])
        text = run.tgt_vocab.decode([int(token) for token in corpus.tgt[row]])
        for end in range(0, len(text), EVERY):
            start = time.perf_counter()
            found = next_characters(model, one.src, one.src_lengths, text[:end], spellings)
            spent.append(1000 * (time.perf_counter() - start))
            missing += [found.missing] if found.probs else []
    return {
        "run": folder.name,
        "task": config.data.task,
        "output": config.model.output,
        "split": split,
        "samples": min(lines, len(corpus)),
        "beginnings": len(spent),
        "possible": len(missing) / len(spent),
        "exact": sum(not part for part in missing) / len(missing),
        "missing_p90": statistics.quantiles(missing, n=10)[-1],
        "ms": statistics.median(spent),
        "p90_ms": statistics.quantiles(spent, n=10)[-1],
        "max_ms": max(spent),
        "commit": commit,
        **machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = [measure(run, options.split, options.lines, options.commit) for run in options.runs]
    print(table(rows, COLUMNS))
    write(options.out, rows)
    print(*verdict("milliseconds of 90 %", MAX_MS, {row["run"]: row["p90_ms"] for row in rows}), sep="\n")


if __name__ == "__main__":
    main()
