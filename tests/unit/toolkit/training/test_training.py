"""Schedules, checkpoints, the log, the loop's normalisation, configurations and metrics."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
import yaml

from run_seed import SEED
from task_runs import config_of
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import write_atomic
from tsallis.toolkit.evaluation.teacher_forcing import teacher_forced_scores
from tsallis.toolkit.evaluation.text_scores import levenshtein
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import load_config
from tsallis.toolkit.training import Checkpoints, Log, Settings, Trainer
from tsallis.toolkit.training.schedules import Constant, HalveOnWorse, InverseSquareRoot, Plateau, make_schedule
from tsallis.toolkit.training.schema import Index

ROOT = Path(__file__).parents[4]
RECIPES = sorted([*ROOT.glob("recipes/*/*.yaml"), *ROOT.glob("src/tsallis/toolkit/recipes/*.yaml")])


def small_config(**training: object):
    return config_of(
        {
            "version": 1,
            "data": {"embedded": "english-verbs"},
            "model": {"d_model": 8, "layers": 1},
            "training": {"epochs": 1, "batch_size": 32, "seed": SEED, **training},
        }
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_recipe_is_a_valid_configuration(path: Path) -> None:
    config = load_config(path)
    assert path.read_text(encoding="utf-8").startswith("# "), "a recipe's header says what it aims at"
    assert config_of(yaml.safe_load(config.text())).text() == config.text()
    if path.parent.name == "sigmorphon2018":
        assert "Peters et al. 2019" in path.read_text(encoding="utf-8")
        assert config.training.schedule == "halve-on-worse" and config.search.options.beam_size == 5


def test_every_recipe_has_a_run_folder_of_its_own() -> None:
    """No two recipes write into one folder: by `run_dir`, by their file's name or by a command of their header."""
    folders: dict[str, Path] = {}
    for path in RECIPES:
        folder = load_config(path).run_dir or f"runs/{path.stem}"
        assert folder not in folders, f"{path} and {folders[folder]} write into {folder}"
        folders[folder] = path
    for path in RECIPES:
        for line in path.read_text(encoding="utf-8").splitlines():
            other = re.search(rf"tsallis train {re.escape(str(path.relative_to(ROOT)))} .*--run-dir (\S+)", line)
            assert other is None or other[1] not in folders, f"{path}: a command writes into {other[1]}"


def test_languages_all_are_found_in_the_folder(tmp_path: Path) -> None:
    data = {"folder": str(tmp_path), "train": "{language}-train", "dev": "{language}-dev", "languages": "all"}
    config = config_of({"version": 1, "data": data})
    with pytest.raises(InputError, match="no file"):
        prepare(config)
    for name in ("b-train", "a-train", "a-dev", "b-dev"):
        (tmp_path / name).write_text("x\ty\tN\n")
    assert prepare(config).task.facts()["languages"] == ["a", "b"]


def test_schedules() -> None:
    halve = HalveOnWorse(1.0)
    rates = []
    for loss in (3.0, 2.0, 2.5, 2.4, 2.4, 9.0):
        halve.after_validation(loss, False)
        rates.append(halve.rate(0))
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    again = HalveOnWorse(1.0)
    again.restore(json.loads(json.dumps(halve.state())))
    again.after_validation(10.0, False)
    assert again.rate(0) == 0.125
    assert Constant(0.1).rate(10**6) == 0.1
    root = InverseSquareRoot(1.0, 10)
    assert root.rate(0) == 0.1 and root.rate(9) == 1.0 and root.rate(39) == 0.5
    with pytest.raises(ValueError, match="warmup"):
        Settings(schedule="inverse-square-root", warmup=0)
    for values in ({}, {"updates": 9, "warmup": 9}):
        with pytest.raises(ValueError, match="linear needs updates"):
            Settings(schedule="linear", **values)


