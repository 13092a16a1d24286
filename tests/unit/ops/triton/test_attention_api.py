"""Tests of `entmax_attention` and the module with Triton's kernels, also decoding and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from triton_attention import arguments, check, close, gpu_attention, launching, small_blocks, tensors
from triton_interpreter import DEVICE, watch_launches
from tsallis.functional.attention import attend
from tsallis.ops.triton.attention import decode as attention_decode

Limits, ShortTiling, Tiling = launching.Limits, launching.ShortTiling, launching.Tiling
ALPHAS = torch.tensor([1.0, 1.3, 1.5, 2.0])


def decode(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    args = gpu_attention.resolve(arguments(*inputs, **options))
    output = args.query.new_empty(*args.query.shape[:-1], args.value.shape[-1])
    support = torch.empty(args.query.shape[:-1], dtype=torch.int32, device=DEVICE)
    attention_decode.decode(launching.Launch(args), output, support)
    return output, support


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Use small blocks, treat rows of up to 16 keys as short, and return the names of launched kernels."""
    small_blocks(monkeypatch)
    monkeypatch.setattr(launching, "short_tiling", lambda *n: ShortTiling(16, 16, 1, 4) if n[3] <= 16 else None)
    monkeypatch.setattr(gpu_attention, "SHORT_KEYS", 16)
    monkeypatch.setattr(attention_decode, "decode_tiling", lambda *_: Tiling(16, 16, 4, 1))
    monkeypatch.setattr(attention_decode, "processors", lambda _: 2)
    monkeypatch.setattr(attention_decode, "LIMITS", Limits(40, 32, 2))
    names: list[str] = []
    watch_launches(monkeypatch, launching, lambda name, *_: names.append(name))
    return names


def on_device(*inputs: Tensor) -> list[Tensor]:
    return [x.to(DEVICE) for x in inputs]


DECODING = ["decode_scores", "decode_thresholds", "decode_output", "decode_sum"]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (1, 129), (3, 133)])
def test_decoding_matches_float64(queries: int, keys: int, launched: list[str]) -> None:
    check(tensors(2, 4, queries, keys, key_heads=2, size=20, value_size=24), ALPHAS[None], compute=decode)
    assert launched == DECODING[: 3 if keys <= 16 else 4]


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_decoding_with_one_alpha_matches_float64(alpha: float) -> None:
    check(tensors(1, 1, 1, 140), alpha, compute=decode)
    query, key, value = tensors(1, 2, 2, 65)
    check((query * 0, key, value), alpha, compute=decode)
    key[..., 0] += 100
    check((query, key, value), alpha, compute=decode, output=2e-4)


