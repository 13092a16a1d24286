"""The command, in a fork of this process or in one of its own, and one small trained run for all tests of a worker."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from process_fork import command as forked_command
from process_fork import run_forked
from run_seed import SEED
from tsallis.toolkit.tasks.strings import StringsExample, english_verbs

CONFIG = """\
version: 1
data:
  folder: {folder}
  train: train.tsv
  dev: dev.tsv
  test: dev.tsv
model: {{d_model: 24, layers: 1, dropout: 0.1}}
training: {{epochs: 4, batch_size: 16, learning_rate: 0.01, checkpoint_every: 5, seed: {seed}}}
"""
LONGEST = 30  # symbols in an output of the translator

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tsallis", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="session")
def tsallis() -> Run:
    """Run a command in a fork of this process, which has imported everything already."""

    def run(*arguments: object, stdin: str | bytes = "", status: int = 0) -> subprocess.CompletedProcess[str]:
        ended = run_forked(
            forked_command(*arguments), stdin if isinstance(stdin, bytes) else stdin.encode(), seconds=300
        )
        assert ended.status == status, ended.errors or ended.text
        return subprocess.CompletedProcess(list(arguments), ended.status, ended.text, ended.errors)

    return run


@pytest.fixture(scope="session")
def process() -> Run:
    """Run a command in a process of its own, as a user does."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, check=True, env=environment(), timeout=300
        )

    return run


def write_examples(path: Path, examples: list[StringsExample]) -> None:
    lines = [f"{e.lemma}\t{e.form}\t{';'.join(e.tags)}\n" for e in examples]
    path.write_bytes("".join(lines).encode())


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv, dev.tsv and config.yaml."""
    folder = tmp_path_factory.mktemp("data")
    verbs = english_verbs()
    write_examples(folder / "train.tsv", verbs["train"][:320])
    write_examples(folder / "dev.tsv", verbs["dev"][:24])
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, seed=SEED))
    return folder


@pytest.fixture(scope="session")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory, tsallis: Run) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    tsallis("train", small_data / "config.yaml", "--run-dir", folder)
    return folder


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Transformer with a learned alpha for each head, trained on German numbers."""
    from integration.cli.runs import translation

    folder = tmp_path_factory.mktemp("translator")
    config = translation(folder / "data", dev=12)
    sizes = ["model.d_model=16", "model.d_ff=16", "model.encoder_layers=2", "model.decoder_layers=2"]
    # Its outputs seldom end: without a limit, every search would take 127 steps.
    quick = ["training.epochs=8", "training.checkpoint_every=100", f"search.max_length={LONGEST}"]
    return train_here(config, folder / "run", *sizes, *quick)


@pytest.fixture(scope="session")
def inflector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LSTM, trained on English verbs."""
    from integration.cli.runs import strings

    folder = tmp_path_factory.mktemp("inflector")
    return train_here(strings(folder / "data"), folder / "run")


def train_here(config: Path, run: Path, *overrides: str) -> Path:
    """Train in this process, and return the run folder."""
    import tsallis.toolkit.cli as cli

    with contextlib.redirect_stdout(io.StringIO()):
        cli.app(["train", str(config), *overrides, "--run-dir", str(run), "--device", "cpu"], standalone_mode=False)
    return run
