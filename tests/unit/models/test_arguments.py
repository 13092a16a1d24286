"""Tests of invalid arguments of models: building the model raises an error with the argument and its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tsallis.models import BiLSTMClassifier, LabelDecoder, LanguageModel, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.vqa import ImageGrid, VisualAnswerer


def rnn(**options: Any) -> RNNSeq2Seq:
    return RNNSeq2Seq(13, 11, **{"d_model": 8, **options})


def transformer(**options: Any) -> TransformerSeq2Seq:
    return TransformerSeq2Seq(13, 11, **{"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, **options})


def language(**options: Any) -> LanguageModel:
    return LanguageModel(9, **{"d_model": 8, "heads": 2, **options})


def classifier(**options: Any) -> BiLSTMClassifier:
    return BiLSTMClassifier(30, 3, **{"d_model": 8, "num_basis": 8, **options})


def answerer(**options: Any) -> VisualAnswerer:
    sizes = {"d_model": 8, "heads": 2, "layers": 1, "stages": 2, "num_basis": 16}
    return VisualAnswerer(30, 3, **{**sizes, **options})


def grid(**options: Any) -> ImageGrid:
    return ImageGrid(**{"d_model": 8, **options})


INVALID = [
    (rnn, {"d_model": 7}, "d_model must be even.*7"),
    (rnn, {"layers": 0}, "layers must be at least 1, got 0"),
    (rnn, {"dropout": 1.0}, "dropout must be .* below 1, got 1.0"),
    (rnn, {"cell": "rnn"}, "cell must be one of lstm, gru, got 'rnn'"),
    (rnn, {"share": "target", "d_embedding": 4}, "d_embedding must be equal to d_model, 8, .* got 4"),
    (rnn, {"share": "all"}, "share must be one of none, target, got 'all'"),
    (transformer, {"heads": 3}, "d_model must be even and a multiple of heads, got 8 and 3 heads"),
    (transformer, {"d_model": 7, "heads": 1}, "d_model must be even .* got 7"),
    (transformer, {"heads": 0}, "heads must be at least 1, got 0"),
    (transformer, {"layers": 0}, "encoder_layers must be at least 1, got 0"),
    (transformer, {"decoder_layers": -1}, "decoder_layers must be at least 1, got -1"),
    (transformer, {"d_ff": 0}, "d_ff must be at least 1, got 0"),
    (transformer, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    (transformer, {"attention_dropout": -0.1}, "attention_dropout must be .* got -0.1"),
    (transformer, {"norm": "both"}, "norm must be one of post, pre, got 'both'"),
    (transformer, {"activation": "swish"}, "activation must be one of relu, gelu, got 'swish'"),
    (transformer, {"attention": "hard"}, "encoder_attention must be one of softmax, .*learned, got 'hard'"),
    (transformer, {"cross_attention": "alpha_relu"}, "cross_attention must be one of .* got 'alpha_relu'"),
    (transformer, {"tie_alphas": "head"}, "tie_alphas must be one of none, layer, kind, global, got 'head'"),
    (transformer, {"tie_alphas": "kind"}, "tie_alphas must be 'none' .* got 'kind'"),
    (transformer, {"share": "source"}, "share must be one of none, target, all, got 'source'"),
    (transformer, {"share": "all"}, "src_vocab and tgt_vocab must be equal .* got 13 and 11"),
    (language, {"layers": 0}, "layers must be at least 1, got 0"),
    (language, {"positions": "sinusoids"}, "positions must be one of"),
    (classifier, {"d_model": 7}, "d_model must be even.*got 7"),
    (classifier, {"layers": 0}, "layers must be at least 1, got 0"),
    (classifier, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1"),
    (classifier, {"attention": "both"}, "must be one of discrete, continuous, combined, got 'both'"),
    (classifier, {"attention": "discrete", "density": "laplace"}, "density must be None .* got 'laplace'"),
    (classifier, {"num_basis": 7}, "size must be a multiple"),
    (classifier, {"output": "alpha_relu"}, "output must be one of softmax, sparsemax, entmax, got 'alpha_relu'"),
    (answerer, {"attention": "soft"}, "discrete, continuous, combined, got 'soft'"),
    (answerer, {"attention": "discrete", "density": 2.0}, "density must be None with discrete attention, got 2.0"),
    (answerer, {"num_basis": 15}, "num_basis must be a square number, got 15"),
    (answerer, {"num_basis": 0}, "num_basis must be a square number, got 0"),
    (answerer, {"basis": "text-32"}, "image, image-paper, got 'text-32'"),
    (answerer, {"density": "laplace"}, "got 'laplace'"),
    (answerer, {"layers": 0}, "layers must be at least 1, got 0"),
    (answerer, {"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    (answerer, {"d_model": 6}, "multiple of 4 .*got 6"),
    (answerer, {"image": "video"}, "got 'video'"),
    (grid, {"kind": "cat"}, "cnn, features, got 'cat'"),
    (grid, {"d_model": 6}, "multiple of 4 .*got 6"),
    (grid, {"stages": 0}, "got 3 and 0"),
    (LabelDecoder, {"src_vocab": 30, "tgt_vocab": 4}, "tgt_vocab must be above 4"),
    (LabelDecoder, {"src_vocab": 30, "tgt_vocab": 5, "kind": "songs"}, "documents or questions, got 'songs'"),
]


@pytest.mark.parametrize(("make", "options", "message"), INVALID)
def test_invalid_arguments_raise(make: Callable[..., nn.Module], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


MODELS = (rnn, transformer, language, lambda: transformer(d_model=32, d_ff=64), classifier)


@pytest.mark.parametrize("make", MODELS)
@torch.no_grad()
def test_lengths_accept_every_integer_dtype(make: Callable[..., Any]) -> None:
    """Check all integer types: PyTorch indexes with uint8 as a mask, which raises no error for four rows here."""
    model, src, tgt = make().eval(), torch.randint(4, 9, (4, 4)), torch.randint(4, 9, (4, 3))
    counts = torch.tensor([4, 3, 3, 2])

    def run(lengths: torch.Tensor, rows: int = 4) -> torch.Tensor:
        if isinstance(model, BiLSTMClassifier):
            return model(src[:rows], lengths)
        return model(src[:rows], lengths, tgt[:rows]).hidden

    expected = run(counts)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert torch.equal(run(counts.to(dtype)), expected)
    for wrong, error, message in (
        (counts.float(), TypeError, "src_lengths must contain integers, got torch.float32"),
        (counts.bool(), TypeError, "src_lengths must contain integers, got torch.bool"),
        (counts[:1], ValueError, r"src_lengths must have the shape \(4,\), got \(1,\)"),
        (counts[:, None], ValueError, r"src_lengths must have the shape \(4,\), got \(4, 1\)"),
        (counts + 1, ValueError, "to 4, the width of src"),
    ):
        with pytest.raises(error, match=message):
            run(wrong)
    assert run(counts[:0], 0).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("make", MODELS[:4])
@torch.no_grad()
def test_step_accepts_one_integer_token_per_row(make: Callable[..., Any]) -> None:
    model, src = make().eval(), torch.randint(4, 9, (2, 5))
    state = model.start(model.encode(src, torch.tensor([5, 3])))
    expected = model.step(state, torch.tensor([1, 1])).scores
    assert torch.equal(model.step(state, torch.tensor([1, 1], dtype=torch.int32)).scores, expected)
    if type(state).__name__ == "CompiledState":
        tokens = [[1.0, 1.0], [1], [1, 1, 1], [1, 99]]
        for token, error in zip(tokens, (TypeError, ValueError, ValueError, IndexError), strict=True):
            with pytest.raises(error, match="token"):
                model.step(state, torch.tensor(token))


INVALID_IMAGES = [
    ({}, torch.zeros(2, 8, 8, 4), r"\[batch, height, width, 3\], got \[2, 8, 8, 4\]"),
    ({}, torch.zeros(8, 8, 3), r"\[batch, height, width, 3\], got \[8, 8, 3\]"),
    ({}, torch.zeros(1, 8, 4, 3), r"at least 8 pixels per side, got \[8, 4\]"),
    ({}, torch.zeros(1, 8, 8, 3, dtype=torch.long), "uint8 or floating point, got torch.int64"),
    ({"kind": "features"}, torch.zeros(1, 8, 8, 3, dtype=torch.uint8), "floating point, got torch.uint8"),
]


@pytest.mark.parametrize(("options", "images", "message"), INVALID_IMAGES)
def test_invalid_images_raise(options: dict[str, Any], images: torch.Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        grid(**options)(images)
