"""Test the equations of Sparse and Continuous Attention Mechanisms (Martins et al. 2020), in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.integrals import over
from tsallis.continuous import (
    BetaGaussian,
    Ellipse,
    Gaussian,
    GaussianBasis,
    Laplace,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    ValueFunction,
    cell_centres,
    grid_centres,
    image_basis,
    match_moments,
    paper_image_basis,
    text_basis,
    translation_basis,
)
from tsallis.continuous.fourier import wave_expectation

D = torch.float64
CLOSE = {"atol": 1e-8, "rtol": 1e-8}
CENTRES, WIDTH = torch.linspace(0, 1, 5, dtype=D), 0.15
BASIS = GaussianBasis(CENTRES, WIDTH**2)
PLANE_CENTRES = torch.tensor([[0.2, 0.3], [0.7, 0.6], [0.5, 0.9]], dtype=D)
PLANE_COVS = torch.tensor([[0.03, 0.01], [0.01, 0.05]], dtype=D).expand(3, 2, 2)
PLANE_BASIS = GaussianBasis(PLANE_CENTRES, PLANE_COVS)
SIGMA2 = torch.tensor(0.02, dtype=D)
SCALE = torch.tensor([[0.004, 0.0015], [0.0015, 0.009]], dtype=D)


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=D)


def exp_b(u: Tensor, b: float) -> Tensor:
    """Return the deformed exponential (eq. 4)."""
    return u.exp() if b == 1 else (1 + (1 - b) * u).clamp(min=0) ** (1 / (1 - b))


def line(theta: Tensor, alpha: float) -> BetaGaussian:
    return BetaGaussian.from_scores(theta, alpha=alpha)


THETA = torch.tensor([20.0, -25.0], dtype=D)


def escort_power(density: Any, alpha: float, t: Tensor) -> Tensor:
    """Return the power 2 - alpha of a density at t, 0 outside the support."""
    inside = density.pdf(t) > 0
    return torch.where(inside, torch.where(inside, density.pdf(t), 1) ** (2 - alpha), 0)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_densities_satisfy_propositions_1_and_2(alpha: float) -> None:
    p = line(THETA, alpha)

    def score(theta: Tensor, t: Tensor) -> Tensor:
        return theta[0] * t + theta[1] * t**2

    def escorted(theta: Tensor, function) -> Tensor:  # type: ignore[no-untyped-def]
        d = line(theta, alpha)
        power = partial(escort_power, d, alpha)
        mass = over(d, power)
        return over(d, lambda t: power(t) * function(t)) / mass, mass

    def normaliser(theta: Tensor) -> Tensor:
        if alpha == 1:
            d = line(theta, alpha)
            return score(theta, d.mean) - d.log_prob(d.mean)
        mean, mass = escorted(theta, lambda t: score(theta, t))
        return mean + 1 / (1 - alpha) / mass - 1 / (1 - alpha)

    t = p.mean + torch.linspace(-2, 2, 41, dtype=D) * p.variance.sqrt()
    tolerance = {"atol": 1e-7, "rtol": 1e-7} if alpha > 2 else CLOSE  # the escort density is infinite at the edge
    torch.testing.assert_close(p.pdf(t), exp_b(score(THETA, t) - normaliser(THETA), 2 - alpha), **tolerance)
    step = 1e-4
    for i, statistic in enumerate((lambda t: t, lambda t: t**2)):
        e = torch.zeros(2, dtype=D)
        e[i] = step
        slope = (normaliser(THETA + e) - normaliser(THETA - e)) / (2 * step)
        torch.testing.assert_close(slope, escorted(THETA, statistic)[0], atol=1e-7, rtol=1e-7)  # eq. 8
    negentropy = -p.tsallis_entropy()
    conjugate = p.expect(lambda t: score(THETA, t)) - negentropy
    torch.testing.assert_close(conjugate, (alpha - 1) * negentropy + normaliser(THETA), **tolerance)  # eq. 25


@pytest.mark.parametrize("alpha", [1.0, 1.4, 2.0, 2.5])
def test_densities_maximize_their_objective(alpha: float) -> None:
    """A step towards another density must lower the objective, because the density maximizes it (eq. 1)."""
    p, other = line(THETA, alpha), Gaussian(number(0.5), number(0.004))
    t = torch.linspace(-1, 2, 300_001, dtype=D)

    def objective(share: float) -> Tensor:
        q = (1 - share) * p.pdf(t) + share * other.pdf(t)
        safe = torch.where(q > 0, q, 1)
        negentropy = q * safe.log() if alpha == 1 else (q**alpha - q) / (alpha * (alpha - 1))
        return torch.trapezoid(q * (THETA[0] * t + THETA[1] * t**2) - negentropy, t)

    assert objective(0.0) > objective(1e-3) > objective(1e-2)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
def test_expectation_gradients_match_proposition_3_in_1d(alpha: float) -> None:
    """Derivatives through the quadrature must equal the generalized covariance of index 2 - alpha (eq. 17 and 18)."""
    jacobian = torch.autograd.functional.jacobian(lambda theta: line(theta, alpha).expect(BASIS), THETA)
    p = line(THETA, alpha)
    power = partial(escort_power, p, alpha)
    mass = over(p, power)
    psi = over(p, lambda t: power(t).unsqueeze(-1) * BASIS(t))
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if alpha > 2 else CLOSE
    for i, phi in enumerate((lambda t: t, lambda t: t**2)):
        both = over(p, lambda t, phi=phi: (power(t) * phi(t)).unsqueeze(-1) * BASIS(t))
        one = over(p, lambda t, phi=phi: power(t) * phi(t))
        torch.testing.assert_close(jacobian[:, i], both - one * psi / mass, **tolerance)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_expectation_gradients_match_proposition_3_in_2d(alpha: float) -> None:
    density = BetaGaussian.from_scale(torch.tensor([0.4, 0.6], dtype=D), SCALE, alpha=alpha, dims=2)
    theta = density.theta
    jacobian = torch.autograd.functional.jacobian(
        lambda theta: BetaGaussian.from_scores(theta, alpha=alpha, dims=2).expect(PLANE_BASIS), theta
    )
    power = partial(escort_power, density, alpha)
    mass = over(density, power)
    psi = over(density, lambda t: power(t).unsqueeze(-1) * PLANE_BASIS(t))

    def statistics(t: Tensor) -> Tensor:
        return torch.cat([t, (t[..., None] * t[..., None, :]).flatten(-2)], -1)

    both = over(density, lambda t: power(t)[..., None, None] * PLANE_BASIS(t)[..., None] * statistics(t)[..., None, :])
    one = over(density, lambda t: power(t)[..., None] * statistics(t))
    torch.testing.assert_close(jacobian, both - psi[:, None] * one / mass, **CLOSE)


def test_truncated_parabola_matches_equation_10() -> None:
    d = TruncatedParabola.from_scale(number(0.3), SIGMA2)
    t = torch.linspace(-0.5, 1, 61, dtype=D)
    lam = -0.5 * (3 / (2 * SIGMA2.sqrt())) ** (2 / 3)  # eq. 37
    torch.testing.assert_close(d.pdf(t), (-lam - (t - 0.3) ** 2 / (2 * SIGMA2)).clamp(min=0), **CLOSE)
    half = (1.5 * SIGMA2) ** (1 / 3)
    torch.testing.assert_close(d.support.upper, 0.3 + half)
    torch.testing.assert_close(d.variance, half**2 / 5)
    torch.testing.assert_close(d.scale, SIGMA2)
    epanechnikov = TruncatedParabola.from_scale(number(0.0), number(2 / 3))
    torch.testing.assert_close(epanechnikov.pdf(t), 0.75 * (1 - t**2).clamp(min=0))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_truncated_paraboloid_matches_equation_11(n: int) -> None:
    root = torch.randn(n, n, dtype=D, generator=torch.Generator().manual_seed(0))
    scale, mean = root @ root.mT + torch.eye(n, dtype=D), torch.linspace(-1, 1, n, dtype=D)
    if n == 1:
        d = TruncatedParaboloid.from_scale(mean[0], scale[0, 0], dims=1)
    else:
        d = TruncatedParaboloid.from_scale(mean, scale, dims=n)
    lam = -((math.gamma(n / 2 + 2) / torch.linalg.det(2 * math.pi * scale).sqrt()) ** (2 / (2 + n)))
    t = mean + torch.randn(100, n, dtype=D, generator=torch.Generator().manual_seed(1))
    m = ((t - mean) @ torch.linalg.inv(scale) * (t - mean)).sum(-1)
    torch.testing.assert_close(d.pdf(t if n > 1 else t[:, 0]), (-lam - m / 2).clamp(min=0), **CLOSE)
    torch.testing.assert_close(d.covariance.reshape(n, n), -2 * lam / (n + 4) * scale, **CLOSE)
    if n > 2:
        with pytest.raises(NotImplementedError, match="quadrature"):
            d.expect(lambda t: t)


def test_a_learned_alpha_of_one_is_the_gaussian() -> None:
    alpha = torch.tensor([1.0, 1 + 1e-9, 1.5], dtype=D, requires_grad=True)
    d, gaussian = BetaGaussian(number(0.4), number(0.03), alpha), Gaussian(number(0.4), number(0.03))
    t = torch.linspace(-1, 2, 31, dtype=D)
    for ours, theirs in (
        (d.expect(BASIS)[:2], gaussian.expect(BASIS).expand(2, 5)),
        (d.pdf(t.unsqueeze(-1))[:, :2], gaussian.pdf(t).unsqueeze(-1).expand(31, 2)),
        (d.entropy()[:2], gaussian.entropy().expand(2)),
        (d.tsallis_entropy()[:2], gaussian.entropy().expand(2)),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-7)
    (slope,) = torch.autograd.grad(d.expect(BASIS)[0, 2], alpha)
    step = 1e-4
    ahead = [BetaGaussian(number(0.4), number(0.03), 1 + k * step).expect(BASIS)[2] for k in (0, 1, 2)]
    difference = (-3 * ahead[0] + 4 * ahead[1] - ahead[2]) / (2 * step)
    assert slope[0].item() == pytest.approx(difference.item(), abs=1e-6)
    assert slope[1:].tolist() == [0, 0]


@pytest.mark.parametrize("dims", [1, 2])
def test_alpha_derivatives_pass_gradcheck(dims: int) -> None:
    mean, cov = (number(0.4), number(0.03)) if dims == 1 else (torch.tensor([0.4, 0.6], dtype=D), SCALE)
    alpha = torch.tensor([1.001, 1.03, 1.21, 1.2233, 1.6, 2.0], dtype=D, requires_grad=True)
    basis = BASIS if dims == 1 else PLANE_BASIS
    points = 64 if dims == 1 else (32, 24)

    def expect(alpha: Tensor) -> Tensor:
        d = BetaGaussian(mean, cov, alpha, dims)
        t = d.mean + 0.3 * d.factor.reshape(-1)[0]
        parts = [d.expect(basis, points).flatten(), d.pdf(t), d.entropy(), d.tsallis_entropy(), d.scale.flatten()]
        return torch.cat(parts)

    assert torch.autograd.gradcheck(expect, alpha)
    assert torch.autograd.gradgradcheck(expect, alpha)
    for i, number_ in enumerate(alpha.tolist()):
        fixed = BetaGaussian(mean, cov, number_, dims)
        result = BetaGaussian(mean, cov, alpha[i], dims)
        for ours, theirs in (
            (result.expect(basis), fixed.expect(basis)),
            (result.scale, fixed.scale),
            (result.entropy(), fixed.entropy()),
        ):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_triangular_and_laplace_match_equation_12() -> None:
    b, t = number(0.09), torch.linspace(-1, 1.5, 101, dtype=D)
    d, dense = Triangular.from_scale(number(0.2), b), Laplace.from_scale(number(0.2), b)
    torch.testing.assert_close(d.pdf(t), (b**-0.5 - (t - 0.2).abs() / b).clamp(min=0), **CLOSE)
    torch.testing.assert_close(d.support.length, 2 * b.sqrt())
    torch.testing.assert_close(dense.pdf(t), torch.exp(-(t - 0.2).abs() / b) / (2 * b), **CLOSE)
    for kind in (Triangular, Laplace):
        same = kind.from_scores(-1 / b, number(0.2))
        torch.testing.assert_close(same.scale, b)
        torch.testing.assert_close(same.theta, -1 / b)


def test_canonical_parameters_round_trip() -> None:
    for alpha in (1.0, 1.5, 2.0):
        torch.testing.assert_close(line(THETA, alpha).theta, THETA)
        torch.testing.assert_close(line(THETA, alpha).mean, number(0.4))
        torch.testing.assert_close(line(THETA, alpha).scale, number(0.02))
        d = BetaGaussian.from_scale(torch.tensor([0.4, 0.6], dtype=D), SCALE, alpha=alpha, dims=2)
        precision = torch.linalg.inv(SCALE)
        expected = torch.cat([precision @ d.mean, (-precision / 2).flatten()])
        torch.testing.assert_close(d.theta, expected)
        torch.testing.assert_close(BetaGaussian.from_scores(d.theta, alpha=alpha, dims=2).covariance, d.covariance)


def test_parabola_expectations_match_equations_49_to_52() -> None:
    """The expected values correct two errors of the paper: a stray 1 / sigma_j in eq. 49, a missing 1/2 in eq. 52."""
    theta = torch.stack([number(0.3) / SIGMA2, -0.5 / SIGMA2])
    mean, s = number(0.3), WIDTH
    a, lam = (1.5 * SIGMA2) ** (1 / 3), -0.5 * (3 / (2 * SIGMA2.sqrt())) ** (2 / 3)
    u, v = (mean - CENTRES - a) / s, (mean - CENTRES + a) / s
    normal = lambda z: torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    zeroth = (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))) / 2
    first = normal(u) - normal(v)
    second = zeroth - v * normal(v) + u * normal(u)
    apart = CENTRES - mean
    expected = (-lam - apart**2 / (2 * SIGMA2)) * zeroth - apart * s / SIGMA2 * first - s**2 / (2 * SIGMA2) * second
    d = TruncatedParabola.from_scores(theta)
    torch.testing.assert_close(d.expect(BASIS), expected, **CLOSE)
    jacobian = torch.autograd.functional.jacobian(lambda x: TruncatedParabola.from_scores(x).expect(BASIS), theta)
    torch.testing.assert_close(jacobian[:, 0], apart * zeroth - s * (normal(v) - normal(u)), **CLOSE)  # eq. 51
    squares = (CENTRES**2 - mean**2 + s**2 - a**2 / 3) * zeroth
    squares = squares - s * (mean + CENTRES + a) * normal(v) + s * (mean + CENTRES - a) * normal(u)
    torch.testing.assert_close(jacobian[:, 1], squares, **CLOSE)  # eq. 52


def test_supporting_ellipse_matches_equations_55_to_65() -> None:
    d = TruncatedParaboloid.from_scale(torch.tensor([0.4, 0.6], dtype=D), SCALE)
    lam = -((math.pi * torch.linalg.det(SCALE).sqrt()) ** -0.5)
    support = d.support
    assert isinstance(support, Ellipse)
    volume = math.pi * torch.linalg.det(support.factor)
    torch.testing.assert_close(volume, math.pi * torch.linalg.det(-2 * lam * SCALE).sqrt())  # eq. 65
    torch.testing.assert_close(volume, 2 / -lam)
    torch.testing.assert_close(support.factor @ support.factor.mT, -2 * lam * SCALE)
    edge = support.boundary(100)
    assert edge.shape == (100, 2) and (d.pdf(edge) < 1e-12).all()
    torch.testing.assert_close(support.semi_axes, (-2 * lam * torch.linalg.eigvalsh(SCALE)).sqrt())
    uniform = over(d, lambda t: (d.pdf(t) > 0).double()[..., None, None] * t[..., None] * t[..., None, :])
    expected = torch.outer(d.mean, d.mean) + SCALE / volume  # eq. 64
    torch.testing.assert_close(uniform / volume, expected, **CLOSE)


def test_wave_and_disk_quadratures_of_equations_53_to_60_agree() -> None:
    covs = 0.0004 * torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=D).expand(3, 2, 2)
    basis = GaussianBasis(PLANE_CENTRES, covs)
    mean = torch.tensor([[0.4, 0.6], [0.6, 0.5], [0.5, 0.5]], dtype=D, requires_grad=True)
    cov = torch.stack([SCALE, SCALE.flip(0, 1) * 3, 0.01 * torch.eye(2, dtype=D)]).requires_grad_()

    def waves(mean: Tensor, cov: Tensor) -> Tensor:
        factor = TruncatedParaboloid(mean, (cov + cov.mT) / 2).factor * math.sqrt(6)
        return wave_expectation(basis, mean, factor, 3.0)

    by_disk = TruncatedParaboloid(mean, cov).expect(basis, (96, 192))
    torch.testing.assert_close(waves(mean, cov), by_disk, **CLOSE)
    torch.testing.assert_close(TruncatedParaboloid(mean, cov).expect(basis), by_disk, **CLOSE)
    upstream = torch.randn(3, 3, dtype=D)
    gradients = [torch.autograd.grad(x, (mean, cov), upstream) for x in (waves(mean, cov), by_disk)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradcheck(lambda m, c: waves(m, c)[:, 0], (mean, cov))


def test_match_moments_matches_weighted_moments() -> None:
    g = torch.Generator().manual_seed(0)
    weights = torch.softmax(torch.randn(3, 12, dtype=D, generator=g), -1)
    t = cell_centres(12)
    d = match_moments(TruncatedParabola, weights, t, floor=0)
    mean = weights @ t
    variance = weights @ t**2 - mean**2
    torch.testing.assert_close(d.mean, mean)
    torch.testing.assert_close(d.variance, variance, **CLOSE)
    torch.testing.assert_close(d.scale, 2 / 3 * (5 * variance) ** 1.5, **CLOSE)
    text = match_moments(TruncatedParabola, weights, t, matching="scale", floor=0)
    torch.testing.assert_close(text.scale, variance, **CLOSE)
    torch.testing.assert_close(text.variance, (1.5 * variance) ** (2 / 3) / 5, **CLOSE)
    grid = grid_centres(3, 4)
    plane = match_moments(TruncatedParaboloid, weights, grid, floor=0)
    c = plane.covariance
    torch.testing.assert_close(plane.scale, 9 * math.pi * torch.linalg.det(c).sqrt()[:, None, None] * c, **CLOSE)
    torch.testing.assert_close(c[0], torch.cov(grid.T, correction=0, aweights=weights[0]), **CLOSE)
    assert match_moments(BetaGaussian, weights, grid, alpha=1.5, dims=2).dims == 2


def test_bases_have_the_sizes_and_widths_of_the_paper() -> None:
    assert [text_basis(n).size for n in (32, 64, 128)] == [32, 64, 128]
    assert sorted({round(w, 6) for w in text_basis().covs.sqrt().tolist()}) == [0.1, 0.5]
    assert sorted({round(w, 6) for w in translation_basis().covs.sqrt().tolist()}) == [0.03, 0.1, 0.3]
    rmse = []
    for basis in (image_basis(), paper_image_basis()):
        signal = ValueFunction(basis, ridge=1e-3)(torch.ones(196, 1, dtype=D), grid=(14, 14))
        fine = grid_centres(60, 60)
        rmse.append((signal(fine) - 1).square().mean().sqrt())
        assert basis.size == 100
    assert rmse[0] < 0.02 and rmse[1] > 0.4  # the paper's narrow functions can't represent a constant
