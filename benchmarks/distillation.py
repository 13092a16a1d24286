"""Train students on the stored distributions of an ensemble, and compare them with its models and the ensemble.

    python benchmarks/strings.py DATA --seeds 3 --set model.monotonic=null --runs RUNS    # the models of the ensembles
    python benchmarks/distillation.py DATA --set model.monotonic=null --runs RUNS [--languages ady gre] [--out FILE.csv]

`error_of_one` is the mean over all single models, `error_of_students` the mean over the students. All errors are word
error rates. Run the command again to resume.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean

from common import Row, announce, machine, table, write
from strings import call


def error(threads: int, models: list[Path], test: Path) -> float:
    others = [part for run in models[1:] for part in ("--with", run)]
    report = json.loads(call(threads, "evaluate", models[0], test, *others, "--json"))
    return float(report["word_error_rate"])


def measure(options: argparse.Namespace, language: str, weight: float) -> Row:
    train, dev, test = (options.data / f"{language}_{part}.tsv" for part in ("train", "dev", "test"))
    runs = sorted(options.runs.glob(f"{language}-s[0-9]"))
    teacher = options.runs / f"{language}-teacher"
    record = json.loads(call(options.threads, "distill", *runs, "-o", teacher, "--json"))
    students = [options.runs / f"{language}-student{weight:g}-s{seed}" for seed in range(1, options.students + 1)]
    for seed, run in enumerate(students, start=1):
        target = f"training.teacher={{folder: {teacher}, weight: {weight}}}"
        changes = (f"data.dev={dev}", f"training.seed={seed}", target, *options.set)
        call(options.threads, "train", train, *changes, "--run-dir", run)
        print(f"trained {run}", file=sys.stderr, flush=True)
    timing = (students[0] / "timing.jsonl").read_text(encoding="utf-8").split("\n")[0]
    return {
        "data": options.data.name,
        "language": language,
        "models": len(runs),
        "settings": " ".join(options.set),
        "weight": weight,
        "students": options.students,
        "error_of_one": round(mean(error(options.threads, [run], test) for run in runs), 4),
        "error_of_ensemble": error(options.threads, runs, test),
        "error_of_students": round(mean(error(options.threads, [run], test) for run in students), 4),
        "bytes_per_symbol": round(8 * record["entries"] / record["tokens"], 1),
        "commit": json.loads(timing)["commit"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/strings"))
    parser.add_argument("--languages", nargs="*", help="languages to train (default: all in DATA)")
    parser.add_argument("--students", type=int, default=2)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.5], help="weights of the teacher")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the students, such as model.monotonic=null")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    found = sorted(path.name.removesuffix("_train.tsv") for path in options.data.glob("*_train.tsv"))
    languages = options.languages or found
    rows = [measure(options, language, weight) for weight in options.weights for language in languages]
    print(table(rows, list(rows[0])))
    write(options.out, [row | machine() for row in rows])


if __name__ == "__main__":
    main()
