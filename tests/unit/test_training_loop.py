"""The loop: losses divided once, runs that resume to the bit from any moment, and what it reports."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tsallis.training.checkpoint as checkpoint_module
from tsallis.data import Vocabulary, english_verbs
from tsallis.data.corpus import Corpus
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq
from tsallis.training import Checkpoints, Progress, Settings, Trainer

EXAMPLES = english_verbs()["train"][:40]
SRC = Vocabulary.build(e.src_tokens() for e in EXAMPLES)
TGT = Vocabulary.build(e.tgt_tokens() for e in EXAMPLES)
TRAIN = Corpus.encode(EXAMPLES[:32], SRC, TGT)
DEV = Corpus.encode(EXAMPLES[32:], SRC, TGT)
SETTINGS = Settings(epochs=3, batch_size=8, learning_rate=0.01, checkpoint_every=3, seed=5)


class Killed(BaseException):
    """As a kill: no handler of the code under test catches it."""


def model(dropout: float = 0.2) -> RNNSeq2Seq:
    torch.manual_seed(SETTINGS.seed)
    return RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, dropout=dropout)


def trainer(
    folder: Path,
    settings: Settings = SETTINGS,
    watch: Callable[[Progress], None] = lambda _: None,
    train: Corpus = TRAIN,
    dropout: float = 0.2,
) -> Trainer:
    return Trainer(model(dropout), train, DEV, folder, settings, watch)


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run ends with: its log, its index, and the content of its last and best checkpoint."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found: dict[str, object] = {"log": (folder / "log.jsonl").read_bytes(), "index": checkpoints.index()}
    for which in ("last", "best"):
        found[which] = leaves(checkpoints.load_model(which)), leaves(checkpoints.load_training(which))
        found[f"metrics of {which}"] = checkpoints.facts(which)["metrics"]
    found["files"] = sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
    return found


def leaves(value: object) -> object:
    """The same without tensors: their bytes instead."""
    if isinstance(value, dict):
        return {key: leaves(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [leaves(item) for item in value]
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


def test_a_kill_at_any_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of the whole training is once the last thing that happens, or just does not happen."""
    write = checkpoint_module.write_atomic
    calls: list[int] = []
    limit = [math.inf]
    after = [False]

    def counted(path: Path, data: bytes | str) -> None:
        calls.append(0)
        if len(calls) == limit[0] and not after[0]:
            raise Killed
        write(path, data)
        if len(calls) == limit[0]:
            raise Killed

    monkeypatch.setattr(checkpoint_module, "write_atomic", counted)
    trainer(tmp_path / "whole").run()
    expected, total = outcome(tmp_path / "whole"), len(calls)
    assert total == 4 * 6  # four files a checkpoint; steps 3, 4, 6, 8, 9, 12
    for moment in range(1, total + 1):
        after[0] = moment % 2 == 0
        folder = tmp_path / f"killed-{moment}"
        calls.clear()
        limit[0] = moment
        with pytest.raises(Killed):
            trainer(folder).run()
        limit[0] = math.inf
        torch.manual_seed(moment)
        trainer(folder).run()
        assert outcome(folder) == expected, f"killed at write {moment}"


@pytest.mark.parametrize("schedule", ["constant", "halve-on-worse", "inverse-square-root"])
def test_a_kill_between_two_updates_changes_nothing(tmp_path: Path, schedule: str) -> None:
    settings = replace(SETTINGS, schedule=schedule, warmup=5, accumulate=2, checkpoint_every=1, validate_every=2)
    trainer(tmp_path / "whole", settings).run()

    def kill(progress: Progress) -> None:
        if progress.position.step == 3 and progress.validation is None:
            raise Killed

    with pytest.raises(Killed):
        trainer(tmp_path / "killed", settings, kill).run()
    trainer(tmp_path / "killed", settings).run()
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_a_kill_while_removing_old_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(tmp_path / "whole").run()

    def half(path: Path) -> None:
        next(iter(path.iterdir())).unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            trainer(tmp_path / "killed").run()
    trainer(tmp_path / "killed").run()
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    before = outcome(tmp_path)
    trainer(tmp_path).run()
    assert outcome(tmp_path) == before
    assert Checkpoints(tmp_path / "checkpoints").index()["finished"] is True


