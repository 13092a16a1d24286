"""Tests of calibrating a factor of the scores so that queries attend to a given number of keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tsallis import entmax
from tsallis.nn import MultiheadAttention
from tsallis.nn.attended import calibrate
from tsallis.ops import reference


def sums_of(scores: Tensor, alpha: float = 1.5) -> Tensor:
    """Return the numbers of attended keys, visible keys and queries for scores [queries, keys]."""
    return torch.tensor([(entmax(scores, alpha) > 0).sum(), scores.numel(), len(scores)], dtype=torch.float64)


@pytest.mark.parametrize("target", [1, 1.2, 3, 17.5])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_calibration_reaches_the_target_number_of_keys(target: float, size: float) -> None:
    torch.manual_seed(1)
    scores, factor = torch.randn(200, 18, dtype=torch.float64) * size, [1.0]

    def scale(by: float) -> None:
        factor[0] *= by

    mean = calibrate(scale, lambda part: sums_of(part * factor[0]), scores.split(70), target)
    count = (reference.entmax(scores * factor[0], 1.5) > 0).sum(1).double().mean().item()
    assert mean == pytest.approx(count, rel=1e-9) and count == pytest.approx(target, rel=0.03)


def test_unreachable_targets_and_empty_batches_raise_or_warn() -> None:
    scores = torch.randn(5, 3)
    with pytest.raises(ValueError, match="at most 3, the mean number of visible keys, got 4"):
        calibrate(lambda factor: None, sums_of, [scores], 4)
    with pytest.raises(ValueError, match="batches must contain queries, got none"):
        calibrate(lambda factor: None, sums_of, [], 1)
    with pytest.warns(UserWarning, match="attend to 3 keys on average, not to 1.5"):
        assert calibrate(lambda factor: None, sums_of, [torch.zeros(5, 3)], 1.5) == 3


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 7}, {"bias": False}, {"num_kv_heads": 1}])
@torch.no_grad()
def test_scaling_multiplies_the_scores(options: dict[str, int]) -> None:
    """Check score differences, which at alpha 1 are the logarithms of ratios of weights."""
    torch.manual_seed(2)
    attention = MultiheadAttention(8, 2, batch_first=True, alpha=1.0, **options).double()
    for parameter in attention.parameters():
        parameter.normal_()
    inputs = [torch.randn(2, 5, size).double() for size in (8, attention.kdim, attention.vdim)]
    before = attention(*inputs, average_attn_weights=False)[1].log()
    attention.scale_scores(0.25)
    after = attention(*inputs, average_attn_weights=False)[1].log()
    torch.testing.assert_close(after.diff(), before.diff() * 0.25)
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="factor must be positive and finite, got"):
            attention.scale_scores(bad)


def test_count_attended_ignores_inactive_and_padded_queries() -> None:
    torch.manual_seed(3)
    attention, x = MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    active = torch.tensor([[True, False, True, True, True], [True] * 5])
    attention(x, x, x, key_lengths=torch.tensor([4, 2]))
    support = attention.support().double()
    counted = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 0, 0]]).unsqueeze(1)
    expected = torch.stack(
        [(support * counted).sum((0, 2)), torch.tensor([4.0 * 3 + 2 * 2] * 2), torch.tensor([5.0] * 2)]
    )
    torch.testing.assert_close(attention.count_attended(active), expected.double())
