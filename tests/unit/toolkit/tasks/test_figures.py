"""Figures of what runs attend to: of documents, of images, of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from task_runs import figures, read_lines, untrained_run
from tsallis.continuous import cell_masses
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.report import save
from tsallis.search import beam_search
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.training import Run

pytest.importorskip("matplotlib")


def texts(figure: Any) -> set[str]:
    """Everything that is written in a figure, each text on one line."""
    from matplotlib.text import Text

    return {text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_text()}


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_documents(tmp_path: Path, attention: str) -> None:
    lines = [
        f"{label}\tA {word} film number {i}.\n" for i in range(40) for label, word in (("0", "dull"), ("1", "fine"))
    ]
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    inputs = {"task": "classification", "train": "train", "min_count": 1}
    sizes = {"architecture": "classifier", "d_model": 8, "num_basis": 8}
    run = untrained_run(tmp_path, inputs, {**sizes, "attention": attention, "transform": "sparsemax"})
    read = read_lines(run, ["A fine, fine film.", " ".join(["long"] * 40)], "in", gold=False)
    drawn = dict(figures(run, read))
    assert [*drawn] == [0, 1]
    assert {"a", "fine", ",", "film", "."} <= texts(drawn[0])
    assert any(text.startswith(("0 (0.", "1 (0.")) for text in texts(drawn[0]))
    for location, figure in drawn.items():
        save(figure, tmp_path / f"{location}.png")


def test_images(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 255, (20, 16, 24, 3)).astype(np.uint8))
    np.save(tmp_path / "features.npy", np.ones((20, 2, 3, 5), np.float32))
    rows = [f"{i}\twhat is it?\t{'box' if i % 2 else 'ball'}\n" for i in range(20)]
    (tmp_path / "train.tsv").write_text("".join(rows), encoding="utf-8")
    model = {"architecture": "answerer", "d_model": 8, "heads": 2, "layers": 1, "num_basis": 9, "density": 2.0}
    for name in ("images.npy", "features.npy"):  # of both the grid is 2 x 3
        run = untrained_run(tmp_path, {"task": "visual", "train": "train.tsv", "images": name}, model)
        read = read_lines(run, ["image\tquestion", "3\twhat is it?"], "in", gold=False, images=tmp_path / name)
        ((location, figure),) = figures(run, read)
        written = texts(figure)
        assert location == 1 and any("what is it?" in text for text in written)
        assert any("box (0." in text or "ball (0." in text for text in written)
        batch = read.corpus.batch([0])
        assert run.model(batch.src, batch.src_lengths, batch.tgt_in, need_attention=True).attention.shape[-1] == 6
        save(figure, tmp_path / "figure.svg")


@pytest.mark.parametrize("task", ["strings", "translation"])
def test_pairs(tmp_path: Path, task: str) -> None:
    torch.manual_seed(1)
    symbols: Any = Vocabulary([*"abcdef", "N"])
    if task == "translation":
        symbols = Subwords.train(["das Haus ist rot", "ein Hut"] * 5, 30)
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=8, layers=1, attention="sparsemax").eval()
    run = Run(tmp_path, model, symbols, symbols, {"task": task}, {})
    lines = ["abc\tN"] if task == "strings" else ["", "ein Hut"]
    read = read_lines(run, lines, "in", gold=False)
    ((location, figure),) = figures(run, read, beam_size=3)
    assert location == len(lines) - 1 and "(end)" in texts(figure)
    assert ({"a", "b", "c"} if task == "strings" else {"ein", "Hut"}) <= texts(figure)
    save(figure, tmp_path / "figure.pdf")


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("density", ["truncated_parabola", "gaussian", 1.5])
def test_densities_of_recurrent_translators(tmp_path: Path, density: Any, feeding: bool) -> None:
    torch.manual_seed(1)
    symbols = Vocabulary([*"abcdef", "N"])
    sizes = {"d_model": 8, "layers": 1, "num_basis": 6, "input_feeding": feeding}
    model = RNNSeq2Seq(len(symbols), len(symbols), density=density, **sizes).eval()
    with torch.no_grad():
        model.attention.bilinear.weight.mul_(100)  # means that differ from step to step
    run = Run(tmp_path, model, symbols, symbols, {"task": "strings"}, {})
    read = read_lines(run, ["abcdef\tN"], "in", gold=False)
    ((_, figure),) = figures(run, read, beam_size=2)
    (title,) = [text for text in texts(figure) if "Continuous attention" in text]
    assert "mass of the density" in title
    ax = figure.axes[0]
    (means,) = [line for line in ax.lines if line.get_label() == "mean"]
    (supports,) = [lines for lines in ax.collections if lines.get_label() == "support"]
    batch = read.corpus.batch([0])
    rows = len(means.get_ydata())
    (result,) = beam_search(model, batch.src, batch.src_lengths, beam_size=2)
    tgt_in = torch.tensor([[1, *result.best.tokens]])
    actual = model.densities(batch.src, batch.src_lengths, tgt_in)
    assert actual.batch_shape == (1, 1, rows) and rows == tgt_in.shape[1]
    mean = actual.mean[0, 0].flatten()
    assert list(means.get_xdata()) == pytest.approx((mean * 7 - 0.5).tolist(), abs=1e-5)  # symbols of the source
    assert len(supports.get_segments()) == (0 if density == "gaussian" else rows)
    # The density drawn is that of the step whose masses are drawn.
    weights = model(batch.src, batch.src_lengths, tgt_in).attention[0]
    edges = torch.linspace(0, 1, 8)
    torch.testing.assert_close(cell_masses(actual, edges.expand(1, 1, rows, 8))[0, 0], weights, atol=1e-5, rtol=1e-4)
    assert RNNSeq2Seq(9, 9, d_model=8, layers=1).densities(batch.src, batch.src_lengths, tgt_in) is None


def test_figures_say_which_heads_they_show(tmp_path: Path) -> None:
    symbols = Vocabulary([*"abcdef", "N"])
    for heads, layers, words in (
        (2, 3, "mean of 2 heads of decoder layer 3 of 3"),
        (1, 1, "mean of 1 head of decoder"),
    ):
        sizes = {"d_model": 8, "heads": heads, "layers": layers, "d_ff": 8}
        model = TransformerSeq2Seq(len(symbols), len(symbols), output="softmax", **sizes).eval()
        run = Run(tmp_path, model, symbols, symbols, {"task": "strings"}, {})
        ((_, figure),) = figures(run, read_lines(run, ["abc\tN"], "in", gold=False), beam_size=3)
        assert any(words in text for text in texts(figure))
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=8, layers=1).eval()
    run = Run(tmp_path, model, symbols, symbols, {"task": "strings"}, {})
    ((_, figure),) = figures(run, read_lines(run, ["abc\tN"], "in", gold=False))
    assert "Attention to the source" in texts(figure)
    save(figure, tmp_path / "figure.png")


def test_lines_without_an_output_have_no_figure(tmp_path: Path) -> None:
    symbols = Vocabulary([*"abc", "N"])
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=8, layers=1, output="alpha_relu", tau=50.0).eval()
    run = Run(tmp_path, model, symbols, symbols, {"task": "strings"}, {})
    read = read_lines(run, ["abc\tN"], "in", gold=False)
    assert list(figures(run, read)) == [] and list(figures(run, replace(read, numbers=[]))) == []
