"""The examples that create data: word vectors of an encoder's pieces, image features, drawings and questions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from repository_tools import load_program
from tsallis.toolkit.data.word_vectors import read_word_vectors


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Any:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    return module.main()


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Create a folder like that of BERT, with five pieces of three numbers each."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = {"[UNK]": 0, "good": 1, "film": 2, "##s": 3, "!": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_padding(length=6)  # as in the package's file
    folder = tmp_path / "encoder"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    matrix = torch.tensor([[9.0, 9, 9], [1, 0, 0], [0, 2, 0], [0, 0, 4], [5, 5, 5]])
    name = "embeddings.word_embeddings.weight"
    save_file({name: matrix, "pooler.weight": torch.zeros(3, 3)}, str(folder / "model.safetensors"))
    (tmp_path / "train.tsv").write_text("1\tGood films!\n0\tgood xyz\n", encoding="utf-8")
    return folder


def test_a_words_vector_is_the_mean_of_its_pieces(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vectors.safetensors"
    arguments = ("--data", tmp_path, "--encoder", encoder, "--out", path)
    example = load_program("examples/piece_vectors")
    assert run(example, monkeypatch, *arguments) == 0
    symbols = {"good": 4, "films": 5, "!": 6, "xyz": 7}
    matrix = read_word_vectors(path, symbols, path.with_suffix(".txt")).matrix
    assert matrix.tolist() == [[1, 0, 0], [0, 1, 2], [5, 5, 5], [9, 9, 9]]
    assert run(example, monkeypatch, *arguments, "--std", 0.4) == 0
    scaled = read_word_vectors(path, symbols, path.with_suffix(".txt")).matrix
    torch.testing.assert_close(scaled.std(), torch.tensor(0.4))
    torch.testing.assert_close(scaled / scaled[2, 0], matrix / 5)


def test_reducing_dimensions_keeps_distances_in_a_plane() -> None:
    """Points on a plane in five dimensions keep their distances in two dimensions."""
    pytest.importorskip("tokenizers")
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(20, 2, generator=generator) @ torch.randn(2, 5, generator=generator) + 3
    reduced = load_program("examples/piece_vectors").reduce(matrix, 2)
    torch.testing.assert_close(torch.cdist(reduced, reduced), torch.cdist(matrix, matrix), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 8), (3, 2, 7), (5, 2, 8), (5, 1, 6), (1, 1, 4)])
def test_a_convolution_is_padded_as_by_tensorflow(kernel: int, stride: int, size: int) -> None:
    """Sums over ones near the border show the padding, which is smaller before than after."""
    convolve = load_program("examples/image_features").convolve
    ones = convolve(torch.ones(1, 1, size, size), torch.ones(1, 1, kernel, kernel), stride)
    count = -(-size // stride)
    before = max((count - 1) * stride + kernel - size, 0) // 2
    expected = [sum(0 <= i * stride - before + j < size for j in range(kernel)) for i in range(count)]
    assert ones[0, 0].tolist() == [[a * b for b in expected] for a in expected]


def test_apply_block_matches_pytorch_modules() -> None:
    """Compare with an inverted bottleneck in PyTorch; both paddings agree for stride 1 and an odd kernel."""
    example = load_program("examples/image_features")
    torch.manual_seed(1)
    layers = {"_expand_conv": nn.Conv2d(4, 8, 1, bias=False), "_bn0": nn.BatchNorm2d(8, eps=1e-3)}
    layers |= {"_depthwise_conv": nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)}
    layers |= {"_bn1": nn.BatchNorm2d(8, eps=1e-3), "_project_conv": nn.Conv2d(8, 4, 1, bias=False)}
    layers |= {"_bn2": nn.BatchNorm2d(4, eps=1e-3)}
    for layer in layers.values():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -1, 1)  # type: ignore[arg-type]
            nn.init.uniform_(layer.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.uniform_(layer.weight, 0.5, 2)
        layer.eval()
    weights = {f"b.{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()}
    x = torch.randn(2, 4, 6, 5)
    hidden = nn.functional.relu6(layers["_bn0"](layers["_expand_conv"](x)))
    hidden = nn.functional.relu6(layers["_bn1"](layers["_depthwise_conv"](hidden)))
    expected = x + layers["_bn2"](layers["_project_conv"](hidden))
    torch.testing.assert_close(example.apply_block(x, weights, "b", 1), expected)


def test_shapes_repeat_and_test_data_ignores_the_train_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = load_program("examples/shapes")
    for name, count in (("a", 2), ("b", 2), ("c", 3)):
        run(shapes, monkeypatch, "--out", tmp_path / name, "--train", count, "--test", 2)
    contents = {name: [(tmp_path / name / f"{x}").read_bytes() for x in FILES] for name in "abc"}
    assert contents["a"] == contents["b"]
    assert contents["a"][2:] == contents["c"][2:] and contents["a"][:2] != contents["c"][:2]


FILES = ("train.npy", "train.tsv", "test.npy", "test.tsv")


def test_components_keep_the_varying_axis() -> None:
    """Features that vary along one of three axes keep that axis, with variance 1."""
    steps = np.random.default_rng(1).normal(size=(5, 2, 3, 1))
    array = (steps * np.array([0.6, 0.0, 0.8]) + 7).astype(np.float32)
    reduced = load_program("examples/image_features").reduce(array, 1).astype(np.float64)
    assert reduced.shape == (5, 2, 3, 1)
    standard = (steps - steps.mean()) / steps.std()
    np.testing.assert_allclose(abs(reduced), abs(standard), atol=5e-3)


@pytest.mark.parametrize("freeze", [True, False])
def test_word_vectors_initialize_the_classifier(freeze: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen vectors do not change in training; others do."""
    example = load_program("examples/classify")
    text = "".join(f"{i % 2}\tA {'fine' if i % 2 else 'dull'} film, {i}.\n" for i in range(40))
    for split in ("train", "test"):
        (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
    (tmp_path / "vectors.txt").write_text("fine 1 0 0 0\ndull 0 1 0 0\n", encoding="utf-8")
    arguments = ["--data", tmp_path, "--word-vectors", tmp_path / "vectors.txt", "--d-model", 4, "--epochs", 1]
    monkeypatch.setattr(sys, "argv", [str(x) for x in ("classify", *arguments, *["--freeze"] * freeze)])
    options = example.arguments()
    data = example.load(options)
    model = example.BiLSTMClassifier(len(data.vocab), 2, d_model=4, attention="discrete")
    example.set_embeddings(model, data, options)
    rows = [data.vocab.encode([word])[0] for word in ("fine", "dull")]
    assert model.embedding.weight[rows].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    before = model.embedding.weight.clone()
    example.train(model, data, options)
    assert torch.equal(model.embedding.weight, before) == freeze
