"""Measure how often and how fast the bounds on the probability of a pattern become exact.

The script runs each pattern on each line of a split, for every run; a run with softmax is also measured with top-p. It
compares `match` with a list of all outputs that is filtered afterwards. Train the runs with `demo.yaml`,
`tiny/translation.yaml` and `tiny/language.yaml` and other values of `model.output`. A language model continues each
line, whose last symbols are removed.

    python benchmarks/patterns.py runs/softmax runs/entmax runs/sparsemax --commit a67f850 \
        --out benchmarks/results/patterns-cpu.csv
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import Row, announce, machine, table, verdict, write
from torch import Tensor
from trained import run_parser

from tsallis.search import Pattern, beam_search, exhaustive, match, with_top_p
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import load_run
from tsallis.toolkit.training.file_names import CONFIG

REGEXES = {
    "strings": (
        *(".*ed", ".*ied", ".*eded", ".*ing", ".*ee.*", ".*[^aeiouy]{4}.*", "[a-z]{1,9}"),
        ".*(bb|dd|gg|ll|mm|nn|pp|rr|tt)(ed|ing)",
    ),
    "translation": (".*[0-9].*", ".*(hundred|thousand).*", ".*teen.*teen.*", "[^.]*", ".{1,40}"),
    "language": (".*[0-9].*", ".*(hundert|tausend).*", ".*[A-ZÄÖÜ].*", ".{1,16}"),
}
LENGTHS = (1, 2, 4, 8, 16)  # numbers of symbols that are removed from a line to make the prompt of a language model
BUDGETS = (10, 100, 1000)  # limits of expanded prefixes; the model is called once per prefix
TOP_P = 0.99
AT_LEAST = 1e-6
TARGETS = {"strings": {"closed": 0.9, "decided": 0.99}, "translation": {"closed": 0.8, "decided": 0.95}}
MAX_MS = 10
PRINTED = (
    *("task", "length", "output", "top_p", "method", "accuracy", "closed", "decided", "ms", "p90_ms", "expanded"),
    *(f"width_{budget}" for budget in BUDGETS),
)


Source = tuple[Tensor, Tensor]  # symbols [1, src] and their number


class Line(NamedTuple):
    source: Source
    expected: list[int]


class Answer(NamedTuple):
    """The result for one line and one pattern."""

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


def by_automaton(model: Any, source: Source, patterns: Sequence[Pattern], budget: int) -> Iterator[Answer]:
    """Yield the answers of `match`, which searches once per pattern."""
    for pattern in patterns:
        start = time.process_time()
        ((one,),) = match(model, *source, [pattern], budget=budget, at_least=AT_LEAST)
        spent = (time.process_time() - start) * 1000
        closed = one.open == one.too_long == 0
        yield Answer(closed, one.verdict != "unknown", one.upper - one.lower, one.expanded, spent)


def by_list(
    model: Any, source: Source, regexes: Sequence[str], budget: int, texts: Callable[..., str]
) -> Iterator[Answer]:
    """List the outputs once, and yield the answer of filtering them by each pattern."""
    start = time.process_time()
    (result,) = exhaustive(model, *source, budget=budget)
    outputs = [(texts(hypothesis.tokens), hypothesis.prob) for hypothesis in result.hypotheses]
    searched, closed = (time.process_time() - start) * 1000, result.certificate.kind == "complete"
    # No missing output is more probable than the bound.
    negligible = closed or result.certificate.bound < math.log(AT_LEAST)
    for regex in regexes:
        start = time.process_time()
        found = any(prob >= AT_LEAST and re.fullmatch(regex, text) for text, prob in outputs)
        spent = searched + (time.process_time() - start) * 1000
        yield Answer(closed, found or negligible, 0.0 if closed else 1 - result.mass, result.expanded, spent)


def sources(run: Any, config: Any, options: argparse.Namespace) -> Iterator[tuple[int | str, list[Line]]]:
    """Yield the length of the references ("" if it varies) and the lines."""
    corpus = task_of(run.task).split(run, config.data, options.split).corpus
    if run.task["task"] != "language":
        batches = [corpus.batch([row]) for row in range(min(options.lines, len(corpus)))]
        yield "", [Line((x.src, x.src_lengths), [*y]) for x, y in zip(batches, corpus.tgt, strict=False)]
        return
    texts = [[*text] for text in corpus.tgt if len(text) > max(LENGTHS)][: options.lines]
    for length in LENGTHS:
        starts = [(torch.tensor([text[:-length]]), torch.tensor([len(text) - length])) for text in texts]
        yield length, [Line(start, text[-length:]) for start, text in zip(starts, texts, strict=True)]


def measure(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of one run."""
    config, run = load_config(folder / CONFIG), load_run(folder)
    regexes = REGEXES[run.task["task"]]
    patterns = [Pattern(regex, run.tgt_vocab) for regex in regexes]
    methods = {"automaton": (by_automaton, patterns), "list": (partial(by_list, texts=run.tgt_vocab.decode), regexes)}
    for (length, lines), (top_p, model) in itertools.product(sources(run, config, options), models(run)):
        best = [beam_search(model, *line.source)[0].best for line in lines]
        right = [h is not None and [*h.tokens] == line.expected for h, line in zip(best, lines, strict=True)]
        for method, (call, argument) in methods.items():
            answers = {
                budget: [answer for line in lines for answer in call(model, line.source, argument, budget)]
                for budget in BUDGETS
            }
            last = answers[BUDGETS[-1]]
            times = sorted(answer.ms for answer in last)
            yield {
                "task": run.task["task"],
                "length": length,
                "output": config.model.output,
                "top_p": top_p,
                "method": method,
                "split": options.split,
                "samples": len(lines),
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
    parser = run_parser(__doc__, lines=100)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows = [row for run in options.runs for row in measure(run, options)]
    print(table(rows, PRINTED))
    sparse = [row for row in rows if row["method"] == "automaton" and row["output"] != "softmax"]
    for task, targets in TARGETS.items():
        for name, least in targets.items():
            found = {row["output"]: row[name] for row in sparse if row["task"] == task}
            for line in verdict(f"{task}, {name}", least, found, at_least=True):
                print(line)
    times = {row["output"]: row["ms"] for row in sparse if row["task"] == "strings"}
    for line in verdict("milliseconds", MAX_MS, times):
        print(line)
    write(options.out, rows)


if __name__ == "__main__":
    main()
