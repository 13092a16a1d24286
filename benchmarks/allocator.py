"""Compare training with reused memory to training where the C library returns memory and allocates it again.

The benchmark runs the first updates of recipes in separate processes, alternately with the default settings of
`tsallis train` and with `TSALLIS_REUSE_MEMORY=0`:

    python benchmarks/allocator.py --train recipes/martins2020/imdb.yaml data.folder=data/imdb \
        --train recipes/multi30k/en-de.yaml data.folder=data/multi30k training.warmup=10 \
        --out benchmarks/results/allocator-cpu.csv
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import Row, announce, machine, table, write

COLUMNS = ("recipe", "fresh_seconds", "reused_seconds", "to_fresh", "fresh_mb", "reused_mb")


def train(recipe: Path, overrides: list[str], updates: int, threads: int, reused: bool) -> tuple[float, float]:
    """Train in a new process; return the seconds of its updates and its peak memory in MB.

    Raises:
        SystemExit: If the training failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TSALLIS_REUSE_MEMORY": str(int(reused))}
    with tempfile.TemporaryDirectory() as folder:
        limits = [f"training.{name}={updates}" for name in ("updates", "validate_updates", "checkpoint_every")]
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "tsallis", "train", str(recipe), *overrides, *limits, "--run-dir", str(run)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        message = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(message)
        timing = [json.loads(line) for line in (run / "timing.jsonl").read_text(encoding="utf-8").splitlines()]
    return sum(event["seconds"] for event in timing), usage.ru_maxrss / 1024


def compare(recipe: Path, overrides: list[str], options: argparse.Namespace) -> Row:
    """Return the row of a recipe: medians of both kinds of run, and the median of their pairwise time ratios."""
    kinds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for number in range(options.rounds):
        for reused in (False, True) if number % 2 == 0 else (True, False):
            kinds[reused].append(train(recipe, overrides, options.updates, options.threads, reused))
    fresh, reused_ = kinds[False], kinds[True]
    return {
        "recipe": "/".join(recipe.parts[-2:]),
        "overrides": " ".join(text for text in overrides if not text.startswith("data.folder")),
        "updates": options.updates,
        "fresh_seconds": statistics.median(seconds for seconds, _ in fresh),
        "reused_seconds": statistics.median(seconds for seconds, _ in reused_),
        "to_fresh": statistics.median(b[0] / a[0] for a, b in zip(fresh, reused_, strict=True)),
        "fresh_mb": statistics.median(peak for _, peak in fresh),
        "reused_mb": statistics.median(peak for _, peak in reused_),
        "rounds": options.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--train", nargs="+", action="append", required=True, help="a recipe and overrides of its settings")
    add("--updates", type=int, default=40)
    add("--rounds", type=int, default=3)
    add("--threads", type=int, default=1)
    add("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    rows: list[Row] = []
    for recipe, *overrides in options.train:
        rows.append({**compare(Path(recipe), overrides, options), **machine()})
        write(options.out, rows)  # save each row at once: the training of the next recipe may fail
    print(table(rows, COLUMNS))


if __name__ == "__main__":
    main()
