"""Classification as a task of the toolkit: from files to a trained run that classifies lines."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from run_seed import SEED
from task_runs import config_of, encode, evaluate, read_split, train
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.config import Config
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import task_of

WORDS = {"good": ["fine", "lovely", "great"], "bad": ["dull", "poor", "awful"]}


def write(path: Path, count: int) -> None:
    chance = random.Random(path.name)
    lines = []
    for i in range(count):
        label = "good" if i % 2 else "bad"
        text = [chance.choice(["a", "film", "with", "the", "."]) for _ in range(chance.randint(2, 9))]
        text.insert(chance.randint(0, len(text)), chance.choice(WORDS[label]))
        lines.append(f"{label}\t{i}\t{' '.join(text)} {i}\n")
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def config(folder: Path, data: dict[str, Any] | None = None, **model: Any) -> Config:
    content = {
        "version": 1,
        "data": {"task": "classification", "folder": str(folder), "train": "train", "test": "test", **(data or {})},
        "model": {"architecture": "classifier", "d_model": 16, "num_basis": 8, "dropout": 0.0, **model},
        "training": {"epochs": 6, "batch_size": 16, "learning_rate": 0.02, "schedule": "constant", "seed": SEED},
    }
    return config_of(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.tsv", 200)
    write(tmp_path / "test", 40)
    return tmp_path


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_a_classification_run_learns_its_labels(folder: Path, attention: str) -> None:
    inputs = config(folder, attention=attention, transform="sparsemax", output="sparsemax")
    prepared = prepare(inputs)
    data = prepared.data
    assert len(data.train) == 180 and len(data.dev.corpus) == len(data.dev.references) == 20
    facts = {"task": "classification", "max_length": 256, "columns": {"label": 1, "text": -1}, "header": []}
    assert data.vocabularies.tgt.symbols == ("bad", "good") and prepared.task.facts() == facts
    run = train(prepared, folder / "run")
    lines = encode(run, read_split(inputs.data, "test"))
    report = evaluate(run, lines, 2)
    kinds = [result.certificate.kind for result in search_corpus(run.model, lines.corpus, SearchOptions(beam_size=2))]
    assert report["accuracy"] > 0.9 and report["samples"] == 40
    assert report["complete"] == pytest.approx(kinds.count("complete") / 40)
    request = task_of(run.task).read(["a lovely film", "", "dull", "<br />"], "lines", run, gold=False)
    assert request.numbers == [0, 2] and len(request.corpus) == 2 and request.count == 4


def test_dev_split_is_held_out_if_missing(folder: Path) -> None:
    inputs = config(folder).data
    train, dev, test = (read_split(inputs, name) for name in ("train", "dev", "test"))
    assert (len(train), len(dev), len(test)) == (180, 20, 40) and not set(train) & set(dev)
    write(folder / "own.tsv", 10)
    assert len(read_split(config(folder, {"dev": "own"}).data, "dev")) == 10
    assert len(read_split(config(folder, {"dev": "own"}).data, "train")) == 200


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ({"train": None}, {}, "data.train"),
        ({"held_out": 1.0}, {}, "data.held_out"),
        ({}, {"architecture": "rnn", "num_basis": 30}, "model.architecture: expected 'classifier', found 'rnn'"),
        ({}, {"attention": "discrete", "density": "laplace"}, "density: laplace applies only to attention: continuous"),
        ({}, {"transform": "hardmax"}, "model.transform"),
        ({}, {"num_basis": 7}, "model.num_basis"),
    ],
    ids=str,
)
def test_invalid_settings_raise(tmp_path: Path, data: dict[str, Any], model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(tmp_path, data, **model)
