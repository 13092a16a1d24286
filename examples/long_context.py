"""Measure which kinds of attention generalize from 64 training tokens to thousands of test tokens.

A two-layer language model learns one of seven synthetic tasks (`tsallis.toolkit.datasets.synthetic`), once per kind of
attention and seed, and is tested at 64 tokens and more. The experiment follows Vasylenko et al. (2026), *Long-Context
Generalization with Sparse Attention*.

    python examples/long_context.py --tasks copy --variants softmax asentmax --seeds 1 --out long-context

Each finished run (task, variant and seed) writes a JSON file with its settings, versions and hardware. For each length,
the file also has the share of correct predictions and the share of examples without an error. Runs that already have a
file are skipped, so repeating the command resumes an interrupted experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import torch
from option_types import positive_int
from torch.nn.utils.rnn import pad_sequence

import tsallis
from tsallis.models import LanguageModel
from tsallis.symbols import FIRST
from tsallis.toolkit.datasets.synthetic import IGNORE, SYNTHETIC_TASKS, SyntheticStream
from tsallis.toolkit.evaluation.provenance import environment

MODEL: dict[str, Any] = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 176}
TRAINING: dict[str, Any] = {"batch": 64, "rate": 2e-3, "warmup": 100, "min_length": 16, "max_length": 64}
UPDATES = {"flip-flop": 500, "local-count": 500, "two-back": 500}  # for the tasks that need fewer updates
MAX_UPDATES = 1500
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
TEST_TOKENS = 1 << 17  # target number of test tokens per length
MIN_EXAMPLES, MAX_EXAMPLES = 16, 256  # limits of the number of test examples per length
PIECE = 8192  # maximum number of tokens per test batch, except that a batch has at least one example
TEST_SEED = 1 << 20  # differs from every training seed
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"alpha": 1.0},
    "ssmax": {"alpha": 1.0, "length_scale": "ssmax"},
    "entmax": {"alpha": 1.5},
    "learned": {"alpha": "learned"},
    "asentmax": {"alpha": 1.5, "length_scale": "input"},
    "asentmax-head": {"alpha": 1.5, "length_scale": "head"},
    "softmax-rope": {"alpha": 1.0, "positions": "rope"},
    "asentmax-rope": {"alpha": 1.5, "length_scale": "input", "positions": "rope"},
    "asentmax-none": {"alpha": 1.5, "length_scale": "input", "positions": "none"},
    "asentmax-learned": {"alpha": "learned", "length_scale": "input"},
}


def build(task: str, variant: str) -> LanguageModel:
    """Return an untrained model; the task's symbols follow the special symbols."""
    options = {"positions": "nape", "output": "softmax", "forbidden": (), **VARIANTS[variant]}
    return LanguageModel(SYNTHETIC_TASKS[task].symbols + FIRST, **MODEL, **options)


