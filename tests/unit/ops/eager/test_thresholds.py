"""Tests of thresholds against the reference: few entries are sorted, many entries use Newton steps."""

from __future__ import annotations

import math

import pytest
import torch

from tsallis.ops import reference
from tsallis.ops.eager import thresholds
from tsallis.ops.eager.thresholds import SMALL, threshold


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_probabilities_and_thresholds_match_the_reference(alpha: float, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(rows, 150, generator=generator, dtype=torch.float64) * 2
    scores[0, 1:] = -torch.inf  # a single finite entry
    scores[1] = -torch.inf  # no finite entry
    scores[2] = 0  # all scores are equal
    assert (scores.numel() < SMALL) == (rows == 3)
    top = scores.amax(-1, keepdim=True)
    values = (scores - torch.where(top == -torch.inf, 0, top)).to(dtype)
    probs, c = threshold(values, alpha)
    limit = 1e-12 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(probs.double(), reference.entmax(values, alpha), atol=limit, rtol=0)
    active = torch.tensor([row != 1 for row in range(rows)])
    largest = probs.amax(-1, keepdim=True)[active].double()
    torch.testing.assert_close(c[active].double(), (1 - largest ** (alpha - 1)) / (alpha - 1), atol=2 * limit, rtol=0)
    # Neither a lower bound as the starting point nor one alpha per row changes the result.
    below = torch.where(active.unsqueeze(-1), c - 0.1, 0).clamp(min=0)
    torch.testing.assert_close(threshold(values, alpha, below)[0], probs, atol=limit, rtol=0)
    alphas = torch.full((rows, 1), alpha, dtype=dtype)
    torch.testing.assert_close(threshold(values, alphas)[0].double(), probs.double(), atol=limit, rtol=0)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_newton_converges_within_12_steps(monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    """Check that a dozen steps are enough for every row; only NaN reaches the limit."""
    values = torch.randn(100, 100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values -= values.amax(-1, keepdim=True)
    enough, _ = threshold(values, alpha)
    monkeypatch.setattr(thresholds, "NEWTON_LIMIT", 12)
    assert torch.equal(threshold(values, alpha)[0], enough)
    broken = values.clone()
    broken[0, 0] = math.nan
    torch.testing.assert_close(threshold(broken, alpha)[0][1:], enough[1:], atol=1e-12, rtol=0)
