"""Tests of position encodings in attention: slopes and rotations depend only on distances."""

from __future__ import annotations

import pytest
import torch

from tsallis import entmax_attention
from tsallis.nn import KeyValueCache, MultiheadAttention
from tsallis.nn.positions import RotaryPositions, head_slopes

EMBED, HEADS = 16, 4


def test_head_slopes_match_their_formulas() -> None:
    assert head_slopes("none", 4) is None and head_slopes("rope", 4) is None
    torch.testing.assert_close(head_slopes("alibi", 8), torch.tensor([2.0**-h for h in range(1, 9)]))
    torch.testing.assert_close(head_slopes("nape", 5), torch.tensor([0, 0, 1, 1 / 2, 1 / 3]))


def test_rotary_scores_depend_only_on_distance() -> None:
    rotary, (q, k) = RotaryPositions(8), torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    scores = [(rotary(q, 3 + first) * rotary(k, first)).sum() for first in (0, 5, 400)]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3))
    assert not torch.isclose(scores[0], (q * k).sum())
    torch.testing.assert_close(rotary(q, 7).norm(), q.norm())


def test_rotary_positions_may_differ_per_row() -> None:
    rotary, x = RotaryPositions(8), torch.randn(3, 2, 1, 8)
    result = rotary(x, torch.tensor([4, 0, 9]))
    for row, first in enumerate((4, 0, 9)):
        torch.testing.assert_close(result[row : row + 1], rotary(x[row : row + 1], first))


@pytest.mark.parametrize("positions", ["alibi", "nape"])
@pytest.mark.parametrize("causal", [False, True])
def test_module_slopes_match_biased_entmax_attention(positions: str, causal: bool) -> None:
    attention = MultiheadAttention(EMBED, HEADS, batch_first=True, positions=positions).double()  # type: ignore[arg-type]
    x = torch.randn(2, 9, EMBED, dtype=torch.float64)
    out, _ = attention(x, x, x, need_weights=False, is_causal=causal)
    q, k, v = attention._project(x, x, x)
    far = (torch.arange(9).unsqueeze(1) - torch.arange(9)).abs()
    slopes = head_slopes(positions, HEADS)
    bias = -slopes.double().view(HEADS, 1, 1) * far
    expected = entmax_attention(q, k, v, attn_mask=bias, is_causal=causal)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(out, attention.out_proj(expected.transpose(1, 2).flatten(2)))


def test_cache_stores_the_largest_key_norms() -> None:
    attention, cache = MultiheadAttention(EMBED, HEADS, batch_first=True, positions="alibi"), KeyValueCache()
    x = torch.randn(2, 300, EMBED)
    with torch.no_grad():
        full, _ = attention(x, x, x, need_weights=False, is_causal=True)
        for some in x.split([290, 4, 6], 1):
            out, _ = attention(some, some, some, need_weights=False, is_causal=True, cache=cache)
            torch.testing.assert_close(cache.key_norms, cache.read()[0].norm(dim=-1).amax(-1))
        torch.testing.assert_close(out, full[:, 294:])
        before = cache.key_norms
        cache.reorder(torch.tensor([1, 1]))
        assert cache.key_norms is not None and torch.equal(cache.key_norms, before[[1, 1]])


def test_rope_makes_attention_depend_on_order() -> None:
    x = torch.randn(1, 5, EMBED)
    attention = MultiheadAttention(EMBED, HEADS, batch_first=True, positions="rope")
    out, _ = attention(x, x, x)
    permuted, _ = attention(x.flip(1), x.flip(1), x.flip(1))
    assert not torch.allclose(out, permuted.flip(1))  # without positions, the order would have no effect
    assert attention.state_dict().keys() == MultiheadAttention(EMBED, HEADS).state_dict().keys()
