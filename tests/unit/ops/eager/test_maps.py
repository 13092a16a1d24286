"""Tests of long rows, which are compacted to the candidates for the support. A row of -inf stays empty."""

from __future__ import annotations

import pytest
import torch

from tsallis.ops import eager, reference
from tsallis.ops.eager import maps


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("d", [300, 8200])
def test_long_rows_with_an_empty_row_match_the_reference(alpha: float, d: int) -> None:
    scores = torch.randn(3, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    scores[1] = -torch.inf
    values, top, packed, start, _ = maps.candidates(scores, alpha)
    assert packed is not None and start is not None
    assert not start.isnan().any() and not values.isnan().any() and top[1] == -torch.inf
    torch.testing.assert_close(maps.entmax(scores, alpha), reference.entmax(scores, alpha), atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.5, 2.0])
@pytest.mark.parametrize("budget", [0, 1.5, 2, 39.5, 40, 50])
def test_a_budget_among_equal_scores_is_shared_equally(alpha: float, budget: float) -> None:
    """Check that the threshold for equal scores is as far from the largest score as possible."""
    probs = maps.budgeted_entmax(torch.zeros(2, 40), alpha, budget)
    torch.testing.assert_close(probs, torch.full((2, 40), min(budget / 40, 1.0)), atol=1e-7, rtol=1e-6)


def test_eager_operations_support_all_devices() -> None:
    assert all(eager.on_device(kind) is True for kind in ("cpu", "cuda", "meta", "mps"))
