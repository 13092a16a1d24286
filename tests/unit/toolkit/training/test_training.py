"""Recipes, learning rate schedules, checkpoints, the log and the Levenshtein distance."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path

import pytest
import torch
import yaml

from small_run import replace
from task_runs import config_of
from tsallis.errors import InputError
from tsallis.toolkit.config import refuse_idle
from tsallis.toolkit.evaluation.text_scores import levenshtein
from tsallis.toolkit.tasks.registry import load_config
from tsallis.toolkit.training import Checkpoints, Log, Settings
from tsallis.toolkit.training.schedules import HalveOnWorse, InverseSquareRoot, Plateau, Schedule, make_schedule
from tsallis.toolkit.training.schema import Index

ROOT = Path(__file__).parents[4]
RECIPES = sorted([*ROOT.glob("recipes/*/*.yaml"), *ROOT.glob("src/tsallis/toolkit/recipes/*.yaml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_recipe_is_a_valid_configuration(path: Path) -> None:
    config = load_config(path)
    refuse_idle(config)
    assert path.read_text(encoding="utf-8").startswith("# "), "a recipe's header says what it aims at"
    assert config_of(yaml.safe_load(config.text())).text() == config.text()
    if path.parent.name == "sigmorphon2018":
        assert "Peters et al. 2019" in path.read_text(encoding="utf-8")
        assert config.training.schedule == "halve-on-worse" and config.search.options.beam_size == 5


def test_recipes_have_different_run_folders() -> None:
    """No two recipes share a run folder, whether by `run_dir`, by file name or by a command in the header."""
    folders: dict[str, Path] = {}
    for path in RECIPES:
        folder = load_config(path).run_dir or f"runs/{path.stem}"
        assert folder not in folders, f"{path} and {folders[folder]} have the run folder {folder}"
        folders[folder] = path
    for path in RECIPES:
        for line in path.read_text(encoding="utf-8").splitlines():
            other = re.search(rf"tsallis train {re.escape(str(path.relative_to(ROOT)))} .*--run-dir (\S+)", line)
            if other is not None:
                assert folders.setdefault(other[1], path / other[1]) == path / other[1], f"{path}: {other[1]} is taken"


def test_schedules_return_the_expected_rates() -> None:
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
    limited = make_schedule(Settings(schedule="halve-on-worse", learning_rate=1.0, lowest_learning_rate=0.4))
    for loss in (1.0, 2.0, 3.0):
        limited.after_validation(loss, False)
    assert limited.rate(0) == 0.4
    training = {"lowest_learning_rate": 1e-5}
    refuse_idle(config_of({"version": 1, "data": {"embedded": "english-verbs"}, "training": training}))
    assert Schedule(0.1).rate(10**6) == 0.1
    root = InverseSquareRoot(1.0, 10)
    assert root.rate(0) == 0.1 and root.rate(9) == 1.0 and root.rate(39) == 0.5
    with pytest.raises(ValueError, match="warmup"):
        Settings(schedule="inverse-square-root", warmup=0)
    for values in ({}, {"updates": 9, "warmup": 9}):
        with pytest.raises(ValueError, match="linear needs updates"):
            Settings(schedule="linear", **values)


def test_plateau_schedule_lowers_the_rate_to_the_minimum() -> None:
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
    again.restore({"learning_rate": 0.5, "stale": 3})  # state of a schedule with more patience
    again.after_validation(0.0, False)
    assert again.state() == {"learning_rate": 0.05, "stale": 0}
    for values in ({"plateau_patience": 0}, {"plateau_factor": 1.0}, {"lowest_learning_rate": 2.0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            Settings(schedule="plateau", **values)


def test_damaged_checkpoints_are_rejected(tmp_path: Path) -> None:
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


def test_a_checkpoint_that_would_execute_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"w": torch.zeros(1)}, {}, {"step": 1}, True, False)
    stream = io.BytesIO()
    torch.save({"x": Evil()}, stream)
    replace(tmp_path / "step-00000001" / "training.pt", stream.getvalue())
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


def test_levenshtein_matches_its_definition() -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    pick = random.Random(0)
    for _ in range(60):
        a, b = ("".join(pick.choices("ab", k=pick.randrange(6))) for _ in "ab")
        assert levenshtein(a, b) == slow(a, b)
