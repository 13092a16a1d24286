"""Long rows are compacted to what may be in the support: rows without any score stay empty."""

from __future__ import annotations

import pytest
import torch

from tsallis.ops import reference
from tsallis.ops.eager import maps


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("d", [300, 8200])
def test_an_empty_row_among_long_ones(alpha: float, d: int) -> None:
    scores = torch.randn(3, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    scores[1] = -torch.inf
    values, top, packed, start = maps.candidates(scores, alpha)
    assert packed is not None and start is not None
    assert not start.isnan().any() and not values.isnan().any() and top[1] == -torch.inf
    torch.testing.assert_close(maps.entmax(scores, alpha), reference.entmax(scores, alpha), atol=1e-12, rtol=0)
