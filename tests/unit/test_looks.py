"""Figures of what runs attend to: of documents, of images, of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tsallis.config import check_config
from tsallis.data import Vocabulary
from tsallis.data.subwords import Subwords
from tsallis.looks import figures
from tsallis.models import RNNSeq2Seq
from tsallis.prepare import prepare
from tsallis.report import save
from tsallis.tasks import read_lines
from tsallis.training import Run

pytest.importorskip("matplotlib")


def texts(figure: Any) -> set[str]:
    """Everything that is written in a figure."""
    from matplotlib.text import Text

    return {text.get_text() for text in figure.findobj(Text) if text.get_text()}


def run_of(folder: Path, data: dict[str, Any], model: dict[str, Any]) -> Run:
    """A run that was not trained."""
    config = check_config({"version": 1, "data": {"folder": str(folder), **data}, "model": model}, "test")
    prepared = prepare(config)
    vocabularies = prepared.data.src_vocab, prepared.data.tgt_vocab
    return Run(folder, prepared.build().eval(), *vocabularies, prepared.task, {})


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_documents(tmp_path: Path, attention: str) -> None:
    lines = [
        f"{label}\tA {word} film number {i}.\n" for i in range(40) for label, word in (("0", "dull"), ("1", "fine"))
    ]
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    given = {"task": "classification", "train": "train", "min_count": 1}
    sizes = {"architecture": "classifier", "d_model": 8, "functions": 8}
    run = run_of(tmp_path, given, {**sizes, "attention": attention, "transform": "sparsemax"})
    read = read_lines(run, ["A fine, fine film.", " ".join(["long"] * 40)], "in", gold=False)
    drawn = dict(figures(run, read))
    assert [*drawn] == [0, 1]
    assert {"a", "fine", ",", "film", "."} <= texts(drawn[0])
    assert any(text.startswith(("0 (0.", "1 (0.")) for text in texts(drawn[0]))
    for place, figure in drawn.items():
        save(figure, tmp_path / f"{place}.png")


def test_images(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 255, (20, 16, 24, 3)).astype(np.uint8))
    np.save(tmp_path / "features.npy", np.ones((20, 2, 3, 5), np.float32))
    rows = [f"{i}\twhat is it?\t{'box' if i % 2 else 'ball'}\n" for i in range(20)]
    (tmp_path / "train.tsv").write_text("".join(rows), encoding="utf-8")
    model = {"architecture": "answerer", "d_model": 8, "heads": 2, "layers": 1, "functions": 9, "density": 2.0}
    for name in ("images.npy", "features.npy"):  # of both the grid is 2 x 3
        run = run_of(tmp_path, {"task": "visual", "train": "train.tsv", "images": name}, model)
        read = read_lines(run, ["image\tquestion", "3\twhat is it?"], "in", gold=False, images=tmp_path / name)
        ((place, figure),) = figures(run, read)
        written = texts(figure)
        assert place == 1 and any("what is it?" in text for text in written)
        assert any("box (0." in text or "ball (0." in text for text in written)
        batch = read.corpus.batch([0])
        assert run.model(batch.src, batch.src_lengths, batch.tgt_in, need_attention=True).attention.shape[-1] == 6
        save(figure, tmp_path / "figure.svg")


@pytest.mark.parametrize("task", ["inflection", "translation"])
def test_pairs(tmp_path: Path, task: str) -> None:
    torch.manual_seed(1)
    symbols: Any = Vocabulary([*"abcdef", "N"])
    if task == "translation":
        symbols = Subwords.train(["das Haus ist rot", "ein Hut"] * 5, 30)
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=8, layers=1, attention="sparsemax").eval()
    run = Run(tmp_path, model, symbols, symbols, {"task": task}, {})
    lines = ["abc\tN"] if task == "inflection" else ["", "ein Hut"]
    read = read_lines(run, lines, "in", gold=False)
    ((place, figure),) = figures(run, read, beam_size=3)
    assert place == len(lines) - 1 and "(end)" in texts(figure)
    assert ({"a", "b", "c"} if task == "inflection" else {"ein", "▁Hut"}) <= texts(figure)
    save(figure, tmp_path / "figure.pdf")


def test_lines_without_an_output_have_no_figure(tmp_path: Path) -> None:
    symbols = Vocabulary([*"abc", "N"])
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=8, layers=1, output="alpha_relu", tau=50.0).eval()
    run = Run(tmp_path, model, symbols, symbols, {"task": "inflection"}, {})
    read = read_lines(run, ["abc\tN"], "in", gold=False)
    assert list(figures(run, read)) == [] and list(figures(run, replace(read, places=[]))) == []
