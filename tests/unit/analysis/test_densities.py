"""Densities over words, images and time: shapes known by hand, and summaries compared with single examples."""

from __future__ import annotations

import math

import pytest
import torch

from tsallis.analysis import draw_density, signal_densities
from tsallis.continuous import BetaGaussian, Gaussian, Mixture, TruncatedParabola, TruncatedParaboloid


def test_drawn_parabola_matches_closed_form() -> None:
    density = TruncatedParabola(torch.tensor([0.25, 0.9]), torch.tensor([0.01, 0.01]))  # its half width is sqrt(5 var)
    half = math.sqrt(0.05)
    drawn = draw_density(density, 0)
    assert drawn.support[0] == pytest.approx((0.25 - half, 0.25 + half), abs=1e-6)
    assert drawn.mean == (0.25,) and drawn.deviation[0] == pytest.approx(0.1) and drawn.bounded
    assert drawn.size == pytest.approx(2 * half, abs=1e-6)
    for t, p in drawn.curve:
        assert p == pytest.approx(max(0.0, 0.75 / half * (1 - ((t - 0.25) / half) ** 2)), abs=1e-4)
    # The part outside the unit interval does not count.
    assert draw_density(density, 1).size == pytest.approx(1 - (0.9 - half), abs=1e-6)


def test_drawn_paraboloid_matches_closed_form() -> None:
    variance = 0.01  # the half axes are sqrt(6 var)
    drawn = draw_density(TruncatedParaboloid(torch.tensor([0.5, 0.4]), variance * torch.eye(2)))
    assert drawn.size == pytest.approx(math.pi * 6 * variance, abs=2e-3) and drawn.bounded and len(drawn.outlines) == 1
    distances = [math.dist(point, (0.5, 0.4)) for point in drawn.outlines[0]]
    assert distances == pytest.approx([math.sqrt(6 * variance)] * len(distances), abs=1e-6)
    assert drawn.deviation == pytest.approx((0.1, 0.1))


def test_gaussian_support_is_unbounded() -> None:
    line = draw_density(Gaussian(torch.tensor(0.5), torch.tensor(0.01)))
    assert (line.support, line.size, line.bounded) == ((), 1.0, False)
    plane = draw_density(Gaussian(torch.tensor([0.5, 0.5]), 0.01 * torch.eye(2), dims=2))
    assert (plane.size, plane.bounded, len(plane.outlines)) == (1.0, False, 2)


def test_mixture_support_is_union_of_parts() -> None:
    parts = TruncatedParabola(torch.tensor([0.2, 0.8]), torch.tensor([0.001, 0.001]))
    drawn = draw_density(Mixture(torch.tensor([0.5, 0.5]), parts))
    assert len(drawn.support) == 2 and drawn.size == pytest.approx(4 * math.sqrt(0.005), abs=1e-5)
    overlapping = [TruncatedParabola(torch.tensor(mean), torch.tensor(0.001)) for mean in (0.4, 0.5, 0.9)]
    drawn = draw_density(Mixture(torch.tensor([0.5, 0.5, 0.0]), overlapping))  # the third has weight zero
    assert drawn.support == (pytest.approx((0.4 - math.sqrt(0.005), 0.5 + math.sqrt(0.005)), abs=1e-6),)


def test_draw_density_selects_one_of_a_batch() -> None:
    batch = TruncatedParabola(torch.tensor([[0.2, 0.5], [0.7, 0.8]]), torch.tensor(1e-3))
    heads = TruncatedParabola(torch.tensor([0.2, 0.5]).view(2, 1, 1), torch.tensor(1e-3))
    alphas = BetaGaussian(torch.tensor([0.2, 0.5]), torch.tensor(1e-3), alpha=torch.tensor([1.0, 2.0]))
    mixtures = Mixture(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), batch)
    for density, index, mean in ((batch, (1, 0), 0.7), (heads, 1, 0.5), (alphas, 1, 0.5), (mixtures, 1, 0.8)):
        drawn = draw_density(density, index)
        assert drawn.support == (pytest.approx((mean - math.sqrt(5e-3), mean + math.sqrt(5e-3))),)
    assert not draw_density(alphas, 0).bounded
    for index in ((), 2, (0, 5)):
        with pytest.raises(ValueError, match="index must select one density of a batch of shape"):
            draw_density(batch, index)


def test_signal_densities_are_per_channel_and_head() -> None:
    density = TruncatedParabola(torch.rand(1, 3, 2), 0.01 + 0.01 * torch.rand(1, 3, 2))
    densities = signal_densities(density, ["pulse", "temperature"])
    names = [(one.channel, one.head) for one in densities]
    assert names[:4] == [("pulse", 0), ("pulse", 1), ("pulse", 2), ("temperature", 0)]
    for number, one in enumerate(densities):
        channel, head = divmod(number, 3)
        assert one.density.mean[0] == pytest.approx(float(density.mean[0, head, channel]))
        ends = (float(end[0, head, channel]) for end in (density.support.lower, density.support.upper))
        assert one.density.support[0] == pytest.approx(tuple(ends))
    with pytest.raises(ValueError, match=r"batch shape \[heads, 1\], .* got \[1, 3, 2\]"):
        signal_densities(density, ["pulse"])


@pytest.mark.parametrize("dims", [1, 2])
def test_densities_with_an_alpha_of_1_are_unbounded(dims: int) -> None:
    alpha = torch.tensor([1.0, 2.0])
    mean, cov = (0.5, 0.01) if dims == 1 else (torch.full((2,), 0.5), torch.eye(2) / 100)
    density = BetaGaussian(mean, cov, alpha, dims)
    assert [draw_density(density, i).bounded for i in range(2)] == [False, True]
    drawn = draw_density(density, 0)
    assert all(math.isfinite(x) for line in (drawn.curve, *drawn.outlines) for point in line for x in point)


def test_the_size_of_a_mixture_counts_every_part_once() -> None:
    def parabolas(weights: list[float]) -> Mixture:
        return Mixture(torch.tensor(weights), TruncatedParabola(torch.tensor([0.25, 0.75]), torch.tensor(0.001)))

    def paraboloids(weights: list[float]) -> Mixture:
        return Mixture(
            torch.tensor(weights), TruncatedParaboloid(torch.tensor([[0.25, 0.25], [0.75, 0.75]]), 0.001 * torch.eye(2))
        )

    for make, one in ((parabolas, 2 * math.sqrt(0.005)), (paraboloids, math.pi * 0.006)):
        assert draw_density(make([1.0, 0.0])).size == pytest.approx(one, abs=1e-3)
        assert draw_density(make([0.5, 0.5])).size == pytest.approx(2 * one, abs=2e-3)


def test_signal_densities_refuse_several_batches() -> None:
    with pytest.raises(ValueError, match="density must have batch shape"):
        signal_densities(TruncatedParabola(torch.rand(5, 1, 3, 2), torch.tensor(0.01)), ["a", "b"])
