"""Tests of alphas whose values are unknown at compile time: compiled calls return or raise the same as eager calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

import tsallis
from backends import skip_unless_usable
from tsallis.ops import alphas, choice, registry
from tsallis.ops.registry import BACKENDS

SCORES, TARGET = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3])
QUERY = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(1))  # [batch, heads, length, size]
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "entmax": lambda alpha: tsallis.entmax(SCORES, alpha),
    "budgeted_entmax": lambda alpha: tsallis.budgeted_entmax(SCORES, alpha),
    "tsallis_entropy": lambda alpha: tsallis.tsallis_entropy(SCORES.softmax(-1), alpha),
    "entmax_loss": lambda alpha: tsallis.entmax_loss(SCORES, TARGET, alpha),
    "linear_entmax_loss": lambda alpha: tsallis.linear_entmax_loss(SCORES, SCORES.repeat(3, 1), TARGET, alpha),
    "entmax_attention": lambda alpha: tsallis.entmax_attention(QUERY, QUERY, QUERY, alpha.view(-1)),
    "weights": lambda alpha: tsallis.entmax_attention(QUERY, QUERY, QUERY, alpha.view(-1), return_weights=True)[1],
}


def outcome(call: Callable[[Tensor], Tensor], alpha: float) -> Tensor | str:
    """Return the result for two rows or heads, or the error message; `alpha` belongs to the second."""
    try:
        return call(torch.tensor([[1.5], [alpha]]))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_out_of_range_alphas_match_eager(backend: str, name: str) -> None:
    skip_unless_usable(backend)
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)
    with tsallis.backend(backend):
        for alpha in (2.0, 0.5, 0.0, math.nan, math.inf):
            expected, result = outcome(CALLS[name], alpha), outcome(compiled, alpha)
            assert isinstance(expected, str) == (not 0 < alpha < math.inf or (alpha < 1 and name not in ANY_POSITIVE))
            if isinstance(expected, Tensor) and isinstance(result, Tensor):
                torch.testing.assert_close(result, expected)
            else:
                assert result == expected


def test_attention_weights_operator_reads_alphas_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that values are read only once, because each read synchronizes with the GPU."""
    read, extremes = [], alphas.extremes
    for module in (alphas, choice):
        monkeypatch.setattr(module, "extremes", lambda alpha: read.append(alpha) or extremes(alpha))
    torch.ops.tsallis.attention_weights(SCORES, 1.0, torch.tensor([[1.5], [2.0]]))
    assert len(read) == 1


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cuda_graph_capture_reads_no_alphas(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_usable(backend)
    with tsallis.backend(backend):
        expected = outcome(CALLS[name], 2.0)
        for module in (alphas, choice):
            monkeypatch.setattr(module, "capturing", lambda alpha: True)
            monkeypatch.setattr(module, "extremes", lambda alpha: pytest.fail("alphas were read"))
        torch.testing.assert_close(outcome(CALLS[name], 2.0), expected)


def test_only_alphas_on_a_gpu_are_unreadable_during_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not alphas.capturing(SCORES) and alphas.capturing(cast(Tensor, SimpleNamespace(is_cuda=True)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_support_no_alphas_below_1(backend: str) -> None:
    assert registry.load(backend).CAPABILITIES.alphas[0] >= 1


ANY_POSITIVE = ("entmax", "tsallis_entropy", "entmax_loss")
