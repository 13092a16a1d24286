"""Properties of every continuous density, compared with integrals that share no code with the library."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from contract.integrals import over
from tsallis.continuous import (
    BetaGaussian,
    Density,
    Ellipse,
    Gaussian,
    GaussianBasis,
    Interval,
    Laplace,
    Mixture,
    ProductBasis,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    WholeSpace,
    cell_masses,
    image_basis,
)

Make = Callable[[Tensor, Tensor], Density]


def learned(dims: int) -> Make:
    def make(mean: Tensor, cov: Tensor) -> Density:
        # In the plane, the integrals of the tests can't cover a support of 14 standard deviations.
        alpha = torch.tensor([1.01 if dims == 1 else 1.3, 1.2, 1.7], dtype=torch.float64)
        return BetaGaussian(mean, cov, alpha, dims)

    return make


LINE: dict[str, Make] = {
    "gaussian": Gaussian,
    "parabola": TruncatedParabola,
    "beta-1.01": lambda m, v: BetaGaussian(m, v, 1.01),
    "beta-1.3": lambda m, v: BetaGaussian(m, v, 1.3),
    "beta-1.5": lambda m, v: BetaGaussian(m, v, 1.5),
    "beta-4": lambda m, v: BetaGaussian(m, v, 4.0),
    "beta-learned": learned(1),
    "laplace": Laplace,
    "triangular": Triangular,
}
PLANE: dict[str, Make] = {
    "gaussian-2d": lambda m, c: Gaussian(m, c, 2),
    "paraboloid": TruncatedParaboloid,
    "beta-1.5-2d": lambda m, c: BetaGaussian(m, c, 1.5, 2),
    "beta-3-2d": lambda m, c: BetaGaussian(m, c, 3.0, 2),
    "beta-learned-2d": learned(2),
}
ALL = [*LINE, *PLANE]


def dims_of(name: str) -> int:
    return 2 if name in PLANE else 1


def moments_for(name: str, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return means and covariances of batch shape [2, 3]; in the plane, one covariance is circular."""
    g = torch.Generator().manual_seed(3)
    if dims_of(name) == 1:
        mean = torch.rand(2, 3, generator=g, dtype=torch.float64)
        return mean.to(dtype), (torch.rand(2, 3, generator=g, dtype=torch.float64) * 0.05 + 0.003).to(dtype) * scale
    mean = torch.rand(2, 3, 2, generator=g, dtype=torch.float64)
    root = torch.randn(2, 3, 2, 2, generator=g, dtype=torch.float64) * 0.12
    cov = root @ root.mT + 0.004 * torch.eye(2, dtype=torch.float64)
    cov[0, 0] = 0.02 * torch.eye(2, dtype=torch.float64)
    return mean.to(dtype), cov.to(dtype) * scale


