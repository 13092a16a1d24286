"""Compare string models with yoyodyne's, with equal data, sizes, optimizer and numbers of epochs.

Needs `pip install --no-deps yoyodyne==0.5.27` and the packages that yoyodyne imports. Each model runs in a subprocess
with one thread. Both keep the checkpoint with the best accuracy on the dev set, and use it for the test.

python benchmarks/yoyodyne.py TRAIN.tsv DEV.tsv TEST.tsv [--features 3] [--spaces] [--model attention] [--out FILE.csv]
    --epochs 20 100 --seeds 1 2 3    accuracy after equal numbers of epochs
    --time                           seconds per epoch, and seconds to predict TRAIN's targets
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Row, announce, machine, table, write

HIDDEN, EMBEDDING, DROPOUT, RATE, BATCH = 256, 128, 0.3, 0.001, 32
# Our settings, and yoyodyne's class with its arguments. Its decoders don't start from the encoder's state.
SOFT = {"monotonic": "null", "input_feeding": "false", "initial_state": "zeros"}
MODELS: dict[str, tuple[dict[str, str], str, dict[str, Any]]] = {
    "attention": (SOFT, "SoftAttentionLSTMModel", {}),
    "pointer": (SOFT | {"copy": "true"}, "PointerGeneratorLSTMModel", {}),
    "hard": (
        SOFT | {"monotonic": "1"},
        "HardAttentionLSTMModel",
        {"enforce_monotonic": True, "attention_context": 1},
    ),
}
COPIES = 10  # number of copies of TRAIN to predict, so that the time to start is negligible
TRAINED = "best.ckpt"


class Peer:
    """A toolkit that trains and predicts with commands."""

    name: str

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder

    def call(self, *arguments: object) -> tuple[float, str]:
        """Run a command with one thread; return its seconds and its output."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        start = time.perf_counter()
        result = subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{self.name}: {result.stderr[-2000:]}")
        return time.perf_counter() - start, result.stdout


class Tsallis(Peer):
    name = "tsallis"

    def train(self, epochs: int, seed: int) -> float:
        options = self.options
        settings: dict[str, Any] = {
            "data.dev": options.dev,
            "model.d_model": HIDDEN,
            "model.d_embedding": EMBEDDING,
            "model.layers": 1,
            "model.dropout": DROPOUT,
            "training.epochs": epochs,
            "training.validate_every": 1,
            "training.batch_size": BATCH,
            "training.learning_rate": RATE,
            "training.schedule": "constant",
            "training.seed": seed,
        } | {f"model.{name}": value for name, value in MODELS[options.model][0].items()}
        shutil.rmtree(self.folder / "ours", ignore_errors=True)
        changes = [f"{name}={value}" for name, value in settings.items()]
        return self.call("-m", "tsallis", "train", options.train, *changes, "--run-dir", self.folder / "ours")[0]

    def predict(self, source: Path, beam: int) -> tuple[float, list[str]]:
        run = self.folder / "ours"
        seconds, printed = self.call("-m", "tsallis", "translate", run, source, "--beam-size", beam)
        return seconds, printed.split("\n")[:-1]


