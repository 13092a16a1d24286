"""Compare language models with softmax, sparse attention and sparse output, in training and generation speed.

In one process, all candidates make interleaved updates on the same batches, and then generate texts from the same
prompts. Without --runs, models have random parameters, and the symbols have a Zipf distribution. Trained runs must have
the same symbols, softmax first. They use the test split of the first run, and are not changed. Times are processor time
of all threads. Quote ratios.

    python benchmarks/language.py --runs runs/kyoto-softmax runs/kyoto-learned runs/kyoto \
        --out benchmarks/results/language-cpu.csv
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write
from torch import Tensor

from tsallis.models import LanguageModel
from tsallis.models.batch import Batch
from tsallis.ops import choice
from tsallis.search import generate
from tsallis.toolkit.data.packing import PackedCorpus, pack
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.training import Settings
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine
from tsallis.toolkit.training.file_names import CONFIG
from tsallis.toolkit.training.run_folder import load_run

MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"alpha": 1.0, "output": "softmax"},
    "1.5-entmax attention": {"alpha": 1.5, "output": "softmax"},
    "learned attention": {"alpha": "learned", "output": "softmax"},
    "learned attention, 1.5-entmax output": {"alpha": "learned", "output": "entmax"},
}
SIZES = {"d_model": 128, "heads": 4, "layers": 3, "d_ff": 344}
SYMBOLS = 4000
LENGTHS = [128, 1024]
COLUMNS = ("operation", "name", "length", "batch", "tokens_per_second", "to_softmax", "support", "rounds")


class Candidate:
    """A model and its task: `act` returns the number of tokens, and the mean number of possible symbols per token."""

    def __init__(self, name: str, act: Callable[[Any], tuple[int, float]]) -> None:
        self.name, self.act = name, act
        self.seconds: list[float] = []  # per token
        self.support: list[float] = []

    def run(self, work: Any) -> None:
        began = time.process_time()
        tokens, support = self.act(work)
        self.seconds.append((time.process_time() - began) / max(tokens, 1))
        self.support.append(support)


def random_models(seed: int) -> dict[str, LanguageModel]:
    """Build the models; all share the parameters of the first."""
    models = {}
    for name, arguments in MODELS.items():
        torch.manual_seed(seed)
        models[name] = LanguageModel(SYMBOLS, **SIZES, **arguments)
        models[name].load_state_dict(next(iter(models.values())).state_dict(), strict=False)
    return models


def random_rows(length: int, rows: int, seed: int) -> PackedCorpus:
    """Create rows of a random text whose symbols have a Zipf distribution, like words."""
    generator = torch.Generator().manual_seed(seed)
    shares = 1 / torch.arange(1, SYMBOLS - 3, dtype=torch.float64)
    text = 4 + torch.multinomial(shares, length * rows - 1, replacement=True, generator=generator)
    return pack([text.numpy()], length, SYMBOLS)


def train(model: Any) -> Callable[[Batch], tuple[int, float]]:
    """Return a function that makes updates with learning rate zero, so that the model doesn't change."""
    engine = Engine(model, Settings(clip=1.0), World())

    def act(batch: Batch) -> tuple[int, float]:
        model.train()
        engine.update([batch], 1, 1, 0.0)
        return batch.tokens, float("nan")

    return act


def draw(model: Any) -> Callable[[Tensor], tuple[int, float]]:
    """Return a function that generates texts of the length of each row, prompted by its first quarter."""

    def act(rows: Tensor) -> tuple[int, float]:
        width, length = rows.shape[1] // 4, rows.shape[1]
        model.eval()
        counts = torch.full((len(rows),), width)
        texts = generate(model, rows[:, :width], counts, max_length=length - width, seeds=range(len(rows)))
        steps = [count for (text,) in texts for count in text.support]
        return len(steps), statistics.fmean(steps)

    return act


def interleave(candidates: Sequence[Candidate], work: Sequence[Any], seed: int) -> None:
    """Run all candidates on each piece of work, in a new random order each time; the first piece is a warm-up."""
    order, turn = random.Random(seed), list(candidates)
    for number, piece in enumerate(work):
        order.shuffle(turn)
        for candidate in turn:
            candidate.run(piece)
            if number == 0:
                candidate.seconds.clear()
                candidate.support.clear()


def rows_of(operation: str, candidates: Sequence[Candidate], length: int, batch: int) -> list[Row]:
    first = candidates[0]
    return [
        {
            "operation": operation,
            "name": c.name,
            "length": length,
            "batch": batch,
            "tokens_per_second": 1 / statistics.median(c.seconds),
            "to_softmax": statistics.median(b / a for a, b in zip(c.seconds, first.seconds, strict=True)),
            "support": statistics.fmean(c.support) if operation == "generation" else "",
            "rounds": len(c.seconds),
            "backend": choice.explain(),
            **machine(),
        }
        for c in candidates
    ]


def measure(models: dict[str, Any], corpus: PackedCorpus, length: int, inputs: argparse.Namespace) -> list[Row]:
    """Measure training and generation on rows of one length."""
    batch = max(1, inputs.tokens // length)
    whole = (corpus.lengths()[:, 1] == length - 1).nonzero().flatten().tolist()
    if not whole:
        raise SystemExit(f"no row of {length} tokens: the texts are too short")
    rounds = range(inputs.rounds + 1)
    chosen = [[whole[(i * batch + j) % len(whole)] for j in range(batch)] for i in rounds]
    batches = [corpus.batch(rows) for rows in chosen]
    trained = [Candidate(name, train(model)) for name, model in models.items()]
    interleave(trained, batches, inputs.seed)
    drawn = [Candidate(name, draw(model)) for name, model in models.items()]
    interleave(drawn, [piece.tgt_in[: inputs.texts, 1:] for piece in batches], inputs.seed)
    return [
        *rows_of("training", trained, length, batch),
        *rows_of("generation", drawn, length, min(batch, inputs.texts)),
    ]


def named_runs(folders: Sequence[Path]) -> tuple[dict[str, Any], Callable[[int], PackedCorpus]]:
    """Return the models of runs by attention and output, and a function that returns the first run's test rows."""
    runs = [load_run(folder) for folder in folders]
    models = {}
    for run in runs:
        if run.tgt_vocab != runs[0].tgt_vocab:
            raise SystemExit(f"{run.folder}: other symbols than those of {runs[0].folder}")
        arguments = run.model.arguments
        models[f"{arguments['alpha']} attention, {arguments['output']} output"] = run.model.requires_grad_()
    data, task = load_config(runs[0].folder / CONFIG).data, task_of(runs[0].task)
    return models, lambda length: task.split(runs[0], data, "test", length=length).corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="trained runs on the same data, softmax first")
    parser.add_argument("--lengths", nargs="*", type=int, default=LENGTHS, help="row lengths (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per batch (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=16, help="maximum texts per batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="number of rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only rows of 128 tokens and two rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="output file (CSV)")
    inputs = parser.parse_args()
    if inputs.quick:
        inputs.lengths, inputs.rounds = [128], 2
    torch.set_num_threads(inputs.threads)
    announce()
    models, corpus_of = named_runs(inputs.runs) if inputs.runs else (random_models(inputs.seed), None)
    measured: list[Row] = []
    for length in inputs.lengths:
        rows = max(1, inputs.tokens // length) * (inputs.rounds + 1)
        corpus = corpus_of(length) if corpus_of else random_rows(length, rows, inputs.seed)
        measured += measure(models, corpus, length, inputs)
        write(inputs.out, measured)
    print(table(measured, COLUMNS))


if __name__ == "__main__":
    main()
