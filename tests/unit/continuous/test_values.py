"""Value functions: positions, masks and lengths, and results that do not depend on padding."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.continuous import (
    Basis,
    GaussianBasis,
    Mixture,
    ProductBasis,
    Signal,
    TruncatedParabola,
    TruncatedParaboloid,
    ValueFunction,
    box_centres,
    cell_centres,
    gaussian_grid,
    grid_centres,
    image_basis,
    match_moments,
    moments,
    text_basis,
)
from tsallis.continuous.quadrature import ridge_regression


class LinearBasis(Basis):
    size = 2

    def at(self, *coordinates: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(coordinates[0]), coordinates[0]], -1)


def density(batch: int, queries: int = 3) -> TruncatedParabola:
    g = torch.Generator().manual_seed(0)
    return TruncatedParabola(
        torch.rand(batch, 2, queries, generator=g), torch.rand(batch, 2, queries, generator=g) * 0.03 + 1e-3
    )


def test_positions_are_cell_centres_of_even_and_odd_lengths() -> None:
    assert cell_centres(5).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert cell_centres(2).tolist() == [0.25, 0.75]
    assert cell_centres(1).tolist() == [0.5]
    grid = grid_centres(2, 3)
    assert grid[1].tolist() == pytest.approx([0.5, 0.25]) and grid[3].tolist() == pytest.approx([1 / 6, 0.75])
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 20.0]], [[0.0, 0.0, 10.0, 20.0]]])
    sizes = torch.tensor([[[10.0, 20.0]], [[20.0, 20.0]]])
    assert box_centres(boxes, sizes).tolist() == [[[0.5, 0.5]], [[0.25, 0.5]]]
    pairs = boxes.expand(2, 2, 4)  # two boxes per image
    assert box_centres(pairs, sizes[:, 0]).tolist() == [[[0.5, 0.5]] * 2, [[0.25, 0.5]] * 2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cell_centres(0)
    with pytest.raises(ValueError, match=r"\[\.\.\., 4\]"):
        box_centres(torch.zeros(3, 2), (1, 1))
    with pytest.raises(ValueError, match=r"image_size must have shape \[\.\.\., 2\], got \(\)"):
        box_centres(boxes, torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"\(2, 1\) of boxes, \(3, 1\) of image_size"):
        box_centres(boxes, torch.ones(3, 2))
    wide = torch.tensor([[0.0, 0.0, 20.0, 20.0], [1800.0, 0.0, 1920.0, 480.0]])
    assert box_centres(wide, (1920, 480)).max() < 1
    assert box_centres(torch.tensor([[1920.0, -1.0, 1920.0, -1.0]]), (1920, 480)).amax() == 1
    with pytest.raises(ValueError, match=r"got 3\.875 times its size: image_size must be \(width, height\)"):
        box_centres(wide, (480, 1920))
    compiled = torch.compile(box_centres, fullgraph=True, backend="eager")
    assert compiled(wide, torch.tensor([480.0, 1920.0]))[1, 0] == 3.875


def test_irregular_positions_are_fitted_per_row() -> None:
    """Check time stamps, and boxes in the plane."""
    stamps = torch.rand(3, 8, dtype=torch.float64)
    values = torch.randn(3, 8, 2, dtype=torch.float64)
    basis = GaussianBasis(torch.linspace(0, 1, 6, dtype=torch.float64), 0.02)
    fit = ValueFunction(basis, 0.05)
    signal = fit(values, positions=stamps)
    for row in range(3):
        f = basis(stamps[row])
        expected = torch.linalg.solve(f.T @ f + 0.05 * torch.eye(6, dtype=torch.float64), f.T @ values[row])
        torch.testing.assert_close(signal.coefficients[row], expected, atol=1e-9, rtol=1e-9)
    shared = fit(values, positions=stamps[0])
    torch.testing.assert_close(shared.coefficients[0], signal.coefficients[0])
    boxes = torch.rand(2, 5, 4) * 100
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    regions = ValueFunction(image_basis(4))(torch.randn(2, 5, 3), positions=box_centres(boxes, (100, 100)), mask=mask)
    context = regions.expect(TruncatedParaboloid(torch.rand(2, 4, 2), 0.01 * torch.eye(2)))
    assert context.shape == (2, 4, 3)


@pytest.mark.parametrize("basis", [text_basis(8), image_basis(3), LinearBasis()])
def test_positions_without_effect_warn_once(basis: Basis) -> None:
    fit = ValueFunction(basis)
    values = torch.randn(4, 2)
    positions = torch.tensor([0.0, 1.05, -0.05, 1.0])
    far = torch.tensor([0.5, 48.0, -0.05, 48.0])
    if basis.dims == 2:
        positions, far = (torch.stack([t, torch.full_like(t, 0.5)], -1) for t in (positions, far))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* almost no effect")
        fit(values, positions=positions)
        fit(values, positions=far, mask=torch.tensor([True, False, True, False]))
        torch.compile(fit, fullgraph=True, backend="eager")(values, positions=far)
        torch.func.grad(lambda v: fit(v, positions=far).coefficients.sum())(values)
        if not isinstance(basis, LinearBasis):
            with pytest.warns(UserWarning, match=r"2 values .* positions must be about 0 to 1, got -0\.05 to 48"):
                fit(values, positions=far)
        fit(values, positions=2 * far)


def test_positions_may_be_learned() -> None:
    positions = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True)
    fit = ValueFunction(GaussianBasis(torch.linspace(0, 1, 4, dtype=torch.float64), 0.04))
    assert torch.autograd.gradcheck(lambda p, v: fit(v, positions=p).coefficients, (positions, values))
    assert torch.autograd.gradgradcheck(lambda p, v: fit(v, positions=p).coefficients, (positions, values))


def test_float32_fit_matches_float64_for_long_inputs() -> None:
    """At a length of 3000 the system is so ill-conditioned that a float32 inverse would be off by a quarter."""
    fit = ValueFunction(text_basis(32))
    values = torch.randn(3000, 4)
    single, double = fit(values).coefficients, fit(values.double()).coefficients
    assert (single - double).abs().max() < 1e-4 * double.abs().max()
    assert fit(values.bfloat16()).coefficients.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(fit(values).coefficients, single)


def test_regressions_are_cached_until_inputs_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from tsallis.continuous import value_function as module

    solved: list[torch.Size] = []

    def counted(features: Tensor, *rest: object) -> Tensor:
        solved.append(features.shape)
        return ridge_regression(features, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "ridge_regression", counted)
    fit = ValueFunction(text_basis(32))
    x = torch.randn(2, 9, 3)
    with torch.inference_mode():
        fit(x)
    fit(x.requires_grad_()).coefficients.sum().backward()  # solvers from inference mode also serve training
    fit(x, lengths=[9, 5])
    assert len(solved) == 2
    fit(x.double())
    fit.ridge = 0.5
    fit(x)
    fit.basis.centres.add_(0.01)
    fit(x)
    assert len(solved) == 5
    for length in range(1, module.CACHE_SIZE + 20):
        fit(torch.randn(length, 1))
    assert len(fit._solvers) == module.CACHE_SIZE
    assert "basis.centres" in fit.state_dict()


def test_density_batch_must_begin_with_signal_batch() -> None:
    fit = ValueFunction(text_basis(32))
    values = torch.randn(4, 9, 5)
    assert fit(values).expect(density(4)).shape == (4, 2, 3, 5)
    assert fit(values).expect(TruncatedParabola(torch.rand(4), torch.tensor(0.01))).shape == (4, 5)
    assert fit(values[0]).expect(density(4)).shape == (4, 2, 3, 5)
    with pytest.raises(ValueError, match="batch shape of density must begin with"):
        fit(values).expect(TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01)))
    with pytest.raises(ValueError, match=r"\(4,\) of signal, \(3,\) of density"):
        fit(values).expect(density(3))


def test_invalid_observations_raise() -> None:
    fit, plane = ValueFunction(text_basis(32)), ValueFunction(image_basis(3))
    x = torch.randn(2, 6, 3)
    for arguments, message in (
        ({"lengths": [6, 7]}, "from 1 to 6, got 7"),
        ({"lengths": [0, 6]}, "from 1 to 6, got 0"),
        ({"lengths": [6, 6], "mask": torch.ones(2, 6, dtype=torch.bool)}, "not both"),
        ({"mask": torch.ones(2, 6, dtype=torch.bool)}, "mask needs positions"),
        ({"positions": torch.rand(2, 5)}, r"\[\.\.\., 6\]"),
        ({"positions": torch.rand(3, 6)}, r"\(2,\) of values, \(3,\) of positions"),
        ({"lengths": [6, 2, 1]}, r"lengths must be broadcastable to shape \(2,\), got \(3,\)"),
        ({"mask": torch.ones(2, 5).bool(), "positions": torch.rand(6)}, r"mask must .* \(2, 6\), got \(2, 5\)"),
        ({"grid": (2, 3)}, r"grid must be None .* got \(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(x, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(height, width\) of 6 cells .*, got grid None"):
        plane(x)
    for grid, message in (
        ((2, 2), "grid must have one cell per value, 6, got 2 x 2"),
        (6, "grid must have one cell per value, 6, got 6 x 6"),
        ((6,), r"grid must be one number or \(height, width\), got \(6,\)"),
        ((2, 3, 1), r"grid must be .*, got \(2, 3, 1\)"),
        ((-2, -3), "grid must be at least 1, got -2"),
    ):
        with pytest.raises(ValueError, match=message):
            plane(x, grid=grid)  # type: ignore[arg-type]
    for wrong in ("ab", (2.0, 3.0), ("a", "b")):
        with pytest.raises(TypeError, match="grid must be a whole number, got"):
            plane(x, grid=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"grid must be None with positions .* got \(2, 3\)"):
        plane(x, grid=(2, 3), positions=torch.rand(6, 2))
    with pytest.raises(ValueError, match="6, 2"):
        plane(x, positions=torch.rand(2, 6))
    with pytest.raises(TypeError, match="boolean"):
        fit(x, mask=torch.ones(2, 6), positions=torch.rand(6))
    for make, error, message in (
        (lambda: fit(x, positions=[0.0] * 6), TypeError, "positions must be a tensor, got list"),
        (lambda: fit(x, mask=[True] * 6, positions=torch.rand(6)), TypeError, "mask must be a tensor, got list"),
        (lambda: ValueFunction(3), TypeError, "basis must be a Basis, got int"),
        (lambda: ValueFunction(text_basis(32), "a"), TypeError, "ridge must be a number, got 'a'"),
        (lambda: Signal(text_basis(8), torch.ones(7, 3)), ValueError, r"\[\.\.\., 8, d\] .*, got \(7, 3\)"),
        (lambda: Signal(text_basis(8), torch.ones(8)), ValueError, r"\[\.\.\., 8, d\] .*, got \(8,\)"),
        (lambda: moments(torch.tensor(1.0), torch.rand(1)), ValueError, "weights must have shape"),
        (lambda: moments(torch.ones(1), [1.0]), TypeError, "positions must be a tensor, got list"),
        (lambda: moments(torch.ones(1), torch.ones(1), 0), ValueError, "dims must be at least 1, got 0"),
        (lambda: grid_centres(2, 2.0), TypeError, r"width must be a whole number, got 2\.0"),
    ):
        with pytest.raises(error, match=message):
            make()  # type: ignore[no-untyped-call]
    for ridge in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="ridge must be positive"):
            ValueFunction(text_basis(32), ridge)


def test_masked_regression_matches_selected_rows() -> None:
    f = torch.randn(8, 4, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, True, False, True, True])
    f[1] = torch.nan
    for ridge in (0.0, 0.2):
        result = ridge_regression(f, ridge, mask)
        assert (result[~mask] == 0).all()
        torch.testing.assert_close(result[mask], ridge_regression(f[mask], ridge))


def test_moments_match_known_values() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    positions = torch.tensor([[torch.nan, 0.5, torch.nan], [0.0, 0.5, 1.0]])
    mean, variance = moments(weights, positions)
    torch.testing.assert_close(mean, torch.tensor([0.5, 0.65]))
    torch.testing.assert_close(variance, torch.tensor([0.0, 0.1525]))
    d = match_moments(TruncatedParabola, weights.requires_grad_(), positions)
    assert d.variance[0].item() == pytest.approx(1e-6)
    (grad,) = torch.autograd.grad(d.expect(text_basis(32)).sum(), weights)
    assert grad.isfinite().all()
    with pytest.raises(ValueError, match="'covariance' or 'scale', got 'paper'"):
        match_moments(TruncatedParabola, weights, positions, matching="paper")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positions must have shape"):
        moments(weights, positions[:, :2])
    with pytest.raises(ValueError, match=r"\(2,\) of weights, \(4,\) of positions"):
        moments(weights, torch.rand(4, 3))
    for kind in ("gaussian", Mixture):
        with pytest.raises(TypeError, match="kind must be a class of densities"):
            match_moments(kind, weights, positions)  # type: ignore[arg-type, type-var]


def test_regressions_under_torch_func_match_plain() -> None:
    """Regressions are solved again, because tensors wrapped by a transformation must not be cached."""
    values, lengths = torch.randn(3, 7, 2, dtype=torch.float64), torch.tensor([7, 4, 1])
    fit = ValueFunction(text_basis(32))
    batched = torch.func.vmap(lambda v, n: fit(v, lengths=n).coefficients)(values, lengths)
    plain = torch.func.vmap(lambda v: fit(v).coefficients)(values)
    slope = torch.func.grad(lambda v: fit(v, lengths=lengths).coefficients.sum())(values)
    assert not fit._solvers
    torch.testing.assert_close(batched, fit(values, lengths=lengths).coefficients, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(plain, fit(values).coefficients)
    values.requires_grad_()
    (expected,) = torch.autograd.grad(fit(values, lengths=lengths).coefficients.sum(), values)
    torch.testing.assert_close(slope, expected, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("basis", [text_basis(8), image_basis(4)], ids=["text", "image"])
def test_basis_survives_pickling(basis: Basis) -> None:
    copy = pickle.loads(pickle.dumps(basis))
    coordinates = [torch.rand(5) for _ in range(basis.dims)]
    torch.testing.assert_close(copy.at(*coordinates), basis.at(*coordinates))
    copy.load_state_dict(basis.state_dict())


class Tilted(Basis):
    """A basis of 1 and a linear function; its slope is a number, its offset a tensor that is not a buffer."""

    size = 2

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope, self.offset = slope, torch.zeros(())

    def at(self, *coordinates: Tensor) -> Tensor:
        (t,) = coordinates
        return torch.stack([torch.ones_like(t), self.slope * t + self.offset], -1)


def test_cache_follows_a_basis_without_buffers() -> None:
    values = torch.randn(9, 3, dtype=torch.float64)
    bases: list[Basis] = [Tilted(1.0), Tilted(1.0 + 1e-9), Tilted(2.0)]
    fit = ValueFunction(bases[0])
    for basis in bases:
        fit.basis = basis
        assert torch.equal(fit(values).coefficients, ValueFunction(basis)(values).coefficients)
    basis.slope = 3.0
    assert torch.equal(fit(values).coefficients, ValueFunction(basis)(values).coefficients)
    basis.offset += 1
    assert torch.equal(fit(values).coefficients, ValueFunction(basis)(values).coefficients)
    fit.basis = ProductBasis(basis, gaussian_grid(2, 0.5))
    fit(values, grid=(3, 3))
    basis.slope = -1.0
    expected = ValueFunction(fit.basis)(values, grid=(3, 3)).coefficients
    torch.testing.assert_close(fit(values, grid=(3, 3)).coefficients, expected)


def test_cache_detects_replaced_buffers() -> None:
    """Freed memory is reused for the next tensor of the same size."""
    fit, values = ValueFunction(text_basis(32)), torch.randn(9, 3)
    for step in range(20):
        fit.basis.centres = text_basis(32).centres + 0.01 * step
        expected = ValueFunction(text_basis(32))
        expected.basis.centres += 0.01 * step
        assert torch.equal(fit(values).coefficients, expected(values).coefficients)


def test_cache_survives_eval_and_train(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, values = ValueFunction(text_basis(32)), torch.randn(9, 3)
    fit(values)
    (solver,) = fit._solvers.values()
    fit.eval()(values)
    fit.train()(values)
    assert list(fit._solvers.values()) == [solver]
    assert [name for name, _ in fit.named_modules()] == ["", "basis"]
    again = pickle.loads(pickle.dumps(copy.deepcopy(fit)))
    assert torch.equal(again(values).coefficients, fit(values).coefficients)


@pytest.mark.parametrize("lengths", [None, [9, 4]])
def test_value_functions_made_in_inference_mode_match(lengths: list[int] | None) -> None:
    from tsallis.nn import ContinuousAttention1d, ContinuousAttention2d

    values = torch.randn(2, 9, 4)
    expected = ValueFunction(text_basis(32))(values, lengths=lengths).coefficients
    with torch.inference_mode():
        fit = ValueFunction(text_basis(32))
        torch.testing.assert_close(fit(values, lengths=lengths).coefficients, expected)
        fit.basis.centres += 0.1
        moved = fit(values, lengths=lengths).coefficients
        line, plane = ContinuousAttention1d(4, basis=text_basis(32)), ContinuousAttention2d(4, basis=image_basis(3))
        assert line(torch.randn(2, 4), values, lengths=lengths)[0].isfinite().all()
        assert plane(torch.randn(2, 4), values, grid=(3, 3))[0].isfinite().all()
    assert not torch.allclose(moved, expected, atol=1e-3)
    torch.testing.assert_close(fit(values, lengths=lengths).coefficients, moved)


@pytest.mark.parametrize("lengths", [None, [5]])
def test_learned_basis_gets_gradients_through_regression(lengths: list[int] | None) -> None:
    values = torch.sin(torch.arange(12, dtype=torch.float64)).view(1, 6, 2)
    t, at = torch.linspace(0.2, 0.9, 4, dtype=torch.float64), torch.tensor([[0.3, 0.8]], dtype=torch.float64)
    count = 6 if lengths is None else lengths[0]

    def functions(t: Tensor, centres: Tensor) -> Tensor:
        return torch.exp(-((t.unsqueeze(-1) - centres) ** 2) / 0.04) / math.sqrt(math.pi * 0.04)

    def expected(centres: Tensor) -> Tensor:
        f = functions((torch.arange(count, dtype=torch.float64) + 0.5) / count, centres)
        coefficients = torch.linalg.solve(f.T @ f + 0.1 * torch.eye(4, dtype=torch.float64), f.T @ values[0, :count])
        return (functions(at[0], centres) @ coefficients).square().sum()

    numeric = torch.stack([(expected(t + e) - expected(t - e)) / 2e-6 for e in 1e-6 * torch.eye(4, dtype=t.dtype)])
    basis = GaussianBasis(t.clone(), 0.02)
    fit = ValueFunction(basis)
    fit(values, lengths=lengths)
    basis.centres.requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(fit(values, lengths=lengths)(at).square().sum(), basis.centres)
        torch.testing.assert_close(grad, numeric, rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        basis.centres.data.add_(0.05)  # does not change the version counter
        assert float(fit(values, lengths=lengths)(at).square().sum()) == pytest.approx(float(expected(t + 0.05)))


@pytest.mark.parametrize("dims", [1, 2])
def test_moments_have_gradients_at_zero_weights(dims: int) -> None:
    weights = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    t = torch.rand(5, dims, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    finite, t[3], t[4] = t[:3].clone(), torch.nan, torch.finfo(torch.float64).max
    mean, cov = moments(weights, t if dims > 1 else t[:, 0], dims)
    (grad,) = torch.autograd.grad(mean.sum() + cov.sum(), weights)

    def value(w: Tensor) -> Tensor:
        mean = w @ finite
        return mean.sum() + ((finite - mean).T @ (w[:, None] * (finite - mean))).sum()

    start = weights.detach()[:3]
    steps = 1e-6 * torch.eye(3, dtype=torch.float64)
    numeric = torch.stack([(value(start + e) - value(start - e)) / 2e-6 for e in steps])
    torch.testing.assert_close(grad[:3], numeric, rtol=1e-6, atol=1e-8)
    assert grad.isfinite().all()


def test_one_number_is_a_square_grid() -> None:
    fit, values = ValueFunction(image_basis(2)), torch.randn(2, 9, 3)
    assert fit(values, grid=3).coefficients.equal(fit(values, grid=(3, 3)).coefficients)


@pytest.mark.parametrize("lengths", [None, [6, 2], torch.tensor([6, 2])])
def test_meta_tensors_give_meta_coefficients(lengths: Any) -> None:
    lengths = lengths.to("meta") if isinstance(lengths, torch.Tensor) else lengths
    coefficients = ValueFunction(text_basis(8)).to("meta")(torch.empty(2, 6, 3, device="meta"), lengths=lengths)
    assert coefficients.coefficients.shape == (2, 8, 3) and coefficients.coefficients.is_meta


def test_looking_at_a_signal_keeps_its_gradients() -> None:
    values = torch.randn(6, 3, requires_grad=True)
    signal = ValueFunction(gaussian_grid(4, 0.2))(values)
    density = TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01))
    with torch.no_grad():
        signal(torch.linspace(0, 1, 5))
    (gradient,) = torch.autograd.grad(signal.expect(density).sum(), values)
    assert gradient.abs().sum() > 0


def test_coefficients_of_inference_mode_are_not_kept() -> None:
    signal = ValueFunction(gaussian_grid(4, 0.2))(torch.randn(6, 3))
    with torch.inference_mode():
        assert signal.coefficients.is_inference()
    mean = torch.tensor(0.5, requires_grad=True)
    signal.expect(TruncatedParabola(mean, torch.tensor(0.01))).sum().backward()
    assert mean.grad is not None
