"""Tests of global attention: scores, mappings to probabilities, masks, and one or many steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tsallis
from tsallis.nn import GlobalAttention

MAPS = [("softmax", 1.0), ("sparsemax", 2.0), ("entmax", 1.5), ("entmax", 1.25)]
every_map = pytest.mark.parametrize(("transform", "alpha"), MAPS)


def inputs(src: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(3, 4, generator=generator, dtype=torch.float64) * 3
    memory = torch.randn(3, src, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(src) < torch.tensor([[src], [4], [1]])
    return query, memory, mask


def formula(attention: GlobalAttention, query: Tensor, state: Tensor) -> Tensor:
    """Return the score of one state."""
    if attention.scorer == "bilinear":
        return query @ attention.bilinear.weight @ state
    hidden = attention.by_memory.weight @ state + attention.by_query.weight @ query + attention.by_query.bias
    return attention.score.weight[0] @ torch.tanh(hidden)


@every_map
@pytest.mark.parametrize("scorer", ["bilinear", "additive"])
def test_attention_matches_the_formula_per_row(transform: str, alpha: float, scorer: str) -> None:
    attention = GlobalAttention(4, 6, transform, alpha, scorer=scorer).double()
    query, memory, mask = inputs()
    queries = torch.stack([query, -query], 1)
    contexts, weights = attention(queries, memory, mask)
    for row in range(3):
        own = memory[row, mask[row]]
        for step in range(2):
            expected = tsallis.entmax(torch.stack([formula(attention, queries[row, step], h) for h in own]), alpha)
            torch.testing.assert_close(weights[row, step, mask[row]], expected)
            torch.testing.assert_close(contexts[row, step], expected @ own)
        assert (weights[row, :, ~mask[row]] == 0).all()
    one, of_one = attention(query, memory, mask, attention.keys(memory))
    torch.testing.assert_close((one, of_one), (contexts[:, 0], weights[:, 0]))


def test_precomputed_keys_match_and_are_not_recomputed() -> None:
    attention = GlobalAttention(4, 6).double()
    query, memory, mask = inputs()
    keys = attention.keys(memory)
    assert keys.shape == (3, 7, 4)
    for arguments, computed in zip(attention(query, memory, mask, keys), attention(query, memory, mask), strict=True):
        assert arguments.equal(computed)
    called = []
    attention.bilinear.register_forward_hook(lambda *_: called.append(1))
    attention(query, memory, mask, keys)
    assert called == []


def test_masked_memory_has_no_effect_and_no_gradient() -> None:
    attention = GlobalAttention(4, 6).double()
    query, memory, mask = inputs()
    memory.requires_grad_()
    context, weights = attention(query, memory, mask)
    changed = torch.where(mask.unsqueeze(2), memory, 1e6)
    torch.testing.assert_close(attention(query, changed, mask)[0], context)
    (context.sum() + weights.square().sum()).backward()
    assert (memory.grad[~mask] == 0).all() and (memory.grad[mask] != 0).any()


def test_fully_masked_rows_have_zero_context_and_weights() -> None:
    attention = GlobalAttention(4, 6)
    context, weights = attention(torch.randn(1, 4), torch.randn(1, 3, 6), torch.zeros(1, 3, dtype=torch.bool))
    assert (context == 0).all() and (weights == 0).all()
    context.sum().backward()
    assert (attention.bilinear.weight.grad == 0).all()


def test_invalid_masks_raise() -> None:
    attention, state, memory = GlobalAttention(4, 6), torch.randn(1, 4), torch.randn(1, 3, 6)
    with pytest.raises(TypeError, match=r"mask must be boolean .* got torch\.float32"):
        attention(state, memory, torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"mask must have the shape \(1, 3\) of the memory, got \(2, 3\)"):
        attention(state, memory, torch.ones(2, 3, dtype=torch.bool))
