"""Measure the time to train a model to a given accuracy and a given share of proved answers.

Train a model of English verbs, one epoch per `tsallis` command, until the best checkpoint reaches both values on the
test split. The time includes the start of each command, reading the data and all evaluations.

python benchmarks/race.py [--accuracy .95] [--proved .9] [--threads 2] [--out FILE.csv]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Row, announce, machine, table, write

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny" / "strings.yaml"


def run(threads: int, *arguments: object) -> str:
    command = [sys.executable, "-m", "tsallis", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def race(accuracy: float, proved: float, threads: int, limit: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for epochs in range(1, limit + 1):
            run(threads, "train", RECIPE, f"training.epochs={epochs}", "--run-dir", f"{folder}/run")
            report = json.loads(run(threads, "evaluate", f"{folder}/run", "--json"))
            share = report["complete"] + report["optimal"]
            if report["accuracy"] >= accuracy and share >= proved:
                break
        seconds = time.perf_counter() - start
    scores = {name: report[name] for name in ("samples", "accuracy", "complete", "optimal")}
    return {"minutes": seconds / 60, "epochs": epochs, **scores, "proved": share, "threads": threads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", type=float, default=0.95)
    parser.add_argument("--proved", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=20, help="maximum number of epochs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    row = race(options.accuracy, options.proved, options.threads, options.epochs)
    print(table([row], list(row)))
    write(options.out, [row | machine()])


if __name__ == "__main__":
    main()
