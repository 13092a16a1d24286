"""Attention weights in numbers: the positive weights of each output step, with their symbols."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from task_runs import read_lines, untrained_run, weights_of
from tsallis.analysis import capture_weights
from tsallis.continuous import TruncatedParabola
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.search import beam_search
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.tasks.attention_weights import describe_density
from tsallis.toolkit.training import Run

SYMBOLS = Vocabulary([*"abcdef", "N"])
LINES = ["abc\tN", "f\tN", "abcdef\tN"]


def run_of(folder: Path, model: Any) -> Run:
    return Run(folder, model.eval(), SYMBOLS, SYMBOLS, {"task": "strings"}, {})


def transformer(**more: Any) -> TransformerSeq2Seq:
    torch.manual_seed(3)
    sizes = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 8, "attention": "sparsemax", **more}
    model = TransformerSeq2Seq(len(SYMBOLS), len(SYMBOLS), output="softmax", **sizes)
    with torch.no_grad():
        model.output.weight.copy_(6 * torch.randn(len(SYMBOLS), 8, generator=torch.Generator().manual_seed(1)))
    return model  # the large output weights prevent empty outputs


def dense(content: dict[str, Any], entry: dict[str, Any]) -> Any:
    """Return the matrix of an entry, and check that every stored weight is positive."""
    columns = entry["grid"][0] * entry["grid"][1] if "grid" in entry else len(content[entry["columns"]])
    matrix = np.zeros((len(content[entry["rows"]]), columns))
    for row, column, weight in entry["weights"]:
        assert weight > 0 and matrix[row, column] == 0
        matrix[row, column] = weight
    return matrix


def search_line(run: Run, line: str) -> tuple[Any, list[int]]:
    """Return a batch with only this line, and the symbols of its best output."""
    read = read_lines(run, [line], "in", gold=False)
    batch = read.corpus.batch([0])
    (result,) = beam_search(run.model, batch.src, batch.src_lengths, beam_size=2)
    return batch, [*result.best.tokens]


@pytest.mark.parametrize(
    "model",
    [
        lambda: transformer(),
        lambda: transformer(attention="softmax"),
        lambda: RNNSeq2Seq(len(SYMBOLS), len(SYMBOLS), d_model=8, layers=1, attention="sparsemax"),
    ],
)
def test_weights_match_the_attention_of_the_model(tmp_path: Path, model: Any) -> None:
    """Lines are read in one batch, but each line has the weights that it has alone."""
    run = run_of(tmp_path, model())
    contents = dict(weights_of(run, read_lines(run, LINES, "in", gold=False), beam_size=2))
    assert [*contents] == [0, 1, 2]
    if isinstance(run.model, TransformerSeq2Seq):
        assert len({len(content["target"]) for content in contents.values()}) > 1
    for number, content in contents.items():
        batch, tokens = search_line(run, LINES[number])
        names = [SYMBOLS.name(token) for token in tokens]
        assert content["text"] == SYMBOLS.decode(tokens)
        assert content["source"] == [SYMBOLS.name(symbol) for symbol in batch.src[0].tolist()]
        assert (content["target"], content["read"]) == ([*names, "</s>"], ["<s>", *names])
        (entry,) = content["attention"]
        assert (entry["name"], entry["rows"], entry["columns"]) == ("source", "target", "source")
        with torch.no_grad():
            expected = run.model(batch.src, batch.src_lengths, torch.tensor([[1, *tokens]]), need_attention=True)
        actual = dense(content, entry)
        assert actual == pytest.approx(expected.attention[0].numpy(), abs=1e-5)
        assert actual.sum(1) == pytest.approx(np.ones(len(names) + 1), abs=1e-4)


def test_weights_of_chosen_heads_match_their_layers(tmp_path: Path) -> None:
    run = run_of(tmp_path, transformer())
    encoder, decoder = run.model.encoder.layers[1], run.model.decoder.layers[0]
    layers = [encoder.self_attn, decoder.self_attn, decoder.multihead_attn]
    read = read_lines(run, LINES, "in", gold=False)
    for number, content in weights_of(run, read, "encoder.2.1,decoder.1.2,cross.1.2", beam_size=2):
        batch, tokens = search_line(run, LINES[number])
        expected: dict[int, Any] = {}
        with torch.no_grad(), capture_weights(layers, expected.__setitem__):
            run.model(batch.src, batch.src_lengths, torch.tensor([[1, *tokens]]))
        assert [entry["name"] for entry in content["attention"]] == ["encoder.2.1", "decoder.1.2", "cross.1.2"]
        for number, (entry, head) in enumerate(zip(content["attention"], (0, 1, 1), strict=True)):
            assert entry["alpha"] == 2.0
            assert dense(content, entry) == pytest.approx(expected[number][0, head].numpy(), abs=1e-5)


def test_densities_match_those_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = RNNSeq2Seq(len(SYMBOLS), len(SYMBOLS), density="truncated_parabola", d_model=8, layers=1, num_basis=6)
    with torch.no_grad():
        model.attention.bilinear.weight.mul_(100)  # the means differ between steps
    run = run_of(tmp_path, model)
    for number, content in weights_of(run, read_lines(run, LINES, "in", gold=False), beam_size=2):
        batch, tokens = search_line(run, LINES[number])
        expected = model.densities(batch.src, batch.src_lengths, torch.tensor([[1, *tokens]]))
        (entry,) = content["attention"]
        assert len(entry["densities"]) == len(content["target"]) == expected.batch_shape[-1]
        for step, density in enumerate(entry["densities"]):
            assert density["mean"] == pytest.approx(expected.mean[0, 0, step].item(), abs=1e-4)
            ((lower, upper),) = density["support"]
            assert lower == pytest.approx(expected.support.lower[0, 0, step].item(), abs=1e-4)
            assert lower < density["mean"] < upper


def test_lines_without_symbols_or_output_have_no_weights(tmp_path: Path) -> None:
    run = run_of(tmp_path, RNNSeq2Seq(len(SYMBOLS), len(SYMBOLS), d_model=8, layers=1, output="alpha_relu", tau=50.0))
    assert list(weights_of(run, read_lines(run, LINES, "in", gold=False))) == []
    run = run_of(tmp_path, transformer())
    read = read_lines(run, LINES, "in", gold=False)
    assert [number for number, _ in weights_of(run, replace(read, titles=["", "f", " "]))] == [1]
    assert list(weights_of(run, replace(read, titles=["", "", ""]))) == []


def test_missing_heads_raise(tmp_path: Path) -> None:
    run = run_of(tmp_path, transformer())
    with pytest.raises(InputError, match=r"heads must be all or names from encoder\.1\.1 to .*, got 'cross\.3\.1'"):
        list(weights_of(run, read_lines(run, LINES, "in", gold=False), "cross.3.1"))


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_document_weights_match_the_classifier(tmp_path: Path, attention: str) -> None:
    names = ["discrete", "continuous"] if attention == "combined" else [attention]
    lines = [f"{label}\tA {word} film {i}.\n" for i in range(9) for label, word in (("0", "dull"), ("1", "fine"))]
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    model = {"architecture": "classifier", "d_model": 8, "num_basis": 8, "attention": attention}
    run = untrained_run(tmp_path, {"task": "classification", "train": "train", "min_count": 1}, model)
    read = read_lines(run, ["A fine strange film.", "dull"], "in", gold=False)
    contents = dict(weights_of(run, read))
    assert contents[0]["source"] == ["a", "fine", "strange", "film", "."] and contents[1]["source"] == ["dull"]
    for number, content in contents.items():
        batch = read.corpus.batch([number])
        reference = run.model.classifier.attention(batch.src, batch.src_lengths)
        assert content["text"] in ("0", "1") and content["target"] == [content["text"]] and "read" not in content
        assert [entry["name"] for entry in content["attention"]] == names
        for entry in content["attention"]:
            expected = reference.weights if entry["name"] == "discrete" else reference.masses
            assert dense(content, entry) == pytest.approx(expected.numpy(), abs=1e-5)
            if entry["name"] == "continuous":
                (density,) = entry["densities"]
                ((lower, upper),) = density["support"]  # sparsemax has a truncated parabola as density
                assert lower == pytest.approx(reference.density.support.lower.item(), abs=1e-4)
                assert upper == pytest.approx(reference.density.support.upper.item(), abs=1e-4)


def test_image_weights_match_the_model(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(20, 2, 3, 5)).astype(np.float32))
    rows = [f"{i}\twhat is it?\t{'box' if i % 2 else 'ball'}\n" for i in range(20)]
    (tmp_path / "train.tsv").write_text("".join(rows), encoding="utf-8")
    model = {"architecture": "answerer", "d_model": 8, "heads": 2, "layers": 1, "num_basis": 9}
    run = untrained_run(tmp_path, {"task": "visual", "train": "train.tsv", "images": "features.npy"}, model)
    questions = ["3\twhat is it?", "5\twhat?"]
    read = read_lines(run, questions, "in", gold=False, images=tmp_path / "features.npy")
    contents = dict(weights_of(run, read))
    assert [content["image"] for content in contents.values()] == ["3", "5"]
    assert contents[1]["source"] == ["what", "?"]
    for number, content in contents.items():
        batch = read.corpus.batch([number])
        reference = run.model.classifier.read(batch.src, batch.src_lengths)[1].grid
        assert [entry["name"] for entry in content["attention"]] == ["discrete", "continuous"]
        for entry, expected in zip(content["attention"], (reference.weights, reference.masses), strict=True):
            assert entry["grid"] == [2, 3]
            assert dense(content, entry) == pytest.approx(expected.flatten(1).numpy(), abs=1e-5)
        (density,) = content["attention"][1]["densities"]
        assert density["mean"] == pytest.approx(reference.density.mean[0].tolist(), abs=1e-4)
        assert np.array(density["covariance"]).shape == (2, 2)


def test_describe_density_returns_moments_and_support() -> None:
    content = describe_density(TruncatedParabola(torch.tensor(0.5), torch.tensor(0.05)))
    support = [[pytest.approx(0.0, abs=1e-6), pytest.approx(1.0)]]
    assert content == {"mean": 0.5, "variance": pytest.approx(0.05), "support": support}
