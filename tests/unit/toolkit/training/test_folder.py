"""A run folder loses no data if its index is wrong, or if somebody moves, removes or changes parts of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import small_run
import tsallis.toolkit.data.io as file_io
from process_fork import run_forked
from small_run import SETTINGS, age, at, change_json, checkpoint_of, contents, index_of, replace, train
from tsallis.errors import InputError
from tsallis.toolkit.data.io import locked as file_locked
from tsallis.toolkit.data.io import write_atomic
from tsallis.toolkit.training import Checkpoints, Trainer, load_run
from tsallis.toolkit.training.lock import locked
from tsallis.toolkit.training.run_folder import build_model


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder)
    return folder


def stops(run: Path, words: str, work: Callable[[Path], object] = train) -> None:
    """Check that a command raises a one-line error and changes no file."""
    before = contents(run)
    with pytest.raises(InputError, match=words) as caught:
        work(run)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert contents(run) == before


def average(run: Path) -> None:
    Checkpoints(run / "checkpoints", SETTINGS.keep).average()


def test_missing_index_raises_and_deletes_nothing(run: Path) -> None:
    (run / "checkpoints" / "index.json").unlink()
    for work in (train, average, load_run):
        stops(run, r"index\.json: missing, although there are checkpoints", work)


def test_missing_checkpoints_raise_and_keep_the_log(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    stops(run, r"log\.jsonl: has events of a training, but .*index\.json is missing")


@pytest.mark.parametrize("key", ["last", "best", "kept", "average"])
def test_missing_indexed_checkpoints_raise_and_delete_nothing(run: Path, key: str) -> None:
    name = "average-00000001-00000002" if key == "average" else "step-00000099"
    change_json(run / "checkpoints" / "index.json", **{key: [name] if key == "kept" else name})
    for work in (train, average):
        stops(run, f"names {name}, which is not a complete checkpoint", work)


def test_unindexed_checkpoints_are_not_deleted(run: Path) -> None:
    names = {p.name for p in (run / "checkpoints").glob("step-*")}
    assert names == {"step-00000004", "step-00000006"}
    change_json(run / "checkpoints" / "index.json", last="step-00000006", best="step-00000006", kept=[])
    train(run)
    assert (run / "checkpoints" / "step-00000004" / "manifest.json").exists()


def test_index_older_than_the_checkpoints_raises(run: Path) -> None:
    change_json(run / "checkpoints" / "index.json", last="step-00000004")
    stops(run, r"step-00000006: this checkpoint is not listed in index\.json")


def test_foreign_folders_and_links_are_kept(run: Path, tmp_path: Path) -> None:
    """Foreign folders and links stay whatever their names, even inside a superseded checkpoint."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("words")
    folder = run / "checkpoints"
    for name in ("step-by-step-notes", "average-of-grades", "step-00000004/notes", "step-1"):
        (folder / name).mkdir()
        (folder / name / "mine.txt").write_text("mine")
    links = [folder / name for name in ("step-x", "step-00000001", "step-00000098", "average-00000001-00000002")]
    for link in links:
        link.symlink_to(elsewhere)
    (folder / ".index.json.backup.tmp").write_text("mine")
    theirs = {name: blob for name, blob in contents(folder).items() if blob == b"mine"}
    assert len(theirs) == 5
    train(run)
    average(run)
    assert theirs.items() <= contents(folder).items()
    assert all((link / "thesis.txt").read_text() == "words" for link in links)
    assert not (folder / "step-00000006").exists()


def test_index_discard_never_removes_foreign_files(run: Path) -> None:
    target = run / "checkpoints" / "step-00000001"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    for name in ("../../elsewhere", "notes", "step-1", "/tmp/x"):
        change_json(run / "checkpoints" / "index.json", discard=[name])
        stops(run, r"index\.json: discard\.0")
    change_json(run / "checkpoints" / "index.json", discard=["step-00000006"])
    stops(run, "step-00000006 is named as a checkpoint: it must not be in discard")
    change_json(run / "checkpoints" / "index.json", discard=["step-00000001"])
    train(run)
    assert (target / "mine.txt").read_text() == "mine"


