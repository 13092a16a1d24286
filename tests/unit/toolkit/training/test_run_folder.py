"""A run folder is created once, resumed only by the same run, and read back completely."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tsallis.toolkit.training.run_folder as run_module
from small_run import Killed, contents, train
from tsallis.errors import InputError
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.training import Checkpoints, file_names, load_run
from tsallis.toolkit.training.run_folder import build_model, locked, start_run

SRC, TGT = Vocabulary(["a", "b", "c"]), Vocabulary(["x", "y"])
DESCRIPTION = {"class": "rnn", "arguments": {"src_vocab": len(SRC), "tgt_vocab": len(TGT), "d_model": 4, "layers": 1}}
TASK = {"task": "strings", "languages": None}


def start(folder: Path, config: str = "version: 1\n", src: Vocabulary = SRC) -> bool:
    with locked(folder):
        return start_run(folder, config, DESCRIPTION, TASK, src, TGT)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    start(folder)
    model = build_model(DESCRIPTION)
    facts = {"step": 3, "epoch": 1, "metrics": {"dev_accuracy": 0.5}}
    Checkpoints(folder / "checkpoints").save(model.state_dict(), {}, facts, True, True)
    return folder


def test_load_run_restores_a_saved_run(finished: Path) -> None:
    run = load_run(finished)
    assert run.src_vocab == SRC and run.tgt_vocab == TGT and run.task == TASK
    assert run.facts["step"] == 3 and not run.model.training
    stored = Checkpoints(finished / "checkpoints").load_model("best")
    assert all(torch.equal(stored[name], value) for name, value in run.model.state_dict().items())


def test_starting_a_run_twice_changes_nothing(tmp_path: Path) -> None:
    assert start(tmp_path) is False
    before = contents(tmp_path)
    assert start(tmp_path) is True
    assert contents(tmp_path) == before


@pytest.mark.parametrize("file", ["model.json", "task.json", "src.vocab.json", "tgt.vocab.json", "config.yaml"])
@pytest.mark.parametrize("begun", [False, True])  # whether the kill leaves a temporary file
def test_killed_starts_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, begun: bool) -> None:
    """After a kill at any write of the start, the same command can start the run again."""
    write = run_module.write_atomic

    def killed(path: Path, data: bytes | str) -> None:
        if Path(path).name == file:
            if begun:
                (Path(path).parent / f".{file}.k3j2_0ab.tmp").write_text("half")
            raise Killed
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_atomic", killed)
        with pytest.raises(Killed):
            start(tmp_path / "run")
    assert start(tmp_path / "run") is False
    start(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_starts_killed_while_processes_compare_the_folder_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "..lock.0a1b2c3d.tmp").touch()
    assert start(tmp_path) is False
    names = {"config.yaml", "model.json", "task.json", "src.vocab.json", "tgt.vocab.json", ".lock"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("name", ["thesis.txt", "model.json", "src.vocab.json", ".hidden", "notes.tmp"])
def test_start_rejects_folders_with_foreign_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    (tmp_path / ".lock").write_text("theirs")
    before = contents(tmp_path)
    with pytest.raises(InputError, match="not empty"):
        start(tmp_path)
    assert contents(tmp_path) == before


def test_other_configurations_or_data_are_rejected(finished: Path) -> None:
    before = contents(finished)
    with pytest.raises(InputError, match="new seed: 2; old version: 1"):
        start(finished, "seed: 2\n")
    text = "training:\n  epochs: 3\ndata:\n  languages:\n  - a\n  - b\n"
    (finished / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"\(new training.epochs: 5; new data.languages: \[.a., .c.\]; old training"):
        start(finished, text.replace("3", "5").replace("- b", "- c"))
    (finished / "config.yaml").write_bytes(before["config.yaml"])
    with pytest.raises(InputError, match="data has changed"):
        start(finished, src=Vocabulary(["a", "b", "d"]))
    assert contents(finished) == before


def test_invalid_run_folder_paths_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for location in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="can't be used as a run folder"):
            start(location)


def test_vocabularies_of_another_model_are_rejected(finished: Path) -> None:
    Vocabulary(["x", "y", "z"]).save(finished / "tgt.vocab.json")
    with pytest.raises(InputError, match=r"tgt\.vocab\.json: expected 6 symbols, .* found 7"):
        load_run(finished)
    Vocabulary(["y", "x"]).save(finished / "tgt.vocab.json")  # same size, but every output would be wrong
    with pytest.raises(InputError, match=r"tgt\.vocab\.json: differs from the vocabulary"):
        load_run(finished)
    TGT.save(finished / "tgt.vocab.json")
    load_run(finished)


NAMES = {name: value for name, value in vars(file_names).items() if name.isupper()}
SYMBOLS = {"src.vocab.json", "tgt.vocab.json"}


def test_training_writes_only_known_files(tmp_path: Path) -> None:
    train(tmp_path / "run")
    written = {part for path in contents(tmp_path / "run") for part in Path(path).parts if not part.startswith("step-")}
    # Parameters start at random values, so no file records their source. TensorBoard is not enabled.
    assert written == {*NAMES.values(), *SYMBOLS} - {file_names.START, file_names.BOARD}
