"""Train and evaluate models of SIGMORPHON data with the settings chosen by `tsallis train FILE`.

Train one model per language and seed, and evaluate the first model and the ensemble of all. To resume, run it again.

    tsallis data get sigmorphon2021-g2p --folder DATA      # LANGUAGE_train.tsv, LANGUAGE_dev.tsv, LANGUAGE_test.tsv
    python benchmarks/strings.py DATA [--languages ady gre] [--seeds 5] [--runs runs/strings] [--out FILE.csv]
    python benchmarks/strings.py DATA --seeds 1 --set model.copy=true      # for other settings, add `--runs FOLDER`

Folders with LANGUAGE.trn, LANGUAGE.dev and LANGUAGE.tst have the format of 2023: lemma, features, form.
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
# The file name endings of the train, dev and test sets, and the settings of their columns.
G2P = (("_train.tsv", "_dev.tsv", "_test.tsv"), ())
INFLECTION = ((".trn", ".dev", ".tst"), ("data.columns={source: 1, features: 2, target: 3}",))


def call(threads: int, *arguments: object) -> str:
    command = [sys.executable, "-m", "tsallis", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(options: argparse.Namespace, language: str) -> list[Row]:
    ends, columns = options.kind
    train, dev, test = (options.data / f"{language}{end}" for end in ends)
    runs = [options.runs / f"{language}-s{seed}" for seed in range(1, options.seeds + 1)]
    for seed, run in enumerate(runs, start=1):
        changes = (f"data.dev={dev}", f"training.seed={seed}", *columns, *options.set)
        call(options.threads, "train", train, *changes, "--run-dir", run)
        print(f"trained {run}", file=sys.stderr, flush=True)
    rows = []
    for models in (runs[:1], runs) if len(runs) > 1 else (runs,):
        others = [part for run in models[1:] for part in ("--with", run)]
        report = json.loads(call(options.threads, "evaluate", models[0], test, *others, "--json"))
        scores = {name: report[name] for name in SCORES}
        timing = (models[0] / "timing.jsonl").read_text(encoding="utf-8").split("\n")[0]
        settings = {"settings": " ".join(options.set), "commit": json.loads(timing)["commit"]}
        rows.append({"data": options.data.name, "language": language, "models": len(models), **settings, **scores})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--languages", nargs="*", help="languages to train (default: all in DATA)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], help="settings of `tsallis train`, such as model.copy=true")
    parser.add_argument("--runs", type=Path, default=Path("runs/strings"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    options.kind = INFLECTION if any(options.data.glob("*.trn")) else G2P
    end = options.kind[0][0]
    found = sorted(path.name.removesuffix(end) for path in options.data.glob(f"*{end}"))
    rows = [row for language in options.languages or found for row in measure(options, language)]
    print(table(rows, list(rows[0])))
    write(options.out, [row | machine() for row in rows])


if __name__ == "__main__":
    main()
