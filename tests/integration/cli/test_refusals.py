"""A rejected command changes nothing: names, contents and times of all files are the same before and after."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer

import tsallis.toolkit.cli as cli
from integration.cli.runs import strings
from small_run import change_json, change_state, checkpoint_of, replace
from tsallis.errors import InputError
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.tasks.strings import english_verbs
from tsallis.toolkit.training import Checkpoints
from tsallis.toolkit.training.lock import locked

from .conftest import Run, write_examples

CONFIG = """\
version: 1
data: {folder: data, train: train.tsv, dev: dev.tsv, test: dev.tsv}
model: {d_model: 4, layers: 1}
training: {epochs: 2, batch_size: 8, checkpoint_every: 2, learning_rate: 0.01, keep: 2, schedule: constant}
"""
RUN, TRAIN = Path("run"), Path("data/train.tsv")
LONGER = ("training.epochs=5", "training.keep=3")  # settings that may change: a resumed run would rewrite config.yaml
Damage = Callable[[], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals") / "base"
    (folder / "data").mkdir(parents=True)
    verbs = english_verbs()
    write_examples(folder / TRAIN, verbs["train"][:20])
    write_examples(folder / "data/dev.tsv", verbs["dev"][:4])
    (folder / "config.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call("train", "config.yaml", "--run-dir", RUN, "--device", "cpu")
        call("average", RUN)
    return folder


@pytest.fixture
def here(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the base folder and make the copy the working directory."""
    monkeypatch.chdir(shutil.copytree(base, tmp_path / "here"))
    return tmp_path / "here"


def call(*arguments: object) -> None:
    cli.app([*map(str, arguments)], standalone_mode=False)


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return the mode, modification time and content of everything in a folder."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def refused(*arguments: object, words: str | None = None) -> None:
    """Call a command that must be rejected, and check that no file in the working directory changes."""
    before = tree(Path.cwd())
    with pytest.raises((InputError, typer.TyperException), match=words):
        call(*arguments)
    after = tree(Path.cwd())
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == []


def edit(path: str | Path, change: Callable[[bytes], bytes]) -> Damage:
    return lambda: Path(path).write_bytes(change(Path(path).read_bytes()))


def write(path: str, text: str) -> Damage:
    return lambda: Path(path).write_text(text)


def remove(path: str) -> Damage:
    return lambda: Path(path).unlink()


def change_checkpoint(name: str, change: Callable[[Path], object]) -> Damage:
    return lambda: change(checkpoint_of(RUN) / name)


def change_training_state(change: Callable[[dict], object]) -> Damage:
    return change_checkpoint("training.pt", lambda path: change_state(path, change))


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def work(path: Path) -> None:
        from safetensors.torch import load, save

        parameters = load(path.read_bytes())
        change(parameters)
        replace(path, save(parameters))

    return change_checkpoint("model.safetensors", work)


def reverse_lines(blob: bytes) -> bytes:
    return b"".join(reversed(blob.splitlines(keepends=True)))


def later_checkpoint() -> None:
    shutil.copytree(checkpoint_of(RUN), RUN / "checkpoints/step-00000099")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "the order of the data": (edit(TRAIN, reverse_lines), "the data has changed since the run was started"),
    "the development set": (edit("data/dev.tsv", reverse_lines), "the data has changed"),
    "one line less": (edit(TRAIN, lambda blob: blob[: blob.rindex(b"\n", 0, -1) + 1]), "the (training )?data has"),
    "another symbol": (edit(TRAIN, lambda blob: blob + "å\tå\tV\n".encode()), "training data has changed"),
    "no data": (remove("data/train.tsv"), "train.tsv: can't be read"),
    "empty data": (write("data/train.tsv", ""), "empty"),
    "a malformed line": (edit(TRAIN, lambda blob: blob + b"walk\n"), "train.tsv:21"),
    "no vocabulary": (remove("run/tgt.vocab.json"), "tgt.vocab.json"),
    "another vocabulary": (lambda: Vocabulary(["x"]).save(RUN / "src.vocab.json"), "training data has changed"),
    "another model": (edit("run/model.json", lambda text: text.replace(b'model": 4', b'model": 6')), "d_model is 6"),
    "no task": (remove("run/task.json"), "task.json"),
    "another task": (lambda: change_json(RUN / "task.json", task="translation"), "task.json"),
    "an unnamed checkpoint": (later_checkpoint, "not listed in index.json"),
    "a file for checkpoints": (
        lambda: (shutil.rmtree(RUN / "checkpoints"), (RUN / "checkpoints").touch(), (RUN / "log.jsonl").unlink()),
        "checkpoints: expected a folder",
    ),
    "a state of other data": (change_training_state(lambda state: state.update(data="x y")), "the data has changed"),
    "a short log": (edit("run/log.jsonl", lambda blob: blob[:40]), "log.jsonl: expected at least"),
    "a lock that is a folder": (lambda: ((RUN / ".lock").unlink(), (RUN / ".lock").mkdir()), "can't be used as a run"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_resuming_damaged_runs_changes_no_file(here: Path, name: str) -> None:
    """Although the settings in `LONGER` may change, the command must not rewrite the configuration of a damaged run."""
    damage, words = DAMAGES[name]
    damage()
    Path("run/.config.yaml.abcdefgh.tmp").touch()  # a killed write leaves such a file
    refused("train", "config.yaml", *LONGER, "--run-dir", RUN, "--device", "cpu", words=words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("training.epochs=1",), "training.epochs must be above 2"),
        (("training.epochs=5", "training.updates=3"), "training.updates must be above 6"),
        (("training.batch_size=9", *LONGER), "another configuration"),
        (("model.d_model=8", *LONGER), "another configuration"),
        (("training.select=bleu", *LONGER), "training.select"),
        (("data.max_length=2", *LONGER), "max_length"),
        (("training.validation_rows=0",), "training.validation_rows"),
        (("training.src_embeddings.file=nowhere.txt", *LONGER), "nowhere.txt|another configuration"),
        (("training.init_from=nowhere", *LONGER), "nowhere|another configuration"),
    ],
)
def test_resuming_with_invalid_settings_changes_no_file(here: Path, overrides: tuple[str, ...], words: str) -> None:
    refused("train", "config.yaml", *overrides, "--run-dir", RUN, "--device", "cpu", words=words)


