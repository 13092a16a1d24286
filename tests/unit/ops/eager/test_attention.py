"""Tests of the tiles of eager attention: a batch element without keys is in no tile, and its output is zero."""

from __future__ import annotations

import pytest
import torch

from tsallis import backend, entmax_attention
from tsallis.ops.eager import attention


def test_elements_without_keys_have_zero_output_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE", 1)  # one batch element per tile
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: torch.full_like(x, torch.nan))
    query, key, value = (torch.randn(2, 1, 3, 4, dtype=torch.double, requires_grad=True) for _ in range(3))
    with backend("eager"):
        output = entmax_attention(query, key, value, key_lengths=torch.tensor([0, 2]))
        gradients = torch.autograd.grad(output.sum(), [query, key, value])
        alone = entmax_attention(query[1:], key[1:, :, :2], value[1:, :, :2])
        expected = torch.autograd.grad(alone.sum(), [query, key, value])
    assert (output[0] == 0).all()
    torch.testing.assert_close(output[1:], alone)
    torch.testing.assert_close(gradients, expected)
