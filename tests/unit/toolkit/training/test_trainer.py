"""The training loop: runs that resume bit for bit from any update, validations, and logs."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import small_run
from small_run import DEV, SRC, TGT, TRAIN, Killed, at, changed, contents, kill
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.search import Result, SearchOptions, beam_search
from tsallis.toolkit.config import AnnealedAlpha
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.evaluation.teacher_forcing import TeacherForcedScores, teacher_forced_scores
from tsallis.toolkit.run_analysis import value_history
from tsallis.toolkit.training import Checkpoints, Progress, Settings, Trainer

SETTINGS = changed(small_run.SETTINGS, keep=1)


def model() -> RNNSeq2Seq:
    torch.manual_seed(SETTINGS.seed)
    return RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, dropout=0.2)


def trainer(folder: Path, settings: Settings = SETTINGS, watch: Callable[[Progress], None] = lambda _: None) -> Trainer:
    return Trainer(model(), TRAIN, DEV, folder, settings, watch=watch)


def leaves(value: object) -> object:
    """Replace the tensors in a nested value by their bytes."""
    if isinstance(value, dict):
        return {key: leaves(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [leaves(item) for item in value]
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    "more",
    [
        {"schedule": "constant"},
        {"schedule": "halve-on-worse"},
        {"schedule": "inverse-square-root"},
        {"schedule": "plateau", "plateau_patience": 1, "select": "loss", "validate_updates": 1, "learning_rate": 1e-30},
        {"optimizer": "adamw", "weight_decay": 0.5, "select": "symbol_accuracy"},
        {"weight_decay": 0.01, "sort_by": "target", "bucket": 3},
        {"output_alpha": AnnealedAlpha(until=0.7), "updates": 9},
    ],
    ids=lambda more: "-".join(map(str, more)),
)
def test_a_run_killed_between_updates_resumes_identically(tmp_path: Path, more: dict[str, object]) -> None:
    settings = changed(SETTINGS, warmup=5, accumulate=2, checkpoint_every=1, validate_every=2)
    settings = changed(settings, **more)  # type: ignore[arg-type]
    trainer(tmp_path / "whole", settings).run()
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", settings, at(3, kill)).run()
    trainer(tmp_path / "killed", settings).run()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    rates = {event["learning_rate"] for event in logged(tmp_path / "whole")}
    assert len(rates) > 1 or settings.schedule != "plateau"


def test_alpha_is_annealed_and_validations_use_the_final_alpha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = changed(SETTINGS, updates=8, output_alpha=AnnealedAlpha(until=0.5), validate_updates=2)
    run = trainer(tmp_path, settings)
    alphas: list[float] = []
    update, validate = run.engine.update, run._validate

    def recorded(*arguments: object) -> object:
        alphas.append(run.model.output.alpha)
        return update(*arguments)  # type: ignore[arg-type]

    def validated() -> dict[str, object]:
        assert run.model.output.alpha == 1.5
        return validate()

    monkeypatch.setattr(run.engine, "update", recorded)
    monkeypatch.setattr(run, "_validate", validated)
    run.run()
    assert alphas == [1, 1.125, 1.25, 1.375, 1.5, 1.5, 1.5, 1.5]
    assert run.model.output.alpha == 1.5
    with pytest.raises(ValueError, match="entmax, got softmax"):
        Trainer(RNNSeq2Seq(6, 6, d_model=8, output="softmax"), TRAIN, DEV, tmp_path / "other", settings)
    for wrong in ({"updates": None}, {"compile": True}):
        with pytest.raises(ValueError, match="output_alpha needs"):
            changed(settings, **wrong)
    with pytest.raises(ValueError, match="got 'bleu'"):
        Trainer(model(), TRAIN, DEV, tmp_path / "measured", settings, measure="bleu")


@pytest.mark.parametrize(("step", "checkpoints"), [(2, {2}), (3, {3}), (4, {4}), (7, {4, 7})])
def test_a_stopped_run_saves_a_checkpoint_and_resumes(tmp_path: Path, step: int, checkpoints: set[int]) -> None:
    """The run stops inside an epoch, where a checkpoint is due, at the end of an epoch, or after it."""
    trainer(tmp_path / "whole").run()
    first = trainer(tmp_path / "stopped")
    first.stop = lambda: first.position.step == step - 1
    first.run()
    assert first.stopped and first.position.step == step and not first._is_finished()
    index = Checkpoints(tmp_path / "stopped" / "checkpoints").index()
    assert index.last == f"step-{step:08}" and not index.finished
    assert {int(p.name[5:]) for p in (tmp_path / "stopped" / "checkpoints").glob("step-*")} <= checkpoints
    again = trainer(tmp_path / "stopped")
    again.run()
    assert not again.stopped
    expected, result = contents(tmp_path / "whole"), contents(tmp_path / "stopped")
    steps = [(event["event"], event["step"]) for event in result.pop("timing.jsonl")]
    assert expected.pop("timing.jsonl") and result == expected
    due = ("checkpoint", step) if step not in (3, 4) else steps[0]
    assert steps == sorted(steps, key=lambda event: event[1]) and due in steps


def test_stopping_during_the_last_validation_finishes_the_run(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    run.stop = lambda: run.position.step >= 11
    run.run()
    assert not run.stopped and Checkpoints(tmp_path / "checkpoints").index().finished


def test_stopping_during_a_validation_completes_it(tmp_path: Path) -> None:
    validating: list[bool] = []
    run = trainer(tmp_path)
    measure = run.measure

    def slow(results: Sequence[Result]) -> dict[str, float]:
        validating.append(True)
        return measure(results)

    run.measure, run.stop = slow, lambda: bool(validating)
    run.run()
    assert run.stopped and run.position.step == 4
    assert Checkpoints(tmp_path / "checkpoints").facts("last")["metrics"]


@pytest.mark.parametrize(
    "more",
    [
        {"schedule": "constant", "validate_every": 2},  # the validation at the end has no effect on training
        {"schedule": "halve-on-worse"},
        {"schedule": "inverse-square-root", "warmup": 5},
        {"schedule": "plateau", "plateau_patience": 1, "select": "loss", "validate_updates": 3, "learning_rate": 0.5},
        {"patience": 1, "learning_rate": 0.3, "select": "loss", "epochs": 9},
    ],
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_an_extended_run_matches_a_longer_run(tmp_path: Path, more: dict[str, object]) -> None:
    base = changed(SETTINGS, **more)  # type: ignore[arg-type]
    longer = {"patience": 3} if base.patience else {"epochs": 6}
    long = changed(base, keep=2, **longer)  # type: ignore[arg-type]
    trainer(tmp_path / "long", long).run()
    trainer(tmp_path / "made", base).run()
    index = Checkpoints(tmp_path / "made" / "checkpoints").index()
    assert index.finished
    stops = trainer(tmp_path / "made", long, watch=at(int(str(index.last)[5:]) + 1, kill))
    with pytest.raises(Killed):
        stops.run()
    assert not Checkpoints(tmp_path / "made" / "checkpoints").index().finished
    trainer(tmp_path / "made", long).run()
    if "validate_every" in more:  # the lengthened run has one more validation
        both = [Checkpoints(tmp_path / name / "checkpoints") for name in ("long", "made")]
        first, second = (leaves([x.load_model("last"), x.load_training("last")["optimizer"]]) for x in both)
    else:
        first, second = ({**contents(tmp_path / name), "timing.jsonl": None} for name in ("long", "made"))
    assert first == second


def test_a_lower_patience_finishes_a_run(tmp_path: Path) -> None:
    settings = changed(SETTINGS, epochs=9, learning_rate=1e-30, patience=5)  # the weights never change
    with pytest.raises(Killed):
        trainer(tmp_path, settings, watch=at(13, kill)).run()
    assert not Checkpoints(tmp_path / "checkpoints").index().finished
    resumed = trainer(tmp_path, changed(settings, patience=2))
    resumed.run()
    assert resumed.position.step == 12 and Checkpoints(tmp_path / "checkpoints").index().finished


def test_runs_are_determined_by_the_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        trainer(tmp_path / name, changed(SETTINGS, epochs=1, seed=seed)).run()
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b and a["log.jsonl"] != c["log.jsonl"]


def test_epochs_and_validations_are_logged(tmp_path: Path) -> None:
    trainer(tmp_path, changed(SETTINGS, epochs=6, validate_every=4)).run()
    events = logged(tmp_path)
    assert [e["epoch"] for e in events] == [1, 2, 3, 4, 5, 6] and [e["step"] for e in events] == [4, 8, 12, 16, 20, 24]
    # Validations follow every fourth epoch and the last one.
    assert ["dev_loss" in e for e in events] == [False, False, False, True, False, True]
    assert all(0 <= e["dev_accuracy"] <= 1 for e in events if "dev_loss" in e)


def test_a_nan_loss_raises(tmp_path: Path) -> None:
    broken = trainer(tmp_path)
    with torch.no_grad():
        broken.model.output.projection.weight.fill_(math.nan)
    with pytest.raises(InputError, match=r"loss is nan after update 1: .*learning rate 0\.01"):
        broken.run()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["index.json"]


def test_finite_weights_that_overflow_in_a_validation_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(progress: Progress) -> None:
        diverged.model.src_embedding.weight.data.normal_().mul_(1e38)

    diverged = trainer(tmp_path / "loss", watch=overflow)
    with pytest.raises(InputError, match=r"loss is nan after update \d+: the training has diverged"):
        diverged.run()

    def search(*arguments: object) -> None:
        raise ValueError("the model's probabilities are NaN for source 0")

    monkeypatch.setattr("tsallis.toolkit.training.trainer.search_batches", search)
    with pytest.raises(InputError, match=r"probabilities are NaN for source 0 after update \d+: .* diverged"):
        trainer(tmp_path / "search").run()


def test_watch_is_called_after_updates_and_validations(tmp_path: Path) -> None:
    record: list[tuple[int, Progress]] = []
    trainer(tmp_path, watch=lambda p: record.append((p.position.step, p))).run()
    assert [step for step, p in record if p.validation is None] == list(range(1, 13))
    assert [step for step, p in record if p.validation is not None] == [4, 8, 12]
    first = record[0][1]
    assert first.updates == 4 and first.loss > 0
    assert first.supported is not None and 1 <= first.supported <= len(TGT)
    assert first.num_attended is not None and 1 <= first.num_attended <= max(map(len, TRAIN.src))
    assert first.accuracy is not None and 0 <= first.accuracy <= 1


def logged(folder: Path) -> list[dict[str, object]]:
    start, *events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert start["event"] == "start" and start["parameters"] > 0
    return events


def test_validate_updates_sets_the_validation_interval(tmp_path: Path) -> None:
    settings = changed(SETTINGS, validate_updates=3, epochs=2, keep=9)
    trainer(tmp_path / "whole", settings).run()
    events = logged(tmp_path / "whole")
    # Validations follow updates 3 and 6 and the end. Epochs of four updates are logged as well.
    assert [e["event"] for e in events] == ["validation", "epoch", "validation", "epoch"]
    assert [e["step"] for e in events] == [3, 4, 6, 8]
    assert ["dev_loss" in e for e in events] == [True, False, True, True]
    saved = Checkpoints(tmp_path / "whole" / "checkpoints").index().validated
    assert saved == tuple(f"step-0000000{i}" for i in (3, 6, 8))
    with pytest.raises(Killed):
        trainer(tmp_path / "killed", settings, at(7, kill)).run()
    trainer(tmp_path / "killed", settings).run()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(("updates", "events"), [(6, [4, 6]), (4, [4]), (1, [1])])
def test_a_run_ends_at_its_limit_of_updates(tmp_path: Path, updates: int, events: list[int]) -> None:
    run = trainer(tmp_path, changed(SETTINGS, updates=updates))
    run.run()
    assert run.position.step == updates and [e["step"] for e in logged(tmp_path)] == events
    assert "dev_loss" in logged(tmp_path)[-1] and Checkpoints(tmp_path / "checkpoints").index().finished
    before = contents(tmp_path)
    trainer(tmp_path, changed(SETTINGS, updates=updates)).run()
    assert contents(tmp_path) == before


def test_validation_searches_first_rows_with_a_custom_measure(tmp_path: Path) -> None:
    record: list[int] = []

    def measure(results: Sequence[Result]) -> dict[str, float]:
        record.append(len(results))
        return {"score": -float(len(record)), "other": 7.0}

    settings = changed(SETTINGS, validation_rows=5, validation_beam=2)
    made = Trainer(model(), TRAIN, DEV, tmp_path, settings, measure=measure)
    made.run()
    assert record == [5, 5, 5]
    events = logged(tmp_path)
    assert [e["dev_score"] for e in events] == [-1, -2, -3] and events[0]["dev_other"] == 7
    index = Checkpoints(tmp_path / "checkpoints").index()
    assert index.best == "step-00000004" and index.last == "step-00000012"  # the first score decides
    assert events[-1]["dev_loss"] == pytest.approx(teacher_forced_scores(made.model, DEV).loss)  # the loss of all rows


def test_validation_search_uses_the_configured_end_rule(tmp_path: Path) -> None:
    """The weights never change; with these, some short outputs are more probable than the greedy one."""
    searches: list[list[Result]] = []
    for end_rule in ("every", "competing"):
        torch.manual_seed(3)
        net = RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, output="softmax")
        settings = changed(SETTINGS, epochs=1, learning_rate=1e-30, validation_end_rule=end_rule)
        Trainer(net, TRAIN, DEV, tmp_path / end_rule, settings, measure=collect(searches)).run()
        batch = DEV.batch(range(len(DEV)))
        expected = beam_search(net, batch.src, batch.src_lengths, beam_size=1, end_rule=end_rule)
        assert [r.best and r.best.tokens for r in searches[-1]] == [r.best and r.best.tokens for r in expected]
    assert searches[0] != searches[1]


def collect(searches: list[list[Result]]) -> Callable[[Sequence[Result]], dict[str, float]]:
    def measure(results: Sequence[Result]) -> dict[str, float]:
        searches.append(list(results))
        return {"score": 0.0}

    return measure


def test_log_has_tau_but_no_alphas_for_alpha_relu(tmp_path: Path) -> None:
    torch.manual_seed(1)
    relu = RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, output="alpha_relu", tau=0.25)
    Trainer(relu, TRAIN, DEV, tmp_path, changed(SETTINGS, epochs=1)).run()
    (event,) = logged(tmp_path)
    assert event["tau"] == 0.25 and not [key for key in event if key.startswith("alpha")]


def test_times_are_logged_only_in_the_timing_file(tmp_path: Path) -> None:
    """Times differ between runs, so the log, which must be reproducible bit for bit, has none."""
    trainer(tmp_path).run()
    times = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    symbols = sum(len(row) + 1 for row in TRAIN.tgt)
    epochs = [(t["step"], t["symbols"]) for t in times if t["event"] == "epoch"]
    assert epochs == [(4, symbols), (8, symbols), (12, symbols)]
    assert [t["step"] for t in times if t["event"] == "checkpoint"] == [3, 6, 9]
    assert all(t["seconds"] > 0 for t in times) and "seconds" not in (tmp_path / "log.jsonl").read_text()


def test_epoch_seconds_accumulate_across_a_kill(tmp_path: Path) -> None:
    settings = changed(SETTINGS, epochs=1, batch_size=4, validate_updates=3, checkpoint_every=2)  # 8 updates

    def watch(progress: Progress) -> None:
        at(1, lambda: time.sleep(0.5))(progress)
        at(5, kill)(progress)

    with pytest.raises(Killed):
        trainer(tmp_path, settings, watch).run()
    trainer(tmp_path, settings).run()
    seconds = value_history(tmp_path).seconds
    assert seconds is not None and 0.5 < seconds[0] < seconds[1] < seconds[2]


def test_a_checkpoint_is_loaded_by_the_name_of_its_folder(tmp_path: Path) -> None:
    run = trainer(tmp_path, changed(SETTINGS, keep=3))
    run.run()
    name = next(iter(run.model.state_dict()))
    values = [run.checkpoints.load_model(f"step-{step:08}")[name] for step in (4, 8, 12)]
    assert not values[0].equal(values[1]) and values[2].equal(run.checkpoints.load_model("last")[name])
    assert run.checkpoints.facts("step-00000004")["step"] == 4
    with pytest.raises(InputError, match="checkpoint must be one of last, best, average, got 'step-00000003'"):
        run.checkpoints.load_model("step-00000003")


def test_external_random_draws_do_not_change_a_run(tmp_path: Path) -> None:
    """Random numbers drawn between updates, for example by a display or a search, change nothing."""
    trainer(tmp_path / "one").run()
    trainer(tmp_path / "two", watch=lambda _: torch.manual_seed(torch.randint(99, ()).item())).run()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_log_has_alphas_and_densities_of_every_head(tmp_path: Path) -> None:
    """The log starts with the initial alphas, so it shows whether they changed."""
    torch.manual_seed(1)
    sizes = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 8, "dropout": 0.0}
    net = TransformerSeq2Seq(len(SRC), len(TGT), attention="learned", **sizes)
    Trainer(net, TRAIN, DEV, tmp_path, changed(SETTINGS, epochs=1)).run()
    start, end = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert "tau" not in end
    for kind in ("encoder", "decoder", "cross"):
        values = start[f"alpha_{kind}"], end[f"alpha_{kind}"], end[f"density_{kind}"]
        before, after, density = map(np.array, values)
        assert before.shape == after.shape == density.shape == (2, 2)
        assert (before != after).all() and (after > 1).all() and (after < 2).all()
        assert (density > 0).all() and (density <= 1).all()
        assert end[f"alpha_{kind}"] == net.alphas()[kind].tolist()


@pytest.mark.parametrize(("select", "best"), [(None, 4), ("up", 12), ("levenshtein", 8), ("macro_levenshtein", 4)])
def test_select_chooses_the_best_checkpoint(tmp_path: Path, select: str | None, best: int) -> None:
    scores = iter([(0.1, 3.0, 1.0), (0.2, 1.0, 2.0), (0.3, 2.0, 3.0)])

    def measure(results: Sequence[Result]) -> dict[str, float]:
        up, distance, macro = next(scores)
        return {"down": -up, "up": up, "levenshtein": distance, "macro_levenshtein": macro}

    settings = changed(SETTINGS, select=select)
    Trainer(model(), TRAIN, DEV, tmp_path, settings, measure=measure).run()
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.index().best == f"step-{best:08d}"
    assert {event["select"] for event in logged(tmp_path)} == {select or "down"}


def test_select_loss_keeps_the_lowest_loss_and_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, of = iter([3.0, 1.0, 2.0, 0.5]), TeacherForcedScores.of
    monkeypatch.setattr(TeacherForcedScores, "of", lambda sums: dataclasses.replace(of(sums), loss=next(losses)))
    trainer(tmp_path, changed(SETTINGS, epochs=9, select="loss", patience=1)).run()
    assert [event["dev_loss"] for event in logged(tmp_path)] == [3, 1, 2]
    assert Checkpoints(tmp_path / "checkpoints").facts("best")["metrics"]["dev_loss"] == 1


def test_validation_search_uses_the_current_weights(tmp_path: Path) -> None:
    """Each validation packs the current weights: its outputs are as probable as those of a fresh copy."""
    torch.manual_seed(SETTINGS.seed)
    transformer = TransformerSeq2Seq(len(SRC), len(TGT), d_model=32, heads=2, layers=1, d_ff=40, dropout=0.0).eval()
    scores: list[tuple[float, float]] = []

    def measure(results: Sequence[Result]) -> dict[str, float]:
        fresh = search_corpus(copy.deepcopy(transformer), DEV, SearchOptions(beam_size=1))
        ours, theirs = (sum(r.best.log_prob for r in part if r.best) for part in (results, fresh))
        scores.append((ours, theirs))
        return {"accuracy": ours}

    Trainer(transformer, TRAIN, DEV, tmp_path, SETTINGS, measure=measure).run()
    assert len(set(scores)) == SETTINGS.epochs
    for ours, theirs in scores:
        assert ours == pytest.approx(theirs, rel=1e-5)