def changed_while_it_trains(run: Path, words: str, work: Callable[[], object]) -> None:
    before: dict[str, Any] = {}

    def without_logs() -> dict[str, Any]:
        files = contents(run) if run.exists() else {}
        return {name: blob for name, blob in files.items() if not name.endswith(".jsonl")}

    def change() -> None:
        work()
        before.update(without_logs())

    with pytest.raises(InputError, match=words) as caught:
        train(run, at(8, change))  # the step of the next checkpoint, which has a validation
    assert "\n" not in str(caught.value)
    assert without_logs() == before


def test_renaming_the_run_folder_during_training_raises(run: Path, uninterrupted: Path, tmp_path: Path) -> None:
    changed_while_it_trains(run, r"the run folder .* was moved or removed", lambda: run.rename(tmp_path / "other"))
    assert not run.exists()
    train(tmp_path / "other")
    assert contents(tmp_path / "other") == contents(uninterrupted)


def test_removing_the_run_folder_during_training_raises(run: Path) -> None:
    changed_while_it_trains(run, r"the run folder .* was moved or removed", lambda: shutil.rmtree(run))
    assert not run.exists()


def test_replacing_the_run_folder_during_training_raises(run: Path, half: Path, tmp_path: Path) -> None:
    def swap() -> None:
        run.rename(tmp_path / "other")
        shutil.copytree(half, run)

    changed_while_it_trains(run, r"the run folder .* was moved or removed", swap)
    assert contents(run) == contents(half)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".lock", "was moved or removed"),
        ("checkpoints/index.json", r"index\.json: missing, although there are checkpoints"),
        ("checkpoints/step-00000006/manifest.json", "names step-00000006, which is not a complete checkpoint"),
    ],
)
def test_removing_a_run_file_during_training_raises(run: Path, name: str, words: str) -> None:
    changed_while_it_trains(run, words, (run / name).unlink)
    assert not (run / name).exists()


def test_truncated_or_damaged_logs_raise(run: Path) -> None:
    log = run / "log.jsonl"
    text = log.read_bytes()
    log.write_bytes(text[:-30])
    stops(run, r"log\.jsonl: expected at least \d+ bytes, as at the last checkpoint")
    log.unlink()
    stops(run, r"log\.jsonl: expected at least .* found 0")
    log.write_bytes(text.replace(b'"epoch"', b"'epoch'"))
    stops(run, r"log\.jsonl:2: not a JSON file")
    log.write_bytes(b'{"event": "x", "y": "' + b"x" * len(text) + b'"}\n')
    stops(run, r"no line ends at byte \d+")
    log.write_bytes(text)
    (run / "timing.jsonl").unlink()
    stops(run, r"timing\.jsonl: missing; restore the file, or create an empty file")


def test_checkpoints_do_not_contain_times(run: Path, uninterrupted: Path) -> None:
    """Times differ between runs. Resuming drops the times of later steps and an incomplete line."""
    times = (run / "timing.jsonl").read_text()
    event = next(event for event in map(json.loads, times.splitlines()) if event["event"] == "epoch")
    later = json.dumps({**event, "step": 7}) + "\n"
    (run / "timing.jsonl").write_text(times.replace(str(event["seconds"]), "12345.678901234567") + later + later[:9])
    train(run)
    assert contents(run) == contents(uninterrupted)
    assert (run / "timing.jsonl").read_text().count("12345.678901234567") == 1