def test_unwritable_tensorboard_folder_is_rejected(here: Path) -> None:
    pytest.importorskip("tensorboard")
    Path("run/tensorboard").touch()
    arguments = "config.yaml", *LONGER, "training.tensorboard=true", "--run-dir", RUN
    refused("train", *arguments, words="run/tensorboard: expected a folder")


def test_locked_run_folders_are_rejected(here: Path) -> None:
    with locked(RUN):
        for arguments in (("train", "config.yaml", *LONGER, "--run-dir", RUN), ("average", RUN)):
            refused(*arguments, words="another process is training")


def test_locked_sweep_folders_are_rejected(here: Path) -> None:
    with locked(Path("sweep")):
        refused("sweep", "config.yaml", "training.seed=[1]", "--run-dir", "sweep", words="is running a sweep in this")


def test_runs_resume_by_their_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epochs, path in ((3, RUN), (4, RUN / "config.yaml")):
        call("train", path, f"training.epochs={epochs}", "--device", "cpu")
        assert Checkpoints(RUN / "checkpoints").facts("last")["epoch"] == epochs
    before = tree(here)
    call("train", RUN, "training.epochs=5", "--dry-run", "--device", "cpu")
    assert "# run: the run in this folder is resumed" in capsys.readouterr().out and tree(here) == before
    refused("train", "data", words=r"data: not a run folder \(it has no model\.json\)")


def test_rejected_commands_leave_no_lock_file(here: Path) -> None:
    (RUN / ".lock").unlink()
    edit(TRAIN, reverse_lines)()
    before = {path.name for path in RUN.iterdir()}
    with pytest.raises(InputError, match="the data has changed"):
        call("train", "config.yaml", *LONGER, "--run-dir", RUN)
    with pytest.raises(InputError, match="checkpoints to average"):
        call("average", RUN, "--last", "9")
    assert {path.name for path in RUN.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "overrides", "words"),
    [
        (remove("data/train.tsv"), (), "train.tsv"),
        (edit(TRAIN, lambda blob: blob + b"walk\n"), (), "train.tsv:21"),
        (write("data/dev.tsv", "walk\twalked\n"), (), "dev.tsv:1"),
        (write("data/dev.tsv", "w" * 400 + "\twalked\tV\n"), (), "dev.tsv:1: .*found 401"),
        (write("vectors.txt", "a 1 2 3\n"), ("training.src_embeddings.file=vectors.txt",), "vectors of 4 numbers"),
        (write("vectors.txt", "a 1 2 x y\n"), ("training.src_embeddings.file=vectors.txt",), "vectors.txt:1"),
        (write("data/dev.tsv", "\nwalk\twalked\tV\n\n" + "w" * 400 + "\twalked\tV\n"), (), "dev.tsv:4: .*found 401"),
        (write("config.yaml", "version: 1\n"), (), "config.yaml"),
        (str, ("training.select=bleu",), "training.select"),
        (str, ("training.init_from=nowhere",), "nowhere"),
        (str, ("training.init_from=run", "model.layers=2", "model.d_model=6"), "model differ: d_model"),
        (str, ("data.max_length=1",), "data.max_length"),
        (str, ("model.d_model=5",), "model.d_model"),
        (str, ("data.languages=[german]",), "data"),
        (str, ("--device", "tpu"), "device must be"),
    ],
)
def test_rejected_trainings_create_nothing(here: Path, damage: Damage, overrides: tuple[str, ...], words: str) -> None:
    """A training that can't start must not create the run folder or its parents."""
    damage()
    refused("train", "config.yaml", *overrides, "--run-dir", "new/deep/run", words=words)


