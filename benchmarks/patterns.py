"""Bounds on the probability that an output matches a pattern: how often they close, and how soon.

Each run is asked about each pattern for each line of a split; a run with softmax also with top-p. A complete list of
all outputs, filtered afterwards, is the alternative. Train the runs with `recipes/demo.yaml` and other outputs.

    python benchmarks/patterns.py runs/softmax runs/entmax runs/sparsemax --commit a67f850 \
        --out benchmarks/results/patterns-cpu.csv
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write

from tsallis.models.batch import Batch
from tsallis.search import Match, Pattern, beam_search, exhaustive, match, with_top_p
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.file_names import CONFIG

REGEXES = (
    *(".*ed", ".*ied", ".*eded", ".*ing", ".*ee.*", ".*[^aeiouy]{4}.*", "[a-z]{1,9}"),
    ".*(bb|dd|gg|ll|mm|nn|pp|rr|tt)(ed|ing)",
)
BUDGETS = (10, 100, 1000)  # prefixes to expand, which are the calls of the model for one prefix each
TOP_P = 0.99
PRINTED = (
    *("output", "top_p", "accuracy", "closed", "decided", "ms", "p90_ms", "expanded"),
    *("width_10", "width_100", "width_1000", "list_complete", "list_ms", "list_expanded"),
)


def models(run: Any) -> Iterator[tuple[float, Any]]:
    """Yield the model of a run, and for softmax the same model with top-p."""
    yield 1.0, run.model
    if run.model.output.alpha == 1:
        yield TOP_P, with_top_p(run.model, TOP_P)


def milliseconds(call: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call(*arguments, **options)
    return result, (time.perf_counter() - start) * 1000


def measure(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of one run."""
    config, run = load_config(folder / CONFIG), load_run(folder)
    corpus = task_of(run.task).split(run, config.data, options.split).corpus
    batches: list[Batch] = [corpus.batch([row]) for row in range(min(options.lines, len(corpus)))]
    patterns = [Pattern(regex, run.tgt_vocab) for regex in REGEXES[: options.patterns]]
    for top_p, model in models(run):
        pairs = [*itertools.product(batches, patterns)]
        found: dict[int, list[tuple[Match, float]]] = {budget: [] for budget in BUDGETS}
        for budget, (batch, pattern) in itertools.product(BUDGETS, pairs):
            ((one,),), spent = milliseconds(match, model, batch.src, batch.src_lengths, [pattern], budget=budget)
            found[budget].append((one, spent))
        lists = [milliseconds(exhaustive, model, batch.src, batch.src_lengths, budget=BUDGETS[-1]) for batch in batches]
        best = [beam_search(model, batch.src, batch.src_lengths)[0].best for batch in batches]
        right = [h is not None and [*h.tokens] == [*x] for h, x in zip(best, corpus.tgt, strict=False)]
        last, times = zip(*found[BUDGETS[-1]], strict=True)
        yield {
            "output": config.model.output,
            "top_p": top_p,
            "split": options.split,
            "samples": len(batches),
            "patterns": len(patterns),
            "accuracy": statistics.mean(right),
            "closed": statistics.mean(one.open == one.too_long == 0 for one in last),
            "decided": statistics.mean(one.verdict != "unknown" for one in last),
            "ms": statistics.median(times),
            "p90_ms": sorted(times)[int(0.9 * len(times))],
            "expanded": statistics.median(one.expanded for one in last),
            **{
                f"width_{budget}": statistics.mean(one.upper - one.lower for one, _ in found[budget])
                for budget in BUDGETS
            },
            "list_complete": statistics.mean(result.certificate.kind == "complete" for (result,), _ in lists),
            "list_ms": statistics.median(spent for _, spent in lists),
            "list_expanded": statistics.median(result.expanded for (result,), _ in lists),
            "commit": options.commit,
            **machine(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--commit", required=True, help="of the code that trained the runs")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--lines", type=int, default=100, help="number of lines of the split")
    parser.add_argument("--patterns", type=int, default=len(REGEXES), help="number of patterns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = [row for run in options.runs for row in measure(run, options)]
    print(table(rows, PRINTED))
    write(options.out, rows)


if __name__ == "__main__":
    main()
