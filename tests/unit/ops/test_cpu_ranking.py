"""Tests of the best symbols per row: compiled kernels of every instruction set against eager float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from instruction_sets import by_size, in_pairs, instructions
from tsallis.ops import cpu, eager
from tsallis.ops.arguments import BestSymbols

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

MAPS = [(1.0, None), (1.05, None), (1.3, None), (1.5, None), (2.0, None), (1.25, 0.1), (1.5, 0.3), (2.0, -0.2)]
every_map = pytest.mark.parametrize(("alpha", "tau"), MAPS)


@pytest.fixture(autouse=True)
def sort_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the eager ranking break ties by symbol even in large vocabularies."""
    monkeypatch.setattr("tsallis.ops.eager.ranking.SORT_LIMIT", 10_000)


def scores(rows: int, d: int, seed: int = 0) -> Tensor:
    """Return scores with many -inf and with ties."""
    result = torch.randn(rows, d, generator=torch.Generator().manual_seed(seed)) * 3
    result[0, : d // 3] = -math.inf
    result[-1] = result[-1].round()
    return result


def compare(z: Tensor, *arguments: Any) -> BestSymbols:
    """Compare the best symbols with those of the scores in float64, and return them."""
    ours, truth = cpu.best_symbols(z, *arguments), eager.best_symbols(z.double(), *arguments)
    torch.testing.assert_close(ours.log_probs, truth.log_probs, atol=1e-12, rtol=1e-10)
    possible = truth.log_probs > -math.inf
    assert torch.equal(ours.symbols[possible], truth.symbols[possible])
    torch.testing.assert_close(ours.ends, truth.ends, atol=1e-12, rtol=1e-10)
    assert torch.equal(ours.support, truth.support)
    torch.testing.assert_close(ours.mass, truth.mass, atol=1e-6, rtol=1e-6, equal_nan=True)
    return ours


@by_size([1, 2, 7, 9, 15, 17, 33, 64, 65, 1000, 1025, 5000])
@every_map
def test_best_symbols_match_float64(d: int, alpha: float, tau: float | None) -> None:
    z, end = scores(5, d), d // 2
    for count in {1, min(6, d), min(100, d)}:
        compare(z, alpha, tau, count, end)


@in_pairs(transform=MAPS, dtype=[torch.bfloat16, torch.float16, torch.float64])
def test_best_symbols_of_other_dtypes_match_float64(transform: tuple[float, float | None], dtype: torch.dtype) -> None:
    compare(scores(4, 70).to(dtype), *transform, 4, 2)


@in_pairs(transform=MAPS, d=[9, 130])
def test_only_restricts_rows_to_one_symbol(transform: tuple[float, float | None], d: int) -> None:
    ours = compare(scores(4, d, 1), *transform, 3, 2, torch.tensor([d - 1, -1, 0, 5]))
    assert (ours.log_probs[[0, 2, 3], 1:] == -math.inf).all()


@in_pairs(transform=MAPS, d=[9, 130])
def test_nan_rows_have_nan_mass_and_empty_rows_no_support(transform: tuple[float, float | None], d: int) -> None:
    z = scores(4, d, 2)
    z[1, d - 1] = math.nan
    z[2] = -math.inf
    ours = cpu.best_symbols(z, *transform, 3, 2)
    assert ours.mass.isnan().tolist() == [False, True, False, False]
    assert ours.support[2] == 0 and ours.ends[2] == -math.inf and (ours.log_probs[2] == -math.inf).all()


@in_pairs(transform=MAPS, d=[40, 1300])
def test_rows_are_independent_of_each_other(transform: tuple[float, float | None], d: int) -> None:
    z = scores(9, d, 3)
    whole = cpu.best_symbols(z, *transform, 5, 2)
    alone = [cpu.best_symbols(z[i : i + 1], *transform, 5, 2) for i in range(9)]
    for parts, expected in zip(zip(*alone, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(parts), expected)


@in_pairs(d=[8, 20, 700])
def test_ties_are_ranked_by_symbol(d: int) -> None:
    z = torch.zeros(2, d)
    z[1, 3] = -1
    for alpha in (1.0, 1.5, 2.0):
        best = cpu.best_symbols(z, alpha, None, 4, 1)
        assert best.symbols.tolist() == [[0, 2, 3, 4], [0, 2, 4, 5]]


@in_pairs(d=[1, 2, 9, 65, 1025, 5000], alpha=[1.0, 1.05, 1.3, 1.5, 2.0], dtype=[torch.float32, torch.bfloat16])
def test_log_entmax_matches_float64(d: int, alpha: float, dtype: torch.dtype) -> None:
    z = torch.cat([scores(3, d), 1e4 + scores(2, d, 1)]).to(dtype)
    z[3] = -math.inf
    truth = eager.log_entmax(z, alpha)
    z[2, d - 1], truth[2] = math.nan, math.nan
    torch.testing.assert_close(cpu.log_entmax(z, alpha), truth, atol=0, rtol=1e-9, equal_nan=True)
