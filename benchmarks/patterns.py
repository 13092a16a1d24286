"""Bounds on the probability that an output matches a pattern: how often they close, and how soon.

Each run is asked about each pattern for each line of a split; a run with softmax also with top-p. A list of all
outputs, filtered afterwards, is the alternative. The runs are those of `demo.yaml` with other values of `model.output`.

    python benchmarks/patterns.py runs/softmax runs/entmax runs/sparsemax --commit a67f850 \
        --out benchmarks/results/patterns-cpu.csv
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Row, announce, machine, table, verdict, write

from tsallis.models.batch import Batch
from tsallis.search import Pattern, beam_search, exhaustive, match, with_top_p
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.file_names import CONFIG

REGEXES = (
    *(".*ed", ".*ied", ".*eded", ".*ing", ".*ee.*", ".*[^aeiouy]{4}.*", "[a-z]{1,9}"),
    ".*(bb|dd|gg|ll|mm|nn|pp|rr|tt)(ed|ing)",
)
BUDGETS = (10, 100, 1000)  # prefixes to expand, which are the calls of the model for one prefix each
TOP_P = 0.99
AT_LEAST = 1e-6
TARGETS = {"closed": 0.9, "decided": 0.99}
MOST_MS = 10
PRINTED = (
    *("output", "top_p", "method", "accuracy", "closed", "decided", "ms", "p90_ms", "expanded"),
    *(f"width_{budget}" for budget in BUDGETS),
)


class Answer(NamedTuple):
    """What is known about one line and pattern."""

    closed: bool
    decided: bool
    width: float
    expanded: int
    ms: float


def models(run: Any) -> Iterator[tuple[float, Any]]:
    """Yield the model of a run, and for softmax the same model with top-p."""
    yield 1.0, run.model
    if run.model.output.alpha == 1:
        yield TOP_P, with_top_p(run.model, TOP_P)


def by_automaton(model: Any, batch: Batch, patterns: Sequence[Pattern], budget: int) -> Iterator[Answer]:
    """Search once per pattern."""
    for pattern in patterns:
        start = time.process_time()
        ((one,),) = match(model, batch.src, batch.src_lengths, [pattern], budget=budget, at_least=AT_LEAST)
        spent = (time.process_time() - start) * 1000
        closed = one.open == one.too_long == 0
        yield Answer(closed, one.verdict != "unknown", one.upper - one.lower, one.expanded, spent)


def by_list(model: Any, batch: Batch, texts: Callable[..., str], budget: int) -> Iterator[Answer]:
    """Search once, and filter the outputs by each pattern."""
    start = time.process_time()
    (result,) = exhaustive(model, batch.src, batch.src_lengths, budget=budget)
    outputs = [(texts(hypothesis.tokens), hypothesis.prob) for hypothesis in result.hypotheses]
    searched, closed = (time.process_time() - start) * 1000, result.certificate.kind == "complete"
    # No missing output is more probable than the bound.
    negligible = closed or result.certificate.bound < math.log(AT_LEAST)
    for regex in REGEXES:
        start = time.process_time()
        found = any(prob >= AT_LEAST and re.fullmatch(regex, text) for text, prob in outputs)
        spent = searched + (time.process_time() - start) * 1000
        yield Answer(closed, found or negligible, 0.0 if closed else 1 - result.mass, result.expanded, spent)


def measure(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of one run."""
    config, run = load_config(folder / CONFIG), load_run(folder)
    corpus = task_of(run.task).split(run, config.data, options.split).corpus
    batches: list[Batch] = [corpus.batch([row]) for row in range(min(options.lines, len(corpus)))]
    patterns = [Pattern(regex, run.tgt_vocab) for regex in REGEXES]
    for top_p, model in models(run):
        best = [beam_search(model, batch.src, batch.src_lengths)[0].best for batch in batches]
        right = [h is not None and [*h.tokens] == [*x] for h, x in zip(best, corpus.tgt, strict=False)]
        methods = {"automaton": (by_automaton, patterns), "list": (by_list, run.tgt_vocab.decode)}
        for method, (call, argument) in methods.items():
            answers = {
                budget: [answer for batch in batches for answer in call(model, batch, argument, budget)]
                for budget in BUDGETS
            }
            last = answers[BUDGETS[-1]]
            times = sorted(answer.ms for answer in last)
            yield {
                "output": config.model.output,
                "top_p": top_p,
                "method": method,
                "split": options.split,
                "samples": len(batches),
                "patterns": len(patterns),
                "accuracy": statistics.mean(right),
                "closed": statistics.mean(answer.closed for answer in last),
                "decided": statistics.mean(answer.decided for answer in last),
                "ms": statistics.median(times),
                "p90_ms": times[int(0.9 * len(times))],
                "expanded": statistics.median(answer.expanded for answer in last),
                **{f"width_{budget}": statistics.mean(one.width for one in found) for budget, found in answers.items()},
                "commit": options.commit,
                **machine(),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--commit", required=True, help="of the code that trained the runs")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--lines", type=int, default=100, help="number of lines of the split")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = [row for run in options.runs for row in measure(run, options)]
    print(table(rows, PRINTED))
    sparse = [row for row in rows if row["method"] == "automaton" and row["output"] != "softmax"]
    for name, least in TARGETS.items():
        print(*verdict(name, least, {row["output"]: row[name] for row in sparse}, at_least=True), sep="\n")
    print(*verdict("milliseconds", MOST_MS, {row["output"]: row["ms"] for row in sparse}), sep="\n")
    write(options.out, rows)


if __name__ == "__main__":
    main()