def test_unsuitable_run_folders_are_rejected(here: Path) -> None:
    refused("train", "config.yaml", "--run-dir", "data", words="not empty")
    refused("train", "config.yaml", "--run-dir", "config.yaml/run", words="expected a folder, found a file")
    Path("empty").mkdir()
    TRAIN.unlink()
    with pytest.raises(InputError, match="No such file"):
        call("train", "config.yaml", "--run-dir", "empty")
    assert not list(Path("empty").iterdir())


@pytest.mark.parametrize(
    ("damage", "arguments", "words"),
    [
        (str, ("--last", "9"), "got 9"),
        (with_weights(lambda weights: next(iter(weights.values())).fill_(torch.nan)), (), "not finite"),
        (with_weights(lambda weights: weights.popitem()), (), "parameters differ"),
        (change_checkpoint("model.safetensors", lambda path: path.write_bytes(b"x")), (), "truncated"),
        (later_checkpoint, (), "not listed in index.json"),
        (write("run/checkpoints/index.json", "[]"), (), "index.json"),
        (lambda: change_json(RUN / "checkpoints/index.json", average=None), (), "average-.* not listed in index.json"),
        (remove("run/model.json"), (), "not a run folder"),
    ],
)
def test_rejected_averages_change_no_file(here: Path, damage: Damage, arguments: tuple[str, ...], words: str) -> None:
    damage()
    (RUN / "checkpoints/.index.json.abcdefgh.tmp").touch()
    refused("average", RUN, *arguments, words=words)


OUTPUTS = {
    "evaluate": ("--out", "new/out.json", "--manifest", "old.json"),
    "look": ("--out", "new/look.html"),
    "analyze": ("--out", "new/page.html", "--json", "new/numbers.json"),
}


@pytest.mark.parametrize(
    ("damage", "command", "arguments", "words"),
    [
        (write("lines", "walk\twalked\tV;PST\nwalk\n"), "evaluate", ("lines",), "lines:2"),
        (write("lines", "walk\twalked\tV;PST\n"), "evaluate", ("lines", "--language", "german"), "without languages"),
        (str, "evaluate", ("nowhere",), "nowhere"),
        (str, "evaluate", ("--split", "tset"), "split must be"),
        (remove("data/dev.tsv"), "evaluate", (), "dev.tsv"),
        (write("run/timing.jsonl", "{}\n"), "evaluate", (), "timing.jsonl:1"),  # read after all computations
        (str, "evaluate", ("--checkpoint", "first"), "checkpoint must be"),
        (write("lines", "walk\n"), "look", ("lines",), "lines:1"),
        (write("lines", "w" * 300 + "\tV;PST\n"), "look", ("lines",), "found 302"),
        (write("lines", "walk\tV;PST\n"), "look", ("lines", "--language", "german"), "a run without languages"),
        (write("lines", "walk\n"), "analyze", ("--text", "lines"), "lines:1"),
        (str, "analyze", ("--sweep", "--limit", "2"), "only reads training logs"),
        (lambda: Path("new/numbers.json").mkdir(parents=True), "analyze", (), "found a folder"),
    ],
)
def test_rejected_commands_write_no_outputs(
    here: Path, damage: Damage, command: str, arguments: tuple[str, ...], words: str
) -> None:
    """The command must not create a folder or change an existing file."""
    damage()
    Path("old.json").write_text("before")
    refused(command, RUN, *arguments, *OUTPUTS[command], words=words)


def test_invalid_output_paths_are_rejected(here: Path) -> None:
    Path("old.json").write_text("before")
    refused("evaluate", RUN, "--out", "old.json", "--manifest", "./old.json", words="two outputs")
    for command in ("evaluate", "look"):
        refused(command, RUN, "--out", "data", words="found a folder")


def test_demo_rejects_folders_of_other_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of its two run folders contains another run, the demo must start neither training."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a training was started"))
    refused("demo", "--run-dir", RUN, words="another configuration")
    shutil.move("run", "new-softmax")
    refused("demo", "--run-dir", "new", words="another configuration")


def test_a_dash_is_not_a_file_to_write(tsallis: Run, trained: Path) -> None:
    assert "expected the name of a file to write, got -" in tsallis("evaluate", trained, "--out", "-", status=2).stderr
    assert not Path("-").exists()


def test_a_check_without_kernels_fails(tsallis: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSALLIS_BACKEND", "eager")
    assert "no kernels to compare" in tsallis("info", "--check", status=2).stderr


def test_a_setting_without_its_section_is_suggested(tsallis: Run, tmp_path: Path) -> None:
    errors = tsallis("train", strings(tmp_path / "data"), "epochs=5", status=2).stderr
    assert "epochs: unknown key (did you mean training.epochs?)" in errors