def test_a_plateau_lowers_the_rate_to_its_end() -> None:
    schedule = Plateau(1.0, patience=2, factor=0.1, lowest=0.05)
    rates = []
    for best in (True, False, True, False, False, False, False, False, True):
        schedule.after_validation(0.0, best)
        rates.append(schedule.rate(7))
    assert rates == [1.0] * 4 + [0.1] * 2 + [0.05] * 3
    again = make_schedule(Settings(schedule="plateau", learning_rate=1.0, plateau_factor=0.1))
    again.restore(json.loads(json.dumps({"learning_rate": 0.5, "stale": 1})))
    again.after_validation(0.0, False)
    assert again.state() == {"learning_rate": 0.05, "stale": 0}
    again.restore({"learning_rate": 0.5, "stale": 3})  # of a schedule with more patience
    again.after_validation(0.0, False)
    assert again.state() == {"learning_rate": 0.05, "stale": 0}
    for values in ({"plateau_patience": 0}, {"plateau_factor": 1.0}, {"lowest_learning_rate": 2.0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            Settings(schedule="plateau", **values)


def test_checkpoints_are_whole_or_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.index() == Index(finished=False)
    with pytest.raises(InputError, match="no checkpoint"):
        checkpoints.load_model("last")
    for step, best in ((1, True), (2, False), (3, False)):
        model = {"w": torch.full((3,), float(step))}
        checkpoints.save(model, {"step": step}, {"step": step}, best, finished=False)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-00000001", "step-00000003"]
    assert checkpoints.load_model("best")["w"][0] == 1 and checkpoints.load_model("last")["w"][0] == 3
    assert checkpoints.load_training("last") == {"step": 3} and checkpoints.facts("best")["step"] == 1
    (tmp_path / "step-00000099").mkdir()
    checkpoints.sweep()
    assert not (tmp_path / "step-00000099").exists()
    target = tmp_path / "step-00000003" / "training.pt"
    blob = target.read_bytes()
    target.write_bytes(blob[:-3])
    with pytest.raises(InputError, match="truncated"):
        checkpoints.load_training("last")
    target.write_bytes(blob[:-1] + b"x")
    with pytest.raises(InputError, match="damaged"):
        checkpoints.load_training("last")
    target.unlink()
    with pytest.raises(InputError, match="can't be read"):
        checkpoints.load_training("last")
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        checkpoints.index()


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path: Path) -> None:
    import hashlib
    import io
    import pickle

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"w": torch.zeros(1)}, {}, {"step": 1}, True, False)
    stream = io.BytesIO()
    torch.save({"x": Evil()}, stream, pickle_module=pickle)
    folder = tmp_path / "step-00000001"
    (folder / "training.pt").write_bytes(stream.getvalue())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["training.pt"] = {
        "bytes": len(stream.getvalue()),
        "sha256": hashlib.sha256(stream.getvalue()).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="training state"):
        checkpoints.load_training("last")


def test_the_log_rewinds(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.write("a", x=1)
    position = log.position
    log.write("b", y="ü")
    log.rewind(position)
    log.write("c")
    assert [e["event"] for e in log.events()] == ["a", "c"]


def test_files_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_atomic(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f"]


def trainer(folder: Path, **training: object) -> Trainer:
    prepared = prepare(small_config(**training))
    torch.manual_seed(0)
    arguments = {**prepared.description["arguments"], "dropout": 0.0}
    whole = prepared.data.train
    corpus = Corpus(whole.src[:64], whole.tgt[:64])
    return Trainer(RNNSeq2Seq(**arguments), corpus, corpus, folder, prepared.settings)


def test_accumulated_batches_make_the_update_of_one_large_batch(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "a", batch_size=64)
    parts = trainer(tmp_path / "b", batch_size=16, accumulate=4)
    for each in (whole, parts):
        (window,) = each.plan.updates(0, each.settings.accumulate)
        each._update(window)
    assert parts.position.symbols == whole.position.symbols
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(b.grad, a.grad, atol=1e-6, rtol=1e-4)


def test_early_stopping_and_the_best_checkpoint(tmp_path: Path) -> None:
    run = trainer(tmp_path, epochs=40, patience=2, learning_rate=1e-9, schedule="constant")
    run.run()
    assert run.position.epoch < 40 and run.position.stale == 2
    index = run.checkpoints.index()
    assert index.finished and index.best != index.last


def test_levenshtein_against_its_definition() -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    pick = random.Random(0)
    for _ in range(60):
        a, b = ("".join(pick.choices("ab", k=pick.randrange(6))) for _ in "ab")
        assert levenshtein(a, b) == slow(a, b)


def test_a_symbol_unknown_to_the_vocabulary_does_not_make_the_loss_infinite() -> None:
    prepared = prepare(small_config())
    model = RNNSeq2Seq(**prepared.description["arguments"])
    dev = prepared.data.dev.corpus
    unknown = Corpus([dev.src[0]], [[3, *dev.tgt[0]]])
    assert teacher_forced_scores(model, unknown).loss < float("inf")
