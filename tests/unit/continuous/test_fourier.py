"""Expectations by Fourier transforms equal those by quadrature nodes, which share no code with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tsallis.continuous import (
    BetaGaussian,
    GaussianBasis,
    ProductBasis,
    TruncatedParaboloid,
    fourier,
    gaussian_grid,
    image_basis,
)
from tsallis.continuous.fourier import characteristic

D = torch.float64
NODES = (96, 192)


def ellipses(rows: int, short: float, long: float) -> tuple[Tensor, Tensor]:
    """Return means in the unit square and randomly rotated covariances with standard deviations in this range."""
    g = torch.Generator().manual_seed(4)
    std = torch.exp(torch.rand(rows, 2, generator=g, dtype=D) * math.log(long / short)) * short
    angle = torch.rand(rows, generator=g, dtype=D) * math.pi
    c, s = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    return torch.rand(rows, 2, generator=g, dtype=D), turn @ torch.diag_embed(std.square()) @ turn.mT


def scattered(variance: float | Tensor = 0.01, size: int = 9) -> GaussianBasis:
    return GaussianBasis(torch.rand(size, 2, generator=torch.Generator().manual_seed(6), dtype=D), variance)


def bessel(n: int, z: Tensor) -> Tensor:
    """Compute a Bessel function from its integral; a sum over equal steps is exact to rounding."""
    t = (torch.arange(400, dtype=D) + 0.5) * (math.pi / 400)
    return torch.cos(n * t - z.unsqueeze(-1) * t.sin()).mean(-1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 6e-7), (D, 1e-14)])
def test_characteristic_functions_match_bessel(dtype: torch.dtype, tolerance: float) -> None:
    z = torch.linspace(0.5, 88, 5001, dtype=D).to(dtype).double()
    for order, expected in ((2.0, 2 * bessel(1, z) / z), (3.0, 8 * bessel(2, z) / z**2)):
        result = characteristic(z.to(dtype).square(), order, 88.0).double()
        assert (result - expected).abs().max() < tolerance
    assert characteristic(torch.zeros(1, dtype=dtype), 2.7, 8.0).item() == pytest.approx(1, abs=tolerance)
    assert characteristic(torch.full((1,), 1e8, dtype=dtype), 2.7, 8.0).isfinite().all()


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("sizes", [(0.002, 0.004), (0.01, 0.25), (0.3, 0.9)], ids=str)
def test_fourier_expectations_match_nodes(alpha: float, sizes: tuple[float, float]) -> None:
    """Compare tiny, eccentric and large ellipses; errors are relative to the largest value or gradient."""
    mean, cov = ellipses(12, *sizes)
    upstream = torch.randn(12, 9, generator=torch.Generator().manual_seed(1), dtype=D)
    for basis in (scattered(0.02), scattered(torch.linspace(0.01, 0.09, 9, dtype=D))):
        result = {}
        for name, dtype, points in (("nodes", D, NODES), ("double", D, None), ("single", torch.float32, None)):
            m, f = mean.to(dtype).requires_grad_(), torch.linalg.cholesky(cov).to(dtype).requires_grad_()
            value = BetaGaussian.from_factor(m, f, alpha=alpha, dims=2).expect(basis, points)
            grads = torch.autograd.grad(value, (m, f), upstream.to(dtype))
            result[name] = [value.double(), grads[0].double(), grads[1].double().tril()]
        peak = 1 / (2 * math.pi * 0.01)
        for name, error, grad_error in (("double", 1e-11, 1e-10), ("single", 2e-6, 1e-4)):
            (value, *grads), (exact, *exact_grads) = result[name], result["nodes"]
            assert (value - exact).abs().max() < error * peak
            for grad, exact_grad in zip(grads, exact_grads, strict=True):
                assert (grad - exact_grad).abs().max() < grad_error * exact_grad.abs().max()


def test_noncircular_functions_match_nodes() -> None:
    mean, cov = ellipses(7, 0.02, 0.2)
    density = TruncatedParaboloid(mean, cov)
    long = torch.tensor([[0.03, 0.015], [0.015, 0.01]], dtype=D).expand(9, 2, 2)
    grid = ProductBasis(gaussian_grid(4, 0.1).double(), gaussian_grid(6, [0.07, 0.3]).double())
    for basis in (scattered(long), grid):
        torch.testing.assert_close(density.expect(basis), density.expect(basis, NODES), atol=1e-9, rtol=0)


def test_first_and_second_derivatives_pass_gradcheck() -> None:
    mean, cov = (x.requires_grad_() for x in ellipses(2, 0.05, 0.2))
    basis = scattered(0.02, 3)

    def expect(mean: Tensor, cov: Tensor) -> Tensor:
        return TruncatedParaboloid(mean, (cov + cov.mT) / 2).expect(basis)

    assert torch.autograd.gradcheck(expect, (mean, cov))
    assert torch.autograd.gradgradcheck(expect, (mean, cov))


@pytest.mark.parametrize("chunk", [1, 1 << 12, 1 << 17])
def test_grouped_rows_keep_their_order(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier, "CHUNK", chunk)
    monkeypatch.setattr(fourier, "GROUP", 5)
    mean, cov = ellipses(24, 0.03, 0.3)
    mean, cov = mean.view(2, 12, 2).requires_grad_(), cov.view(2, 12, 2, 2)
    basis = scattered()
    result, exact = (TruncatedParaboloid(mean, cov).expect(basis, points) for points in (None, NODES))
    torch.testing.assert_close(result, exact, atol=1e-9, rtol=0)
    to_found, to_exact = (torch.autograd.grad(value[..., 2].sum(), mean)[0] for value in (result, exact))
    torch.testing.assert_close(to_found, to_exact, atol=1e-8, rtol=0)


def test_far_densities_have_zero_values_and_gradients() -> None:
    mean = torch.tensor([[0.5, 0.5], [30.5, 0.5], [0.5, -1e4]]).requires_grad_()
    value = TruncatedParaboloid(mean, 0.01 * torch.eye(2)).expect(image_basis())
    assert (value[0] > 0.1).any() and (value[1:] == 0).all()
    (grad,) = torch.autograd.grad(value.sum(), mean)
    assert (grad[1:] == 0).all()


def test_too_large_lattices_fall_back_to_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    density, basis = TruncatedParaboloid(*ellipses(3, 0.05, 0.2)), scattered()
    exact = density.expect(basis)
    monkeypatch.setattr(fourier, "LARGEST", 1)
    monkeypatch.setattr(fourier._Expectation, "apply", None)
    torch.testing.assert_close(density.expect(basis), exact, atol=1e-9, rtol=0)


def test_cache_follows_basis_changes_and_is_limited() -> None:
    """Check that the cache follows loading, in-place changes and changes of device or dtype, and stays limited."""
    density = TruncatedParaboloid(*ellipses(3, 0.05, 0.2))
    basis, other = scattered(0.01), scattered(0.0025).state_dict()
    assert basis.width == pytest.approx(0.1)
    density.expect(basis)
    product = ProductBasis(gaussian_grid(3, 0.2))
    assert all(name.startswith("first.") for name in product.state_dict())  # no tensor has two names
    product.load_state_dict(ProductBasis(gaussian_grid(3, 0.05)).state_dict())
    assert product.width == product.first.width == pytest.approx(0.05)
    for assign in (False, True):
        basis = scattered(0.01)
        density.expect(basis)
        basis.load_state_dict(other, assign=assign)
        assert basis.width == pytest.approx(0.05)
        torch.testing.assert_close(density.expect(basis), density.expect(basis, NODES), atol=1e-9, rtol=0)
    with torch.no_grad():
        basis.centres += 0.1
    torch.testing.assert_close(density.expect(basis), density.expect(basis, NODES), atol=1e-9, rtol=0)
    torch.testing.assert_close(density.expect(basis.float()), density.expect(basis, NODES), atol=1e-9, rtol=0)
    with torch.inference_mode():
        assert density.expect(scattered()).shape == (3, 9)
    known = fourier._caches[basis]
    for size in range(1, 40):
        known.grid(30.0, 60.0 / size, 3.0, 8.0, D)
    assert sum(each.functions.numel() for each in known.matrices.values()) <= fourier.CACHE_NUMBERS
