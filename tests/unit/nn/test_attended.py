"""The factor of the scores that sets how many keys queries attend to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tsallis import entmax
from tsallis.nn import MultiheadAttention
from tsallis.nn.attended import calibrate, scale_change
from tsallis.ops import reference

UPDATES = 400


def sums_of(scores: Tensor, alpha: float = 1.5) -> Tensor:
    """Attended keys, visible keys and queries of scores [queries, keys]."""
    return torch.tensor([(entmax(scores, alpha) > 0).sum(), scores.numel(), len(scores)], dtype=torch.float64)


def run(target: float, keys: int, updates: int, drift: float = 0.0) -> tuple[list[float], list[float]]:
    """Factor and mean of every update; the scores of a step are new, and grow or shrink by themselves."""
    torch.manual_seed(0)
    logarithm, factors, means = 0.0, [], []
    for step in range(1, updates + 1):
        sums = sums_of(torch.randn(64, keys) * math.exp(logarithm + drift * step / updates))
        factor = scale_change(sums, target, step, updates)
        logarithm += math.log(factor)
        factors.append(factor)
        means.append(float(sums[0] / sums[2]))
    return factors, means


@pytest.mark.parametrize("drift", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("target", "updates"), [(1.5, 400), (2, 120), (4, 400), (8, 60), (8, 2000)])
def test_the_mean_reaches_its_target(target: float, updates: int, drift: float) -> None:
    _, means = run(target, 20, updates, drift)
    last = means[-updates // 10 :]
    assert sum(last) / len(last) == pytest.approx(target, rel=0.1)


def test_the_target_falls_gradually() -> None:
    factors, means = run(2, 40, UPDATES)
    assert factors[: UPDATES // 10 - 1] == [1] * (UPDATES // 10 - 1)
    assert all(math.exp(-0.05) <= factor <= math.exp(0.05) for factor in factors)
    smooth = [sum(means[i : i + 20]) / 20 for i in range(0, UPDATES, 20)]
    assert min(smooth) > 1.8, "the factor must not overshoot"
    assert smooth[UPDATES * 3 // 10 // 20] > 3, "at 30 % of the updates, the mean is still far from the target"


def test_the_change_has_its_formula() -> None:
    def expected(mean: float, step: int, updates: int) -> float:
        rate = min(max(0.02, 20 / updates), 1 / max(0.6 * updates - step, 1))
        return math.exp(rate * max(-1.0, min(1.0, math.log(mean / 4))))

    for mean in (1.0, 3.9, 4.0, 5.0, 30.0):
        for step, updates in ((100, 1000), (400, 1000), (599, 1000), (1000, 1000), (30, 60)):
            sums = torch.tensor([7 * mean, 7 * 40, 7])
            assert scale_change(sums, 4, step, updates) == pytest.approx(expected(mean, step, updates), rel=1e-6)


def test_too_few_visible_keys_leave_the_factor() -> None:
    """A mean that can't be reached: else the factor would fall without end."""
    factors, _ = run(8, 5, UPDATES)
    assert math.prod(factors) > math.exp(-6) and factors[-50:] == [1] * 50
    assert scale_change(torch.zeros(3), 4, 300, UPDATES) == 1


@pytest.mark.parametrize("target", [1, 1.2, 3, 17.5])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_bisection_meets_the_count_of_the_reference(target: float, size: float) -> None:
    torch.manual_seed(1)
    scores, factor = torch.randn(200, 18, dtype=torch.float64) * size, [1.0]

    def scale(by: float) -> None:
        factor[0] *= by

    mean = calibrate(scale, lambda: sums_of(scores * factor[0]), target)
    count = (reference.entmax(scores * factor[0], 1.5) > 0).sum(1).double().mean().item()
    assert mean == pytest.approx(count, rel=1e-9) and count == pytest.approx(target, rel=0.03)


def test_bisection_rejects_and_warns() -> None:
    scores = torch.randn(5, 3)
    with pytest.raises(ValueError, match="at most 3, the mean number of visible keys, got 4"):
        calibrate(lambda factor: None, lambda: sums_of(scores), 4)
    with pytest.raises(ValueError, match="at most 0"):
        calibrate(lambda factor: None, lambda: torch.zeros(3), 1)
    with pytest.warns(UserWarning, match="attend to 3 keys on average, not to 1.5"):
        assert calibrate(lambda factor: None, lambda: sums_of(torch.zeros(5, 3)), 1.5) == 3


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 7}, {"bias": False}, {"num_kv_heads": 1}])
@torch.no_grad()
def test_scaling_multiplies_the_scores(options: dict[str, int]) -> None:
    """At alpha 1, the ratios of weights are the exponentials of score differences."""
    torch.manual_seed(2)
    attention = MultiheadAttention(8, 2, batch_first=True, alpha=1.0, **options).double()
    for parameter in attention.parameters():
        parameter.normal_()
    inputs = [torch.randn(2, 5, size).double() for size in (8, attention.kdim, attention.vdim)]
    before = attention(*inputs, average_attn_weights=False)[1].log()
    attention.scale_scores(0.25)
    after = attention(*inputs, average_attn_weights=False)[1].log()
    torch.testing.assert_close(after.diff(), before.diff() * 0.25)


def test_given_queries_count_only_if_they_are_not_padding() -> None:
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