class Yoyodyne(Peer):
    name = "yoyodyne"

    def settings(self, **data: Any) -> dict[str, Any]:
        options = self.options
        sizes = {"hidden_size": HIDDEN // 2, "embedding_size": EMBEDDING, "layers": 1, "dropout": DROPOUT}
        encoder = {"class_path": "yoyodyne.models.modules.LSTMEncoder", "init_args": sizes}
        model = {
            "decoder_hidden_size": HIDDEN,
            "decoder_layers": 1,
            "decoder_dropout": DROPOUT,
            "embedding_size": EMBEDDING,
            "source_encoder": encoder,
            "optimizer": {"class_path": "yoyodyne.optimizers.Adam", "init_args": {"lr": RATE}},
            **MODELS[options.model][2],
        }
        columns: dict[str, Any] = {"target_sep": " "} if options.spaces else {}
        if options.features:
            model["features_encoder"] = encoder
            columns["features_col"] = options.features
        return {
            "model": {"class_path": f"yoyodyne.models.{MODELS[options.model][1]}", "init_args": model},
            "data": {"model_dir": str(self.folder), "batch_size": BATCH, **columns, **data},
        }

    def run(self, command: str, settings: dict[str, Any], *arguments: object) -> float:
        path = self.folder / "config.yaml"
        path.write_text(json.dumps(settings), encoding="utf8")  # JSON is valid YAML
        start = "from yoyodyne.cli import main; main.main()"
        return self.call("-c", start, command, "--config", path, *arguments)[0]

    def train(self, epochs: int, seed: int) -> float:
        (self.folder / TRAINED).unlink(missing_ok=True)
        settings = self.settings(train=self.options.train, val=self.options.dev)
        best = {"dirpath": str(self.folder), "filename": "best", "monitor": "val_accuracy", "mode": "max"}
        trainer = {"max_epochs": epochs, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}
        return self.run("fit", settings | {"seed_everything": seed, "trainer": trainer, "checkpoint": best})

    def predict(self, source: Path, beam: int) -> tuple[float, list[str]]:
        answers = self.folder / "answers.txt"
        settings = self.settings(predict=str(source))
        settings["model"]["init_args"]["beam_width"] = beam
        trainer = {"accelerator": "cpu", "enable_progress_bar": False, "logger": False}
        settings |= {"trainer": trainer, "prediction": {"path": str(answers)}}
        seconds = self.run("predict", settings, "--ckpt_path", self.folder / TRAINED)
        return seconds, [line.split("\t")[0] for line in answers.read_text(encoding="utf8").split("\n")[:-1]]


def accuracy(peer: Peer, beam: int) -> float:
    lines = Path(peer.options.test).read_text(encoding="utf8").split("\n")
    references = [line.split("\t")[1] for line in lines if line]
    answers = peer.predict(Path(peer.options.test), beam)[1]
    return sum(map(str.__eq__, answers, references)) / len(references)


def accuracies(peers: Sequence[Peer], epochs: Sequence[int], seeds: Sequence[int]) -> list[Row]:
    rows = []
    for count in epochs:
        for peer in peers:
            shares = []
            for seed in seeds:
                peer.train(count, seed)
                shares.append(accuracy(peer, 1))
                print(peer.name, count, seed, shares[-1], file=sys.stderr, flush=True)
            spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
            rows.append({"peer": peer.name, "epochs": count, "accuracy": statistics.mean(shares), "spread": spread})
    return rows


def times(peers: Sequence[Peer], rounds: int) -> list[Row]:
    """Return seconds per epoch and per prediction of TRAIN, as differences without the time to start."""
    few, many = 1, 6
    first, copies = (Path(peers[0].folder) / name for name in ("first.tsv", "copies.tsv"))
    text = Path(peers[0].options.train).read_text(encoding="utf8")
    first.write_text(text.split("\n")[0] + "\n", encoding="utf8")
    copies.write_text(text * COPIES, encoding="utf8")
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for peer in peers:
            short = peer.train(few, 1)
            seconds.setdefault((peer.name, "epoch"), []).append((peer.train(many, 1) - short) / (many - few))
            for beam in (1, 5):
                whole = peer.predict(copies, beam)[0] - peer.predict(first, beam)[0]
                seconds.setdefault((peer.name, f"beam {beam}"), []).append(whole / COPIES)
    return [
        {"peer": name, "what": what, "seconds": statistics.median(values)} for (name, what), values in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "dev", "test"):
        parser.add_argument(name)
    parser.add_argument("--features", type=int, help="column number of the features")
    parser.add_argument("--spaces", action="store_true", help="separate target symbols at spaces")
    parser.add_argument("--model", choices=MODELS, default="attention")
    parser.add_argument("--epochs", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    announce()
    with tempfile.TemporaryDirectory() as folder:
        peers = [Tsallis(options, Path(folder)), Yoyodyne(options, Path(folder))]
        rows = times(peers, options.rounds) if options.time else accuracies(peers, options.epochs, options.seeds)
    print(table(rows, list(rows[0])))
    data = {"data": Path(options.train).stem, "model": options.model}
    write(options.out, [data | row | machine() for row in rows])


if __name__ == "__main__":
    main()
