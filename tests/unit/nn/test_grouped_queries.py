"""Tests of grouped queries: heads that share keys and values match heads with equal projections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pairs import every_pair
from tsallis.models.transformer.compiled import _attention
from tsallis.nn import KeyValueCache, MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer

BATCH, LENGTH, EMBED, HEADS, SIZE = 2, 7, 12, 6, 2
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "rope", "length_scale": "ssmax"},
    {"positions": "nape", "length_scale": "input", "bias": False},
    {"positions": "alibi"},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 5, "vdim": 3},
]


def grouped(kv_heads: int, **options: Any) -> MultiheadAttention:
    torch.manual_seed(1)
    attention = MultiheadAttention(EMBED, HEADS, batch_first=True, num_kv_heads=kv_heads, **options).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return attention


def repeat_heads(x: Tensor, kv_heads: int) -> Tensor:
    """Return rows [key heads * size, ...] in which the rows of each key head are repeated for its query heads."""
    return x.unflatten(0, (kv_heads, SIZE)).repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)


def expanded_state(attention: MultiheadAttention) -> dict[str, Tensor]:
    """Return the state of an attention with separate keys and values per head, equal within each group."""
    state, count = dict(attention.named_parameters()), attention.num_kv_heads
    width = count * SIZE
    for name in ("in_proj_weight", "in_proj_bias"):
        if name in state:
            q, k, v = state[name].split((EMBED, width, width))
            state[name] = torch.cat([q, repeat_heads(k, count), repeat_heads(v, count)])
    for name in ("k_proj_weight", "v_proj_weight"):
        if name in state:
            state[name] = repeat_heads(state[name], count)
    for name in ("bias_k", "bias_v"):
        if name in state:
            state[name] = repeat_heads(state[name].flatten(), count).view(1, 1, -1)
    return state


def inputs(variant: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(BATCH, LENGTH, EMBED, dtype=torch.float64)
    if "kdim" not in variant:
        return x, x, x
    return x, torch.randn(BATCH, LENGTH, variant["kdim"]).double(), torch.randn(BATCH, LENGTH, variant["vdim"]).double()


@every_pair(
    kv_heads=[1, 2, 3], variant=VARIANTS, alpha=[1.0, 1.5, "learned"], causal=[False, True], weights=[False, True]
)
def test_grouped_attention_matches_repeated_heads(
    kv_heads: int, variant: dict[str, Any], alpha: Any, causal: bool, weights: bool
) -> None:
    attention = grouped(kv_heads, alpha=alpha, **variant)
    other = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=alpha, **variant).double()
    query, key, value = inputs(variant)
    padding = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [4]])
    options = {"key_padding_mask": padding, "is_causal": causal, "need_weights": weights}
    result = attention(query, key, value, average_attn_weights=False, **options)
    expected = torch.func.functional_call(
        other, expanded_state(attention), (query, key, value), {"average_attn_weights": False, **options}
    )
    torch.testing.assert_close(result, expected)
    parameters = [*attention.parameters()]
    factors = torch.randn_like(result[0])
    grads, of_other = (
        torch.autograd.grad((x[0] * factors).sum(), parameters, allow_unused=True) for x in (result, expected)
    )
    torch.testing.assert_close(grads, of_other)


@pytest.mark.parametrize("variant", VARIANTS[:5], ids=str)
def test_cache_stores_only_the_shared_heads(variant: dict[str, Any]) -> None:
    attention = grouped(2, **variant)
    x = torch.randn(BATCH, LENGTH, EMBED, dtype=torch.float64)
    full, _ = attention(x, x, x, need_weights=False, is_causal=True)
    cache, parts = KeyValueCache(), []
    with torch.no_grad():
        for some in x.split([3, 1, 1, 2], 1):
            parts.append(attention(some, some, some, need_weights=False, is_causal=True, cache=cache)[0])
    torch.testing.assert_close(torch.cat(parts, 1), full)
    assert cache.read()[0].shape == (BATCH, 2, LENGTH, SIZE)
    assert attention.support().shape == (BATCH, HEADS, 2)


@pytest.mark.parametrize("layer", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_layers_group_only_self_attention(layer: type[nn.Module]) -> None:
    built = layer(EMBED, HEADS, num_kv_heads=2)
    assert built.self_attn.num_kv_heads == 2 and "num_kv_heads=2" in repr(built.self_attn)
    cross = getattr(built, "multihead_attn", None)
    assert cross is None or cross.num_kv_heads == HEADS


def test_whole_layer_kernels_do_not_support_groups() -> None:
    norm = nn.LayerNorm(EMBED).eval()
    assert _attention(MultiheadAttention(EMBED, HEADS).eval(), norm) is not None
    assert _attention(MultiheadAttention(EMBED, HEADS, num_kv_heads=2).eval(), norm) is None
