"""The command `train` on two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from integration.distributed.conftest import Launch, ours

pytestmark = pytest.mark.slow

CONFIG = """\
version: 1
data: {embedded: english-verbs}
model: {d_model: 8, layers: 1}
training: {batch_size: 8, updates: 3, validation_rows: 8, strategy: fsdp}
"""


VISUAL = """\
version: 1
data: {task: visual, folder: FOLDER, train: train.tsv, images: images.npy}
model: {architecture: answerer, d_model: 8, heads: 2, layers: 1, stages: 2, num_basis: 9, density: 2}
training: {batch_size: 8, updates: 3, strategy: fsdp}
"""


def test_training_finds_images_on_every_process(launch: Launch, tmp_path: Path) -> None:
    """Images are not parameters: every process, and the copy that is validated, must find them."""
    np.save(tmp_path / "images.npy", np.zeros((20, 8, 8, 3), np.uint8))
    rows = [f"{i}\tis it {word}?\t{word}\n" for i in range(20) for word in ("red", "blue")]
    (tmp_path / "train.tsv").write_text("".join(rows))
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(VISUAL.replace("FOLDER", str(tmp_path)))
    done = launch("-m", "tsallis", "train", config, "--run-dir", run, "--device", "cpu")
    assert done.stdout.count(f"Training in {run}") == 1 and done.stdout.count("dev accuracy") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.d_modle=9", "override 'model.d_modle=9': model.d_modle: unknown key (did you mean d_model?)"),
        ("training.max_tokens=2", "max_tokens must be at least "),
    ],
)
def test_invalid_settings_give_a_one_line_error(launch: Launch, tmp_path: Path, change: str, words: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    done = launch("-m", "tsallis", "train", config, change, "--run-dir", tmp_path / "run", "--device", "cpu", status=1)
    (line,) = ours(done)
    assert line.startswith("tsallis: ") and words in line
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_first_process_errors_give_a_one_line_error(launch: Launch, tmp_path: Path) -> None:
    """Only the first process writes, so it must report its error to all processes; otherwise they wait forever."""
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    run.mkdir()
    (run / "thesis.txt").write_text("words")
    done = launch("-m", "tsallis", "train", config, "--run-dir", run, "--device", "cpu", status=1)
    (line,) = ours(done)
    assert line.startswith("tsallis: ") and "the folder is not empty and contains no run" in line


def test_a_thread_that_outlives_the_group_does_not_abort_the_process(launch: Launch, tmp_path: Path) -> None:
    done = launch(Path(__file__).with_name("late_release.py"), tmp_path / "exiting")
    assert done.stdout == "to the end\n" and "terminate called" not in done.stderr
