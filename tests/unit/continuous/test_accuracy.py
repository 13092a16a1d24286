"""Default accuracy of densities: 1e-12 of a function's peak in float64 and 1e-6 in float32.

The expected values share no code with the library's quadrature. They are tanh-sinh sums of the density's definition,
and Bessel functions by mpmath.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from contract.integrals import tanh_sinh
from tsallis.continuous import (
    BetaGaussian,
    Density,
    Gaussian,
    GaussianBasis,
    Laplace,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    ValueFunction,
    cell_masses,
    gaussian_grid,
    grid_masses,
    image_basis,
    match_moments,
    quadrature_sizes,
    text_basis,
)
from tsallis.continuous.quadrature_sizes import Halves, Normal, Roots, WeightedRule

D = torch.float64
TOLERANCE = {torch.float32: 2e-6, D: 2e-12}  # twice the promised error, to allow for rounding
both = pytest.mark.parametrize("dtype", [torch.float32, D], ids=["float32", "float64"])
PROFILES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "beta": lambda s, alpha: (
        torch.exp(-s / 2) if alpha == 1 else (1 - s / (3 + 2 / (alpha - 1))).clamp(min=0) ** (1 / (alpha - 1))
    ),
    "laplace": lambda s, _: torch.exp(-(2 * s).sqrt()),
    "triangular": lambda s, _: (1 - (s / 6).sqrt()).clamp(min=0),
}


def on_the_line(function: Callable[[Tensor], Tensor], mean: float, std: float, alpha: float, kind: str) -> Tensor:
    """Return the expectation; the same sum, in pieces from the mean, normalises the profile."""
    reach = {"laplace": 45.0, "triangular": math.sqrt(6)}.get(
        kind, 12.0 if alpha == 1 else math.sqrt(3 + 2 / (alpha - 1))
    )
    x, w = tanh_sinh(0.05)
    total, mass = torch.zeros(()), torch.zeros(())
    cuts = sorted(
        {0.0, *(min(reach, k * std / 4) for k in range(1, 9)), *(min(reach, k * 1.5) for k in range(31)), reach}
    )
    for low, high in itertools.pairwise(cuts):
        u = low + (high - low) * (1 + x) / 2
        p = w * (high - low) * PROFILES[kind](u.square(), alpha)
        mass = mass + 2 * p.sum()
        total = total + p @ (function(mean + std * u) + function(mean - std * u))
    return total / mass


def bessel(order: float, z: float) -> float:
    return float(mpmath.hyp0f1(order, -(mpmath.mpf(z) ** 2) / 4))


@both
def test_expectations_and_gradients_in_1d_are_accurate(dtype: torch.dtype) -> None:
    """Narrow and wide functions are accurate, and so are gradients in the variance."""
    densities: list[tuple[str, float, Callable[[Tensor, Tensor], Density]]] = [
        ("laplace", 1.0, Laplace),
        ("triangular", 2.0, Triangular),
        *(("beta", a, lambda m, v, a=a: BetaGaussian(m, v, a)) for a in (1.05, 1.5, 2.0, 4.0)),
        *(
            ("beta", a, lambda m, v, a=a: BetaGaussian(m, v, torch.tensor(a, dtype=dtype)))
            for a in (1.0, 1.1, 1.5, 2.0)
        ),
    ]
    mean = 0.375
    for (kind, alpha, make), variance in itertools.product(densities, (1e-4, 0.01, 0.5)):
        std = float(torch.tensor(variance, dtype=dtype).double().sqrt())
        for s in (0.05, 1.0):
            basis = GaussianBasis(torch.tensor([0.5], dtype=dtype), s * s)
            width = math.sqrt(basis.covs.item())
            v = torch.tensor(variance, dtype=dtype).requires_grad_()
            value = make(torch.tensor(mean, dtype=dtype), v).expect(basis)[0]
            (slope,) = torch.autograd.grad(value, v)
            peak = 1 / math.sqrt(2 * math.pi) / width
            h = 1e-3 * std
            low, exact, high = (
                float(
                    on_the_line(lambda t, w=width: torch.exp(-(((t - 0.5) / w) ** 2) / 2), mean, std + d, alpha, kind)
                )
                for d in (-h, 0, h)
            )
            case = (kind, alpha, variance, width)
            assert abs(value.item() / peak - exact) < TOLERANCE[dtype] + 30 * torch.finfo(dtype).eps, case
            expected = (high - low) / (2 * h) / (2 * std)
            room = 1e-4 if dtype == torch.float32 else 2e-6  # error of the expected value's finite difference
            assert abs(slope.item() / peak - expected) < room / width / max(width, std), case


@pytest.mark.parametrize("rule", [WeightedRule(1.0), WeightedRule(1.0, 4), Halves(1.0), Normal(), Roots()])
def test_error_bounds_hold_and_are_tight(rule: quadrature_sizes.Error) -> None:
    """Sharper functions never need fewer points, and half of the points are not enough for 1e-12."""
    counts = []
    for sharpness in (0.5, 2.0, 8.0, 32.0):
        count = quadrature_sizes.min_points(rule, sharpness, D)
        assert rule.log_error(count, sharpness) <= math.log(1e-12)
        assert rule.log_error(max(count // 2, 1), sharpness) > math.log(1e-12)
        counts.append(count)
    assert counts == sorted(counts)


def test_unreachable_accuracy_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadrature_sizes, "_warnings", set())
    density = BetaGaussian(torch.tensor([0.5, 0.5]), torch.eye(2), torch.tensor(1.5), 2)
    with pytest.warns(
        UserWarning, match=r"With 384 angles, .* can reach 1e[+-]\d+ times the peak of a function; \d+ would be enough"
    ):
        density.expect(image_basis(variance=1e-4))
    with pytest.warns(UserWarning, match=r"With 1024 points, .* Pass points"):
        TruncatedParabola(0.5, 1.0).expect(gaussian_grid(5, 1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        density.expect(image_basis(variance=1e-4))  # only one warning per size of error


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.02, 1.1, 1.32, 1.5, 2.0, 3.0, 8.0])
def test_masses_sum_to_one_and_split_evenly(alpha: float) -> None:
    """Check one wide cell and its halves; in the plane, also correlations close to 1."""
    edges = torch.tensor([0.0, 0.5, 1.0], dtype=D)
    for inputs in (alpha, torch.tensor(alpha, dtype=D)):
        density = BetaGaussian(torch.tensor(0.5, dtype=D), torch.tensor(0.0025, dtype=D), inputs)
        torch.testing.assert_close(cell_masses(density, edges[::2]), torch.ones(1, dtype=D), atol=1e-12, rtol=0)
        torch.testing.assert_close(cell_masses(density, edges), torch.full((2,), 0.5, dtype=D), atol=1e-12, rtol=0)
        for rho in (0.0, 0.9, 0.999, -0.9999):
            cov = 4e-4 * torch.tensor([[1, 2 * rho], [2 * rho, 4]], dtype=D)
            plane = BetaGaussian(torch.tensor([0.475, 0.5], dtype=D), cov, inputs, 2)
            masses = grid_masses(plane, 4, 5)
            bound = 1e-11 if alpha <= 2 else 2e-10
            assert abs(masses.sum().item() - 1) < bound and abs(masses[:2].sum().item() - 0.5) < bound
            # The mass of a column is a mass of the marginal density on the line.
            eps = alpha - 1
            marginal = BetaGaussian(plane.mean[0], cov[0, 0], 1 + eps / (1 + eps / 2))
            columns = cell_masses(marginal, torch.linspace(0, 1, 6, dtype=D))
            torch.testing.assert_close(masses.sum(0), columns, atol=bound, rtol=0)


def test_strongly_correlated_cell_masses_are_accurate() -> None:
    """The density lies almost on a line, so the mass of a cell is the mass of an interval."""
    cov = 4e-4 * torch.tensor([[1, 0.999], [0.999, 1]], dtype=D)
    masses = grid_masses(Gaussian(torch.tensor([0.475, 0.49], dtype=D), cov, 2), 2, 1)
    below = 0.5 * math.erfc(-0.01 / 0.02 / math.sqrt(2))  # probability that y is less than .5
    assert masses.flatten().tolist() == pytest.approx([below, 1 - below], abs=1e-12)


def test_invalid_covariances_positions_and_factors_raise() -> None:
    eye, nan, inf = torch.eye(2), math.nan, math.inf
    skew = torch.tensor([[1.0, 0.4], [0.1, 1.0]])
    factors = [eye + torch.tensor([[0, 0], [x, 0]]) for x in (nan, inf)]
    three = torch.tensor([0, nan, 1])
    for make, message in (
        (lambda: Gaussian(torch.zeros(3), -torch.eye(3), 3), "covariance must be positive definite"),
        (lambda: Gaussian(torch.zeros(3), torch.full((3, 3), nan), 3), "covariance must be positive definite"),
        (lambda: TruncatedParaboloid(torch.zeros(2), skew), "covariance must be symmetric, got 0.4 and 0.1"),
        (lambda: TruncatedParaboloid.from_scale(torch.zeros(2), skew), "covariance must be symmetric"),
        (lambda: BetaGaussian.from_mean_cov(torch.zeros(2), skew, dims=2), "covariance must be symmetric"),
        (lambda: GaussianBasis(torch.zeros(1, 2), skew.unsqueeze(0)), "variance must be symmetric"),
        (lambda: GaussianBasis(torch.tensor([0.0, nan]), 0.1), "centres must be finite, got nan"),
        (lambda: GaussianBasis(torch.zeros(1), inf), "variance must be finite, got inf"),
        (lambda: TruncatedParaboloid.from_factor(torch.zeros(2), skew), "lower triangular, got 0.4 above"),
        *((lambda f=f: Gaussian.from_factor(torch.zeros(2), f, dims=2), "below the") for f in factors),
        (lambda: ValueFunction(text_basis(32))(torch.ones(2, 3), positions=three), r"positions must .* got \(3,\)"),
        (lambda: match_moments(Gaussian, torch.ones(2, 3) / 3, torch.rand(2, 3, 2)), r"for dims=1 .* got \(2, 3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="must be a tensor or a number, got list"):
        TruncatedParabola([0.0], 1.0)  # type: ignore[arg-type]


def test_densities_accept_numbers() -> None:
    for made in (TruncatedParabola(0.0, 1), TruncatedParabola.from_factor(0, 1.0), Laplace.from_scale(0.0, 0.5**0.5)):
        assert made.batch_shape == () and made.dtype == torch.float32 and made.variance.item() == pytest.approx(1)
    wide = Gaussian(torch.zeros(3, dtype=D), 2.0)
    assert wide.dtype == D and wide.variance.tolist() == pytest.approx([2.0] * 3)


def test_match_moments_resolves_ambiguous_2x2_positions() -> None:
    weights, places = torch.full((2, 2), 0.5), torch.tensor([[0.0, 1.0], [0.2, 0.4]])
    density = match_moments(Gaussian, weights, places)
    assert density.dims == 1 and density.mean.tolist() == pytest.approx([0.5, 0.3])
    assert match_moments(Gaussian, weights, places, dims=2).dims == 2
    assert match_moments(TruncatedParaboloid, weights, places).dims == 2


@pytest.mark.parametrize("alpha", [2.2, 3.5, 5.0, 10.0, 100.0])
def test_tensor_alpha_above_2_matches_float_alpha(alpha: float) -> None:
    """Such a density ends in a power that no rule integrates exactly; its nodes are dense at the ends."""
    learned, std = torch.tensor(alpha, dtype=D), torch.tensor([0.001, 0.03, 0.2, 1.0], dtype=D)
    basis = text_basis(32).double()
    exact = BetaGaussian(0.3, std**2, alpha).expect(basis)
    torch.testing.assert_close(BetaGaussian(0.3, std**2, learned).expect(basis), exact, atol=1e-9, rtol=0)
    cov = 0.01 * torch.eye(2, dtype=D)
    mean = torch.tensor([0.3, 0.6], dtype=D)
    basis = image_basis(4).double()
    exact = BetaGaussian(mean, cov, alpha, 2).expect(basis)
    torch.testing.assert_close(BetaGaussian(mean, cov, learned, 2).expect(basis), exact, atol=1e-9, rtol=0)