@pytest.mark.parametrize("boolean", [False, True])
def test_decoding_with_masks_and_lengths_matches_float64(boolean: bool) -> None:
    mask = torch.rand(3, 2, 3, 65) > 0.3
    mask[0, 0, 1] = False
    if not boolean:
        mask = torch.where(mask, torch.randn(mask.shape), -torch.inf)
    check(tensors(3, 2, 3, 65, key_heads=1), ALPHAS[None, 1:3], mask, compute=decode, lengths=torch.tensor([65, 0, 18]))
    check(tensors(1, 2, 3, 65), 1.5, mask[:1, :1, :1], compute=decode, causal=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decoding_in_half_precision_matches_float64(dtype: torch.dtype) -> None:
    inputs = tuple(x.to(dtype) for x in tensors(1, 4, 1, 65, key_heads=2))
    check(inputs, ALPHAS[None], compute=decode, output=1e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_decoding_non_finite_queries_affect_only_their_row(bad: float) -> None:
    query, key, value = tensors(1, 2, 3, 65, key_heads=1)
    expected, _ = decode(query, key, value, 1.5)
    query[0, 1, 1, 0] = bad
    key[..., 60:, :] = value[..., 60:, :] = torch.nan
    output, _ = decode(query, key, value, 1.5, lengths=(60,))
    whole = torch.ones(2, 3, dtype=torch.bool)
    whole[1, 1] = False
    assert output[0, 1, 1].isnan().all()
    assert output[0][whole].isfinite().all() and expected.isfinite().all()


def test_decoding_reads_values_only_in_blocks_with_support() -> None:
    query, key, value = tensors(1, 1, 1, 160)
    key[..., :16] = 0
    key[..., 40:45, :] = query * 3
    actual, count = decode(query, key, value, 1.5, scale=1.0)
    value[..., :32, :] = value[..., 48:, :] = torch.nan
    again, _ = decode(query, key, value, 1.5, scale=1.0)
    assert count == 5 and torch.equal(actual, again)


CALLS: list[dict[str, Any]] = [
    {},
    {"is_causal": True, "attn_mask": torch.randn(4, 9, 21)},
    {"key_lengths": torch.tensor([21, 4]), "attn_mask": torch.rand(2, 1, 1, 21) > 0.2},
    {"key_lengths": [0, 13], "scale": -0.3},
]


@pytest.mark.parametrize(
    ("call", "keys"),
    [(CALLS[0], 21), (CALLS[1], 16), (CALLS[1], 21), (CALLS[2], 16), (CALLS[2], 21), (CALLS[3], 16)],
    ids=["plain", "causal and short", "causal", "lengths and short", "lengths", "none and short"],
)
def test_entmax_attention_matches_eager(keys: int, call: dict[str, Any], triton: None, launched: list[str]) -> None:
    call = {name: x[..., :keys] if name == "attn_mask" else x for name, x in call.items()}
    if "key_lengths" in call:
        call["key_lengths"] = torch.as_tensor(call["key_lengths"]).clamp(max=keys)
    call = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in call.items()}
    query, key, value = on_device(*tensors(2, 4, 9, keys, key_heads=2))
    leaves = [x.requires_grad_() for x in (query, key, value, ALPHAS.to(DEVICE, copy=True))]
    actual = attend(*leaves, enable_gqa=True, **call)
    assert launched == ["forward_short" if keys <= 16 else "forward"]
    assert actual.weights is None and actual.support.dtype == torch.int32
    gradients = torch.autograd.grad(actual.output.square().sum(), leaves)
    with tsallis.backend("eager"):
        exact = [x.detach().double().requires_grad_() for x in leaves]
        call = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in call.items()}
        right = attend(*exact, enable_gqa=True, need_weights=True, **call)
    assert torch.equal(actual.support, (right.weights > 0).sum(-1).int())
    close(actual.output, right.output, 1e-5)
    for mine, theirs in zip(gradients, torch.autograd.grad(right.output.square().sum(), exact), strict=True):
        close(mine, theirs, 1e-4)


def test_bfloat16_inputs_give_bfloat16_outputs(triton: None, launched: list[str]) -> None:
    query, key, value = on_device(*(x.bfloat16() for x in tensors(1, 4, 3, 33)))
    actual = tsallis.entmax_attention(query, key, value, ALPHAS.to(DEVICE))
    assert actual.dtype == torch.bfloat16 and launched == DECODING
    with tsallis.backend("eager"):
        exact = tsallis.entmax_attention(query.double(), key.double(), value.double(), ALPHAS.to(DEVICE))
    close(actual, exact, 2e-2)


def test_unsupported_calls_do_not_use_the_kernels(triton: None, launched: list[str]) -> None:
    query, key, value = on_device(*tensors(1, 4, 3, 9))
    double = [x.double() for x in (query, key, value)]
    above = torch.tensor([1.5, 1.5, 1.5, 2.5], device=DEVICE)
    for inputs in ((*double, 1.5), (query, key, value, 2.5), (query, key, value, above)):
        expected = tsallis.entmax_attention(*double, inputs[3])
        close(tsallis.entmax_attention(*inputs), expected, 1e-5)
    tsallis.entmax_attention(query, key, value, return_weights=True)
    torch.func.grad(lambda q: tsallis.entmax_attention(q, key, value).sum())(query)
    with tsallis.backend("eager"):
        tsallis.entmax_attention(query, key, value)
    assert tsallis.entmax_attention(query[:, :, :0], key, value).shape == (1, 4, 0, 16)
    assert not launched
    with pytest.raises(ValueError, match="alpha"):
        tsallis.entmax_attention(query, key, value, ALPHAS.to(DEVICE) - 0.5)
    with pytest.raises(ValueError, match="key_lengths must be from 0 to"):
        tsallis.entmax_attention(query, key, value, key_lengths=[10])


def test_dropout_is_reproducible_with_a_seed(triton: None) -> None:
    query, key, value = on_device(*tensors(1, 1, 3, 9))
    actual = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        actual.append(tsallis.entmax_attention(query, key, value, 1.2, dropout_p=0.5))
    assert torch.equal(actual[0], actual[1]) and not torch.equal(actual[0], actual[2])


def test_multihead_attention_decodes_with_a_cache(triton: None, launched: list[str]) -> None:
    module = tsallis.nn.MultiheadAttention(32, 4, batch_first=True, alpha="learned").to(DEVICE).eval()
    x = torch.randn(2, 21, 32, device=DEVICE)
    with torch.no_grad():
        with tsallis.backend("eager"):
            expected, _ = module(x, x, x, need_weights=False, is_causal=True)
            support = module.support()
        cache = tsallis.nn.KeyValueCache()
        first, _ = module(x[:, :19], x[:, :19], x[:, :19], need_weights=False, is_causal=True, cache=cache)
        launched.clear()
        steps = [module(x[:, n : n + 1], *[x[:, n : n + 1]] * 2, need_weights=False, cache=cache)[0] for n in (19, 20)]
        assert launched == 2 * DECODING[:3]  # so few keys need a single split
    close(torch.cat([first, *steps], 1), expected.double(), 1e-5)
    assert torch.equal(module.support(), support[..., -1:])
    assert module.stats().support.shape == (4,)


@pytest.mark.parametrize("keys", [9, pytest.param(21, marks=pytest.mark.slow)])
def test_compiled_attention_matches_eager(keys: int, triton: None, launched: list[str]) -> None:
    query, key, value = on_device(*tensors(2, 4, 7, keys, key_heads=2))
    mask, lengths = torch.randn(7, keys, device=DEVICE), torch.tensor([keys, 3], device=DEVICE)
    leaves = [x.requires_grad_() for x in (query, key, value, ALPHAS.to(DEVICE, copy=True), mask)]

    def function(*inputs: Tensor) -> Tensor:
        options = {"attn_mask": inputs[4], "key_lengths": lengths, "enable_gqa": True}
        return tsallis.entmax_attention(*inputs[:4], **options)  # type: ignore[return-value, arg-type]

    direct = function(*leaves)
    expected = torch.autograd.grad(direct.square().sum(), leaves)
    kernels = launched.copy()
    launched.clear()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    output = compiled(*leaves)
    actual = torch.autograd.grad(output.square().sum(), leaves)
    assert launched == kernels and torch.equal(output, direct)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), direct.detach(), rtol=1e-5, atol=1e-6)


def test_compiled_dropout_supports_backward_and_large_alphas(triton: None) -> None:
    query, key, _ = (x.requires_grad_() for x in on_device(*tensors(1, 1, 5, 9)))
    ones = torch.eye(9, device=DEVICE)[None, None].requires_grad_()  # the output is the weights after dropout

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(query: Tensor, value: Tensor, alpha: Tensor) -> Tensor:
        return tsallis.entmax_attention(query, key, value, alpha, dropout_p=0.5)  # type: ignore[return-value]

    torch._dynamo.reset()
    output = function(query, ones, torch.tensor([1.2], device=DEVICE))
    (gradient,) = torch.autograd.grad(output.sum(), ones)
    torch.testing.assert_close(gradient[..., 0], output.sum(-2))
    other = function(query, ones, torch.tensor([1.2], device=DEVICE))
    assert not torch.equal(output, other)
    large = torch.tensor([2.5], device=DEVICE)  # the kernels do not support this alpha: PyTorch's operations run
    weights = function(query, ones, large)
    expected = tsallis.entmax_attention(query, key, ones, large)
    torch.testing.assert_close(weights[weights > 0], 2 * expected[weights > 0])
