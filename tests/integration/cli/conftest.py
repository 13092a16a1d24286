"""Run the command in this process or in a new one, and train small runs for all tests."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
EXAMPLES = Path(__file__).parents[3] / "examples"
LONGEST = 30  # maximum number of symbols in an output of the translator
SCREENS = [
    {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390))
]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tsallis", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="session")
def tsallis() -> Run:
    """Return a function that runs a command in this process, with standard input from a file."""
    from tsallis.toolkit.cli import main

    def run(*arguments: object, stdin: str | bytes = "", status: int = 0) -> subprocess.CompletedProcess[str]:
        line = ["tsallis", *map(str, arguments)]
        out, errors = io.StringIO(), io.StringIO()
        with tempfile.TemporaryFile() as content, pytest.MonkeyPatch.context() as patch:
            content.write(stdin if isinstance(stdin, bytes) else stdin.encode())
            content.seek(0)
            patch.setattr(sys, "argv", line)
            patch.setattr(sys, "stdin", io.TextIOWrapper(content))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", errors)
            with pytest.raises(SystemExit) as leave:
                main()
        assert (leave.value.code or 0) == status, errors.getvalue() or out.getvalue()
        return subprocess.CompletedProcess(line, status, out.getvalue(), errors.getvalue())

    return run


def shared_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder shared by the whole session; the first worker that needs it fills it, and no test changes it."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / f"shared-{name}", root / f"shared-{name}.done"
    with (root / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def run_example(name: str, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == status, done.stderr
    return done


def json_lines(text: str) -> list[Any]:
    """Parse the lines that a command prints with --json."""
    return [json.loads(line) for line in text.splitlines()]


def accessibility_violations(tab: Any) -> list[tuple[str, str]]:
    """Return the serious problems that axe-core finds in a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(tab).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")]


def write_examples(path: Path, examples: list[StringsExample]) -> None:
    lines = [f"{e.source}\t{e.target}\t{';'.join(e.features)}\n" for e in examples]
    path.write_bytes("".join(lines).encode())


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with train.tsv, dev.tsv and config.yaml."""

    def make(folder: Path) -> None:
        verbs = english_verbs()
        write_examples(folder / "train.tsv", verbs["train"][:320])
        write_examples(folder / "dev.tsv", verbs["dev"][:24])
        (folder / "config.yaml").write_text(CONFIG.format(folder=folder, seed=SEED))

    return shared_folder(tmp_path_factory, "data", make)


@pytest.fixture(scope="session")
def trained(small_data: Path, tmp_path_factory: pytest.TempPathFactory, tsallis: Run) -> Path:
    def make(folder: Path) -> None:
        tsallis("train", small_data / "config.yaml", "--run-dir", folder / "small")

    return shared_folder(tmp_path_factory, "trained", make) / "small"


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny Transformer with a learned alpha per head on German numbers."""
    from integration.cli.runs import translation

    sizes = ["model.d_model=16", "model.d_ff=16", "model.encoder_layers=2", "model.decoder_layers=2"]
    # Its outputs rarely end: without a limit, every search would take 127 steps.
    quick = ["training.epochs=8", "training.checkpoint_every=100", f"search.max_length={LONGEST}"]

    def make(folder: Path) -> None:
        train_here(translation(folder / "data", dev=12), folder / "run", *sizes, *quick)

    return shared_folder(tmp_path_factory, "translator", make) / "run"


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, translator: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Write a page that compares a run with itself; return it with the records that it shows."""

    def make(folder: Path) -> None:
        files = "-o", folder / "page.html", "--json", folder / "all.json"
        call_here("analyze", translator, translator, *files, "--importance", 2)

    folder = shared_folder(tmp_path_factory, "report", make)
    return folder / "page.html", json.loads((folder / "all.json").read_text())["runs"]


@pytest.fixture(scope="session")
def inflector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from integration.cli.runs import strings

    def make(folder: Path) -> None:
        train_here(strings(folder / "data"), folder / "run")

    return shared_folder(tmp_path_factory, "inflector", make) / "run"


def train_here(config: Path, run: Path, *overrides: str) -> Path:
    """Train in this process and return the run folder."""
    call_here("train", config, *overrides, "--run-dir", run, "--device", "cpu")
    return run


def call_here(*arguments: object) -> None:
    import tsallis.toolkit.cli as cli

    with contextlib.redirect_stdout(io.StringIO()):
        cli.app([*map(str, arguments)], standalone_mode=False)
