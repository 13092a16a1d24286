"""Settings of models for strings: training, run folders, resuming, and data that doesn't fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from task_runs import config_of, evaluate, train, untrained_run
from tsallis.errors import InputError
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import Trainer, load_run
from tsallis.toolkit.training.run_folder import start_run

TRAIN = "abx\tbad\tV\nba\tab\tV;PST\nxab\tabd\tV\nbxa\tdab\tN;PST\n"
RNN = {"d_model": 8, "layers": 1, "dropout": 0.1}
TRANSFORMER = {"architecture": "transformer", "d_model": 8, "heads": 2, "d_ff": 8, "dropout": 0.1}
TRANSFORMER |= {"encoder_layers": 1, "decoder_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "rnn with features": {**RNN, "features": "separate"},
    "rnn with features that copies": {**RNN, "features": "separate", "copy": True},
    "hard attention of order 0": {**RNN, "monotonic": 0, "input_feeding": False},
    "hard attention of order 1": {**RNN, "monotonic": 1, "input_feeding": False, "output": "softmax", "layers": 2},
    "transformer with features": {**TRANSFORMER, "features": "separate"},
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "dev").write_text(TRAIN[:20], encoding="utf-8")
    return tmp_path


def content(folder: Path, model: dict[str, Any], epochs: int) -> dict[str, Any]:
    data = {"folder": str(folder), "train": "train", "dev": "train"}
    training = {"epochs": epochs, "batch_size": 2, "schedule": "constant"}
    return {"version": 1, "data": data, "model": model, "training": training}


@every_model
def test_an_extended_run_matches_an_uninterrupted_run(folder: Path, model: dict[str, Any]) -> None:
    whole = train(prepare(config_of(content(folder, model, 2))), folder / "whole")
    train(prepare(config_of(content(folder, model, 1))), folder / "run")
    again = prepare(config_of(content(folder, model, 2)), folder / "run")
    assert again.changes is not None
    data, symbols, facts = again.data, again.data.vocabularies, again.task.facts()
    start_run(folder / "run", again.text, again.description, facts, symbols.src, symbols.tgt, changes=again.changes)
    Trainer(again.build(), data.train, data.dev.corpus, folder / "run", again.settings, measure=again.measure()).run()
    resumed = load_run(folder / "run", "last")
    for name, value in load_run(folder / "whole", "last").model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name]), name
    task = task_of(whole.task)
    report = evaluate(whole, task.split(whole, config_of(content(folder, model, 2)).data, "dev"), beam_size=2)
    assert torch.tensor(report["loss"]).isfinite() and report["output_sum"] == pytest.approx(1, abs=1e-5)


def test_model_features_are_the_tags_of_the_vocabulary(folder: Path) -> None:
    run = untrained_run(folder, {"train": "train", "dev": "train"}, MODELS["rnn with features"])
    symbols = [run.src_vocab.name(number) for number in run.model.arguments["features"]]
    assert sorted(symbols) == ["<tag:N>", "<tag:PST>", "<tag:V>"]


def test_data_without_features_is_an_error(folder: Path) -> None:
    data = {"train": "train", "dev": "train", "columns": {"features": None}}
    with pytest.raises(InputError, match=r"model\.features: separate needs data with features"):
        untrained_run(folder, data, MODELS["transformer with features"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({**RNN, "features": "separate", "density": "gaussian"}, "found density: gaussian"),
        ({**RNN, "monotonic": 1}, "monotonic: 1 needs input_feeding: false, found input_feeding: true"),
        ({**RNN, "monotonic": 0, "input_feeding": False, "copy": True}, "monotonic: 0 can't be used with copy"),
        ({**RNN, "monotonic": 2, "input_feeding": False}, "monotonic: .* found 2"),
        ({**TRANSFORMER, "features": "separate", "positions": "alibi"}, "needs positions: sinusoids, found alibi"),
    ],
)
def test_incompatible_settings_are_rejected(folder: Path, model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config_of(content(folder, model, 1))