def build(name: str, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Density:
    return (LINE | PLANE)[name](*moments_for(name, dtype, scale))


def scattered_basis(dims: int, dtype: torch.dtype = torch.float64, variance: float = 0.02) -> GaussianBasis:
    g = torch.Generator().manual_seed(5)
    centres = torch.rand(*((7,) if dims == 1 else (7, 2)), generator=g, dtype=torch.float64)
    return GaussianBasis(centres.to(dtype), variance)


@pytest.mark.parametrize("name", ALL)
def test_density_integrates_to_one_with_the_given_moments(name: str) -> None:
    d = build(name)
    torch.testing.assert_close(over(d, d.pdf), torch.ones(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    event = d.dims > 1
    mean = over(d, lambda t: d.pdf(t).unsqueeze(-1) * t if event else d.pdf(t) * t)
    torch.testing.assert_close(mean, d.mean, atol=1e-9, rtol=0)

    def spread(t: Tensor) -> Tensor:
        apart = t - d.mean
        return d.pdf(t)[..., None, None] * apart[..., None] * apart[..., None, :] if event else d.pdf(t) * apart**2

    torch.testing.assert_close(over(d, spread), d.covariance, atol=1e-9, rtol=0)
    given_mean, given_cov = moments_for(name)
    torch.testing.assert_close(d.mean, given_mean)
    torch.testing.assert_close(d.covariance, given_cov)
    torch.testing.assert_close(d.variance, d.covariance.diagonal(dim1=-2, dim2=-1) if event else d.covariance)


@pytest.mark.parametrize("name", ALL)
def test_the_density_is_positive_inside_the_support_and_zero_outside(name: str) -> None:
    d = build(name)
    support = d.support
    g = torch.Generator().manual_seed(0)
    direction = torch.randn(50, 2, 3, d.dims, generator=g, dtype=torch.float64)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    if isinstance(support, WholeSpace):
        factor = d.factor if d.dims > 1 else d.factor[..., None, None]
    else:
        assert isinstance(support, (Interval, Ellipse)) and support.bounded
        factor = support.factor if isinstance(support, Ellipse) else (support.length / 2)[..., None, None]
    edge = (factor @ direction.unsqueeze(-1)).squeeze(-1)
    edge = edge if d.dims > 1 else edge.squeeze(-1)
    inside, outside = d.mean + 0.9999 * edge, d.mean + 1.0001 * edge
    torch.testing.assert_close(d.log_prob(inside).exp(), d.pdf(inside), rtol=1e-9, atol=0)
    assert support.check(inside).all() and (d.log_prob(inside) > -torch.inf).all()
    assert (d.pdf(d.mean) >= d.pdf(inside)).all()
    if support.bounded:
        assert (d.pdf(outside) == 0).all() and (d.log_prob(outside) == -torch.inf).all()
        assert not support.check(outside).any()
    else:
        assert support.check(outside).all() and not support.check(outside * torch.inf).any()


@pytest.mark.parametrize("name", ALL)
def test_entropies_match_numerical_integrals(name: str) -> None:
    d = build(name)

    def shannon(t: Tensor) -> Tensor:
        p = d.pdf(t)
        return -torch.where(p > 0, p * torch.where(p > 0, p, 1).log(), 0)

    torch.testing.assert_close(d.entropy(), over(d, shannon), atol=1e-8, rtol=0)
    alphas = torch.as_tensor(d.alpha, dtype=torch.float64).expand(2, 3)
    power = over(d, lambda t: d.pdf(t) ** alphas)
    safe = torch.where(alphas == 1, 2, alphas)
    expected = torch.where(alphas == 1, d.entropy(), (1 - power) / (safe * (safe - 1)))
    torch.testing.assert_close(d.tsallis_entropy(), expected, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_expectations_match_numerical_integrals(name: str) -> None:
    d = build(name)
    bases = [scattered_basis(d.dims), scattered_basis(d.dims, variance=0.002)]
    if d.dims == 2:
        covariance = torch.tensor([[0.02, 0.01], [0.01, 0.03]]).expand(3, 2, 2)
        bases.append(ProductBasis(scattered_basis(1), scattered_basis(1, variance=0.002)))
        bases.append(GaussianBasis(torch.rand(3, 2, dtype=torch.float64), covariance))
    for basis in bases:
        expected = over(d, lambda t, basis=basis: d.pdf(t).unsqueeze(-1) * basis(t))
        torch.testing.assert_close(d.expect(basis), expected, atol=1e-9, rtol=1e-9)
    square = (lambda t: t**2) if d.dims == 1 else (lambda t: t.square().sum(-1))
    torch.testing.assert_close(d.expect(square), over(d, lambda t: d.pdf(t) * square(t)), atol=1e-9, rtol=0)
    matrices = d.expect(lambda t: (t if d.dims == 1 else t[..., 0])[..., None, None].expand(*[-1] * 3, 4, 5))
    assert matrices.shape == (2, 3, 4, 5)


@pytest.mark.parametrize("name", ALL)
def test_expectations_pass_gradcheck_and_gradgradcheck(name: str) -> None:
    """Check derivatives also at a circular covariance."""
    mean, cov = moments_for(name)
    mean, cov = mean[0].clone(), cov[0].clone()
    mean.requires_grad_()
    cov.requires_grad_()
    basis = scattered_basis(dims_of(name))
    points = 24 if dims_of(name) == 1 else (8, 16)

    def expect(mean: Tensor, cov: Tensor) -> Tensor:
        even = cov if dims_of(name) == 1 else (cov + cov.mT) / 2
        return (LINE | PLANE)[name](mean, even).expect(basis, points)[..., :3]

    assert torch.autograd.gradcheck(expect, (mean, cov))
    assert torch.autograd.gradgradcheck(expect, (mean, cov))


@pytest.mark.parametrize("name", ALL)
def test_density_passes_gradcheck_and_gradgradcheck(name: str) -> None:
    mean, cov = (x[0].clone().requires_grad_() for x in moments_for(name))
    d = (LINE | PLANE)[name](mean.detach(), cov.detach())
    t = (d.mean + 0.4 * torch.sqrt(d.variance)).requires_grad_()

    def density(mean: Tensor, cov: Tensor, t: Tensor) -> Tensor:
        even = cov if dims_of(name) == 1 else (cov + cov.mT) / 2
        d = (LINE | PLANE)[name](mean, even)
        return torch.cat([d.pdf(t), d.log_prob(t), d.entropy(), d.tsallis_entropy()])

    assert torch.autograd.gradcheck(density, (mean, cov, t))
    assert torch.autograd.gradgradcheck(density, (mean, cov, t))


@pytest.mark.parametrize("name", ALL)
def test_samples_match_support_and_moments(name: str) -> None:
    d = build(name)
    torch.manual_seed(1)
    n = 40_000
    x = d.sample((n,))
    assert x.shape == (n, *d.batch_shape, *d.event_shape) and x.dtype == torch.float64
    assert d.support.check(x).all()
    std = d.variance.sqrt()
    assert ((x.mean(0) - d.mean).abs() < 5 * std / math.sqrt(n)).all()
    apart = x - d.mean
    if d.dims == 1:
        spread = over(d, lambda t: d.pdf(t) * ((t - d.mean) ** 2 - d.variance) ** 2).sqrt()
        assert ((apart.square().mean(0) - d.variance).abs() < 5 * spread / math.sqrt(n)).all()
        share = over(d, lambda t: d.pdf(t) * (t - d.mean).abs())
        assert ((apart.abs().mean(0) - share).abs() < 5 * std / math.sqrt(n)).all()
    else:
        empirical = (apart.unsqueeze(-1) * apart.unsqueeze(-2)).mean(0)
        scale = (d.variance.unsqueeze(-1) * d.variance.unsqueeze(-2)).sqrt()
        assert ((empirical - d.covariance).abs() < 5 * math.sqrt(2 / n) * scale).all()
    assert d.sample().shape == d.batch_shape + d.event_shape


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_samples_match_finite_differences(name: str) -> None:
    mean, cov = (x.requires_grad_() for x in moments_for(name))

    def draw(cov: Tensor) -> Tensor:
        torch.manual_seed(1)
        return (LINE | PLANE)[name](mean, cov).rsample((3,))

    drawn = draw(cov)
    assert build(name).has_rsample
    factors, step = torch.randn_like(drawn), 1e-5 * torch.randn_like(cov) * cov.detach().abs().mean()
    step = step if cov.dim() == 2 else (step + step.mT) / 2
    to_mean, slope = torch.autograd.grad((drawn * factors).sum(), (mean, cov))
    torch.testing.assert_close(to_mean, factors.sum(0))
    with torch.no_grad():
        moved = ((draw(cov + step) - draw(cov - step)) * factors).sum() / 2
    torch.testing.assert_close((slope * step).sum(), moved, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_expand_keeps_values_and_batch_shapes(name: str) -> None:
    d = build(name)
    basis = scattered_basis(d.dims)
    points = 48 if d.dims == 1 else (16, 32)
    whole, t = d.expect(basis, points), torch.rand(4, 2, 3, *d.event_shape, dtype=torch.float64)
    assert whole.shape == (2, 3, 7) and d.pdf(t).shape == (4, 2, 3)
    wide = d.expand((5, 2, 3))
    assert type(wide) is type(d) and wide.batch_shape == (5, 2, 3)
    torch.testing.assert_close(wide.expect(basis, points)[4], whole)
    assert wide.sample((2,)).shape == (2, 5, 2, 3, *d.event_shape)
    assert wide.entropy().shape == wide.tsallis_entropy().shape == (5, 2, 3)


@pytest.mark.parametrize("name", ALL)
def test_nan_rows_do_not_affect_other_rows(name: str) -> None:
    mean, cov = moments_for(name)
    expected = (LINE | PLANE)[name](mean, cov).expect(scattered_basis(dims_of(name)))
    cov[1, 1] = torch.nan
    Distribution.set_default_validate_args(False)
    result = (LINE | PLANE)[name](mean, cov)
    values = result.expect(scattered_basis(dims_of(name)))
    assert values[1, 1].isnan().all()
    t = torch.zeros(2, 3, *result.event_shape, dtype=torch.float64)
    for density in (result.pdf(t), result.log_prob(t)):
        assert density.isnan().sum() == 1 and density[1, 1].isnan()
    keep = torch.ones(2, 3, dtype=torch.bool)
    keep[1, 1] = False
    torch.testing.assert_close(values[keep], expected[keep], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_invalid_moments_raise(name: str) -> None:
    mean, cov = moments_for(name)
    with pytest.raises(ValueError, match=r"variance must be positive|covariance must be positive definite"):
        (LINE | PLANE)[name](mean, -cov)
    with pytest.raises(ValueError, match="mean must be finite, got nan"):
        (LINE | PLANE)[name](mean * torch.nan, cov)
    with pytest.raises(TypeError, match="floating point"):
        (LINE | PLANE)[name](mean.long(), cov)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4])
def test_float32_gives_the_gradients_of_float64(name: str, scale: float) -> None:
    """The variances at the smallest scale are about 1e-6."""
    dims = dims_of(name)
    upstream = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    result = {}
    for dtype in (torch.float32, torch.float64):
        mean, cov = moments_for(name, torch.float32, scale)
        mean, cov = (x.to(dtype).requires_grad_() for x in (mean, cov))
        value = (LINE | PLANE)[name](mean, cov).expect(scattered_basis(dims, torch.float32))
        assert value.dtype == dtype
        grads = torch.autograd.grad((value * upstream.to(value.dtype)).sum(), (mean, cov))
        result[dtype] = [value.double(), *(g.double() for g in grads)]
    for single, double in zip(result[torch.float32], result[torch.float64], strict=True):
        assert (single - double).abs().amax() <= 1e-3 * double.abs().amax()
        if single.dim() > 2 or dims == 1:
            row = double.abs().flatten(2).amax(-1) if double.dim() > 2 else double.abs()
            apart = (single - double).abs().flatten(2).amax(-1) if double.dim() > 2 else (single - double).abs()
            assert (apart <= 1e-3 * row + 1e-6 * double.abs().amax()).all()


@pytest.mark.parametrize("name", ALL)
def test_half_precision_is_computed_in_float32(name: str) -> None:
    mean, cov = moments_for(name, torch.bfloat16)
    half, single = (LINE | PLANE)[name](mean, cov), (LINE | PLANE)[name](mean.float(), cov.float())
    basis = scattered_basis(dims_of(name), torch.float32)
    assert half.expect(basis).dtype == half.pdf(mean).dtype == torch.bfloat16
    expected = single.expect(basis)
    torch.testing.assert_close(half.expect(basis), expected.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(single.expect(basis), expected)


@pytest.mark.parametrize("name", ALL)
def test_expectations_compile_in_one_graph(name: str) -> None:
    basis = scattered_basis(dims_of(name))
    points = 40 if dims_of(name) == 1 else (16, 32)

    def expect(mean: Tensor, cov: Tensor) -> Tensor:
        return (LINE | PLANE)[name](mean, cov).expect(basis, points)

    torch._dynamo.reset()
    mean, cov = moments_for(name)
    compiled = torch.compile(expect, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(mean, cov), expect(mean, cov))


def mixtures() -> dict[str, Mixture]:
    mean, variance = moments_for("parabola")
    weights = torch.softmax(torch.randn(2, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64), -1)
    two = weights[:, :2] / weights[:, :2].sum(-1, keepdim=True)
    mean2, cov2 = moments_for("paraboloid")
    kinds = (Gaussian, Triangular, Laplace)
    nested = [Mixture(weights, BetaGaussian(mean, variance)), TruncatedParabola(mean[:, 0], variance[:, 1])]
    plane = [Gaussian(mean2[:, 0], cov2[:, 0], 2), BetaGaussian(mean2[:, 1], cov2[:, 1], 1.5, 2)]
    return {
        "stacked": Mixture(weights, TruncatedParabola(mean, variance)),
        "several": Mixture(weights, [kind(mean[:, i], variance[:, i]) for i, kind in enumerate(kinds)]),
        "nested": Mixture(two, nested),
        "stacked-2d": Mixture(weights, TruncatedParaboloid(mean2, cov2)),
        "several-2d": Mixture(two, plane),
    }


@pytest.mark.parametrize("name", ["stacked", "several", "nested", "stacked-2d", "several-2d"])
def test_mixtures_match_numerical_integrals(name: str) -> None:
    d = mixtures()[name]
    assert d.batch_shape == (2,)

    def total(function: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute the expectation of a function, component by component."""

        def weighted(part: Density, t: Tensor) -> Tensor:
            values = function(t)
            p = part.pdf(t)
            return p.reshape(p.shape + (1,) * (values.dim() - p.dim())) * values

        result = [over(part, lambda t, part=part: weighted(part, t)) for part in d.parts]
        values = result[0] if d.stacked else torch.stack(result, 1)
        return (d.weights.reshape(d.weights.shape + (1,) * (values.dim() - 2)) * values).sum(1)

    basis = scattered_basis(d.dims)
    if name != "nested":
        torch.testing.assert_close(d.expect(basis), total(basis), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(d.mean, total(lambda t: t), atol=1e-9, rtol=0)
        square = (lambda t: t**2) if d.dims == 1 else (lambda t: t[..., None] * t[..., None, :])
        torch.testing.assert_close(d.covariance, total(square) - square(d.mean), atol=1e-9, rtol=0)
    t = torch.rand(11, 2, *d.event_shape, dtype=torch.float64)
    pdf = d.pdf(t)
    assert pdf.shape == (11, 2)
    torch.testing.assert_close(d.log_prob(t).exp(), pdf)
    assert torch.equal(d.support.check(t), pdf > 0)
    torch.manual_seed(0)
    x = d.sample((20_000,))
    assert x.shape == (20_000, 2, *d.event_shape) and d.support.check(x).all()
    assert ((x.mean(0) - d.mean).abs() < 5 * d.variance.sqrt() / math.sqrt(20_000)).all()
    wide = d.expand((3, 2))
    torch.testing.assert_close(wide.expect(basis)[2], d.expect(basis))
    assert not d.has_rsample


def test_invalid_mixtures_raise() -> None:
    pair = TruncatedParabola(torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="for components of batch shape"):
        Mixture(torch.ones(3) / 3, pair)
    with pytest.raises(ValueError, match="2 components"):
        Mixture(torch.ones(3) / 3, [pair, pair])
    with pytest.raises(ValueError, match="sum to 1"):
        Mixture(torch.ones(2), pair)
    with pytest.raises(ValueError, match="same number of dimensions"):
        Mixture(torch.ones(2) / 2, [pair, TruncatedParaboloid(torch.zeros(2), torch.eye(2))])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mixture_takes_and_returns_half_precision(dtype: torch.dtype) -> None:
    for _ in range(30):  # rounded weights, whose sums differ from 1 by more than 1e-3
        Mixture(torch.randn(8).to(dtype).softmax(-1), Gaussian(torch.zeros(8), 1.0))
    mean, variance = torch.tensor([0.2, 0.7], dtype=dtype), torch.tensor([0.02, 0.01], dtype=dtype)
    weights = torch.tensor([0.25, 0.75], dtype=dtype)
    d = Mixture(weights, TruncatedParabola(mean, variance))
    wide = Mixture(weights.double(), TruncatedParabola(mean.double(), variance.double()))
    basis, t = scattered_basis(1), torch.tensor(0.6, dtype=dtype)
    edges = torch.linspace(0, 1, 4, dtype=dtype)
    for value, expected in (
        (d.expect(basis.to(dtype)), wide.expect(basis.double())),
        (d.pdf(t), wide.pdf(t.double())),
        (d.log_prob(t), wide.log_prob(t.double())),
        (cell_masses(d, edges), cell_masses(wide, edges.double())),
    ):
        assert value.dtype == dtype
        torch.testing.assert_close(value.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    assert d.sample((3,)).dtype == dtype
    mixed = Mixture(weights.float(), TruncatedParabola(mean, variance))
    assert mixed.pdf(t).dtype == torch.float32


def test_empty_samples_and_batches_have_the_right_shapes() -> None:
    pair = Mixture(torch.ones(2) / 2, Gaussian(torch.zeros(2), 1.0))
    assert pair.sample((0,)).shape == (0,) and pair.sample((3, 0)).shape == (3, 0)
    none = Mixture(torch.ones(0, 2) / 2, TruncatedParaboloid(torch.zeros(0, 2, 2), torch.eye(2)))
    assert none.sample().shape == (0, 2) and none.sample((3,)).shape == (3, 0, 2)
    basis = image_basis(3)
    for d in (TruncatedParaboloid(torch.zeros(0, 2), torch.eye(2)), none):
        assert d.expect(basis).shape == (0, 9)
        assert d.expect(basis, (4, 8)).shape == (0, 9)


def test_mismatched_batch_shapes_raise() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) of mean, \(3,\) of spread"):
        Gaussian(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"\(2,\) of mean, .* \(3,\) of alpha"):
        BetaGaussian(torch.zeros(2), torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="component 1"):
        Mixture(torch.ones(2) / 2, [Gaussian(torch.zeros(2), 1.0), Gaussian(torch.zeros(3), 1.0)])
    with pytest.raises(ValueError, match=r"\(3,\) of weights"):
        Mixture(torch.ones(3, 2) / 2, Gaussian(torch.zeros(2, 2), 1.0))


@pytest.mark.parametrize("name", ALL)
def test_torch_func_transforms_match_autograd(name: str) -> None:
    """Compare vmap with the batched density, and Jacobians with those of autograd."""
    mean, cov = moments_for(name)
    dims = 2 if name in PLANE else 1
    basis = scattered_basis(dims)
    t = torch.full((dims,), 0.4, dtype=torch.float64) if dims > 1 else torch.tensor(0.4, dtype=torch.float64)
    edges = torch.linspace(-1, 2, 5, dtype=torch.float64)
    make = (LINE | PLANE)[name]
    functions = [lambda d: d.expect(basis), lambda d: d.expect(basis, 24), lambda d: d.pdf(t), lambda d: d.log_prob(t)]
    functions += [lambda d: d.entropy()] + [lambda d: cell_masses(d, edges)] * (dims == 1)
    for function in functions:

        def value(mean: Tensor, cov: Tensor, function: Callable[[Density], Tensor] = function) -> Tensor:
            return function(make(mean, cov)).nan_to_num(neginf=0.0)

        expected = value(mean, cov)
        torch.testing.assert_close(torch.func.vmap(value)(mean, cov), expected, atol=1e-9, rtol=1e-9)
        backward, forward = (f(value, (0, 1))(mean, cov) for f in (torch.func.jacrev, torch.func.jacfwd))
        slopes = torch.autograd.functional.jacobian(value, (mean, cov))
        for a, b, c in zip(backward, forward, slopes, strict=True):
            torch.testing.assert_close(a, c)
            torch.testing.assert_close(b, c)


def test_arguments_are_checked_under_vmap() -> None:
    with pytest.raises(ValueError, match="variance must be positive"):
        torch.func.vmap(lambda m, v: Gaussian(m, v).mean)(torch.zeros(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="weights must be non-negative"):
        torch.func.vmap(lambda w: Mixture(w, Gaussian(torch.zeros(2), 1.0)).mean)(torch.ones(3, 2))
    skew = torch.tensor([[1.0, 0.2], [0.3, 1.0]])
    with pytest.raises(ValueError, match="must be symmetric"):
        torch.func.vmap(lambda m: TruncatedParaboloid(m, skew * m[0].cos()).mean)(torch.zeros(3, 2))


@pytest.mark.parametrize("name", [*ALL, "stacked", "several", "nested", "stacked-2d", "several-2d"])
def test_only_nan_points_give_nan_densities(name: str) -> None:
    """Only the point with a NaN gives NaN; points at infinity are outside the support."""
    d = build(name) if name in LINE | PLANE else mixtures()[name]
    first = (0,) * len(d.batch_shape)
    t = d.mean.clone()
    whole = d.pdf(t), d.log_prob(t)
    t[(*first, *(0 for _ in d.event_shape))] = torch.nan  # one coordinate
    t[1] = torch.inf
    for value, before, outside in zip((d.pdf(t), d.log_prob(t)), whole, (0.0, -torch.inf), strict=True):
        assert value[first].isnan() and value.isnan().sum() == 1
        assert (value[1] == outside).all()
        torch.testing.assert_close(value[0].flatten()[1:], before[0].flatten()[1:])


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_zero_outside_the_support(name: str) -> None:
    """The density and its logarithm have no gradient there, even infinitely far away."""
    mean, cov = (x.requires_grad_() for x in moments_for(name))
    d = (LINE | PLANE)[name](mean, cov)
    far = 30.0 if d.support.bounded else torch.inf
    for t in (torch.full_like(mean, far), torch.full_like(mean, -torch.inf)):
        for value in (d.pdf(t), d.log_prob(t)):
            outside = d.pdf(t) == 0  # the support of alpha 1 is unbounded, but its density is 0 at infinity
            assert outside.all() and (value == value[0, 0]).all()
            for grad in torch.autograd.grad(value.sum(), (mean, cov), retain_graph=True):
                assert (grad == 0).all()
    at_mean = torch.autograd.grad(d.pdf(d.mean.detach()).sum(), (mean, cov))
    assert all(grad.isfinite().all() for grad in at_mean)


@pytest.mark.parametrize("name", ["gaussian", "beta-4", "triangular"])
def test_mixture_log_prob_has_gradients_at_zero_weights(name: str) -> None:
    mean, variance = torch.tensor([0.5, 0.6], dtype=torch.float64), torch.tensor([0.02, 0.01], dtype=torch.float64)
    t = torch.tensor(0.55, dtype=torch.float64)
    parts = [LINE[name](m, v).pdf(t) for m, v in zip(mean, variance, strict=True)]
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    value = Mixture(weights, LINE[name](mean, variance)).log_prob(t)
    torch.testing.assert_close(value, parts[0].log())
    (grad,) = torch.autograd.grad(value, weights, create_graph=True)
    torch.testing.assert_close(grad, torch.stack([torch.ones_like(parts[0]), parts[1] / parts[0]]))
    (second,) = torch.autograd.grad(grad[1], weights)
    torch.testing.assert_close(second, -grad[1].detach() * grad.detach())
    # A component of weight 0 never overflows, even if its density is much larger.
    weights = torch.tensor([1.0, 0.0], requires_grad=True)
    far = Mixture(weights, Gaussian(torch.tensor([0.0, 30.0]), 0.01)).log_prob(torch.tensor(30.0))
    assert far.isfinite() and torch.autograd.grad(far, weights)[0].isfinite().all()


@pytest.mark.parametrize("function", ["pdf", "log_prob"])
def test_points_of_wrong_shape_raise(function: str) -> None:
    """Shapes are checked as in torch.distributions; points outside the support are valid and have density 0."""
    line = Gaussian(torch.zeros(2), torch.ones(2))
    plane = TruncatedParaboloid(torch.zeros(3, 2), torch.eye(2))
    mixture = Mixture(torch.ones(3) / 3, plane)
    for density, points, message in (
        (line, torch.zeros(3), r"\(3,\) of points, \(2,\) of density"),
        (plane, torch.tensor(0.0), r"points must have shape \[..., 2\], got \(\)"),
        (plane, torch.zeros(3, 1), r"points must have shape \[..., 2\], got \(3, 1\)"),
        (mixture, torch.tensor(0.0), r"points must have shape \[..., 2\], got \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            getattr(density, function)(points)
    with pytest.raises(TypeError, match="points must be a tensor, got float"):
        getattr(line, function)(1.0)
    assert getattr(plane, function)(torch.zeros(5, 1, 2)).shape == (5, 3)
    assert repr(mixture.support) == f"Union([{plane.support}], stacked=True)"
