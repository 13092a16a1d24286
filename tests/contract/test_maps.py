"""Every map equals the float64 reference, in values and in derivatives of every kind."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

import tsallis
from backends import backends_for
from contract.conftest import BACKENDS
from contract.maps import ALPHAS, FUNCTIONS, KINDS, MAPS, Map, rows
from pairs import every_pair
from tsallis.ops import reference

ALL_BACKENDS = BACKENDS["test_maps"]

every_map = pytest.mark.parametrize("m", MAPS, ids=str)
# Without sparsemax and entmax15, which call entmax with an alpha that other cases cover.
DISTINCT = [m for m in MAPS if m.name not in ("sparsemax", "entmax15")]
COMPUTED = backends_for("maps")  # in addition to the reference


@every_pair(
    indirect=["computed_by"], m=DISTINCT, kind=KINDS, dtype=[torch.float32, torch.float64], computed_by=COMPUTED
)
def test_values_match_reference(m: Map, kind: str, dtype: torch.dtype) -> None:
    z = rows(kind, dtype)
    p = m.ours(z)
    assert p.dtype == dtype and p.shape == z.shape
    tolerance = m.tolerance if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(p.double(), m.reference(z), atol=tolerance, rtol=0)
    torch.testing.assert_close(p.sum(-1), torch.full_like(p[:, 0], m.total), atol=1e-6, rtol=0)


@functools.cache
def answers(m: Map, d: int, scale: float) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Return scores in both dtypes, the reference's values and the tolerances, cached for all backends."""
    z = torch.randn(4, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64) * scale
    return [(z, m.reference(z), 1e-9), (z.float(), m.reference(z.float()), m.tolerance)]


SIZES = (1, 2, 3, 31, 257, 1023, 1025, 3001, 9001)


