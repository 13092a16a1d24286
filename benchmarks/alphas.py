"""Measure trained Transformers whose alphas were learned differently: alphas, densities, attended words, BLEU.

Each run is measured at its best checkpoint, by beam search on the development and test sets and by teacher forcing on
the development set. The files keep the rows of other runs, so that more seeds can be added by another call. Runs are
identified by their settings, not by the names of their folders.

    python benchmarks/alphas.py runs/learned-1 runs/learned-2 --folder data/multi30k/raw --commit a67f850 \
        --out benchmarks/results/multi30k-alphas-cpu.csv --history benchmarks/results/multi30k-alphas-history-cpu.csv
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import torch
from common import Row, machine, table, write

from tsallis.analysis import density, read_model, record
from tsallis.toolkit.config import Config
from tsallis.toolkit.run_analysis import alpha_history, density_history, value_history
from tsallis.toolkit.tasks.registry import load_config, task_of
from tsallis.toolkit.tasks.scoring import evaluate_outputs
from tsallis.toolkit.training import Run, load_run
from tsallis.toolkit.training.file_names import CONFIG

SETTINGS = ("attention", "alpha_lr_scale", "dropout", "updates", "seed")  # settings that identify a run of a recipe
KINDS = ("encoder", "decoder", "cross")
PRINTED = (*SETTINGS, "step", "dev_bleu", "bleu", "attended", "positions", "alpha_mean", "density_mean")
LOGGED = ("dev_bleu", "attention_support", "logit_norm")  # at each validation
BATCH = 32


def settings_of(config: Config) -> Row:
    """Return the settings that identify a run; the scale of the learning rate is empty without learned alphas."""
    model, training = config.model, config.training
    scale = f"{training.alpha_lr_scale:g}" if model.attention == "learned" else ""
    return {
        "attention": model.attention,
        "alpha_lr_scale": scale,
        "dropout": f"{model.dropout:g}",
        "updates": str(training.updates),
        "seed": str(training.seed),
    }


def by_layer(values: dict[str, Any]) -> Row:
    """Return a JSON cell for each kind of attention, with one list per layer."""
    rounded = {kind: [[round(float(x), 4) for x in layer] for layer in layers] for kind, layers in values.items()}
    return {kind: json.dumps(rounded[kind]) for kind in rounded}


def mean(values: dict[str, Any]) -> float:
    numbers = [float(x) for layers in values.values() for layer in layers for x in layer]
    return sum(numbers) / len(numbers)


def heads_of(run: Run, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return alphas and development-set densities by kind of attention [layers][heads]."""
    corpus = task_of(run.task).split(run, config.data, "dev").corpus
    recording = record(read_model(run.model, run.src_vocab, run.tgt_vocab), corpus.batches(BATCH))
    alphas = {kind: [list(x.alphas) for x in recording.layers if x.kind == kind] for kind in KINDS}
    densities: dict[str, Any] = {kind: [[0.0] * len(layer) for layer in layers] for kind, layers in alphas.items()}
    for head in density(recording).heads:
        densities[head.kind][head.layer][head.head] = head.density
    return alphas, densities


def measure(folder: Path, data: str, commit: str) -> Row:
    """Return the row of one run."""
    config = load_config(folder / CONFIG, [f"data.folder={data}"])
    run = load_run(folder)
    task, search = task_of(run.task), config.search.options.without_limits
    dev, test = (
        evaluate_outputs(task, run, task.split(run, config.data, split), search)[0] for split in ("dev", "test")
    )
    alphas, densities = heads_of(run, config)
    corpus = task.split(run, config.data, "test").corpus
    steps = sum(len(row) + 1 for row in corpus.tgt)  # the source counts once for each predicted symbol
    positions = sum(len(s) * (len(t) + 1) for s, t in zip(corpus.src, corpus.tgt, strict=True)) / steps
    return {
        **settings_of(config),
        "step": str(run.facts["step"]),
        "beam": str(search.beam_size),
        "dev_bleu": dev["bleu"],
        "bleu": test["bleu"],
        "chrf": test["chrf"],
        "loss": test["loss"],
        "attended": test["attention_support_teacher_forced"],
        "positions": positions,
        "alpha_mean": mean(alphas),
        "density_mean": mean(densities),
        **{f"alpha_{kind}": cell for kind, cell in by_layer(alphas).items()},
        **{f"density_{kind}": cell for kind, cell in by_layer(densities).items()},
        "signature": test["signatures"]["bleu"],
        "commit": commit,
        **machine(),
    }


def history(folder: Path) -> list[Row]:
    """Return one row per validation of a run, read from its log."""
    known = settings_of(load_config(folder / CONFIG))
    values, alphas, densities = value_history(folder), alpha_history(folder), density_history(folder)
    rows = []
    for step in alphas.steps:  # step 0, before the first update, has only alphas
        numbers = {name: values.values[name][values.steps.index(step)] for name in LOGGED} if step else {}
        shares = {kind: densities.values[kind][densities.steps.index(step)] for kind in KINDS} if step else {}
        cells = by_layer({kind: alphas.values[kind][alphas.steps.index(step)] for kind in KINDS})
        row = {**known, "update": str(step), **{name: numbers.get(name, "") for name in LOGGED}}
        row |= {f"alpha_{kind}": cell for kind, cell in cells.items()}
        rows.append(row | {f"density_{kind}": by_layer(shares)[kind] if shares else "" for kind in KINDS})
    return rows


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file, or no rows if the file does not exist."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def add(path: Path | None, rows: list[Row]) -> None:
    """Add rows to a file, replace older rows of the same runs, and sort all rows by their settings."""
    if path is None:
        return

    def name(row: Row) -> tuple[str, ...]:
        return tuple(row[setting] for setting in SETTINGS)

    new = {name(row) for row in rows}
    write(path, sorted([row for row in read(path) if name(row) not in new] + rows, key=name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--folder", required=True, help="folder of the recipe's data")
    parser.add_argument("--commit", required=True, help="commit of the code that trained the runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--history", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [measure(run, options.folder, options.commit) for run in options.runs]
    print(table(rows, PRINTED))
    add(options.out, rows)
    add(options.history, [row for run in options.runs for row in history(run)])


if __name__ == "__main__":
    main()
