"""Compare the compiled and the plain step of beam search with float64, and measure the cost of proving results."""

from __future__ import annotations

import argparse
import copy
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from common import Row, announce, machine, table, write
from decoding import LONGEST, SIZES, random_models, sources, text_sources, trained_models, with_plain_steps
from torch import Tensor

from tsallis.models import TransformerSeq2Seq
from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.beams import Beams
from tsallis.search import Result, beam_search, score
from tsallis.toolkit.data.batching import make_batch

COLUMNS = ("size", "name", "sentences", "same", "same_kinds", "bound", "rms", "plain_rms", "worst", "plain_worst")
COST = ("size", "name", "steps_to_stop", "rows_to_stop", "cpu_to_stop", "same_to_stop", "proved")
OUTPUTS = 5  # number of outputs per source to compare


class StoppingBeams(Beams):
    """Beams without proofs: like CTranslate2, they stop when the best continuation of a step is the end symbol."""

    def __init__(self, limits: Any, options: Any, token: int) -> None:
        # Ask for more outputs than exist, so that the beam never drops a prefix.
        super().__init__(limits, options._replace(n_best=sys.maxsize), token)

    def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
        ends, row, leads = best.ends.tolist(), 0, {}
        for source, beam in self._active:
            after = row + len(beam.log_probs)
            leads[source] = max(map(sum, zip(beam.log_probs, ends[row:after], strict=True)))
            row = after
        super().follow(best, num_attended)
        goes_on = {source: beam.log_probs[0] > leads[source] for source, beam in self._active}
        keep = [goes_on[source] for source, beam in self._active for _ in beam.log_probs]
        for name in ("_tokens", "_parents", "_parent_rows"):
            setattr(self, name, [x for x, stays in zip(getattr(self, name), keep, strict=True) if stays])
        self._active = [(source, beam) for source, beam in self._active if goes_on[source]]
        return bool(self._active)


@contextmanager
def counted(kind: type[Beams]) -> Iterator[list[int]]:
    """Make searches use a class of beams; yield a list that collects the number of rows of each step."""
    rows: list[int] = []

    class Counted(kind):  # type: ignore[misc, valid-type]
        def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
            rows.append(len(num_attended))
            return bool(super().follow(best, num_attended))

    with mock.patch("tsallis.search.beam.choose_beams", lambda _: mock.Mock(Beams=Counted)):
        yield rows


Batches = list[tuple[Tensor, Tensor]]


def search(model: Any, batch: tuple[Tensor, Tensor], beam: int, n_best: int) -> list[Result]:
    return beam_search(model, *batch, beam_size=beam, n_best=n_best, max_length=LONGEST)


def errors(wide: Any, batch: tuple[Tensor, Tensor], results: list[Result]) -> list[float]:
    """Return the error of each best output's log-probability against the float64 model."""
    pairs = [(row, r.best) for row, r in enumerate(results) if r.best is not None]
    rows = [batch[0][row, : batch[1][row]].tolist() for row, _ in pairs]
    both = make_batch(rows, [list(best.tokens) for _, best in pairs], range(len(pairs)))
    exact = score(wide, both.src, both.src_lengths, both.tgt_in, both.tgt_out).tolist()
    return [best.log_prob - x for (_, best), x in zip(pairs, exact, strict=True) if x > -math.inf]


def compare_steps(model: TransformerSeq2Seq, batches: Batches, beam: int) -> Row:
    """Compare compiled and plain search with each other, and their log-probabilities with float64."""
    plain = with_plain_steps(model)
    wide = copy.deepcopy(model).double()
    same = kinds = count = 0
    bounds: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for batch in batches:
        compiled, stepwise = (search(one, batch, beam, OUTPUTS) for one in (model, plain))
        ours += errors(wide, batch, compiled)
        theirs += errors(wide, batch, stepwise)
        for a, b in zip(compiled, stepwise, strict=True):
            count += 1
            same += [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
            kinds += a.certificate.kind == b.certificate.kind
            if a.certificate.bound != b.certificate.bound:
                bounds.append(abs(a.certificate.bound - b.certificate.bound))
    return {
        "sentences": count,
        "same": same / count,
        "same_kinds": kinds / count,
        "bound": max(bounds, default=0.0),
        "rms": math.sqrt(statistics.fmean(x * x for x in ours)),
        "plain_rms": math.sqrt(statistics.fmean(x * x for x in theirs)),
        "worst": max(map(abs, ours)),
        "plain_worst": max(map(abs, theirs)),
    }


class Cost(NamedTuple):
    """The cost and results of all searches with one class of beams."""

    rows: list[int]  # number of rows at each step
    seconds: list[float]  # processor time per batch
    results: list[Result]


def compare_stops(model: TransformerSeq2Seq, batches: Batches, beam: int) -> Row:
    """Compare steps, rows and times of searches that prove their results with searches that stop early."""
    costs = {kind: Cost([], [], []) for kind in (Beams, StoppingBeams)}
    order = random.Random(0)
    for batch in batches:
        kinds = list(costs)
        order.shuffle(kinds)
        for kind in kinds:
            cost = costs[kind]
            with counted(kind) as rows:
                start = time.process_time()
                cost.results.extend(search(model, batch, beam, 1))
                cost.seconds.append(time.process_time() - start)
            cost.rows.extend(rows)
    proving, stopping = costs[Beams], costs[StoppingBeams]
    pairs = list(zip(proving.results, stopping.results, strict=True))
    kinds = [result.certificate.proves_best for result in proving.results]
    return {
        "steps_to_stop": len(proving.rows) / len(stopping.rows),
        "rows_to_stop": sum(proving.rows) / sum(stopping.rows),
        "cpu_to_stop": sum(proving.seconds) / sum(stopping.seconds),
        "same_to_stop": sum(a.best == b.best for a, b in pairs) / len(pairs),
        "proved": sum(kinds) / len(kinds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES, help="sizes of random models")
    parser.add_argument("--run", nargs="+", type=Path, help="trained runs to use instead, softmax first; needs --file")
    parser.add_argument("--file", type=Path, help="file of sources for the runs, one per line")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (options.run is None) != (options.file is None):
        parser.error("--run and --file go together")
    torch.set_num_threads(options.threads)
    announce()
    rows: list[Row] = []
    for size in ["trained"] if options.run else options.sizes:
        models, symbols = trained_models(options.run) if options.run else (random_models(size), None)
        if symbols is None:
            batches = sources(SIZES[size]["symbols"], options.sentences, options.batch)
        else:
            batches = text_sources(symbols, options.file, options.sentences, options.batch)
        for name, model in models.items():
            steps, cost = (compare(model, batches, options.beam) for compare in (compare_steps, compare_stops))
            rows.append({"size": size, "name": name, "beam": options.beam, **steps, **cost, **machine()})
            print(table(rows[-1:], COLUMNS), table(rows[-1:], COST), sep="\n", file=sys.stderr, flush=True)
            write(options.out, rows)


if __name__ == "__main__":
    main()