def test_the_gradient_is_clipped(tmp_path: Path) -> None:
    clipped = trainer(tmp_path, replace(SETTINGS, clip=1e-3))
    clipped._update([TRAIN.batch(range(8))])
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in clipped.model.parameters() if p.grad is not None))
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_seeds_decide_the_order(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        trainer(tmp_path / name, replace(SETTINGS, epochs=1, seed=seed)).run()
    a, b, c = (outcome(tmp_path / name) for name in "abc")
    assert a == b and a["log"] != c["log"]


def test_learning_lowers_the_loss_and_the_log_says_so(tmp_path: Path) -> None:
    trainer(tmp_path, replace(SETTINGS, epochs=6, validate_every=4)).run()
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().split("\n")[:-1]]
    assert [e["epoch"] for e in events] == [1, 2, 3, 4, 5, 6] and [e["step"] for e in events] == [4, 8, 12, 16, 20, 24]
    assert events[-1]["loss"] < events[0]["loss"]
    # Validated every four epochs, and at the end.
    assert ["dev_loss" in e for e in events] == [False, False, False, True, False, True]
    assert all(0 <= e["dev_accuracy"] <= 1 for e in events if "dev_loss" in e)


def test_the_best_checkpoint_has_the_best_accuracy(tmp_path: Path) -> None:
    trainer(tmp_path, replace(SETTINGS, epochs=8)).run()
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().split("\n")[:-1]]
    best = max(events, key=lambda e: (e["dev_accuracy"], -e["dev_loss"], -e["epoch"]))
    facts = Checkpoints(tmp_path / "checkpoints").facts("best")
    assert facts["epoch"] == best["epoch"] and facts["metrics"]["dev_loss"] == best["dev_loss"]


def test_other_data_is_no_resume(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trainer(tmp_path, watch=kill_after(5)).run()
    before = outcome(tmp_path)
    changed = Corpus(TRAIN.src[::-1], TRAIN.tgt[::-1])  # the same symbols, in another order
    with pytest.raises(InputError, match="data has changed"):
        trainer(tmp_path, train=changed).run()
    assert outcome(tmp_path) == before


def kill_after(step: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.position.step == step:
            raise Killed

    return watch


def test_a_truncated_checkpoint_is_no_resume(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trainer(tmp_path, watch=kill_after(5)).run()
    path = next((tmp_path / "checkpoints").glob("step-*/training.pt"))
    path.write_bytes(path.read_bytes()[:100])
    log = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"training\.pt: truncated or changed: 100 bytes"):
        trainer(tmp_path).run()
    assert (tmp_path / "log.jsonl").read_bytes() == log


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    broken = trainer(tmp_path)
    with torch.no_grad():
        broken.model.output.projection.weight.fill_(math.nan)
    with pytest.raises(InputError, match=r"loss of update 1 is nan.*learning rate 0\.01"):
        broken.run()
    assert not (tmp_path / "checkpoints").exists()


def test_what_a_display_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, Progress]] = []
    trainer(tmp_path, watch=lambda p: seen.append((p.position.step, p))).run()
    assert [step for step, p in seen if p.validation is None] == list(range(1, 13))
    assert [step for step, p in seen if p.validation is not None] == [4, 8, 12]
    first = seen[0][1]
    assert first.updates == 4 and first.loss > 0
    assert first.supported is not None and 1 <= first.supported <= len(TGT)
    assert first.attended is not None and 1 <= first.attended <= max(map(len, TRAIN.src))
    assert first.accuracy is not None and 0 <= first.accuracy <= 1
