"""Questions about images as a task: configuration, training, search and scores."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from run_seed import SEED
from task_runs import config_of, encode, evaluate, read_lines, read_split, start, train
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.config import Config
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.training import Run

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SIZE = 16


def write(folder: Path, name: str, count: int) -> None:
    chance = random.Random(name)
    images, lines = np.zeros((count, SIZE, SIZE, 3), np.uint8), ["image\tquestion\tanswer\n"]
    for i in range(count):
        colour, x, y = chance.choice([*COLOURS]), chance.choice((0, 8)), chance.choice((0, 8))
        images[i, y + 1 : y + 7, x + 1 : x + 7] = COLOURS[colour]
        lines.append(f"{i}\twhat colour is it?\t{colour}\n")
        lines.append(f"{i}\tis it {colour if i % 2 else 'grey'}?\t{'yes' if i % 2 else 'no'}\n")
    np.save(folder / f"{name}.npy", images)
    (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8", newline="\n")


def config(folder: Path, data: dict[str, Any] | None = None, **model: Any) -> Config:
    sizes = {"d_model": 16, "heads": 2, "layers": 1, "stages": 2, "num_basis": 16, "dropout": 0.0}
    inputs = {"task": "visual", "folder": str(folder), "train": "train.tsv", "test": "test.tsv"}
    content = {
        "version": 1,
        "data": {**inputs, "images": {"train": "train.npy", "test": "test.npy"}, **(data or {})},
        "model": {"architecture": "answerer", **sizes, **model},
        "training": {"epochs": 9, "batch_size": 8, "learning_rate": 0.005, "schedule": "constant", "seed": SEED},
    }
    return config_of(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("visual")
    write(result, "train", 120)
    write(result, "test", 20)
    (result / "same.tsv").write_text("".join(f"{number}\tis it red?\ty\n" for number in range(120)))
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "density"), [("discrete", None), ("continuous", 2.0)])
def test_a_visual_run_learns_to_answer(folder: Path, tmp_path: Path, attention: str, density: float | None) -> None:
    inputs = config(folder, attention=attention, density=density, output="sparsemax")
    prepared = prepare(inputs)
    data = prepared.data
    assert len(data.train) == 216 and len(data.vocabularies.images) == 120
    assert len(data.dev.corpus) == len(data.dev.references) == 24
    arguments = prepared.description["arguments"]
    assert arguments["image"] == "cnn" and arguments["d_image"] == 3
    assert prepared.task.facts()["images"] == str(folder / "test.npy")
    run = train(prepared, tmp_path)
    lines = encode(run, read_split(inputs.data, "test"))
    report = evaluate(run, lines, 2)
    kinds = [result.certificate.kind for result in search_corpus(run.model, lines.corpus, SearchOptions(beam_size=2))]
    assert report["accuracy"] > 0.9 and report["samples"] == 40
    assert report["complete"] == pytest.approx(kinds.count("complete") / 40)
    assert 0 < report["attention_support"] <= 16
    again = evaluate(run, read_lines(run, (folder / "test.tsv").read_text().split("\n")[:-1], "test", gold=True), 2)
    assert again["accuracy"] == report["accuracy"] and again["loss"] == pytest.approx(report["loss"], rel=1e-5)


def test_read_lines_resolves_images(folder: Path, tmp_path: Path) -> None:
    prepared = prepare(config(folder))
    start(prepared, tmp_path)
    symbols = prepared.data.vocabularies
    run = Run(tmp_path, prepared.build(), symbols.src, symbols.tgt, prepared.task.facts(), {})
    run.model.image_store = None
    lines = read_lines(run, ["image\tquestion", "3\tis it red?", "0\twhat colour?"], "in", gold=False)
    assert lines.numbers == [1, 2] and lines.count == 3 and lines.titles == ["3: is it red?", "0: what colour?"]
    assert [row.tolist()[0] for row in lines.corpus.src] == [0, 1]
    more = read_lines(run, ["5\tis it red?"], "in", gold=False, images=folder / "train.npy")
    assert more.corpus.src[0].tolist()[0] == 2  # earlier images keep their numbers
    shown = run.model.image_store(torch.tensor([2, 0]))
    expected = np.stack([np.load(folder / "train.npy")[5], np.load(folder / "test.npy")[3]])
    np.testing.assert_array_equal(shown.numpy(), expected)
    for text, options, message in (
        ("77\tis it red?", {}, "in:1: image '77' does not exist"),
        ("is it red?", {}, "in:1: expected image<TAB>question, found 1 column"),
        ("3\tis it red?", {"images": folder / "none.npy"}, "none.npy"),
        ("3\tis it red?", {"language": "eo"}, "language can't be used with a run of the task visual, got 'eo'"),
    ):
        with pytest.raises(InputError, match=message):
            read_lines(run, [text], "in", gold=False, **options)
    np.save(tmp_path / "small.npy", np.zeros((4, 2, 4, 3), np.uint8))
    run.model.image_store = None
    with pytest.raises(InputError, match=r"small\.npy: pictures must have at least 4 pixels .* got \[2, 4\]"):
        read_lines(run, ["3\tred?"], "in", gold=False, images=tmp_path / "small.npy")


@pytest.mark.parametrize(
    ("stage", "data", "model", "message"),
    [
        ("read", {"images": {"train": "train.npy"}}, {}, "data.images.test is not set"),
        ("config", {"images": None}, {}, "data.images"),
        ("read", {"test": None}, {}, "data.test is not set"),
        ("read", {"images": "nowhere.npy"}, {}, "nowhere.npy"),
        ("read", {"size": [8, 8]}, {}, "size must be 16 x 16, got 8 x 8"),
        ("prepare", {"held_out": 0.001}, {}, "too few images"),
        (
            "prepare",
            {"train": "same.tsv"},
            {},
            r"same\.tsv: expected questions with at least two answers, found only 'y'",
        ),
        ("config", {"answers": 1}, {}, "data.answers"),
        ("config", {"task": "classification"}, {}, "unknown key"),
        ("config", {}, {"density": 2.0, "attention": "discrete"}, "density: 2.0 applies only to attention: continuous"),
        ("prepare", {}, {"stages": 5}, "model.stages must be at most 4 for the size of the images, 16 x 16, got 5"),
        ("build", {}, {"num_basis": 17}, "num_basis must be a square number, got 17"),
        ("config", {}, {"transform": "hardmax"}, "model.transform"),
    ],
    ids=str,
)
def test_invalid_settings_raise(folder: Path, stage: str, data: dict[str, Any], model: dict[str, Any], message) -> None:
    call: Any = functools.partial(config, folder, data, **model)
    if stage == "read":
        call = functools.partial(read_split, call().data, "test")
    elif stage != "config":
        inputs = call()
        call = prepare(inputs).build if stage == "build" else functools.partial(prepare, inputs)
    with pytest.raises(InputError, match=message):
        call()


def test_precomputed_features_replace_the_cnn(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(120, 3, 5, 7)).astype(np.float16))
    inputs = config(folder, {"images": str(tmp_path / "features.npy")})
    prepared = prepare(inputs)
    arguments = prepared.description["arguments"]
    assert arguments["image"] == "features" and arguments["d_image"] == 7
    batch = prepared.data.train.batch(range(4))
    decoded = prepared.build()(batch.src, batch.src_lengths, batch.tgt_in, need_attention=True)
    assert decoded.attention.shape == (4, 2, 15)


def test_other_images_of_the_same_names_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, "train", 12)
    inputs = config(tmp_path, {"test": None, "images": "train.npy"})
    inputs = inputs.model_copy(update={"training": inputs.training.model_copy(update={"epochs": 1})})
    train(prepare(inputs), tmp_path / "run")
    train(prepare(inputs), tmp_path / "run")
    np.save(tmp_path / "train.npy", np.load(tmp_path / "train.npy") // 2)
    with pytest.raises(InputError, match="the data has changed since the run was started"):
        train(prepare(inputs), tmp_path / "run")


def test_rare_answers_are_unknown(folder: Path) -> None:
    data = prepare(config(folder, {"answers": 2})).data
    assert sorted(data.vocabularies.tgt.symbols) == ["no", "yes"]
    assert any(row == [3] for row in data.train.tgt)  # unknown answers have no loss
