"""Train and evaluate grapheme-to-phoneme models of SIGMORPHON 2021 with the settings that `tsallis train FILE` chooses.

Trains one model per language and seed, and evaluates the first model and the ensemble of all. Run it again to resume.

python benchmarks/g2p.py DATA [--languages ady gre] [--seeds 5] [--runs runs/g2p] [--threads 1] [--out FILE.csv]

`tsallis data get sigmorphon2021-g2p` writes DATA: LANGUAGE_train.tsv, LANGUAGE_dev.tsv and LANGUAGE_test.tsv.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from common import Row, announce, machine, table, write

SCORES = ("samples", "word_error_rate", "symbol_error_rate", "complete", "optimal", "single", "gold_possible")


def call(threads: int, *arguments: object) -> str:
    command = [sys.executable, "-m", "tsallis", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(options: argparse.Namespace, language: str) -> list[Row]:
    train, dev, test = (options.data / f"{language}_{part}.tsv" for part in ("train", "dev", "test"))
    runs = [options.runs / f"{language}-s{seed}" for seed in range(1, options.seeds + 1)]
    for seed, run in enumerate(runs, start=1):
        call(options.threads, "train", train, f"data.dev={dev}", f"training.seed={seed}", "--run-dir", run)
        print(f"trained {run}", file=sys.stderr, flush=True)
    rows = []
    for models in (runs[:1], runs) if len(runs) > 1 else (runs,):
        others = [part for run in models[1:] for part in ("--with", run)]
        report = json.loads(call(options.threads, "evaluate", models[0], test, *others, "--json"))
        scores = {name: report[name] for name in SCORES}
        rows.append({"language": language, "models": len(models), **scores})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--languages", nargs="*", help="default: all in DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/g2p"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    found = sorted(path.name.removesuffix("_train.tsv") for path in options.data.glob("*_train.tsv"))
    rows = [row for language in options.languages or found for row in measure(options, language)]
    print(table(rows, list(rows[0])))
    write(options.out, [row | machine() for row in rows])


if __name__ == "__main__":
    main()
