"""Averages of checkpoints, and removal of superseded and incomplete checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tsallis.errors import InputError
from tsallis.toolkit.training import Checkpoints


def save(checkpoints: Checkpoints, step: int, best: bool = False, validated: bool = True) -> None:
    model = {"weight": torch.full((3, 2), float(step))}
    training = {"position": step, "tensor": torch.ones(2)}
    facts = {"step": step, "epoch": 1, "metrics": {"dev_loss": 0.5}}
    checkpoints.save(model, training, facts, best, False, validated)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000009" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000010").mkdir()  # killed before its first file
    (tmp_path / ".index.json.x1_9abcd.tmp").write_bytes(b"{")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoints.sweep()
    assert names(tmp_path) == {"index.json", "step-00000001", "notes.txt"}


def test_last_validated_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, validated in ((1, True), (2, False), (3, True), (4, False), (5, True), (6, False)):
        save(checkpoints, step, best=step == 1, validated=validated)
    index = checkpoints.index()
    assert index.validated == ("step-00000003", "step-00000005")
    assert (index.best, index.last) == ("step-00000001", "step-00000006")
    assert names(tmp_path) == {"index.json", *(f"step-0000000{i}" for i in (1, 3, 5, 6))}


def test_average_is_the_mean_of_validated_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.raises(InputError, match="no validated checkpoint yet"):
        checkpoints.average()
    values = torch.randn(4, 5, 3)
    for step, value in enumerate(values, start=1):
        facts = {"step": step, "epoch": 1, "metrics": {"dev_loss": 0.5}}
        model = {"w": value, "half": value.bfloat16(), "count": torch.tensor([step])}
        checkpoints.save(model, {}, facts, step == 1, False)
    with pytest.raises(InputError, match="has no averaged checkpoint; `tsallis average` creates one"):
        checkpoints.load_model("average")
    assert checkpoints.average() == [f"step-0000000{i}" for i in (2, 3, 4)]
    result = checkpoints.load_model("average")
    assert result["w"].dtype == torch.float32 and result["half"].dtype == torch.bfloat16
    assert result["w"].equal(values[1:].double().mean(0).float())
    assert result["half"].equal(values[1:].bfloat16().double().mean(0).bfloat16())
    facts = checkpoints.facts("average")
    assert facts["of"] == [f"step-0000000{i}" for i in (2, 3, 4)] and facts["metrics"] == {} and facts["step"] == 4
    assert checkpoints.average(1) == ["step-00000004"]
    assert checkpoints.load_model("average")["w"].equal(values[3])
    assert len(list(tmp_path.glob("average-*"))) == 1  # the previous average was removed
    for last in (0, 4):
        with pytest.raises(InputError, match=rf"must be from 1 to 3, got {last}"):
            checkpoints.average(last)


def test_average_is_kept_after_saving_a_new_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        save(checkpoints, step)
    checkpoints.average()
    save(checkpoints, 3)
    assert checkpoints.load_model("average")["weight"].eq(1.5).all()
    with pytest.raises(InputError, match="checkpoint must be one of last, best, average, got 'worst'"):
        checkpoints.load_model("worst")


def test_checkpoints_are_read_again_if_training_replaces_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, reader = Checkpoints(tmp_path), Checkpoints(tmp_path)
    save(training, 1, best=True)
    reads: list[Callable[[], int]] = [
        lambda: reader.load("best")[2]["step"],
        lambda: reader.facts("best")["step"],
        lambda: reader.load_training("best")["position"],
    ]
    find = reader._name
    for read in reads:
        steps = [training.index().model_dump()["last"][-1:]]

        def replaced(which: str, steps: list[str] = steps) -> str:
            name = find(which)
            if steps:
                save(training, int(steps.pop()) + 1, best=True)
            return name

        monkeypatch.setattr(reader, "_name", replaced)
        expected = int(steps[0]) + 1
        assert read() == expected
    monkeypatch.setattr(reader, "_name", find)
    (tmp_path / "step-00000004" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest\.json: can't be read"):
        reader.load("best")


def test_shared_parameters_are_stored_once(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    model = {"first": shared, "second": shared, "empty": torch.zeros(0), "none": torch.zeros(0)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model, {}, {"step": 1}, True, False)
    assert set(checkpoints.load_model("best")) == {"first", "empty", "none"}

    class Sharing:
        def shared_parameters(self) -> dict[str, str]:
            return {"second": "first"}

    restored = checkpoints.load_model("best", Sharing())
    assert restored["second"] is restored["first"] and restored["first"].equal(shared)