@every_pair(indirect=["computed_by"], valid=lambda m, d, _: m.total <= d, m=DISTINCT, d=SIZES, computed_by=COMPUTED)
def test_non_power_of_two_sizes_match_reference(m: Map, d: int) -> None:
    for scale in (1.0, 5.0):
        for z, expected, tolerance in answers(m, d, scale):
            torch.testing.assert_close(m.ours(z).double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("d", [1025, 9001])
def test_entries_just_above_the_threshold_get_probability(d: int) -> None:
    """A bound on the threshold preselects entries; it must leave room for rounding."""
    for above in (1e-12, 4e-6, 1e-3):
        z = torch.full((2, d), -5.0, dtype=torch.float64)
        z[0, 0] = z[1, d - 1] = 0
        z[:, d // 2] = above - 1
        p = tsallis.sparsemax(z)
        expected = torch.full((2,), above / 2, dtype=torch.float64)
        torch.testing.assert_close(p[:, d // 2], expected, atol=1e-15, rtol=1e-3)
        torch.testing.assert_close(p, reference.entmax(z, 2.0), atol=1e-10, rtol=0)


@functools.cache
def slopes(m: Map, d: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores, weights of the probabilities, and the reference's gradient of the weighted sum, cached."""
    z = torch.randn(3, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    weights = torch.randn(3, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad((m.reference(exact) * weights).sum(), exact)
    return z, weights, expected


@every_map
def test_gradients_match_reference(m: Map, computed_by: str) -> None:
    for d in (7, 257 if computed_by == "reference" else 2049):
        z, weights, expected = slopes(m, d)
        for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-4)):
            scores = z.to(dtype).requires_grad_()
            (result,) = torch.autograd.grad((m.ours(scores) * weights.to(dtype)).sum(), scores)
            if m.name == "entmax-2.5" and dtype == torch.float32:
                continue  # the slope is unbounded at the edge of the support: rounding the scores changes it
            torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("alpha", [0.3, 0.99, 0.9999, 1.0, 1.00001, 1.001, 1.01, 1.2, 1.5, 2.0])
def test_float32_alpha_gradient_near_one_matches_reference(alpha: float) -> None:
    z, weights = torch.randn(6, 33), torch.randn(6, 33)
    ours = torch.full((6, 1), alpha, requires_grad=True)
    exact = ours.detach().double().requires_grad_()
    (result,) = torch.autograd.grad((tsallis.entmax(z, ours) * weights).sum(), ours)
    (expected,) = torch.autograd.grad((reference.entmax(z, exact) * weights).sum(), exact)
    scale = expected.abs().amax()
    assert ((result - expected).abs() / scale).max() < (1e-3 if abs(alpha - 1) > 1e-4 else 5e-3)


@pytest.mark.parametrize("alpha", [2.2, 2.5, 4.0])
def test_float32_gradients_above_alpha_2_match_reference(alpha: float) -> None:
    """The scores are exact in float32, and none lies near the edge of a support."""
    z = torch.tensor([[0.75, 0.5, 0.25, -4.0], [1.0, 0.96875, -2.0, -3.0]])
    weights, target = torch.tensor([[0.5, -1.5, 2.0, 1.0], [1.0, -0.25, 3.0, -1.0]]), torch.tensor([1, 0])
    exact = z.double().requires_grad_()
    number = torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad((reference.entmax(exact, number) * weights).sum(), (exact, number))
    scores, alphas = z.clone().requires_grad_(), torch.full((2, 1), alpha, requires_grad=True)
    found = torch.autograd.grad((tsallis.entmax(scores, alphas) * weights).sum(), (scores, alphas))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * other.abs().max().item())
    (slope,) = torch.autograd.grad(tsallis.entmax_loss(scores, target, alpha, reduction="sum"), scores)
    (right,) = torch.autograd.grad(reference.entmax_loss(exact, target, alpha).sum(), exact)
    torch.testing.assert_close(slope.double(), right, rtol=1e-5, atol=1e-6)


def test_alpha_one_equals_softmax_as_number_or_tensor() -> None:
    z = torch.randn(4, 7)
    mixed = torch.tensor([[1.0], [1.5], [1.0], [2.0]])
    p = tsallis.entmax(z, mixed)
    assert torch.equal(p[::2], tsallis.entmax(z, 1.0)[::2])
    torch.testing.assert_close(p[::2], z.softmax(-1)[::2], atol=0, rtol=1e-6)  # two roundings of the same numbers
    exact, wide = tsallis.entmax(z.double(), mixed.double()), z.double().softmax(-1)
    torch.testing.assert_close(exact[::2], wide[::2], atol=0, rtol=1e-14)
    torch.testing.assert_close(p[1], tsallis.entmax15(z[1]), atol=1e-6, rtol=0)
    torch.testing.assert_close(p[3], tsallis.sparsemax(z[3]), atol=1e-6, rtol=0)


def test_per_row_alphas_match_reference() -> None:
    z = torch.randn(len(ALPHAS), 3, 40, dtype=torch.float64)
    alpha = torch.tensor(ALPHAS, dtype=torch.float64).view(-1, 1, 1)
    p = tsallis.entmax(z, alpha)
    for i, a in enumerate(ALPHAS):
        torch.testing.assert_close(p[i], reference.entmax(z[i], a), atol=1e-10, rtol=0)
    along = tsallis.entmax(z.movedim(-1, 0), alpha.movedim(-1, 0), dim=0)
    torch.testing.assert_close(along.movedim(0, -1), p)


@every_map
def test_any_dim_and_memory_layout_give_the_same_result(m: Map) -> None:
    z = torch.randn(4, 5, 6, dtype=torch.float64)
    expected = m.ours(z)
    torch.testing.assert_close(m.ours(z.transpose(0, 2), 0).transpose(0, 2), expected)
    torch.testing.assert_close(m.ours(z.transpose(1, 2), 1).transpose(1, 2), expected)
    torch.testing.assert_close(m.ours(z.transpose(1, 2), -2).transpose(1, 2), expected)
    strided = torch.randn(4, 12, dtype=torch.float64)[:, ::2]
    assert not strided.is_contiguous()
    torch.testing.assert_close(m.ours(strided), m.ours(strided.contiguous()))


@every_map
def test_input_is_not_modified(m: Map) -> None:
    z = torch.randn(3, 2000)
    saved = z.clone()
    p = m.ours(z.requires_grad_())
    p.sum().backward()
    assert torch.equal(z, saved)


@every_map
def test_minus_infinity_scores_are_excluded(m: Map) -> None:
    z = torch.randn(6, 9, dtype=torch.float64)
    out = torch.zeros(6, 9, dtype=torch.bool)
    out[:, [1, 4, 5]] = True
    expected = torch.zeros_like(z).masked_scatter(~out, m.ours(z[~out].view(6, -1)))
    scores = z.masked_fill(out, -torch.inf).requires_grad_()
    p = m.ours(scores)
    torch.testing.assert_close(p.detach(), expected)
    (grad,) = torch.autograd.grad((p * torch.randn_like(p)).sum(), scores)
    assert (grad[out] == 0).all() and grad.isfinite().all()


@every_pair(indirect=["computed_by"], m=MAPS, d=[6, 2048], computed_by=ALL_BACKENDS)
def test_empty_and_nan_rows_do_not_affect_other_rows(m: Map, d: int) -> None:
    z = torch.randn(5, d) * 3
    expected = m.ours(z[3:])
    z[0] = -torch.inf
    z[1, 2] = torch.nan
    z[2, 3] = torch.inf
    scores = z.requires_grad_()
    p = m.ours(scores)
    assert (p[0] == 0).all()
    assert p[1].isnan().all()
    torch.testing.assert_close(p[3:], expected, atol=1e-6, rtol=0)
    (grad,) = torch.autograd.grad((p * torch.randn_like(p)).sum(), scores)
    assert (grad[0] == 0).all()
    assert grad[1].isnan().any()
    assert grad[3:].isfinite().all()


@every_pair(indirect=["computed_by"], m=MAPS, dtype=[torch.float16, torch.bfloat16], computed_by=ALL_BACKENDS)
def test_half_precision_is_computed_in_float32(m: Map, dtype: torch.dtype) -> None:
    z = (torch.randn(4, 1000) * 2).to(dtype).requires_grad_()
    p = m.ours(z)
    assert p.dtype == dtype
    assert torch.equal(p, m.ours(z.detach().float()).to(dtype))
    weights, exact, limits = torch.randn(4, 1000), z.detach().double().requires_grad_(), torch.finfo(dtype)
    (result,) = torch.autograd.grad((p.float() * weights).sum(), z)
    (expected,) = torch.autograd.grad((m.reference(exact) * weights).sum(), exact)
    allowed = limits.eps * (2 * expected.norm(dim=-1) + 32 * limits.tiny)  # 32: the root of the number of entries
    assert ((result - expected).norm(dim=-1) <= allowed).all()


@every_map
def test_autocast_gives_float32(m: Map) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert m.ours(torch.randn(3, 4).bfloat16()).dtype == torch.float32
        assert m.ours(torch.randn(3, 4)).dtype == torch.float32


@every_pair(
    indirect=["computed_by"], m=MAPS, shape=[(), (1,), (0,), (3, 0), (0, 4), (2, 0, 3)], computed_by=ALL_BACKENDS
)
def test_empty_and_single_entry_tensors_keep_their_shape(m: Map, shape: tuple[int, ...]) -> None:
    z = torch.randn(shape, requires_grad=True)
    p = m.ours(z)
    assert p.shape == z.shape
    if z.numel() == 1:
        assert p.item() == pytest.approx(m.single)
    p.sum().backward()
    assert z.grad is not None and z.grad.shape == z.shape


def test_mask_equals_minus_infinity_scores() -> None:
    z = torch.randn(3, 8, requires_grad=True)
    mask = torch.rand(3, 8) > 0.4
    mask[1] = False
    p = tsallis.entmax(z, 1.5, mask=mask)
    assert (p[~mask] == 0).all() and (p[1] == 0).all()
    torch.testing.assert_close(p, tsallis.entmax(z.masked_fill(~mask, -torch.inf), 1.5))
    p.square().sum().backward()
    assert z.grad is not None and (z.grad[~mask] == 0).all() and z.grad.isfinite().all()


@pytest.mark.parametrize(("name", "alpha"), [("sparsemax", 2.0), ("entmax15", 1.5)])
def test_masks_of_named_maps_match_reference(name: str, alpha: float) -> None:
    z, mask = torch.randn(4, 6, 5, dtype=torch.float64), torch.rand(4, 1, 5) > 0.4
    mask[2], function = False, getattr(tsallis, name)
    hidden = z.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(function(z, mask=mask), reference.entmax(hidden, alpha), atol=1e-10, rtol=0)
    along = reference.entmax(hidden.movedim(0, -1), alpha).movedim(-1, 0)
    torch.testing.assert_close(function(z, 0, mask=mask), along, atol=1e-10, rtol=0)


INVALID = [
    (lambda z: tsallis.entmax(z, 0.0), ValueError, "alpha must be positive and finite, got 0"),
    (lambda z: tsallis.budgeted_entmax(z, 0.5), ValueError, "at least 1, got 0.5"),
    (lambda z: tsallis.normmax(z, 0.5), ValueError, "at least 1, got 0.5"),
    (lambda z: tsallis.entmax(z, float("nan")), ValueError, "nan"),
    (lambda z: tsallis.entmax(z, float("inf")), ValueError, "inf"),
    (lambda z: tsallis.entmax(z, torch.tensor([[1.5], [-0.25]])), ValueError, "a tensor with -0.25"),
    (lambda z: tsallis.entmax(z, torch.ones(3)), ValueError, "size 3"),
    (lambda z: tsallis.entmax(z, torch.ones(2)), ValueError, r"size 2; .* dimension 0 .* alpha.view\(-1, 1\)"),
    (lambda z: tsallis.entmax(z.expand(5, 7, 2, 3), torch.ones(7)), ValueError, r"alpha.view\(-1, 1, 1\)"),
    (lambda z: tsallis.entmax(z.expand(2, 2, 2, 3), torch.ones(2)), ValueError, r"alpha.view\(-1, 1, 1\)"),
    (lambda z: tsallis.entmax(z, "learned"), TypeError, "alpha must be a number, got 'learned'"),
    (lambda z: tsallis.entmax(z, "1.5"), TypeError, "alpha .* '1.5'"),
    (lambda z: tsallis.entmax(z, None), TypeError, "alpha .* None"),
    (lambda z: tsallis.entmax(z, True), TypeError, "alpha .* True"),
    (lambda z: tsallis.entmax(z, torch.tensor(2j)), TypeError, "alpha .* torch.complex64"),
    (lambda z: tsallis.entmax(z, torch.ones(2, 1).bool()), TypeError, "alpha .* torch.bool"),
    (lambda z: tsallis.tsallis_entropy(z, "2"), TypeError, "alpha .* '2'"),
    (lambda z: tsallis.tsallis_entropy(z, torch.tensor([[2.0], [0.0]])), ValueError, "a tensor with 0"),
    (lambda z: tsallis.normmax(z, "2"), TypeError, "alpha .* '2'"),
    (lambda z: tsallis.budgeted_entmax(z, 1.5, "2"), TypeError, "budget .* '2'"),
    (lambda z: tsallis.entmax(z, torch.ones(5, 1)), ValueError, r"\(5, 1\)"),
    (lambda z: tsallis.entmax(z, torch.ones(1, 1, 1, requires_grad=True)), ValueError, "at most 2 dimensions"),
    (lambda z: tsallis.entmax(z.long()), TypeError, "torch.int64"),
    (lambda z: tsallis.entmax(z, mask=torch.ones(2, 3)), TypeError, "torch.float32"),
    (lambda z: tsallis.entmax(z, mask=torch.ones(4).bool()), ValueError, r"\(4,\)"),
    (lambda z: tsallis.entmax(z, dim=2), IndexError, "2"),
    (lambda z: tsallis.normmax(z, 1.0), ValueError, "above 1"),
    (lambda z: tsallis.budgeted_entmax(z, budget=-1), ValueError, "at least 0, got -1"),
    (lambda z: tsallis.escort(z, float("nan")), ValueError, "nan"),
]


@pytest.mark.any_backend
@pytest.mark.parametrize(("call", "error", "words"), INVALID)
def test_invalid_arguments_raise(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(torch.randn(2, 3))


@pytest.mark.by_reference(False)
@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("budget", [0.5, 1.0, 1.5, 2.0, 3.5, 7.0])
def test_any_budget_and_its_gradient_match_reference(alpha: float, budget: float) -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights, results = torch.randn_like(z), []
    for function in (tsallis.budgeted_entmax, reference.budgeted_entmax):
        scores = z.clone().requires_grad_()
        probs = function(scores, alpha, budget)
        results.append((probs.detach(), *torch.autograd.grad((probs * weights).sum(), scores)))
    torch.testing.assert_close(*results, atol=1e-7, rtol=1e-7)


@pytest.mark.any_backend
def test_contract_tests_cover_every_public_map() -> None:
    public = [function for name in tsallis.functional.__all__ if is_map(function := getattr(tsallis, name))]
    assert {function.__name__ for function in public} == {*FUNCTIONS}


def is_map(function: object) -> bool:
    """Return whether a public function maps scores to probabilities."""
    module = getattr(function, "__module__", "")
    return module == "tsallis.functional.maps" and next(iter(inspect.signature(function).parameters)) == "scores"
