"""The examples reject unusable options before any training, in one line with the option and the value."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

REQUIRED = {
    "classify": "--data {0}",
    "image_features": "--data {0} --images x.npy --questions x.tsv --out {0}/new",
    "long_context": "",
    "piece_vectors": "--data {0} --encoder {0} --out {0}/out.safetensors",
    "shapes": "--out {0}/new",
    "sparse_minilm": "--data {0}",
    "timeseries": "--data {0}",
    "visual": "--data {0} --train-questions x.tsv --train-images x.npy --test-questions x.tsv",
}
COUNTS = {
    "classify": ("rows", "epochs", "updates", "batch-size", "min-count", "num-basis", "d-model", "d-embedding"),
    "image_features": ("components",),
    "long_context": ("updates", "lengths", "threads"),
    "piece_vectors": ("min-count", "size"),
    "shapes": ("train", "test"),
    "timeseries": ("rows", "epochs", "batch-size", "steps", "d-model", "num-basis", "heads", "patience"),
    "visual": ("rows", "answers", "epochs", "updates", "batch-size", "min-count", "num-basis", "d-model", "heads"),
}
WRONG_MINILM = [("--model", "{0}/nope"), *((f"--{option}", "0") for option in ("steps", "batch", "sentences"))]
WRONG = [
    *((name, f"--{option}", value) for name, options in COUNTS.items() for option in options for value in ("0", "-1")),
    *((name, "--device", "foo") for name in ("classify", "visual")),
    *((name, "--out", "{0}") for name in ("classify", "piece_vectors", "visual")),
    *((name, "--out", "{0}/file/out") for name in ("classify", "long_context", "piece_vectors", "shapes", "visual")),
    ("image_features", "--components", "1281"),
    ("image_features", "--questions", "x.tsv x.tsv"),
    ("image_features", "--out", "{0}"),
    ("image_features", "--size", "8 0"),
    ("image_features", "--grid", "8 0"),
    ("visual", "--size", "8 0"),
    ("long_context", "--tasks copy flip-flop --lengths", "64 3"),
    ("piece_vectors", "--out", "{0}/words.txt"),
    ("piece_vectors", "--std", "0"),
    ("piece_vectors", "--size", "3"),
    ("piece_vectors", "--min-count", "1000"),
    ("classify", "--words", "{0}/file"),
    ("image_features", "--weights", "{0}/nope.pth"),
    ("image_features", "--weights", "{0}/file"),
    *(pytest.param("sparse_minilm", *wrong, marks=pytest.mark.slow) for wrong in WRONG_MINILM),  # imports transformers
]
MODULES = {"piece_vectors": "tokenizers", "sparse_minilm": "transformers"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with a text file, a split of one word and an encoder of one word piece."""
    (tmp_path / "file").write_text("text", encoding="utf-8")
    (tmp_path / "train.tsv").write_text("0\ta\n", encoding="utf-8")
    save_file({"embeddings.word_embeddings.weight": torch.tensor([[1.0, 2.0]])}, tmp_path / "model.safetensors")
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return tmp_path


def run(name: str, arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Return the exit status of an example."""
    pytest.importorskip(MODULES.get(name, "torch"))
    monkeypatch.setattr(sys, "argv", [name, *f"{REQUIRED[name]} {arguments}".format(folder).split()])
    try:
        status: int | None = import_module(name).main()
    except SystemExit as end:
        assert end.code is None or isinstance(end.code, int)
        return end.code
    return status


@pytest.mark.parametrize(("name", "option", "value"), WRONG)
def test_examples_reject_unusable_options(
    name: str,
    option: str,
    value: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(folder.iterdir())
    assert run(name, f"{option} {value}", folder, monkeypatch) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert name in line
    if value.startswith("{0}"):
        assert str(folder / "file" if "/file" in value else value.format(folder)) in line
    else:
        assert option.split()[-1] in line and value.split()[-1] in line
    assert sorted(folder.iterdir()) == before


def test_piece_vectors_names_a_missing_tokenizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("piece_vectors", "--std 0.4 --size 2", folder, monkeypatch) == 0
    (folder / "tokenizer.json").unlink()
    assert run("piece_vectors", "", folder, monkeypatch) == 2
    assert str(folder / "tokenizer.json") in capsys.readouterr().err


@pytest.mark.parametrize("name", ["classify", "visual"])
def test_results_are_printed_even_if_writing_fails(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = import_module(name), folder / "out"
    monkeypatch.setattr(program, "run", lambda options: out.mkdir() or {"accuracy": 1})
    monkeypatch.setattr(sys, "argv", [name, *f"{REQUIRED[name]} --out {out}".format(folder).split()])
    assert program.main() == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"accuracy": 1} and str(out) in printed.err
