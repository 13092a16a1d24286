"""Tests of edge cases of mappings and losses: large masks, empty inputs, infinities, saved results."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import tsallis
from tsallis.compat import SparsemaxLoss
from tsallis.nn import EntmaxLoss, OutputLayer


def test_mask_must_broadcast_to_scores() -> None:
    for scores, mask in ((torch.zeros(3), torch.ones(5, 3)), (torch.zeros(4, 1), torch.ones(4, 5))):
        with pytest.raises(ValueError, match="can't be broadcast to scores"):
            tsallis.entmax(scores, mask=mask.bool())
    assert tsallis.entmax(torch.zeros(2, 5, 3), mask=torch.ones(5, 1, dtype=torch.bool)).shape == (2, 5, 3)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_probabilities_are_a_plain_tensor(requires_grad: bool) -> None:
    """Check that probabilities have no extra attributes, which would be saved and rejected by safe loading."""
    scores = (3 * torch.randn(4, 3000)).requires_grad_(requires_grad)
    for name in ("auto", "eager"):
        with tsallis.backend(name):
            probs = tsallis.entmax(scores, 3.0)
        assert not vars(probs)
        with io.BytesIO() as file:
            torch.save(probs, file)
            file.seek(0)
            assert torch.load(file).equal(probs)


def test_smoothed_loss_of_an_excluded_target_is_infinite() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    loss = tsallis.entmax_loss(scores, torch.tensor([1]), label_smoothing=0.1)
    assert loss == torch.inf == torch.nn.functional.cross_entropy(scores, torch.tensor([1]), label_smoothing=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_keeps_float64(dtype: torch.dtype) -> None:
    hidden, weight, target = torch.randn(5, 4, dtype=dtype), torch.randn(7, 4, dtype=dtype), torch.arange(5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = tsallis.linear_entmax_loss(hidden, weight, target)
        expected = tsallis.entmax_loss(torch.nn.functional.linear(hidden, weight), target)
        with pytest.raises(TypeError, match="the same dtype"):
            tsallis.linear_entmax_loss(hidden.double(), weight.float(), target)
    torch.testing.assert_close(loss, expected, atol=1e-2 if dtype == torch.float32 else 1e-12, rtol=0)
    assert loss.dtype == expected.dtype


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("gap", [1e-7, 1e-8, 1e-10, 0.0, -1e-8, -1e-10])
def test_fully_masked_rows_are_zero_for_alpha_near_1(gap: float, backend: str) -> None:
    scores = torch.tensor([[-torch.inf, -torch.inf], [1.0, 2.0]], requires_grad=True)
    with tsallis.backend(backend):
        probs = tsallis.entmax(scores, 1 + gap)
        (grad,) = torch.autograd.grad(probs.square().sum(), scores)
    assert probs[0].tolist() == grad[0].tolist() == [0, 0] and probs[1].sum().item() == pytest.approx(1)
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_alpha_gradient_of_fully_masked_rows_is_zero(backend: str) -> None:
    scores, alpha = torch.tensor([[-torch.inf, -torch.inf], [1.0, 2.0]]), torch.ones(2, 1, requires_grad=True)
    with tsallis.backend(backend):
        tsallis.entmax_loss(scores, torch.tensor([0, 1]), alpha, reduction="sum").backward()
    assert alpha.grad is not None and alpha.grad[0] == 0 and alpha.grad[1].isfinite()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_fully_masked_rows_with_soft_targets_have_zero_loss(alpha: float, smoothing: float) -> None:
    scores = torch.tensor([[-torch.inf, -torch.inf], [1.0, 2.0]], requires_grad=True)
    shares = torch.full((2, 2), 0.5)
    loss = tsallis.entmax_loss(scores, shares, alpha, reduction="none", label_smoothing=smoothing)
    (grad,) = torch.autograd.grad(loss.sum(), scores)
    assert loss[0] == 0 and grad[0].tolist() == [0, 0] and loss[1] > 0 and grad[1].abs().sum() > 0


def test_smoothing_is_computed_in_the_dtype_of_the_scores() -> None:
    scores, shares = torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7, dtype=torch.float64).softmax(-1)
    mixture = 0.9 * shares + 0.1 / 7
    smooth = tsallis.entmax_loss(scores, shares, label_smoothing=0.1)
    torch.testing.assert_close(smooth, tsallis.entmax_loss(scores, mixture), rtol=0, atol=1e-14)


def test_tau_must_broadcast_to_scores() -> None:
    with pytest.raises(ValueError, match=r"tau must be broadcastable to the scores of shape \(3,\), got \(2, 3\)"):
        tsallis.alpha_relu(torch.zeros(3), tau=torch.zeros(2, 3))
    assert tsallis.alpha_relu(torch.zeros(2, 3), tau=torch.zeros(2, 1)).shape == (2, 3)


def test_alphas_below_1_raise_under_vmap() -> None:
    query, alphas = torch.randn(1, 1, 3, 4), torch.tensor([[0.5]])
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got a tensor with 0\.5"):
        torch.func.vmap(lambda a: tsallis.entmax_attention(query, query, query, a))(alphas)
    hidden, target = torch.randn(3, 4), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got a tensor with 0\.5"):
        torch.func.vmap(lambda a: tsallis.linear_entmax_loss(hidden, hidden, target, alpha=a))(torch.tensor([0.5]))


def test_empty_batches_accept_empty_key_lengths() -> None:
    query = torch.randn(0, 2, 3, 4)
    assert tsallis.entmax_attention(query, query, query, key_lengths=[]).shape == query.shape


@pytest.mark.parametrize("dim", ["1", None, 1.0, True, (0, 1)])
def test_noninteger_dims_raise(dim: Any) -> None:
    x = torch.randn(2, 3)
    for call in (tsallis.entmax, tsallis.functional.budgeted_entmax, tsallis.functional.normmax):
        with pytest.raises(TypeError, match=r"dim must be an integer, got "):
            call(x, dim=dim)
    for call in (tsallis.tsallis_entropy, tsallis.functional.escort):
        with pytest.raises(TypeError, match=r"dim must be an integer, got "):
            call(x.softmax(-1), 1.5, dim=dim)


def test_invalid_argument_types_and_values_raise() -> None:
    x, y = torch.randn(2, 3), torch.tensor([0, 1])
    wrong: list[tuple[type[Exception], Any, str]] = [
        (TypeError, lambda: tsallis.entmax_loss([[1.0, 2.0]], y), "scores must be a tensor, got list"),
        (TypeError, lambda: tsallis.entmax_loss(x, [0, 1]), "target must be a tensor, got list"),
        (TypeError, lambda: tsallis.entmax_attention(x[None], x[None], x[None], attn_mask=[1]), "attn_mask must be a"),
        (TypeError, lambda: tsallis.nn.MultiheadAttention(4, 2.0), r"num_heads must be a whole number, got 2\.0"),
        (TypeError, lambda: tsallis.nn.MultiheadAttention(4, True), "num_heads must be a whole number, got True"),
        (TypeError, lambda: tsallis.nn.MultiheadAttention(4, 2, dropout="x"), "dropout must be a number, got 'x'"),
        (TypeError, lambda: tsallis.nn.MultiheadAttention(4, 2, alpha=[1, 2]), r"number or a tensor, got \[1, 2"),
        (TypeError, lambda: tsallis.nn.PerHeadAlpha("2"), "num_heads must be a whole number, got '2'"),
        (ValueError, lambda: tsallis.entmax(x, 10**400), "alpha must be positive and finite, got inf"),
        (ValueError, lambda: tsallis.nn.MultiheadAttention(4, 2, dropout=1.5), "dropout must be from 0 to 1"),
        (ValueError, lambda: tsallis.nn.PerHeadAlpha(0), "num_heads must be at least 1, got 0"),
        (TypeError, lambda: tsallis.entmax(x, mask=[True]), "mask must be a tensor, got list"),
        (TypeError, lambda: tsallis.entmax_loss(x, y, weight=[1.0]), "weight must be a tensor, got list"),
        (TypeError, lambda: tsallis.linear_entmax_loss(x, x, [0, 1]), "target must be a tensor, got list"),
        (TypeError, lambda: tsallis.alpha_relu(x, tau="1"), "tau must be a number, got '1'"),
        (TypeError, lambda: tsallis.estimate_tau("a", 9), "d_model must be a whole number, got 'a'"),
        (TypeError, lambda: tsallis.estimate_tau(math.nan, 9), "d_model must be a whole number, got nan"),
        (ValueError, lambda: tsallis.estimate_tau(9, 1), "d_vocab must be at least 2, got 1"),
        (TypeError, lambda: tsallis.estimate_tau_from_scores([1.0]), "scores must be a tensor, got list"),
        (TypeError, lambda: tsallis.SparseRows.from_dense(torch.eye(3)).dense(3.5), "classes must be an integer, got"),
        (TypeError, lambda: tsallis.nn.Entmax(dim=1.0), r"dim must be an integer, got 1\.0"),
        (TypeError, lambda: tsallis.nn.OutputLayer(4.0, 5), r"d_model must be a whole number, got 4\.0"),
        (ValueError, lambda: tsallis.nn.OutputLayer(0, 5), "d_model must be at least 1, got 0"),
        (TypeError, lambda: tsallis.nn.GlobalAttention("4", 4), "d_query must be a whole number, got '4'"),
        (ValueError, lambda: tsallis.nn.GlobalAttention(4, 0), "d_memory must be at least 1, got 0"),
        (ValueError, lambda: tsallis.nn.LengthScale(0, 2), "embed_dim must be at least 1, got 0"),
        (TypeError, lambda: tsallis.nn.LengthScale(4, 2.0), r"num_heads must be a whole number, got 2\.0"),
    ]
    for kind, call, message in wrong:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_numbers_raise(value: float) -> None:
    x, y, q = torch.randn(2, 3), torch.tensor([0, 1]), torch.randn(2, 3, 4)
    calls: dict[str, Any] = {
        "scale": lambda: tsallis.entmax_attention(q, q, q, scale=value),
        "beta": lambda: tsallis.escort(x.softmax(-1), value),
        "tau": lambda: tsallis.alpha_relu(x, tau=value),
        "tau ": lambda: tsallis.alpha_relu_loss(x, y, tau=value),
        "tau  ": lambda: tsallis.linear_alpha_relu_loss(x, x, y, tau=value),
        "alpha": lambda: tsallis.entmax(x, value),
    }
    for backend in ("auto", "eager"):
        for name, call in calls.items():
            with tsallis.backend(backend), pytest.raises(ValueError, match=f"{name.strip()} must be .*finite, got"):
                call()
    with pytest.raises(ValueError, match="dropout_p must be between 0 and 1, got"):
        tsallis.entmax_attention(q, q, q, dropout_p=value)


def test_numbers_may_be_single_element_tensors() -> None:
    x, q = torch.randn(2, 3), torch.randn(2, 3, 4)
    pairs = [
        (tsallis.normmax(x, torch.tensor(2)), tsallis.normmax(x, 2.0)),
        (tsallis.alpha_relu(x, torch.tensor([1.25])), tsallis.alpha_relu(x, 1.25)),
        (tsallis.escort(x.softmax(-1), torch.tensor(0.5)), tsallis.escort(x.softmax(-1), 0.5)),
        (tsallis.budgeted_entmax(x, 1.5, torch.tensor(2)), tsallis.budgeted_entmax(x, 1.5, 2)),
        (tsallis.entmax_attention(q, q, q, scale=torch.tensor(0.5)), tsallis.entmax_attention(q, q, q, scale=0.5)),
    ]
    for result, expected in pairs:
        assert torch.equal(result, expected)
    learned = torch.tensor(2.0, requires_grad=True)
    for alpha in (learned, torch.tensor([2.0, 3.0]), torch.tensor(2.0, device="meta")):
        with pytest.raises(TypeError, match="alpha must be a number, or a tensor with one number"):
            tsallis.normmax(x, alpha)
    with pytest.raises(TypeError, match="alpha must be a number, or a tensor"):  # a traced graph would keep its value
        make_fx(lambda scores, alpha: tsallis.normmax(scores, alpha))(x, torch.tensor(2.0))


def _nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x], layout=torch.jagged)


@pytest.mark.parametrize("convert", [Tensor.to_sparse, _nested])
def test_sparse_and_nested_tensors_raise(convert: Any) -> None:
    x, y, q = torch.randn(2, 3), torch.tensor([0, 1]), torch.randn(2, 3, 4)
    mask, numbers, alphas = convert(torch.ones(3, 3).bool()), convert(torch.ones(3)), convert(torch.full((2,), 1.5))
    attend, linear, loss = tsallis.entmax_attention, tsallis.linear_entmax_loss, tsallis.entmax_loss
    mha = tsallis.nn.MultiheadAttention(4, 2, batch_first=True)
    calls: list[tuple[str, Any]] = [
        ("scores", lambda: tsallis.entmax(numbers)),
        ("alpha", lambda: tsallis.entmax(x, alphas)),
        ("mask", lambda: tsallis.entmax(x, mask=mask)),
        ("target", lambda: loss(x, convert(y))),
        ("target", lambda: loss(x, convert(x.softmax(-1)))),
        ("weight", lambda: loss(x, y, weight=numbers)),
        ("target", lambda: tsallis.alpha_relu_loss(x, convert(y))),
        ("tau", lambda: tsallis.alpha_relu(x, tau=numbers)),
        ("weight", lambda: linear(x, convert(x), y)),
        ("bias", lambda: linear(x, x, y, bias=alphas)),
        ("target", lambda: linear(x, x, convert(y))),
        ("attn_mask", lambda: attend(q, q, q, attn_mask=mask)),
        ("slopes", lambda: attend(q, q, q, slopes=alphas)),
        ("key_lengths", lambda: attend(q[None], q[None], q[None], key_lengths=convert(torch.tensor([3])))),
        ("attn_mask", lambda: mha(q, q, q, attn_mask=mask)),
        ("key_padding_mask", lambda: mha(q, q, q, key_padding_mask=mask)),
        ("key_lengths", lambda: mha(q, q, q, key_lengths=convert(torch.tensor([3, 2])))),
        ("mask", lambda: tsallis.nn.GlobalAttention(3, 4)(x, q, mask)),
        ("alpha", lambda: tsallis.distributions.EntmaxCategorical(x, alphas)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=f"^{name} must be a dense tensor, got "):
            call()


LOSSES: dict[str, Callable[..., Any]] = {
    "entmax_loss": tsallis.entmax_loss,
    "alpha_relu_loss": tsallis.alpha_relu_loss,
    "linear_entmax_loss": lambda x, target, **options: tsallis.linear_entmax_loss(x, x, target, **options),
    "linear_alpha_relu_loss": lambda x, target, **options: tsallis.linear_alpha_relu_loss(x, x, target, **options),
    "OutputLayer": lambda x, target, **options: OutputLayer(3, 5).loss(x, target, **options),
    "EntmaxLoss": lambda x, target, **options: EntmaxLoss(**options)(x, target),
    "compat": lambda x, target, **options: SparsemaxLoss(**options)(x, target),
}
BAD_INTEGERS = ["1", 1.0, True, None, 1j, torch.tensor([1, 2])]


@pytest.mark.parametrize("name", LOSSES)
def test_complex_targets_and_noninteger_ignore_index_raise(name: str) -> None:
    x, target = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(TypeError, match=r"class targets must contain integers, got torch\.complex64"):
        LOSSES[name](x, target.to(torch.complex64))
    for value in BAD_INTEGERS:
        with pytest.raises(TypeError, match=f"ignore_index must be an integer, got {re.escape(repr(value))}"):
            LOSSES[name](x, target, ignore_index=value)
    assert LOSSES[name](x, target, ignore_index=np.int64(1)).isfinite()


def test_noninteger_query_offset_and_key_lengths_raise() -> None:
    query = torch.randn(1, 2, 3, 4)
    for value in BAD_INTEGERS:
        with pytest.raises(TypeError, match=f"query_offset must be an integer, got {re.escape(repr(value))}"):
            tsallis.entmax_attention(query, query, query, query_offset=value, is_causal=True)
    with pytest.raises(TypeError, match=r"key_lengths must contain integers, got torch\.complex64"):
        tsallis.entmax_attention(query, query, query, key_lengths=torch.tensor([1j]))


def test_errors_of_masks_other_than_their_shape_are_not_renamed() -> None:
    with pytest.raises(ValueError, match="mask must be on the device of scores, meta, got cpu"):
        tsallis.entmax(torch.zeros(3, 4, device="meta"), mask=torch.ones(3, 4, dtype=torch.bool))


@pytest.mark.parametrize("sparse", [False, True])
def test_alpha_can_be_learned_on_scores_of_inference_mode(sparse: bool) -> None:
    with torch.inference_mode():
        scores, hidden, weight = torch.randn(4, 6), torch.randn(4, 3), torch.randn(6, 3)
    alpha, bias = torch.nn.Parameter(torch.tensor([1.5])), torch.nn.Parameter(torch.zeros(6))
    target: Any = torch.tensor([0, 1, 2, 3])
    if sparse:
        target = tsallis.SparseRows.from_dense(torch.eye(6)[target])
    loss = tsallis.entmax_loss(scores, target, alpha) + tsallis.linear_entmax_loss(hidden, weight, target, bias=bias)
    loss.backward()
    assert alpha.grad is not None and bias.grad is not None and bias.grad.abs().sum() > 0
