"""Tests of stored keys and values for decoding, and of their errors."""

from __future__ import annotations

import pytest
import torch

import tsallis
from tsallis.nn import KeyValueCache, MultiheadAttention, ScreenedKeys
from tsallis.ops.choice import choose_screening


def store(keys: int = 3000, dtype: torch.dtype = torch.float32) -> ScreenedKeys:
    torch.manual_seed(0)
    return ScreenedKeys(*torch.randn(2, 1, 2, keys, 8).to(dtype).unbind())


@pytest.mark.parametrize("keys", [1, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 9])
def test_screened_keys_match_dense_attention_in_every_dtype(dtype: torch.dtype, keys: int, queries: int) -> None:
    one = store(keys, dtype)
    query = torch.randn(1, 2, queries, 8).to(dtype)
    out = tsallis.entmax_attention(query, one)
    assert out.dtype == dtype
    wanted = tsallis.entmax_attention(query.to(one.read()[0].dtype), *one.read())
    torch.testing.assert_close(out, wanted.to(dtype))


@pytest.mark.parametrize("options", [{"return_weights": True}, {"dropout_p": 1.0}])
def test_weights_and_dropout_are_computed_from_all_keys(options: dict[str, object]) -> None:
    one, query = store(), torch.randn(1, 2, 1, 8)
    out = tsallis.entmax_attention(query, one, **options)
    torch.testing.assert_close(out, tsallis.entmax_attention(query, *one.read(), **options))


def test_compile_and_vmap_use_all_keys() -> None:
    one, query = store(), torch.randn(1, 2, 1, 8)
    wanted = tsallis.entmax_attention(query, *one.read())
    compiled = torch.compile(lambda q: tsallis.entmax_attention(q, one), backend="eager")
    torch.testing.assert_close(compiled(query), wanted)
    mapped = torch.vmap(lambda q: tsallis.entmax_attention(q, one))(query[None])
    torch.testing.assert_close(mapped[0], wanted)


def test_store_copies_the_given_tensors() -> None:
    key, value, query = torch.randn(1, 2, 3000, 8), torch.randn(1, 2, 3000, 8), torch.randn(1, 2, 1, 8)
    one = ScreenedKeys(key, value)
    wanted = tsallis.entmax_attention(query, one)
    key.zero_()
    value.zero_()
    assert torch.equal(tsallis.entmax_attention(query, one), wanted)


def test_gradients_raise() -> None:
    one, query = store(), torch.randn(1, 2, 1, 8)
    for inputs in ({"query": query.clone().requires_grad_()}, {"slopes": torch.ones(2, requires_grad=True)}):
        with pytest.raises(ValueError, match=r"gradients.*no_grad"):
            tsallis.entmax_attention(**{"query": query, "key": one, **inputs})
    with pytest.raises(ValueError, match=r"gradients.*no_grad"):
        tsallis.entmax_attention(query, one, alpha=torch.tensor([1.5, 1.2], requires_grad=True))
    with pytest.raises(ValueError, match=r"gradients.*no_grad"):
        one.append(torch.randn(1, 2, 1, 8, requires_grad=True), torch.randn(1, 2, 1, 8))
    with torch.no_grad():
        tsallis.entmax_attention(query.requires_grad_(), one)


def test_invalid_inputs_raise() -> None:
    one, query = store(), torch.randn(1, 2, 1, 8)
    with pytest.raises(TypeError, match="value must be None"):
        tsallis.entmax_attention(query, one, query)
    with pytest.raises(TypeError, match=r"float32.*float64"):
        tsallis.entmax_attention(query.double(), one)
    with pytest.raises(TypeError, match=r"float32.*float64"):
        one.append(query.double(), query.double())
    with pytest.raises(ValueError, match="empty"):
        tsallis.entmax_attention(query, ScreenedKeys())
    with pytest.raises(TypeError, match="value"):
        tsallis.entmax_attention(query, query)


@pytest.mark.parametrize("options", [{}, {"positions": "alibi"}, {"num_kv_heads": 1}, {"add_bias_kv": True}])
@torch.no_grad()
def test_multihead_attention_decodes_with_screened_keys(options: dict[str, object]) -> None:
    attention = MultiheadAttention(16, 2, batch_first=True, alpha=1.5, **options).eval()
    prompt = torch.randn(2, 2100, 16)
    caches = (KeyValueCache(), ScreenedKeys())
    for cache in caches:
        attention(prompt, prompt, prompt, cache=cache, need_weights=False, is_causal=True)
    for step in torch.randn(5, 2, 1, 16):
        wanted, out = (attention(step, step, step, cache=cache, need_weights=False)[0] for cache in caches)
        torch.testing.assert_close(out, wanted)
    assert len(caches[1]) == 2105
    scanned = choose_screening("cpu") is not None and "add_bias_kv" not in options
    assert (caches[1].rows is not None) == scanned


def test_missing_keys_or_values_and_other_dtypes_raise() -> None:
    key = torch.randn(1, 1, 4, 8)
    for pair in ((key, None), (None, key)):
        with pytest.raises(ValueError, match="key and value must both be given"):
            ScreenedKeys(*pair)
    for store in (ScreenedKeys(key, key), KeyValueCache()):
        store.append(key, key)
        for keys, values, name in ((key.double(), key, "keys"), (key, key.double(), "values")):
            with pytest.raises(TypeError, match=rf"{name} must have the dtype of the stored .*float32, got .*float64"):
                store.append(keys, values)
        assert len(store) in (4, 8)
    for make in (ScreenedKeys(), KeyValueCache()):
        with pytest.raises(TypeError, match="keys must be floating point"):
            make.append(key.long(), key.long())
