"""Tests of length scaling: score factors that grow with the number of visible keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.nn import LengthScale, MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer

EMBED, HEADS, LENGTH = 8, 4, 6
KINDS = ["input", "head", "ssmax"]


def attention_of(scale: Any, **options: Any) -> MultiheadAttention:
    torch.manual_seed(3)
    return MultiheadAttention(EMBED, HEADS, batch_first=True, length_scale=scale, **options).double()


def random_scale(kind: Any) -> LengthScale:
    torch.manual_seed(5)
    scale = LengthScale(EMBED, HEADS, kind)
    for parameter in scale.parameters():
        nn.init.normal_(parameter)
    return scale


def factors(scale: LengthScale, x: Tensor, counts: Tensor) -> Tensor:
    """Compute the factors by their formulas, query by query; counts are [batch, queries]."""
    result = torch.empty(len(x), HEADS, x.shape[1], dtype=x.dtype)
    for b in range(len(x)):
        for h in range(HEADS):
            for i in range(x.shape[1]):
                n = counts[b, i].to(x.dtype)
                if scale.gamma is None:
                    result[b, h, i] = scale.beta[h] * n.log()
                    continue
                by_input = scale.kind == "input"
                beta = scale.beta[h] @ x[b, i] if by_input else scale.beta[h]
                gamma = scale.gamma[h] @ x[b, i] if by_input else scale.gamma[h]
                result[b, h, i] = 1 + (1 + beta.exp()).log() * (n + 1).log() ** (2 * gamma.tanh())
    return result.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_factors_match_their_formulas(kind: str) -> None:
    scale, x = random_scale(kind).double(), torch.randn(2, 3, EMBED, dtype=torch.float64)
    counts = torch.tensor([[1, 2, 3], [5, 70_000, 4]])
    result = scale(x, counts.unsqueeze(1))
    assert result.shape == (2, HEADS, 3, 1)
    torch.testing.assert_close(result.squeeze(-1), factors(scale, x, counts))


def visible_keys(causal: bool, lengths: Tensor, mask: Tensor | None) -> Tensor:
    """Return whether each query may see each key, [batch, queries, keys]."""
    visible = (torch.arange(LENGTH) < lengths.view(-1, 1, 1)).expand(-1, LENGTH, -1)
    if causal:
        visible = visible & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return visible if mask is None else visible & ~mask


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("how", ["lengths", "padding", "none"])
def test_factors_use_the_number_of_visible_keys(kind: str, causal: bool, masked: bool, how: str) -> None:
    attention, plain = attention_of(random_scale(kind)), attention_of(None)
    plain.load_state_dict({n: x for n, x in attention.state_dict().items() if "length_scale" not in n})
    x = torch.randn(2, LENGTH, EMBED, dtype=torch.float64)
    lengths = torch.tensor([LENGTH, LENGTH if how == "none" else 3])
    mask = torch.rand(LENGTH, LENGTH) < 0.3 if masked else None
    options: dict[str, Any] = {"attn_mask": mask, "is_causal": causal}
    if how == "lengths":
        options["key_lengths"] = lengths
    elif how == "padding":
        options["key_padding_mask"] = torch.arange(LENGTH) >= lengths.unsqueeze(1)
    counts = visible_keys(causal, lengths, mask).sum(-1).clamp(min=1)
    scale = attention.length_scale
    # Apply the factor to the query projection, one query and one head at a time.
    result, _ = attention(x, x, x, **options)
    expected = torch.empty_like(result)
    of_queries = factors(scale, x, counts)  # [batch, heads, queries]
    for b in range(2):
        for i in range(LENGTH):
            one = copy.deepcopy(plain)
            with torch.no_grad():
                by = of_queries[b, :, i].repeat_interleave(EMBED // HEADS)
                one.in_proj_weight[:EMBED] *= by.unsqueeze(1)
                one.in_proj_bias[:EMBED] *= by
            expected[b, i] = one(x, x, x, **options)[0][b, i]
    torch.testing.assert_close(result, expected)


def test_a_query_without_keys_has_finite_gradients() -> None:
    attention, x = attention_of("input"), torch.randn(1, 3, EMBED, dtype=torch.float64, requires_grad=True)
    out, _ = attention(x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.bool))
    grads = torch.autograd.grad(out.sum(), [x, *attention.parameters()], allow_unused=True)
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads if g is not None)


def test_nape_scales_only_heads_without_slopes() -> None:
    attention = attention_of("ssmax", positions="nape")
    x = torch.randn(1, LENGTH, EMBED, dtype=torch.float64)
    _, before = attention(x, x, x, average_attn_weights=False)
    with torch.no_grad():
        attention.length_scale.beta += 1
    _, after = attention(x, x, x, average_attn_weights=False)
    same = [torch.equal(before[:, h], after[:, h]) for h in range(HEADS)]
    assert same == [False, False, True, True]


@pytest.mark.parametrize("layer", [TransformerEncoderLayer, TransformerDecoderLayer])
def test_layers_scale_only_self_attention(layer: type[nn.Module]) -> None:
    built = layer(EMBED, HEADS, positions="rope", length_scale="head")
    assert built.self_attn.length_scale.kind == "head" and built.self_attn.positions == "rope"
    cross = getattr(built, "multihead_attn", None)
    assert cross is None or (cross.length_scale is None and cross.positions == "none")


@pytest.mark.parametrize("kind", KINDS)
def test_float16_supports_key_counts_above_its_maximum(kind: str) -> None:
    scale, x, visible = random_scale(kind), torch.randn(2, 3, EMBED), torch.tensor(70_000)
    expected, half = scale(x, visible), scale.half()(x.half(), visible)
    torch.testing.assert_close(half.float(), expected, rtol=0.02, atol=0.02)
