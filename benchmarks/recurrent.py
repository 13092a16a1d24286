"""Compare orders of rows, precisions, and PyTorch's operations with ours when training a recurrent inflector.

All candidates train in one process and take turns; each has its own order of batches. All batches have the same number
of rows, so the samples per second are comparable.

    python benchmarks/recurrent.py --folder data/sigmorphon2018 --out benchmarks/results/recurrent-cpu.csv
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, verdict, write

from tsallis.models import lstm
from tsallis.ops.transforms import tracing_active
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import load_config
from tsallis.toolkit.training import Settings
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine

PYTORCH = "PyTorch's operations"
RECIPE = Path(__file__).parents[1] / "recipes" / "sigmorphon2018" / "medium-all.yaml"
CHANGES: dict[str, dict[str, Any]] = {
    "PyTorch's operations": {"sort_by": "total", "bucket": 40},
    "PyTorch's operations, by target, bucket 200, bfloat16": {
        "sort_by": "target",
        "bucket": 200,
        "precision": "bfloat16",
    },
    "defaults": {"sort_by": "total", "bucket": 40},
    "bucket 200": {"sort_by": "total", "bucket": 200},
    "by target": {"sort_by": "target", "bucket": 40},
    "by target, bucket 200": {"sort_by": "target", "bucket": 200},
    "by target, bucket 200, bfloat16": {"sort_by": "target", "bucket": 200, "precision": "bfloat16"},
}
COLUMNS = ("name", "samples_per_second", "to_pytorch", "padding_src", "padding_tgt", "updates")


@dataclass
class Candidate:
    """A training with its settings and the total time of its updates."""

    name: str
    settings: Settings
    engine: Engine
    batches: list[list[int]]
    seconds: float = 0.0
    samples: int = 0

    def update(self, train: Corpus, number: int) -> None:
        rows = self.batches[number]
        # While tracing is active, the model uses PyTorch's operations instead of its custom backward pass.
        lstm.tracing_active = (lambda: True) if self.name.startswith(PYTORCH) else tracing_active
        began = time.perf_counter()
        self.engine.update([train.batch(rows)], 1, 1, self.settings.learning_rate)
        self.seconds += time.perf_counter() - began
        lstm.tracing_active = tracing_active
        self.samples += len(rows)


@dataclass
class Padding:
    """The share of padding in the batches of an epoch, for sources and targets."""

    symbols: list[int] = field(default_factory=lambda: [0, 0])
    cells: list[int] = field(default_factory=lambda: [0, 0])

    @classmethod
    def of(cls, lengths: torch.Tensor, batches: list[list[int]]) -> list[float]:
        total = cls()
        for rows in batches:
            own = lengths[rows] + torch.tensor([0, 1])  # a target also has an end symbol
            for side in range(2):
                total.symbols[side] += int(own[:, side].sum())
                total.cells[side] += len(rows) * int(own[:, side].max())
        return [1 - a / b for a, b in zip(total.symbols, total.cells, strict=True)]


def measure(inputs: argparse.Namespace) -> list[Row]:
    overrides = [f"data.folder={inputs.folder}", f"model.d_model={inputs.d_model}"]
    overrides += [] if inputs.languages is None else [f"data.languages={inputs.languages}"]
    overrides += ["training.validation_rows=null", "training.select=null"]
    config = load_config(RECIPE, overrides)
    prepared = prepare(config)
    train: Any = prepared.data.train
    lengths = train.lengths()
    candidates = []
    for name, changes in CHANGES.items():
        settings = prepared.settings.model_copy(update=changes)
        engine = Engine(prepared.build().train(), settings, World())
        plan = settings.plan(lengths).epoch(0)
        candidates.append(Candidate(name, settings, engine, [plan[i] for i in range(len(plan))]))
    order, turn = random.Random(inputs.seed), list(candidates)
    for number in range(inputs.updates + 1):
        order.shuffle(turn)
        for candidate in turn:
            candidate.update(train, number)
            if number == 0:  # the first update is a warm-up
                candidate.seconds, candidate.samples = 0.0, 0
    speeds = {c.name: c.samples / c.seconds for c in candidates}
    rows: list[Row] = []
    for c in candidates:
        src, tgt = Padding.of(lengths, c.batches)
        rows.append(
            {
                "name": c.name,
                "samples_per_second": speeds[c.name],
                "to_pytorch": speeds[c.name] / speeds[PYTORCH],
                "padding_src": src,
                "padding_tgt": tgt,
                "updates": inputs.updates,
                "samples": len(train),
                "model": f"{inputs.d_model} units, {config.model.layers} layers, input feeding",
                "batch": f"{prepared.settings.batch_size} rows",
                **machine(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="folder of the SIGMORPHON 2018 data")
    parser.add_argument("--languages", help="languages, such as [finnish,polish] (default: all)")
    parser.add_argument("--d-model", type=int, default=300, help="number of hidden units (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=60, help="number of updates to time (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="number of threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of candidates (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="CSV file for the results")
    inputs = parser.parse_args()
    torch.set_num_threads(inputs.threads)
    announce()
    rows = measure(inputs)
    write(inputs.out, rows)
    print(table(rows, COLUMNS))
    fastest = {rows[-1]["name"]: rows[-1]["to_pytorch"]}
    print("", *verdict("samples a second to those of PyTorch's operations", 1.5, fastest, True), sep="\n")


if __name__ == "__main__":
    main()
