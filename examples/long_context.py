"""Long contexts: which attention does at thousands of tokens what it was trained on with at most 64?

A language model of two layers learns one of seven synthetic tasks (`tsallis.datasets.synthetic`), once for each kind of
attention and seed, and is tested at 64 tokens and more. After Vasylenko et al. (2026), *Long-Context Generalization
with Sparse Attention*.

    python examples/long_context.py --tasks copy --variants softmax asentmax --seeds 1 --updates 500

Writes long-context.csv, a row for each task, variant, seed and length: the share of targets that are predicted, and of
examples with all of them.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tsallis.datasets.synthetic import IGNORE, SYNTHETIC_TASKS, SyntheticBatch, SyntheticStream
from tsallis.models import LanguageModel
from tsallis.special_symbols import FIRST

SIZE, HEADS, LAYERS, HIDDEN = 64, 4, 2, 176
LEAST, MOST = 16, 64  # tokens in training
BATCH, RATE, WARMUP = 32, 2e-3, 100
TEST_SEED = 1 << 20  # no training's seed
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"alpha": 1.0},
    "ssmax": {"alpha": 1.0, "length_scale": "ssmax"},
    "entmax": {"alpha": 1.5},
    "learned": {"alpha": "learned"},
    "asentmax": {"alpha": 1.5, "length_scale": "input"},
    "asentmax-learned": {"alpha": "learned", "length_scale": "input"},
    "asentmax-none": {"alpha": 1.5, "length_scale": "input", "positions": "none"},
    "entmax-rope": {"alpha": 1.5, "positions": "rope"},
}
Row = dict[str, Any]


def build(task: str, variant: str) -> LanguageModel:
    """Return a model whose symbols are the task's behind those that every text has."""
    options = {"positions": "nape", "output": "softmax", "forbidden": (), **VARIANTS[variant]}
    sizes = {"d_model": SIZE, "heads": HEADS, "layers": LAYERS, "d_ff": HIDDEN}
    return LanguageModel(SYNTHETIC_TASKS[task].symbols + FIRST, **sizes, **options)


def predicted(model: LanguageModel, batch: SyntheticBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the states before the targets, the targets, and the example that each belongs to."""
    counted = batch.targets != IGNORE
    hidden = model.read(batch.tokens + FIRST)
    return hidden[counted], batch.targets[counted] + FIRST, counted.nonzero()[:, 0]


def train(task: str, variant: str, seed: int, updates: int) -> LanguageModel:
    torch.manual_seed(seed)
    model, stream = build(task, variant), SyntheticStream(task, BATCH, LEAST, MOST, seed)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min((n + 1) / WARMUP, (updates - n) / max(1, updates - WARMUP))
    )
    for _ in range(updates):
        hidden, targets, _ = predicted(model, next(stream))
        loss = model.output.loss(hidden, targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def test(model: LanguageModel, task: str, length: int, examples: int) -> tuple[float, float]:
    """Return the share of targets that are predicted, and of examples with all of them."""
    size = max(1, min(examples, 8192 // length))
    stream = SyntheticStream(task, size, length, length, TEST_SEED)
    right = total = whole = count = 0
    while count < examples:
        hidden, targets, rows = predicted(model, next(stream))
        hit = model.output.scores(hidden).argmax(-1) == targets
        right, total = right + int(hit.sum()), total + len(hit)
        whole += int(torch.ones(size).scatter_reduce(0, rows, hit.float(), "amin").sum())
        count += size
    return right / total, whole / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tasks", nargs="+", default=["recall", "copy", "flip-flop", "local-count"], choices=[*SYNTHETIC_TASKS]
    )
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS], choices=[*VARIANTS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 256, 1024, 4096, 16384])
    parser.add_argument("--examples", type=int, default=64, help="of each length (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("long-context.csv"))
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows: list[Row] = []
    for task in arguments.tasks:
        for variant in arguments.variants:
            for seed in arguments.seeds:
                start = time.perf_counter()
                model = train(task, variant, seed, arguments.updates)
                seconds = time.perf_counter() - start
                for length in arguments.lengths:
                    accuracy, whole = test(model, task, length, arguments.examples)
                    row = {"task": task, "variant": variant, "seed": seed, "length": length}
                    row |= {"accuracy": f"{accuracy:.4f}", "whole": f"{whole:.4f}"}
                    rows.append(row | {"updates": arguments.updates, "train_seconds": f"{seconds:.1f}"})
                    print(row, file=sys.stderr)
                with arguments.out.open("w", newline="", encoding="utf-8") as stream:
                    writer = csv.DictWriter(stream, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
