"""`tsallis distill` and students trained on its distributions: the commands of the page, and rejected input."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from integration.cli import runs
from integration.cli.conftest import Run
from pages import DOCS
from tsallis.toolkit import inference
from tsallis.toolkit.training import Checkpoints

PAGE = (DOCS / "how-to" / "distill.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ tsallis (.*)$", PAGE, re.M)


def parameters(run: Path) -> dict[str, torch.Tensor]:
    return Checkpoints(run / "checkpoints").load_model("last")


def equal(first: Path, second: Path) -> bool:
    one, other = parameters(first), parameters(second)
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def teacher(tsallis: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with data, a run and its distributions."""
    folder = tmp_path_factory.mktemp("teacher")
    tsallis("train", runs.strings(folder / "data"), "--run-dir", folder / "run")
    shown = tsallis("distill", folder / "run", "-o", folder / "out").stdout
    assert re.fullmatch(r".*/out: \d+ symbols of 32 rows, \d+\.\d probabilities each\n", shown)
    return folder


@pytest.mark.slow
def test_documented_commands_run(tsallis: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").symlink_to(DOCS.parent / "recipes")
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        name, *arguments = shlex.split(command)
        small = ["model.d_model=8", "training.updates=3"] if name == "train" else []
        tsallis(name, *arguments, *small)
    assert not equal(tmp_path / "runs/student", tmp_path / "runs/teacher-2")


def test_students_must_not_sample_segmentations(tsallis: Run, tmp_path: Path) -> None:
    """The teacher's distributions belong to its best segmentations, so its student must not sample segmentations."""
    config = runs.translation(tmp_path / "data")
    options = ("--run-dir", tmp_path / "run", "training.updates=3")
    tsallis("train", config, *options)
    tsallis("distill", tmp_path / "run", "-o", tmp_path / "out")
    student = ("--run-dir", tmp_path / "student", "training.updates=3", f"training.teacher={tmp_path / 'out'}")
    message = tsallis("train", config, *student, status=2).stderr
    assert "training.teacher: expected data that are the same in every epoch" in message
    tsallis("train", config, *student, "data.subwords.sample=0")


def test_students_can_align_or_copy(tsallis: Run, teacher: Path, tmp_path: Path) -> None:
    config, target = teacher / "data" / "config.yaml", f"training.teacher={teacher / 'out'}"
    for name, setting in (("aligns", "model.monotonic=0"), ("copies", "model.copy=true")):
        tsallis("train", config, setting, "model.input_feeding=false", target, "--run-dir", tmp_path / name)
        tsallis("evaluate", tmp_path / name, "--split", "dev")


@pytest.mark.parametrize("setting", ["model.monotonic=0", "model.copy=true"])
def test_teachers_can_align_or_copy(setting: str, tsallis: Run, teacher: Path, tmp_path: Path) -> None:
    """Two teachers that align or copy can form an ensemble."""
    config, settings = teacher / "data" / "config.yaml", (setting, "model.input_feeding=false")
    for seed in "12":
        tsallis("train", config, *settings, f"training.seed={seed}", "--run-dir", tmp_path / seed)
    tsallis("distill", tmp_path / "1", tmp_path / "2", "-o", tmp_path / "out")
    target = f"training.teacher={tmp_path / 'out'}"
    tsallis("train", config, *settings, target, "--run-dir", tmp_path / "student")
    assert not equal(tmp_path / "student", tmp_path / "1")


def test_teacher_weight_0_equals_training_without_a_teacher(tsallis: Run, teacher: Path, tmp_path: Path) -> None:
    """With weight 0, the result is bit-identical to training without a teacher."""
    config = teacher / "data" / "config.yaml"
    for weight in (0, 0.5, 1):
        section = f"training.teacher={{folder: {teacher / 'out'}, weight: {weight}}}"
        tsallis("train", config, section, "--run-dir", tmp_path / str(weight))
    assert equal(tmp_path / "0", teacher / "run")
    assert not equal(tmp_path / "0.5", teacher / "run")
    assert not equal(tmp_path / "0.5", tmp_path / "1")


def test_distill_supports_outputs_of_the_teacher_and_top_k(tsallis: Run, teacher: Path, tmp_path: Path) -> None:
    """With weight 0, the student still learns the teacher's outputs as references."""
    config = teacher / "data" / "config.yaml"
    options = "--sequence-level", "--top-k", 2, "--json"
    record = json.loads(tsallis("distill", teacher / "run", "-o", tmp_path / "out", *options).stdout)
    assert record["entries"] <= 2 * record["tokens"]
    for weight in (0, 0.5):
        section = f"training.teacher={{folder: {tmp_path / 'out'}, weight: {weight}}}"
        tsallis("train", config, section, "--run-dir", tmp_path / str(weight))
        assert not equal(tmp_path / str(weight), teacher / "run")
    message = tsallis("distill", teacher / "run", "-o", tmp_path / "out", status=2).stderr
    assert "teacher.json: expected distributions of the same top_k and search, found others" in message


def test_teachers_must_not_change_while_they_are_read(
    tsallis: Run, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(folder: Path, *arguments: Any) -> inference.TextRun:
        result = open_run(folder, *arguments)
        checkpoints = Checkpoints(folder / "checkpoints")
        weights = {name: value + 1 for name, value in checkpoints.load_model("best").items()}
        checkpoints.save(weights, {}, {"step": 999, "epoch": 9, "metrics": {}}, best=True, finished=False)
        return result

    run, open_run = tmp_path / "run", inference.open_run
    shutil.copytree(teacher / "run", run)
    monkeypatch.setattr(inference, "open_run", opened)
    done = tsallis("distill", run, "-o", tmp_path / "out", status=2)
    assert f"{run}: its best checkpoint was replaced while it was read" in done.stderr
    assert not (tmp_path / "out").exists()
    assert "not a run folder" in tsallis("distill", tmp_path, "-o", tmp_path / "out", status=2).stderr


def test_distill_shows_its_progress_only_on_a_terminal(
    tsallis: Run, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tsallis("distill", teacher / "run", "-o", tmp_path / "plain").stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich treats the output as a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert "run: rows" in tsallis("distill", teacher / "run", "-o", tmp_path / "bar").stderr


def test_distributions_of_other_data_are_rejected(tsallis: Run, teacher: Path, tmp_path: Path) -> None:
    other = runs.strings(tmp_path / "data", lines=20)
    out = f"training.teacher={teacher / 'out'}"
    message = tsallis("train", other, out, "--run-dir", tmp_path / "run", status=2).stderr
    assert "training.teacher" in message and "vocabulary" in message
    config = teacher / "data" / "config.yaml"
    message = tsallis("train", config, "training.teacher=nowhere", "--run-dir", tmp_path / "run", status=2).stderr
    assert "nowhere/teacher.json" in message
    message = tsallis("train", config, out, "training.label_smoothing=0.1", "--dry-run", status=2).stderr
    assert "label_smoothing" in message
    assert not (tmp_path / "run").exists()


def test_a_teacher_needs_the_source_vocabulary_of_its_run(tsallis: Run, tmp_path: Path) -> None:
    tsallis("train", runs.strings(tmp_path / "data"), "--run-dir", tmp_path / "run", "training.updates=1")
    with (tmp_path / "data" / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("walk\twalk\tNEW\n")
    message = tsallis("distill", tmp_path / "run", "-o", tmp_path / "out", status=2).stderr
    assert "found data with another source vocabulary" in message and not (tmp_path / "out").exists()


def test_classifiers_are_rejected_as_teachers(tsallis: Run, tmp_path: Path) -> None:
    (tmp_path / "train").write_text("pos\tgood film\nneg\tbad film\n" * 3)
    config = tmp_path / "config.yaml"
    data = f"{{task: classification, folder: {tmp_path}, train: train, dev: train}}"
    config.write_text(f"version: 1\ndata: {data}\nmodel: {{d_model: 4}}\ntraining: {{epochs: 1}}\n")
    tsallis("train", config, "--run-dir", tmp_path / "run")
    message = tsallis("distill", tmp_path / "run", "-o", tmp_path / "out", status=2).stderr
    assert "runs of the task classification can't be teachers" in message and not (tmp_path / "out").exists()
