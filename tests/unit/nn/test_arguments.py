"""Tests of invalid arguments of modules: building the module raises an error with the argument and its value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tsallis import compat
from tsallis.continuous import image_basis
from tsallis.nn import (
    ContinuousAttention1d,
    Entmax,
    EntmaxLoss,
    GlobalAttention,
    LengthScale,
    MultiheadAttention,
    OutputLayer,
    PerHeadAlpha,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tsallis.nn.positions import SinusoidalPositions


def attention(**options: Any) -> MultiheadAttention:
    return MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, **options})


def heads(**options: Any) -> PerHeadAlpha:
    return PerHeadAlpha(3, **options)


def scale(**options: Any) -> LengthScale:
    return LengthScale(8, 2, **options)


def output(**options: Any) -> OutputLayer:
    return OutputLayer(**{"d_model": 6, "d_vocab": 9, **options})


def pooled(**options: Any) -> GlobalAttention:
    return GlobalAttention(4, 6, **options)


def continuous(**options: Any) -> ContinuousAttention1d:
    return ContinuousAttention1d(**{"d_model": 8, **options})


def encoder(**options: Any) -> TransformerEncoderLayer:
    return TransformerEncoderLayer(**{"d_model": 8, "nhead": 2, **options})


def decoder(**options: Any) -> TransformerDecoderLayer:
    return TransformerDecoderLayer(**{"d_model": 8, "nhead": 2, **options})


INVALID = [
    (attention, {"alpha": 0.9}, "alpha must be finite and at least 1, got 0.9"),
    (attention, {"alpha": math.nan}, "got nan"),
    (attention, {"alpha": math.inf}, "got inf"),
    (attention, {"alpha": "learnt"}, "alpha must be a number, 'learned', a tensor or a module, got 'learnt'"),
    (attention, {"alpha": torch.ones(3)}, r"alpha must have shape \(2,\), one per head, got \(3,\)"),
    (attention, {"alpha": nn.Parameter(torch.tensor(1.5))}, r"shape \(2,\), one per head, got \(\)"),
    (attention, {"alpha": torch.tensor([1.5, 1.5], requires_grad=True)}, "nn.Parameter to be learned"),
    (attention, {"alpha": torch.tensor([0.5, 2.0])}, "at least 1, got a tensor with 0.5"),
    (attention, {"alpha": torch.tensor([1.5, torch.nan])}, "at least 1, got a tensor with nan"),
    (attention, {"embed_dim": 10, "num_heads": 4}, "embed_dim must be a multiple of num_heads, got 10 and 4"),
    (attention, {"kdim": 0}, "kdim must be at least 1, got 0"),
    (attention, {"vdim": 0}, "vdim must be at least 1, got 0"),
    (attention, {"num_heads": 0}, "num_heads must be at least 1, got 0"),
    (attention, {"positions": "sinusoids"}, "positions must be one of none, rope, alibi, nape, got 'sinusoids'"),
    (attention, {"positions": "nape", "add_zero_attn": True}, "with add_bias_kv or add_zero_attn, got 'nape'"),
    (attention, {"positions": "rope", "num_heads": 8}, "head size must be even .*, got 1"),
    (attention, {"num_heads": 4, "num_kv_heads": 0}, "num_kv_heads must be .* got 0"),
    (attention, {"num_heads": 4, "num_kv_heads": 3}, "num_heads must be .* got 4 and 3"),
    (attention, {"num_heads": 4, "num_kv_heads": 8}, "num_heads must be .* got 4 and 8"),
    (heads, {"low": 0.5}, "alpha must be finite and at least 1, got 0.5"),
    (heads, {"high": math.inf}, "got inf"),
    (heads, {"low": 2.0, "high": 1.5}, "low must be below high, got 2 and 1.5"),
    (heads, {"low": 1.5, "high": 1.5}, "low must be below high, got 1.5 and 1.5"),
    (heads, {"initial": 1.0}, "initial must be above 1 and below 2, got 1"),
    (heads, {"initial": 2.5}, "initial must be above 1 and below 2, got 2.5"),
    (heads, {"initial": math.nan}, "got nan"),
    (scale, {"kind": "log"}, "length_scale must be one of input, head, ssmax, got 'log'"),
    (output, {"transform": "argmax"}, "must be one of softmax, sparsemax, entmax, alpha_relu, got 'argmax'"),
    (output, {"alpha": 0.9}, "alpha must be finite and at least 1, got 0.9"),
    (output, {"alpha": math.nan}, "alpha must be finite and at least 1, got nan"),
    (output, {"transform": "alpha_relu", "alpha": 1.0}, "alpha of alpha_relu must be above 1, got 1"),
    (output, {"transform": "alpha_relu", "tau": math.nan}, "tau must be finite, got nan"),
    (output, {"d_vocab": 0}, "d_vocab must be at least 1, got 0"),
    (output, {"forbidden": (9,)}, r"forbidden must contain symbols from 0 to 8, .* got \(9,\)"),
    (output, {"forbidden": (-1,)}, r"forbidden must contain symbols from 0 to 8, .* got \(-1,\)"),
    (output, {"forbidden": range(9)}, "forbidden must contain symbols .* not all of them"),
    (pooled, {"transform": "alpha_relu"}, "transform must be .* got 'alpha_relu'"),
    (pooled, {"transform": "hardmax"}, "transform must be one of .*'hardmax'"),
    (pooled, {"alpha": 0.0}, "alpha must be finite and at least 1, got 0"),
    (pooled, {"scorer": "dot"}, "scorer must be one of bilinear, additive, got 'dot'"),
    (Entmax, {"alpha": 0.0}, "alpha"),
    (Entmax, {"alpha": torch.tensor([-1.0])}, "alpha must be positive and finite, got a tensor with -1"),
    (compat.EntmaxBisect, {"alpha": -1.0}, "alpha must be positive and finite, got -1"),
    (compat.EntmaxBisectLoss, {"alpha": 0}, "alpha must be positive and finite, got 0"),
    (EntmaxLoss, {"alpha": math.inf}, "alpha"),
    (EntmaxLoss, {"reduction": "total"}, "reduction must be one of mean, sum, none, got 'total'"),
    (EntmaxLoss, {"label_smoothing": 5}, "label_smoothing must be between 0 and 1, got 5"),
    (encoder, {"activation": "swish"}, "activation must be one of relu, gelu or a function, got 'swish'"),
    (decoder, {"activation": "swish"}, "activation must be one of relu, gelu or a function, got 'swish'"),
    (continuous, {"d_model": 7, "num_heads": 2}, "multiple of num_heads, got 7 and 2"),
    (continuous, {"moments": "key"}, "moments must be one of query, discrete, scores, pooled, got 'key'"),
    (continuous, {"density": "cauchy"}, "one of gaussian, .*learned or an alpha of at least 1, got 'cauchy'"),
    (continuous, {"density": "truncated_paraboloid"}, "density must be one of .* got 'truncated_paraboloid'"),
    (continuous, {"density": 0.5}, "alpha must be finite and at least 1, got 0.5"),
    *(
        (continuous, {name: number}, f"{name} must be at least 1, got {number}")
        for name in ("num_heads", "components", "d_query", "d_values")
        for number in (0, -1)
    ),
    (continuous, {"moments": "scores", "components": 2}, "1 with moments='scores', got 2"),
    (continuous, {"combine": True}, "moments must be .* with combine=True, got 'query'"),
    (continuous, {"moments": "discrete", "transform": "alpha_relu"}, "sum to 1.*'alpha_relu'"),
    (continuous, {"moments": "discrete", "transform": "hardmax"}, "transform must be one of .*'hardmax'"),
    (continuous, {"matching": "paper"}, "matching must be 'covariance' or 'scale', got 'paper'"),
    (continuous, {"basis": "text-16"}, "basis must be one of text-32, .*, got 'text-16'"),
    (continuous, {"basis": image_basis(3)}, "basis must have 1 dimensions, got 2"),
    (continuous, {"ridge": 0.0}, "ridge must be positive"),
    (continuous, {"floor": 0.0}, "floor must be positive and finite, got 0"),
    (continuous, {"points": 0}, "points must be at least 1, got 0"),
    (continuous, {"points": (2, 3)}, r"points must be one number .* got \(2, 3\)"),
    (continuous, {"moments": "pooled", "filters": 0}, "filters must be at least 1, got 0"),
    (continuous, {"project": False, "d_values": 6}, "d_values must be equal to d_model, 8, .* got 6"),
    (continuous, {"moments": "pooled", "filter_width": 2}, "width must be odd and at least 1, got 2"),
    (SinusoidalPositions, {"d_model": 5}, "d_model must be even, got 5"),
]


@pytest.mark.parametrize(("make", "options", "message"), INVALID)
def test_invalid_arguments_raise_value_error(
    make: Callable[..., nn.Module], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


WRONG_TYPES = [
    (output, "tau", "formula"),
    *((continuous, "points", value) for value in (2.5, "x", True)),
    (continuous, "basis", 8.5),
    *((continuous, name, 2.0) for name in ("num_heads", "components", "d_query", "d_values")),
    *((continuous, name, "a") for name in ("floor", "ridge")),
]


@pytest.mark.parametrize(("make", "name", "value"), WRONG_TYPES)
def test_arguments_of_wrong_type_raise_type_error(make: Callable[..., nn.Module], name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name} must be .*got {value!r}"):
        make(**{name: value})
