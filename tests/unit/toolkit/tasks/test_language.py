"""The language task: texts from files, their rows, and training on them."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from run_seed import SEED
from task_runs import config_of, read_split, train
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.symbols import BOS
from tsallis.toolkit.config import Config
from tsallis.toolkit.datasets.synthetic_corpus import synthetic_corpus
from tsallis.toolkit.evaluation.teacher_forcing import row_hits
from tsallis.toolkit.tasks.language import encode_texts, read_texts
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.tasks.scoring import evaluate_outputs, score_lengths

SMALL = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16}
TEXTS = ["the cat sat on the mat", "the dog ate the cat", "a mat is a mat"]


def config(data: dict[str, Any], model: dict[str, Any] | None = None, **training: Any) -> Config:
    content = {
        "version": 1,
        "data": {"task": "language", **data},
        "model": {**SMALL, **(model or {})},
        "training": {"epochs": 1000, "updates": 3, "max_tokens": 256, "validate_updates": 3, "seed": SEED, **training},
    }
    return config_of(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("\n\n".join(TEXTS * 5) + "\n", encoding="utf-8")
    (tmp_path / "dev.xz").write_bytes(lzma.compress("\n".join(TEXTS).encode()))
    return tmp_path


def files(folder: Path, **data: Any) -> dict[str, Any]:
    return {"folder": str(folder), "train": "train", "dev": "dev", "length": 16, **data}


def test_read_texts_splits_lines_or_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_text("one\ntwo \n\n\n three\n", encoding="utf-8")
    assert list(read_texts(path, "lines")) == ["one", "two", "three"]
    assert list(read_texts(path, "paragraphs")) == ["one two", "three"]


@pytest.mark.parametrize("subwords", [None, {"size": 40}, {"kind": "word", "size": 20}], ids=str)
def test_encoded_texts_decode_to_the_same_texts(folder: Path, subwords: dict[str, Any] | None) -> None:
    prepared = prepare(config(files(folder, subwords=subwords, cache=str(folder / "cache"))))
    symbols = prepared.data.vocabularies.tgt
    assert prepared.data.vocabularies.src is symbols
    assert [symbols.decode(row.tolist()) for row in encode_texts(TEXTS, symbols)] == TEXTS
    stream = [int(token) for row in prepared.data.train.tgt for token in row]
    texts = [[]]  # type: ignore[var-annotated]
    for token in stream[1:]:
        texts.append([]) if token == BOS else texts[-1].append(token)
    assert [symbols.decode(text) for text in texts] == TEXTS * 5
    assert max(len(row) for row in prepared.data.train.tgt) <= 16
    assert read_split(config(files(folder)).data, "dev") == [("", text) for text in TEXTS]


def test_a_trained_language_run_scores_texts(folder: Path) -> None:
    loaded = config(files(folder), updates=30, learning_rate=0.01)
    run, data = train(prepare(loaded), folder / "run"), loaded.data
    task = task_of(run.task)
    report, results = evaluate_outputs(task, run, task.split(run, data, "dev"), SearchOptions(beam_size=1))
    assert results == [] and report["samples"] == 5 and report["epsilon_perplexity"] < 17  # the number of symbols
    longer = task.split(run, data, "dev", length=64)
    assert len(longer.corpus) == 1
    lines = task.read([TEXTS[0], "", "xyz"], "lines", run, True)
    assert lines.corpus.tgt[0] and not lines.corpus.src[0] and lines.numbers == [0, 2] and lines.count == 3
    assert task.read(["the ", "", "\r"], "lines", run, False).titles == ["the ", "", ""]  # prompts may be empty


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "alpha_relu"])
def test_synthetic_examples_are_scored_by_length(tmp_path: Path, output: str) -> None:
    synthetic = {"name": "copy", "min_length": 6, "max_length": 10, "examples": 20, "dev_examples": 4}
    sizes = {"test_lengths": [10, 20], "test_examples": 5}
    loaded = config({"synthetic": {**synthetic, **sizes}}, {"output": output, "length_scale": "input"})
    run = train(prepare(loaded), tmp_path / "run")
    task = task_of(run.task)
    report, _ = evaluate_outputs(task, run, task.split(run, loaded.data, "test"), SearchOptions(beam_size=1))
    assert report["samples"] == 10 and list(report["lengths"]) == ["10", "20"]
    with pytest.raises(InputError, match="lines:1: a run of the synthetic task copy can't read texts"):
        task.read(["a"], "lines", run, False)
    with pytest.raises(InputError, match="length applies only to texts"):
        task.split(run, loaded.data, "test", length=8)


def test_score_lengths_matches_accuracies_of_rows(tmp_path: Path) -> None:
    synthetic = {"name": "flip-flop", "min_length": 6, "max_length": 10, "examples": 20, "dev_examples": 4}
    run = train(prepare(config({"synthetic": synthetic})), tmp_path / "run")
    corpus = synthetic_corpus("flip-flop", 6, [(8, 8), (30, 30)], 3)
    rows = row_hits(run.model, corpus.batches(1))
    for part, scores in enumerate(score_lengths(run.model, corpus).values()):
        own = [rows[row] for row in range(6 * part, 6 * part + 6)]
        assert scores["samples"] == 6 and scores["whole"] == sum(a == b for a, b in own) / 6
        assert scores["accuracy"] == sum(a for a, _ in own) / sum(b for _, b in own)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "train and dev must be set"),
        ({"embedded": "german-numbers", "dev": "dev"}, "dev can't be used with embedded data"),
        ({"embedded": "german-numbers", "synthetic": {"name": "copy"}}, "not both"),
        ({"synthetic": {"name": "copy"}, "subwords": {"size": 30}}, "leave out subwords"),
        ({"synthetic": {"name": "copy", "min_length": 70}}, "70"),
        ({"synthetic": {"name": "add"}}, "name"),
        ({"train": "a", "dev": "b", "length": 1}, "length"),
    ],
    ids=str,
)
def test_invalid_settings_raise(data: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config(data)


def test_missing_or_empty_files_raise(folder: Path) -> None:
    with pytest.raises(InputError, match="valid: no such file, and none with"):
        prepare(config(files(folder, dev="valid")))
    (folder / "empty").write_text("\n\n")
    with pytest.raises(InputError, match=rf"^{folder}/empty: expected at least one text with symbols"):
        prepare(config(files(folder, dev="empty")))
