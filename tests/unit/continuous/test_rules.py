"""Quadrature rules, their numbers of points, and the bases that determine them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

from tsallis.continuous import (
    BetaGaussian,
    Ellipse,
    Gaussian,
    GaussianBasis,
    Interval,
    Laplace,
    Mixture,
    ProductBasis,
    TruncatedParabola,
    TruncatedParaboloid,
    gaussian_grid,
    image_basis,
    match_moments,
)
from tsallis.continuous import quadrature as rules
from tsallis.continuous.gaussian_products import bells, plane_sum

D = torch.float64


@pytest.mark.parametrize("points", [1, 2, 7, 64, 160])
def test_rules_match_numpy(points: int) -> None:
    for ours, theirs in (
        (rules.gauss_legendre(points), np.polynomial.legendre.leggauss(points)),
        (rules.gauss_hermite(points), np.polynomial.hermite_e.hermegauss(points)),
        (rules.gauss_laguerre(points), np.polynomial.laguerre.laggauss(points)),
    ):
        if not np.isfinite(theirs[1]).all() or theirs[1].sum() == 0:
            continue  # numpy's own weights overflow or underflow
        nodes, weights = (torch.from_numpy(x) for x in theirs)
        torch.testing.assert_close(ours.nodes, nodes, atol=1e-11, rtol=1e-12)
        # The Laguerre nodes are eigenvalues of a matrix of norm 4 * points, and accurate to the rounding of that norm.
        torch.testing.assert_close(ours.weights, weights / weights.sum(), atol=2e-14 * max(points, 10), rtol=0)


@pytest.mark.parametrize(("a", "b"), [(0.0, 0.0), (1.0, 1.0), (-0.5, -0.5), (0.3, 2.0), (40.0, 40.0)])
def test_jacobi_rules_are_exact(a: float, b: float) -> None:
    nodes, weights = rules.gauss_jacobi(6, a, b)
    assert (weights > 0).all() and (nodes.abs() < 1).all()
    for degree in range(12):
        # E (1 + x)^k under the beta law
        expected = 2**degree * math.exp(
            math.lgamma(b + 1 + degree) - math.lgamma(b + 1) + math.lgamma(a + b + 2) - math.lgamma(a + b + 2 + degree)
        )
        assert float(weights @ (1 + nodes) ** degree) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_learned_alpha_rules_match_fixed_alpha_rules(alpha: float) -> None:
    t = torch.tensor(alpha, dtype=D)
    f = lambda x: torch.exp(-((x - 0.3) ** 2)) * torch.cos(x)  # noqa: E731
    fixed, learned = rules.beta_line(64, alpha), rules.sine_line(128, t)
    assert float(fixed.weights @ f(fixed.nodes)) == pytest.approx(float(learned.weights @ f(learned.nodes)), abs=1e-10)
    g = lambda x: f(x[:, 0]) * torch.exp(x[:, 1] / 3)  # noqa: E731
    fixed, learned = rules.beta_disk(32, 64, alpha), rules.sine_disk(64, 64, t)
    assert float(fixed.weights @ g(fixed.nodes)) == pytest.approx(float(learned.weights @ g(learned.nodes)), abs=1e-10)


def test_rules_made_under_torch_modes_are_plain_tensors() -> None:
    with torch.inference_mode():
        rules.gauss_hermite(37)
        made = rules.beta_line(39, 1.7)
    assert not made.nodes.is_inference() and made.nodes.dtype == D
    with torch.device("meta"):
        assert rules.gauss_jacobi(41, 0.1, 0.2).nodes.device.type == "cpu"
    with FakeTensorMode():
        assert not isinstance(rules.beta_line(43, 1.7).nodes, FakeTensor)
    for alpha, transform in ((1.71, torch.func.grad), (1.72, torch.func.vmap), (1.73, torch.func.jacfwd)):
        transform(lambda x, alpha=alpha: x.sum() * rules.beta_line(45, alpha).nodes.sum())(torch.ones(3))
        assert not torch._C._functorch.is_functorch_wrapped_tensor(rules.beta_line(45, alpha).nodes)
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        rules.gauss_legendre(0)


@pytest.mark.parametrize("small", [1e-9, 1e-4, 9e-3, 1.1e-2, 4.9e-2, 5.1e-2])
def test_ratio_functions_match_mpmath_near_zero(small: float) -> None:
    mp = pytest.importorskip("mpmath")
    mp.mp.dps = 40
    x = torch.tensor(small, dtype=D, requires_grad=True)
    for ours, exact in (
        (rules.log1p_ratio, lambda v: mp.log1p(v) / v),
        (rules.expm1_ratio, lambda v: mp.expm1(v) / v),
        (rules.sine_ratio, lambda v: mp.sin(mp.sqrt(v)) / mp.sqrt(v)),
        (rules.log_cosine_ratio, lambda v: -2 * mp.log(mp.cos(mp.sqrt(v))) / v),
    ):
        value = ours(x)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        (bend,) = torch.autograd.grad(slope, x)
        for order, result in enumerate((value, slope, bend)):
            assert result.item() == pytest.approx(float(mp.diff(exact, mp.mpf(small), order)), rel=1e-9)


def test_default_points_are_accurate_for_every_width() -> None:
    d = TruncatedParabola(torch.tensor([0.5], dtype=D), torch.tensor(0.04, dtype=D))
    for width in (0.5, 0.1, 0.03, 0.01):
        basis = gaussian_grid(20, width)
        error = (d.expect(basis) - d.expect(basis, 512)).abs().max() * width
        assert error < 1e-12
    single = TruncatedParaboloid(torch.rand(6, 2), 0.03 * torch.eye(2))
    double = TruncatedParaboloid(single.mean.double(), single.covariance.double())
    for variance in (0.1, 0.01, 0.001):
        grid = image_basis(variance=variance)
        scattered = GaussianBasis(*grid.gaussians(single.mean))
        exact = double.expect(grid, (96, 192))
        for basis in (grid, scattered):
            assert (single.expect(basis) - exact).abs().max() * variance * 2 * math.pi < 3e-6


def test_product_basis_contains_all_pairs() -> None:
    t = torch.rand(4, 3, 2, dtype=D)
    for first, second in (
        (gaussian_grid(3, 0.2), gaussian_grid(4, [0.1, 0.3])),
        (gaussian_grid(1, 0.2), gaussian_grid(2, 0.3)),
    ):
        product = ProductBasis(first, second)
        pairs = torch.einsum("...i,...j->...ij", first(t[..., 0]), second(t[..., 1])).flatten(-2)
        torch.testing.assert_close(product(t), pairs)
        assert product(t).shape[-1] == product.size
        w = torch.rand(3, dtype=D)
        torch.testing.assert_close(product.weighted_sum(w, *t.unbind(-1)), (w[:, None] * pairs).sum(-2))
        each = torch.rand(4, 3, dtype=D)
        torch.testing.assert_close(product.weighted_sum(each, *t.unbind(-1)), (each[..., None] * pairs).sum(-2))
    grid = image_basis(3)
    centres, covs = grid.gaussians(t)  # type: ignore[misc]
    torch.testing.assert_close(GaussianBasis(centres, covs)(t), grid(t), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 17])
def test_chunked_sums_of_products_match_einsum(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tsallis.continuous import gaussian_products

    monkeypatch.setattr(gaussian_products, "CHUNK", chunk)
    first = bells(torch.rand(4, dtype=D), torch.full((4,), 0.3, dtype=D))
    second = bells(torch.rand(3, dtype=D), torch.full((3,), 0.2, dtype=D))
    weights = torch.rand(5, dtype=D)
    x, y = torch.rand(2, 6, 5, dtype=D).unbind()
    x.requires_grad_()
    y.requires_grad_()

    def sums(x: Tensor, y: Tensor) -> Tensor:
        return plane_sum(weights, x, y, first, second)

    left, right = torch.exp(-first.z(x).square()), torch.exp(-second.z(y).square())
    torch.testing.assert_close(sums(x, y), torch.einsum("q,bqi,bqj->bij", weights, left, right))
    assert torch.autograd.gradcheck(sums, (x, y))
    assert torch.autograd.gradgradcheck(sums, (x, y))


def test_invalid_bases_and_densities_raise() -> None:
    for make, message in (
        (lambda: GaussianBasis(torch.zeros(3), 0.0), "variance must be positive"),
        (lambda: Gaussian(0.0, -1.0), "variance must be positive and finite, got -1"),
        (lambda: TruncatedParabola.from_scale(0.0, -1.0), "scale must be positive and finite, got -1"),
        (lambda: match_moments(TruncatedParabola, torch.ones(1), torch.zeros(1, 2), dims=2), "dims must be 1 .* got 2"),
        (lambda: GaussianBasis(torch.zeros(3, 2), -torch.eye(2).expand(3, 2, 2)), "positive"),
        (lambda: GaussianBasis(torch.zeros(3, 3), 0.1), "centres must have shape"),
        (lambda: GaussianBasis(torch.zeros(0), 0.1), "centres must have shape"),
        (lambda: gaussian_grid(4, [0.1, -0.1]), "widths must be positive and finite, got -0.1"),
        (lambda: image_basis(2, -1.0), "variance must be positive and finite, got -1"),
        (lambda: GaussianBasis(torch.zeros(3), torch.ones(2, 2)), r"variance must be a number, or have shape \(3,\)"),
        (lambda: GaussianBasis(torch.zeros(3), torch.ones(2)), r"variance must be .* \(3,\), got shape \(2,\)"),
        (lambda: ProductBasis(image_basis()), "must have 1 dimension, got 2"),
        (lambda: gaussian_grid(7, [0.1, 0.2]), "multiple of the number of widths, got size 7 and 2"),
        (lambda: image_basis()(torch.zeros(3)), r"\[\.\.\., 2\]"),
        (lambda: Gaussian(torch.zeros(3), torch.ones(3)).expect(image_basis()), "basis must .* density, 1, got 2"),
        (lambda: BetaGaussian(torch.zeros(3), torch.ones(3), 0.9), "at least 1, got 0.9"),
        (lambda: BetaGaussian(torch.zeros(3), torch.ones(3), torch.tensor(0.5)), "a tensor with 0.5"),
        (lambda: BetaGaussian(torch.zeros(3), torch.ones(3), dims=0), "dims must be at least 1"),
        (lambda: TruncatedParaboloid(torch.zeros(3), torch.eye(2)), r"mean must have shape \[\.\.\., 2\]"),
        (lambda: TruncatedParaboloid.from_scores(torch.zeros(5)), r"theta must have shape \[\.\.\., 6\]"),
        (lambda: TruncatedParabola.from_scores(torch.tensor([0.0, 1.0])), "positive"),
        (lambda: TruncatedParabola(torch.zeros(2), torch.ones(2)).expect(gaussian_grid(2, 0.1), (3, 4)), "one number"),
        (lambda: TruncatedParabola(0.0, 1.0).expect(lambda t: t, (3,)), r"one number .* got \(3,\)"),
        (lambda: TruncatedParaboloid(torch.zeros(2), torch.eye(2)).expect(image_basis(2), (1, 2, 3)), "one number or"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match=r"centres must be floating point, got torch\.int64"):
        GaussianBasis(torch.arange(3), 1.7)
    for make, message in (
        (lambda: gaussian_grid(4.0, 0.1), r"size must be a whole number, got 4\.0"),
        (lambda: gaussian_grid(4, "a"), "widths must be a number, got 'a'"),
        (lambda: gaussian_grid(4, None), "widths must be a number, got None"),
        (lambda: image_basis(2.5), r"side must be a whole number, got 2\.5"),
        (lambda: image_basis(2, "a"), "variance must be a number, got 'a'"),
        (lambda: ProductBasis(3), "must be a Basis, got int"),
        (lambda: Mixture(torch.ones(1), None), "components must be a Density or a sequence of them, got NoneType"),
    ):
        with pytest.raises(TypeError, match=message):
            make()  # type: ignore[no-untyped-call]
    normal = torch.distributions.Normal(torch.zeros(2), 1.0)
    for components in (normal, [normal, normal]):
        with pytest.raises(TypeError, match="components must be a Density or a sequence of them, got Normal"):
            Mixture(torch.ones(2) / 2, components)  # type: ignore[arg-type]


def disk_expectation(alpha: float, basis: Sequence[tuple[float, float, float, float]]) -> list[float]:
    """Compute expectations of products of Gaussians (centre and variance in x, then in y) with numpy.

    The density has mean (.4, .5), covariance .03 and this alpha above 1.
    """
    power, reach = 1 / (alpha - 1), math.sqrt(0.03 * (2 + 2 * alpha / (alpha - 1)))
    t, w = np.polynomial.legendre.leggauss(120)
    squared = (t + 1) / 2  # squared radius, relative to the reach
    angle = np.arange(240) * (2 * math.pi / 240)
    density = w * (1 - squared) ** power
    density = np.repeat((density / density.sum())[:, None], 240, 1) / 240
    x = 0.4 + reach * np.sqrt(squared)[:, None] * np.cos(angle)
    y = 0.5 + reach * np.sqrt(squared)[:, None] * np.sin(angle)

    def normal(at: Any, centre: float, variance: float) -> Any:
        return np.exp(-((at - centre) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    return [float((density * normal(x, a, b) * normal(y, c, d)).sum()) for a, b, c, d in basis]


def slope_of(function: Callable[[float], Sequence[float]], x: float, step: float = 1e-5) -> Tensor:
    above, below = (torch.tensor(function(x + s), dtype=D) for s in (step, -step))
    return (above - below) / (2 * step)


def pair(centre: Tensor, variance: Tensor) -> ProductBasis:
    """Return two functions in x, the first given by its centre and variance, times one function in y."""
    line, other = GaussianBasis(torch.zeros(2, dtype=D), 1.0), GaussianBasis(torch.tensor([0.7], dtype=D), 0.05)
    line.centres = torch.stack([centre, torch.tensor(0.8, dtype=D)])
    line.covs = torch.stack([variance, torch.tensor(0.04, dtype=D)])
    return ProductBasis(line, other)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9])
@pytest.mark.parametrize("points", [None, (40, 80)])
def test_product_gradients_match_finite_differences(alpha: float, points: tuple[int, int] | None) -> None:
    """Check first and second derivatives in a learned alpha that all densities share, and in the basis."""
    values = torch.tensor([alpha, 0.2, 0.02], dtype=D, requires_grad=True)
    mean, cov = torch.tensor([0.4, 0.5], dtype=D), 0.03 * torch.eye(2, dtype=D)

    def expect(alpha: Tensor | float, centre: Tensor, variance: Tensor) -> Tensor:
        return BetaGaussian(mean, cov, alpha, 2).expect(pair(centre, variance), points)

    def exact(alpha: float, centre: float, variance: float) -> list[float]:
        return disk_expectation(alpha, [(centre, variance, 0.7, 0.05), (0.8, 0.04, 0.7, 0.05)])

    learned = torch.autograd.functional.jacobian(lambda v: expect(*v.unbind()), values)
    fixed = torch.autograd.functional.jacobian(lambda v: expect(alpha, *v.unbind()), values[1:].detach())
    at = [alpha, 0.2, 0.02]
    for i in range(3):
        expected = slope_of(lambda x, i=i: exact(*at[:i], x, *at[i + 1 :]), at[i])
        torch.testing.assert_close(learned[:, i], expected, rtol=1e-5, atol=1e-7)
        if i:
            torch.testing.assert_close(fixed[:, i - 1], expected, rtol=1e-5, atol=1e-7)
    assert torch.autograd.gradgradcheck(lambda v: expect(*v.unbind()), values, atol=1e-4)


def test_fast_paths_are_used_for_point_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from tsallis.continuous import bases, fourier
    from tsallis.continuous.densities import elliptical
    from tsallis.nn import ContinuousAttention2d

    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(bases, "plane_sum", counted("sum", plane_sum))
    monkeypatch.setattr(elliptical.fourier, "wave_expectation", counted("waves", fourier.wave_expectation))
    basis = image_basis(3).double()
    mean, cov = torch.rand(4, 2, dtype=D, requires_grad=True), (0.02 * torch.eye(2, dtype=D)).requires_grad_()
    for alpha, points, path in ((2.0, (8, 16), ["sum"]), (1.5, None, ["waves"]), (1.01, None, ["sum"])):
        calls.clear()
        BetaGaussian(mean, cov, alpha, 2).expect(basis, points).sum().backward()
        assert calls == path
    calls.clear()
    BetaGaussian(mean, cov, torch.tensor(1.5, dtype=D), 2).expect(basis)  # a tensor that does not need gradients
    with torch.no_grad():
        BetaGaussian(mean, cov, torch.tensor(1.5, dtype=D, requires_grad=True), 2).expect(basis)
    assert calls == ["sum", "sum"]
    for points, path in (((8, 16), ["sum"]), (None, ["waves"])):
        calls.clear()
        attention = ContinuousAttention2d(8, 2, density=2.0, basis=image_basis(3), points=points)
        attention(torch.randn(2, 3, 8), torch.randn(2, 6, 8), grid=(2, 3))[0].sum().backward()
        assert calls == path
    one = bells(torch.zeros(1, dtype=D), torch.ones(1, dtype=D))
    with pytest.raises(NotImplementedError, match="gradients only for points"):
        plane_sum(torch.ones(2, dtype=D, requires_grad=True), *torch.zeros(2, 1, 2, dtype=D), one, one)


def test_forward_mode_in_2d_matches_finite_differences() -> None:
    cov, basis, step = 0.03 * torch.eye(2, dtype=D), image_basis(3).double(), torch.tensor([1.0, 0.3], dtype=D)
    for alpha in (1.01, 1.5):

        def expect(mean: Tensor, alpha: float = alpha) -> Tensor:
            return BetaGaussian(mean, cov, alpha, 2).expect(basis)

        mean = torch.tensor([0.4, 0.5], dtype=D)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(expect(forward_ad.make_dual(mean, step))).tangent
        expected = (expect(mean + 1e-6 * step) - expect(mean - 1e-6 * step)) / 2e-6
        torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("width", [1e-3, 3.14159e-8, 1e-12])
def test_width_of_narrow_functions_is_accurate(width: float, dtype: torch.dtype) -> None:
    basis = GaussianBasis(torch.linspace(0, 1, 3, dtype=dtype), width**2)
    assert basis.width == pytest.approx(width, rel=1e-5)
    values = TruncatedParabola(torch.tensor(0.5, dtype=dtype), torch.tensor(0.01, dtype=dtype)).expect(basis)
    assert values.isfinite().all()


def test_basis_width_follows_changed_variances() -> None:
    """A rule made for wider functions would be far off."""
    for shape in ((3,), (3, 2)):
        basis = GaussianBasis(torch.rand(shape, dtype=D), 0.01)
        basis.covs.mul_(1e-3)
        assert basis.width == pytest.approx(math.sqrt(1e-5))
    density = BetaGaussian(torch.tensor(0.5, dtype=D), torch.tensor(0.03, dtype=D), 1.5)
    line = GaussianBasis(torch.linspace(0, 1, 3, dtype=D), 0.01)
    line.covs.mul_(1e-3)
    torch.testing.assert_close(density.expect(line), density.expect(line, 1000))
    line.covs[0] = torch.nan
    assert math.isnan(line.width)


def test_supports_of_gaussian_rows_in_a_batch_are_unbounded() -> None:
    """A tensor alpha may contain 1; the support of that row is the whole space."""
    cov = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=D)
    plane = BetaGaussian(torch.zeros(2, 2, dtype=D), cov, torch.tensor([1.0, 2.0], dtype=D), 2)
    support, expected = plane.support, TruncatedParaboloid(torch.zeros(2, dtype=D), cov).support
    assert isinstance(support, Ellipse) and isinstance(expected, Ellipse)
    assert not support.bounded and expected.bounded and not support.factor.isnan().any()
    torch.testing.assert_close(support.factor[1], expected.factor)
    for point, inside in ((0.0, [True, True]), (9.0, [True, False]), (torch.inf, [False, False])):
        assert support.check(torch.full((2, 2), point, dtype=D)).tolist() == inside
    assert (support.semi_axes[0] == torch.inf).all() and support.boundary(8)[0].isnan().all()
    torch.testing.assert_close(support.semi_axes[1], torch.tensor([3.0, 9.0], dtype=D).sqrt())
    torch.testing.assert_close(support.boundary(8)[1], expected.boundary(8))
    mixture = Mixture(torch.tensor([0.5, 0.5], dtype=D), plane).support
    assert not mixture.bounded and mixture.check(torch.full((2,), 9.0, dtype=D))
    line = BetaGaussian(torch.zeros(2, dtype=D), torch.ones(2, dtype=D), plane.alpha).support
    assert isinstance(line, Interval) and not line.bounded
    assert line.check(torch.full((2,), 9.0)).tolist() == [True, False]
    alphas = torch.tensor([[1.0], [2.0]], dtype=D)
    checked = torch.func.vmap(lambda a: BetaGaussian(plane.mean[:1], cov, a, 2).support.check(plane.mean[:1] + 9))(
        alphas
    )
    assert checked.tolist() == [[True], [False]]


def test_bases_accept_integer_points() -> None:
    for basis, points in ((gaussian_grid(4, [0.1, 0.5]), torch.tensor([0, 1])), (image_basis(2), torch.eye(2).long())):
        torch.testing.assert_close(basis(points), basis(points.double()).float())


@pytest.mark.parametrize(
    ("points", "message"),
    [(2.5, "2.5"), (True, "True"), ((2, True), "True"), ([2, 3], r"\[2, 3\]")],
)
def test_points_of_wrong_type_raise(points: Any, message: str) -> None:
    density = TruncatedParaboloid(torch.zeros(2), torch.eye(2))
    for function in (image_basis(2), lambda t: t):
        with pytest.raises(TypeError, match=f"points must be a whole number, got {message}"):
            density.expect(function, points)


@pytest.mark.parametrize("kind", [Gaussian, TruncatedParabola, Laplace])
def test_unknown_arguments_of_a_density_are_named(kind: Any) -> None:
    ways = [(make, 0.0, 1.0) for make in (kind.from_mean_cov, kind.from_scale, kind.from_factor)]
    ways += [(match_moments, kind, torch.ones(1), torch.ones(1))]
    if kind is not Laplace:
        ways += [(kind.from_scores, torch.tensor([0.0, -1.0]))]
    message = f"^{kind.__name__} has no argument 'alpha', got 2; only BetaGaussian has one"
    for make, *arguments in ways:
        with pytest.raises(TypeError, match=message):
            make(*arguments, alpha=2)
    with pytest.raises(TypeError, match=r"^BetaGaussian has no argument 'beta', got 2$"):
        BetaGaussian.from_mean_cov(0.0, 1.0, beta=2)
