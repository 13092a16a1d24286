"""Classifiers of irregular series: fitted signals, densities that read them, and attention on a grid."""

from __future__ import annotations

import doctest
import math
from types import ModuleType

import pytest
import timeseries_data
import timeseries_models
import torch
from timeseries_models import BATCH_ROWS, GridClassifier, SignalClassifier, fitted
from torch import Tensor, nn

from tsallis.continuous import ValueFunction, gaussian_grid, image_basis


def observations(rows: int, length: int, d: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    counts = torch.randint(0, length + 1, (rows,))
    counts[0], counts[-1] = 0, length
    mask = torch.arange(length) < counts[:, None]
    return torch.randn(rows, length, d), torch.rand(rows, length, dtype=torch.float64), mask


def test_fitted_matches_value_function() -> None:
    fit = ValueFunction(gaussian_grid(6, (0.1, 0.3)), 0.5)
    values, positions, mask = observations(2 * BATCH_ROWS + 3, 9)
    result = fitted(fit, values, positions, mask)
    expected = fit(values, positions=positions, mask=mask).coefficients
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
    assert not result[~mask.any(1)].any() and result[mask.any(1)].flatten(1).any(1).all()
    values[~mask], positions[~mask] = math.nan, math.nan
    assert torch.equal(fitted(fit, values, positions, mask), result)


def test_fitted_accepts_rows_without_observations() -> None:
    fit = ValueFunction(gaussian_grid(4, 0.3))
    result = fitted(fit, torch.ones(3, 0, 2), torch.ones(3, 0), torch.ones(3, 0, dtype=torch.bool))
    assert result.shape == (3, 4, 2) and not result.any()


@pytest.mark.parametrize("density", ["gaussian", "truncated_parabola", "learned", 1.5])
def test_read_matches_integral_of_density_and_signal(density: str | float) -> None:
    basis = gaussian_grid(5, 0.2)
    model = SignalClassifier(basis, channels=3, d_values=2, d_static=1, heads=2, density=density)
    coefficients = torch.randn(4, 3, 5, 2)
    t = torch.linspace(-4, 5, 90_001, dtype=torch.float64)
    p = model.density().pdf(t[:, None, None, None])[:, 0].double()  # [points, heads, channels]
    signal = torch.einsum("tf,bcfd->tbcd", basis(t), coefficients.double())
    integral = torch.einsum("thc,tbcd->bchd", p, signal) * (t[1] - t[0])
    torch.testing.assert_close(model.read(coefficients).double(), integral, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("density", ["gaussian", "truncated_parabola"])
def test_reach_matches_density_support(density: str) -> None:
    model = SignalClassifier(gaussian_grid(5, 0.2), channels=3, d_values=1, heads=2, density=density)
    reach = model.reach()
    assert all(x.shape == (2, 3) and not x.requires_grad for x in reach)
    if density == "gaussian":
        assert (reach.lower == -math.inf).all() and (reach.upper == math.inf).all()
        return
    torch.testing.assert_close(reach.upper - reach.mean, math.sqrt(5) * reach.std)
    for end, sign in ((reach.lower, 1), (reach.upper, -1)):
        assert (model.density().pdf((end + sign * 1e-4)[None]) > 0).all()
        assert not model.density().pdf((end - sign * 1e-4)[None]).any()


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("transform", ["softmax", "sparsemax", 1.5])
def test_grid_context_is_attention_weighted_sum(transform: str | float, hidden: int) -> None:
    model = GridClassifier(4, d_static=3, d_model=6, transform=transform, hidden=hidden).eval()
    with torch.no_grad():
        model.score.weight.mul_(30)
    x, static = torch.randn(5, 11, 4), torch.randn(5, 3)
    context, weights = model.read(x)
    assert context.shape == (5, 6) and weights.shape == (5, 11) and model(x, static).shape == (5,)
    torch.testing.assert_close(weights.sum(1), torch.ones(5))
    assert bool((weights == 0).any()) == (transform != "softmax")
    states = model.encoder(x)[0]
    torch.testing.assert_close(context, torch.einsum("bt,btd->bd", weights, states))


def test_all_parameters_learn() -> None:
    torch.manual_seed(1)
    models: list[tuple[nn.Module, Tensor]] = [
        (SignalClassifier(gaussian_grid(5, 0.2), 3, 2, 4, density="learned"), torch.randn(6, 3, 5, 2)),
        (GridClassifier(5, 4, d_model=6, hidden=7), torch.randn(6, 9, 5)),
    ]
    for model, x in models:
        model(x, torch.randn(6, 4)).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_invalid_settings_raise() -> None:
    basis = gaussian_grid(5, 0.2)
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        SignalClassifier(basis, 2, 1, heads=0)
    with pytest.raises(ValueError, match="2 dimensions"):
        SignalClassifier(image_basis(3), 2, 1)
    with pytest.raises(ValueError, match="density must be one of"):
        SignalClassifier(basis, 2, 1, density="uniform")
    with pytest.raises(ValueError, match="hidden must be 0 or more, got -1"):
        GridClassifier(2, hidden=-1)
    with pytest.raises(ValueError, match="transform must be one of"):
        GridClassifier(2, transform="hardmax")
    with pytest.raises(ValueError, match=r"coefficients must be \[batch, 2, 5, 1\], got \[3, 2, 4, 1\]"):
        SignalClassifier(basis, 2, 1)(torch.ones(3, 2, 4, 1), torch.ones(3, 0))


@pytest.mark.parametrize("module", [timeseries_data, timeseries_models])
def test_doctests_pass(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed
