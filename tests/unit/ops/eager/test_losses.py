"""Tests of the loss of compacted rows: a NaN or an infinite score breaks only its own row."""

from __future__ import annotations

import pytest
import torch

from tsallis.ops import reference
from tsallis.ops.eager import losses


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, None])
def test_a_nan_or_inf_score_breaks_only_its_own_row(alpha: float, broken: float | None) -> None:
    scores = torch.randn(3, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    if broken is not None:
        scores[1, 7] = broken
    target = torch.tensor([3, 5, 9])
    loss, probs, packed = losses.solve_loss(scores, target, alpha)
    assert packed is not None and probs.shape[1] < 400
    wrong = torch.tensor([False, broken is not None, False])
    assert torch.equal(loss.isnan(), wrong)
    assert torch.equal(probs.isnan().all(-1), wrong) and torch.equal(probs.isnan().any(-1), wrong)
    expected = reference.entmax_loss(scores[~wrong], target[~wrong], alpha)
    torch.testing.assert_close(loss[~wrong], expected, atol=1e-12, rtol=0)