def test_runs_of_the_first_version_resume(run: Path, uninterrupted: Path) -> None:
    age(run)
    state = torch.load(checkpoint_of(run) / "training.pt", weights_only=True)
    assert state["timing"] > 0 and set(index_of(run)) == {"last", "best", "kept", "finished"}
    part = run / "checkpoints" / "step-00000008"  # incomplete checkpoint of a killed run
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    (part / ".training.pt.a1_b2c3d.tmp").write_bytes(b"ha")
    load_run(run)
    average(Path(shutil.copytree(run, run.with_name("averaged"))))
    train(run)
    best = f"checkpoints/{checkpoint_of(run, 'best').name}/"  # the best checkpoint is not rewritten
    expected = {name: blob for name, blob in contents(uninterrupted).items() if not name.startswith(best)}
    assert {name: blob for name, blob in contents(run).items() if not name.startswith(best)} == expected


def test_finished_runs_of_the_first_version_load(uninterrupted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    age(run)
    assert load_run(run).facts["step"] == load_run(uninterrupted).facts["step"]
    train(run)
    assert index_of(run)["finished"]


def test_averaging_again_repairs_a_damaged_average(uninterrupted: Path, tmp_path: Path) -> None:
    """Averaging the same checkpoints again gives the same folder and repairs a damaged file."""
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    average(run)
    before = contents(run)
    (checkpoint_of(run, "average") / "model.safetensors").write_bytes(b"damaged")
    average(run)
    assert contents(run) == before
    other = Path(shutil.copytree(run, tmp_path / "other"))
    name = index_of(run)["kept"][0]
    replace(other / "checkpoints" / name / "model.safetensors", save({"w": torch.ones(2)}))
    with pytest.raises(InputError, match="parameters differ from those in step-"):
        average(other)


def test_non_finite_weights_are_not_saved(run: Path) -> None:
    before = contents(run / "checkpoints")

    made = Trainer(build_model(small_run.DESCRIPTION), small_run.TRAIN, small_run.DEV, run, SETTINGS)
    made.load()
    made._open()
    with torch.no_grad():
        next(iter(made.model.parameters()))[0, 0] = torch.inf
    with pytest.raises(InputError, match=r"weights src_embedding\.weight are not finite after update 6: .*diverged"):
        made._save()
    assert contents(run / "checkpoints") == before


def test_locking_raises_without_file_system_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def fails(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    for number, words in ((errno.ENOLCK, "does not support locks"), (errno.EIO, "can't be locked: Input/output")):
        fails(number)
        with pytest.raises(InputError, match=words), locked(tmp_path / "run"):
            pass
    fails(errno.ENOLCK)
    with file_locked(tmp_path / "cache.lock") as alone:
        assert alone is False


def test_lock_paths_that_are_not_files_raise(tmp_path: Path) -> None:
    (theirs := tmp_path / "elsewhere").write_text("theirs")
    for name, make in (("fifo", os.mkfifo), ("folder", Path.mkdir), ("link", lambda path: path.symlink_to(theirs))):
        folder = tmp_path / name
        folder.mkdir()
        make(folder / ".lock")
        with pytest.raises(InputError, match=str(folder)), locked(folder):
            pass


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root: it acts as another user")
def test_read_only_run_folders_load_but_reject_writes(run: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(shutil.copytree(run, Path(name) / "run"))
        before = contents(folder)

        def work() -> None:
            os.setuid(65534)
            load_run(folder)
            for writer in (train, average):
                try:
                    writer(folder)
                except InputError as error:
                    print(error)

        done = run_forked(work)
        assert contents(folder) == before
    assert done.status == 0, done.text
    first, second = done.text.splitlines()
    assert "can't be used as a run folder: Permission denied" in first
    assert "can't be written: Permission denied; fix this, then run the same command again" in second


def test_writing_flushes_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename must reach the disk before later operations, such as removing the superseded file."""
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(file_io.os, name, lambda *a, n=name, r=real: (calls.append(n), r(*a))[1])
    write_atomic(tmp_path / "file", "text")
    assert calls == ["fsync", "replace", "fsync"]
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "nowhere" / "file", "text")
    assert not (tmp_path / "nowhere").exists()