def batches(stream: SyntheticStream, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of tokens and targets, both [batch, length], from an endless stream."""
    for first in count(step=size):
        examples = [stream.example(number) for number in range(first, first + size)]
        tokens, targets = zip(*((torch.tensor(e.tokens), torch.tensor(e.targets)) for e in examples), strict=True)
        yield pad_sequence(tokens, batch_first=True), pad_sequence(targets, True, IGNORE)


def predicted(
    model: LanguageModel, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the states that predict the targets, the targets, and the example index of each."""
    counted = targets != IGNORE
    hidden = model.read(tokens + FIRST)
    return hidden[counted], targets[counted] + FIRST, counted.nonzero()[:, 0]


def train(task: str, variant: str, seed: int, updates: int) -> tuple[LanguageModel, float]:
    """Return a trained model and the loss of its last update."""
    torch.manual_seed(seed)
    batch, rate, warmup, min_length, max_length = TRAINING.values()
    model, stream = build(task, variant), batches(SyntheticStream(task, min_length, max_length, seed), batch)
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min((n + 1) / warmup, (updates - n) / max(1, updates - warmup))
    )
    for _ in range(updates):
        hidden, targets, _ = predicted(model, *next(stream))
        loss = model.output.loss(hidden, targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval(), loss.item()


def number_of_examples(length: int) -> int:
    return min(MAX_EXAMPLES, max(MIN_EXAMPLES, TEST_TOKENS // length))


@torch.no_grad()
def test(model: LanguageModel, task: str, length: int, examples: int) -> tuple[float, float]:
    """Return the share of correct predictions, and the share of examples without an error."""
    size = max(1, min(examples, PIECE // length))
    stream = batches(SyntheticStream(task, length, length, TEST_SEED), size)
    right = total = whole = seen = 0
    while seen < examples:
        hidden, targets, rows = predicted(model, *next(stream))
        hit = model.output.scores(hidden).argmax(-1) == targets
        right, total = right + int(hit.sum()), total + len(hit)
        whole += int(torch.ones(size).scatter_reduce(0, rows, hit.float(), "amin").sum())
        seen += size
    return right / total, whole / seen


def run(task: str, variant: str, seed: int, updates: int, lengths: list[int]) -> dict[str, Any]:
    """Train and test a model; return its settings, the software versions and its results by length."""
    start = time.process_time()
    model, loss = train(task, variant, seed, updates)
    trained = time.process_time()
    tests = []
    for length in lengths:
        examples = number_of_examples(length)
        accuracy, whole = test(model, task, length, examples)
        tests.append({"length": length, "examples": examples, "accuracy": accuracy, "whole": whole})
    return {
        "task": task,
        "variant": variant,
        "seed": seed,
        "model": MODEL | VARIANTS[variant],
        "training": TRAINING | {"updates": updates},
        "loss": loss,
        "alphas": model.alphas()["decoder"].tolist(),
        "tests": tests,
        "train_seconds": trained - start,  # processor time
        "test_seconds": time.process_time() - trained,
        "tsallis": tsallis.__version__,
        **environment(),
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result atomically, so that no incomplete file is left after an interruption."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tasks", nargs="+", default=["recall", "copy", "sort", "flip-flop", "local-count"], choices=[*SYNTHETIC_TASKS]
    )
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS], choices=[*VARIANTS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--updates", type=positive_int, help="number of updates (default: depends on the task)")
    parser.add_argument("--lengths", nargs="+", type=positive_int, default=LENGTHS)
    parser.add_argument("--threads", type=positive_int, default=1, help="number of CPU threads (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("long-context"), help="output folder (default: %(default)s)")
    arguments = parser.parse_args()
    for task, length in product(arguments.tasks, arguments.lengths):
        if length < (shortest := SYNTHETIC_TASKS[task].shortest):
            parser.error(f"--lengths must be at least {shortest} for the task {task}, got {length}")
    return arguments


def study(arguments: argparse.Namespace) -> None:
    """Run all combinations of seed, task and variant that have no file yet."""
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed, task, variant in product(arguments.seeds, arguments.tasks, arguments.variants):
        path = arguments.out / f"{task}-{variant}-s{seed}.json"
        updates = UPDATES.get(task, MAX_UPDATES) if arguments.updates is None else arguments.updates
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            found = stored["training"]["updates"], [test["length"] for test in stored["tests"]]
            if found != (updates, [*arguments.lengths]):
                raise OSError(f"{path}: expected {updates} updates and lengths {arguments.lengths}, found {found}")
            continue
        result = run(task, variant, seed, updates, arguments.lengths)
        accuracies = " ".join(f"{test['length']}: {test['accuracy']:.3f}" for test in result["tests"])
        print(f"{path.stem}: {result['train_seconds']:.0f} s, {accuracies}", file=sys.stderr, flush=True)
        write(path, result)


def main() -> int:
    arguments = parse()
    try:
        study(arguments)
    except OSError as error:
        print(f"long_context: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
