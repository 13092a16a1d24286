"""Tests of continuous attention modules: their settings, their initial densities, and their use in translators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from tsallis.continuous import (
    GaussianBasis,
    TruncatedParabola,
    ValueFunction,
    cell_centres,
    grid_centres,
    moments,
    text_basis,
)
from tsallis.models import RNNSeq2Seq
from tsallis.nn import (
    ContinuousAttention1d,
    ContinuousAttention2d,
    ContinuousGlobalAttention,
    GlobalAttention,
    PerHeadAlpha,
)
from tsallis.nn.continuous_attention.core import cell_edges
from tsallis.search import beam_search

SIZE = 8
MAPS = [("softmax", 1.0), ("sparsemax", 2.0), ("entmax", 1.5), (1.25, 1.25)]
DENSITIES = ["gaussian", "truncated_parabola", "laplace", "triangular", 1.5, "learned"]
PLANE = ["gaussian", "truncated_paraboloid", 1.5, "learned"]


def scores(batch: int = 3, length: int = 7, queries: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, queries, length) * 2, torch.randn(batch, length, SIZE)


@pytest.mark.parametrize(("transform", "alpha"), MAPS)
@pytest.mark.parametrize("matching", ["covariance", "scale"])
def test_the_density_has_the_moments_of_the_discrete_weights(transform: Any, alpha: float, matching: Any) -> None:
    attention = ContinuousAttention1d(SIZE, moments="scores", transform=transform, matching=matching, project=False)
    z, values = scores()
    lengths = torch.tensor([7, 4, 1])
    _, density, weights = attention.attend(z, values, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = tsallis.entmax(z[row, :, :length], alpha)
        torch.testing.assert_close(weights[row, 0, :, :length], expected)
        assert (weights[row, 0, :, length:] == 0).all()
        mean, variance = moments(expected, cell_centres(length))
        torch.testing.assert_close(density.mean[row, 0], mean)
        result = density.variance if matching == "covariance" else density.scale
        torch.testing.assert_close(result[row, 0], variance + 1e-6, atol=1e-7, rtol=1e-4)


def test_discrete_weights_match_scaled_dot_product_per_head() -> None:
    attention = ContinuousAttention1d(SIZE, 2, moments="discrete", transform="entmax")
    query, values = torch.randn(3, 2, SIZE), torch.randn(3, 7, SIZE)
    weights = attention(query, values)[1]
    q, k = attention.query_proj(query), attention.key_proj(values)
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        expected = tsallis.entmax(q[..., part] @ k[..., part].mT / 2, 1.5)
        torch.testing.assert_close(weights[:, head], expected)


@pytest.mark.parametrize("heads", [1, 2])
def test_combined_attention_adds_the_discrete_context(heads: int) -> None:
    z, values = scores()
    plain, combined = (
        ContinuousAttention1d(SIZE, heads, moments="scores", combine=combine, project=False)
        for combine in (False, True)
    )
    context, weights = combined(z, values)
    torch.testing.assert_close(context - plain(z, values)[0], weights[:, 0] @ values)
    assert sum(p.numel() for p in combined.parameters()) == 0


def test_basis_is_chosen_by_name_size_or_instance() -> None:
    for name, functions, width in (("text-32", 32, 0.1), ("text-64", 64, 0.1), ("text-128", 128, 0.1)):
        basis = ContinuousAttention1d(SIZE, basis=name).fit.basis
        assert basis.size == functions and basis.width == pytest.approx(width)
        assert basis.centres.equal(text_basis(functions).centres)
    translation = ContinuousAttention1d(SIZE, basis="translation").fit.basis
    assert translation.size == 30 and translation.width == pytest.approx(0.03)
    assert ContinuousAttention1d(SIZE, basis=10).fit.basis.size == 10
    assert ContinuousAttention1d(SIZE).fit.basis.size == 64
    own = GaussianBasis(torch.linspace(0, 1, 5), 0.01)
    assert ContinuousAttention1d(SIZE, basis=own).fit.basis is own
    for name, variance in (("image", 0.01), ("image-paper", 0.001)):
        basis = ContinuousAttention2d(SIZE, basis=name).fit.basis
        assert basis.size == 100 and basis.width == pytest.approx(variance**0.5, rel=1e-4)
    assert ContinuousAttention2d(SIZE, basis=4).fit.basis.size == 16


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("matching", ["covariance", "scale"])
def test_initial_densities_are_evenly_spaced_and_wide(dims: int, matching: Any) -> None:
    for density in DENSITIES if dims == 1 else PLANE:
        for heads, components in ((1, 1), (4, 1), (2, 3)):
            kind = ContinuousAttention1d if dims == 1 else ContinuousAttention2d
            attention = kind(12, heads, density=density, components=components, matching=matching)
            start = attention.head(torch.zeros(1, 1, 12), attention.kind)
            parts = start if components == 1 else start.parts[0]
            means = parts.mean.reshape(-1, dims)  # [heads * components, dims]
            count = heads * components
            even = (torch.arange(count) + 0.5) / count
            torch.testing.assert_close(means[:, 0].sort().values, even, atol=1e-5, rtol=0)
            assert ((means > 0) & (means < 1)).all() and len(means[:, -1].unique()) == count
            variance = torch.full_like(parts.variance, 1 / 12 / components ** (2 / dims))
            torch.testing.assert_close(parts.variance, variance, rtol=1e-5, atol=0)
            if dims == 2:
                assert (parts.covariance[..., 0, 1].abs() < 1e-6).all()


def test_mask_with_holes_matches_removing_masked_values() -> None:
    """Check that, without positions, the unmasked values are treated as adjacent."""
    mask = torch.tensor([[True, False, True, True, False, True, False], [False] * 3 + [True] * 4])
    values, query = torch.randn(2, 7, SIZE), torch.randn(2, 3, SIZE)
    for how in ("query", "discrete"):
        attention = ContinuousAttention1d(SIZE, 2, moments=how, combine=how == "discrete")
        context, weights = attention(query, values, mask=mask)
        for row in range(2):
            alone, attended_alone = attention(query[row : row + 1], values[row : row + 1, mask[row]])
            torch.testing.assert_close(context[row], alone[0], atol=1e-5, rtol=1e-4)
            if weights is not None:
                torch.testing.assert_close(weights[row][..., mask[row]], attended_alone[0])
                assert (weights[row][..., ~mask[row]] == 0).all()
    assert cell_edges(mask)[0].tolist() == [0, 0.25, 0.25, 0.5, 0.75, 0.75, 1, 1]
    assert cell_edges(torch.zeros(2, dtype=torch.bool)).tolist() == [0, 0, 0]


def test_positions_set_the_time_stamps_of_values() -> None:
    stamps = torch.tensor([[0.0, 0.1, 0.15, 0.8, 0.9], [0.2, 0.3, 0.5, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    z, values = torch.randn(2, 2, 5), torch.randn(2, 5, SIZE)
    attention = ContinuousAttention1d(SIZE, moments="scores", project=False, ridge=0.2)
    context, density = attention(z, values, mask=mask, positions=stamps, need_density=True)
    weights = z[1, :, :3].softmax(-1)
    torch.testing.assert_close(density.mean[1, 0], weights @ stamps[1, :3].float())
    fit = ValueFunction(attention.fit.basis, 0.2)
    expected = fit(values[1:, :3], positions=stamps[1:, :3]).expect(
        TruncatedParabola(density.mean[1], density.variance[1])
    )
    torch.testing.assert_close(context[1:], expected, atol=1e-5, rtol=1e-4)
    shared = attention(z, values, positions=stamps[0])[0]
    torch.testing.assert_close(shared[:1], attention(z[:1], values[:1], positions=stamps[:1])[0], atol=1e-5, rtol=1e-4)
    by_length = attention(z, values, lengths=[5, 3], positions=stamps)[0]
    torch.testing.assert_close(by_length, context)


def test_few_and_many_queries_give_the_same_expectations() -> None:
    """Check the results, and that the coefficients are never computed for few queries."""
    fit = ValueFunction(text_basis(32))
    values = torch.randn(2, 20, SIZE, dtype=torch.float64)
    mean = torch.rand(2, 4, 50, dtype=torch.float64)
    signal = fit(values, lengths=[20, 11])
    with_all = signal.heads(4).expect(TruncatedParabola(mean, torch.tensor(0.01).double()))
    for count in (1, 2):
        few = fit(values, lengths=[20, 11]).heads(4)
        result = few.expect(TruncatedParabola(mean[:, :, :count], torch.tensor(0.01).double()))
        torch.testing.assert_close(result, with_all[:, :, :count])
        assert "coefficients" not in few.__dict__
    parts = signal.heads(4).coefficients
    torch.testing.assert_close(parts.transpose(1, 2).flatten(2), signal.coefficients)
    with pytest.raises(ValueError, match="number of heads, 3, got 8"):
        signal.heads(3)


def test_per_head_alphas_get_gradients() -> None:
    attention = ContinuousAttention1d(SIZE, 2, density="learned")
    (alphas,) = [m for m in attention.modules() if isinstance(m, PerHeadAlpha)]
    query, values = torch.randn(3, 4, SIZE), torch.randn(3, 9, SIZE)
    context, density = attention(query, values, need_density=True)
    assert density.alpha.shape == (2, 1) and density.alpha.flatten().equal(alphas())
    context.square().sum().backward()
    assert (alphas.bias.grad != 0).all()
    shared = PerHeadAlpha(1, initial=1.5)
    both = ContinuousAttention1d(SIZE, 2, density=shared)
    assert both(query, values, need_density=True)[1].alpha.tolist() == [[pytest.approx(1.5)]]


GLOBAL = [("softmax", "gaussian"), ("softmax", "truncated_parabola"), ("sparsemax", 1.5), (1.5, "triangular")]
every_global = pytest.mark.parametrize(("transform", "density"), GLOBAL)


def memory_of(src: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    query = torch.randn(3, 4, generator=g, dtype=torch.float64) * 2
    memory = torch.randn(3, src, 6, generator=g, dtype=torch.float64)
    return query, memory, torch.arange(src) < torch.tensor([[src], [4], [1]])


@every_global
def test_continuous_global_attention_matches_per_row_results(transform: Any, density: Any) -> None:
    attention = ContinuousGlobalAttention(4, 6, transform, density).double()
    query, memory, mask = memory_of()
    keys = attention.keys(memory)
    assert keys.shape == (3, 7, 4)
    context, weights = attention(query, memory, mask, keys)
    assert context.shape == (3, 6) and weights.shape == (3, 7)
    queries = torch.stack([query, query * 3], 1)
    contexts, all_weights = attention(queries, memory, mask)
    assert contexts.shape == (3, 2, 6) and all_weights.shape == (3, 2, 7)
    torch.testing.assert_close(contexts[:, 0], context)
    torch.testing.assert_close(all_weights[:, 0], weights)
    # Compute both contexts and the masses of the cells row by row.
    discrete = {"softmax": 1.0, "sparsemax": 2.0}.get(transform, transform)
    for row in range(3):
        own = memory[row : row + 1, mask[row]]
        z = query[row] @ attention.bilinear.weight @ own[0].T
        p = tsallis.entmax(z, discrete)
        count = int(mask[row].sum())
        fitted = attention.attention.kind.matched(p.reshape(1, 1, -1), cell_centres(count))
        signal = ValueFunction(attention.attention.fit.basis)(own)
        torch.testing.assert_close(context[row], signal.expect(fitted)[0, 0] + p @ own[0])
        middles = cell_centres(count * 500)
        mass = fitted.pdf(middles.reshape(-1, 1, 1))[:, 0, 0].reshape(count, 500).mean(1) / count
        # Skip narrow densities, which fall between the midpoints.
        if fitted.variance.item() > 1e-4:
            torch.testing.assert_close(weights[row, mask[row]], mass, atol=1e-4, rtol=0)
        assert (weights[row, ~mask[row]] == 0).all() and 0 < weights[row].sum().item() <= 1 + 1e-9


def test_masses_are_zero_exactly_outside_the_support() -> None:
    attention = ContinuousGlobalAttention(4, 6, "sparsemax").double()
    query, memory, mask = memory_of(20)
    weights = attention(query * 3, memory, mask)[1]
    scores = ((query * 3).unsqueeze(1) @ attention.keys(memory).mT)[:1]
    density = attention.attention.attend(scores, memory[:1])[1]
    support = density.support
    edges = torch.arange(21) / 20
    touched = (edges[1:] > support.lower.item()) & (edges[:-1] < support.upper.item())
    assert ((weights[0] > 0) == touched).all() and 0 < touched.sum() < 20


def test_combined_attention_has_no_further_parameters() -> None:
    plain, continuous = GlobalAttention(4, 6), ContinuousGlobalAttention(4, 6)
    assert [(n, p.shape) for n, p in plain.named_parameters()] == [
        (n, p.shape) for n, p in continuous.named_parameters()
    ]
    with torch.no_grad():
        continuous.bilinear.weight.copy_(plain.bilinear.weight)
    query, memory, mask = (x.float() if x.is_floating_point() else x for x in memory_of())
    alone = ContinuousGlobalAttention(4, 6, combine=False)
    alone.load_state_dict(continuous.state_dict())
    discrete = GlobalAttention(4, 6, "softmax")
    discrete.load_state_dict(plain.state_dict())
    expected = alone(query, memory, mask)[0] + discrete(query, memory, mask)[0]
    torch.testing.assert_close(continuous(query, memory, mask)[0], expected)


def test_an_empty_memory_has_zero_context_and_no_weights() -> None:
    query, memory, mask = torch.randn(2, 3, 4), torch.randn(2, 0, 6), torch.ones(2, 0, dtype=torch.bool)
    for attention in (ContinuousGlobalAttention(4, 6), GlobalAttention(4, 6)):
        context, weights = attention(query, memory, mask)
        assert context.equal(torch.zeros(2, 3, 6)) and weights.shape == (2, 3, 0)


@every_global
def test_fully_masked_rows_have_zero_context_and_weights(transform: Any, density: Any) -> None:
    attention = ContinuousGlobalAttention(4, 6, transform, density)
    mask = torch.tensor([[False] * 3, [True, True, False]])
    memory = torch.randn(2, 3, 6)
    memory[0] = torch.nan
    context, weights = attention(torch.randn(2, 4), memory, mask)
    assert (context[0] == 0).all() and (weights[0] == 0).all() and (context[1] != 0).all()
    assert context[1].isfinite().all() and weights[1].sum() > 0


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("density", ["gaussian", "truncated_parabola"])
def test_rnn_seq2seq_uses_continuous_attention(feeding: bool, density: str) -> None:
    options = {"attention": "softmax", "output": "sparsemax", "input_feeding": feeding, "density": density}
    model = RNNSeq2Seq(20, 15, d_model=8, layers=1, dropout=0.0, **options)
    assert isinstance(model.attention, ContinuousGlobalAttention)
    src, lengths = torch.randint(4, 20, (3, 6)), torch.tensor([6, 3, 1])
    tgt = torch.randint(4, 15, (3, 4))
    decoded = model(src, lengths, tgt)
    assert decoded.hidden.shape == (3, 4, 8) and decoded.attention.shape == (3, 4, 6)
    state = model.start(model.encode(src, lengths))
    for t in range(4 if feeding else 1):
        scored, attention, state = model.step(state, tgt[:, t])
        torch.testing.assert_close(attention, decoded.attention[:, t], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(scored, model.output.scores(decoded.hidden[:, t]), atol=1e-5, rtol=1e-4)
    assert (model.num_attended(decoded)[2] == 1).all()
    model.output.loss(decoded.hidden, tgt).backward()
    assert (model.attention.bilinear.weight.grad != 0).any()
    results = beam_search(model.eval(), src, lengths, beam_size=2, max_length=8)
    assert len(results) == 3


def test_invalid_inputs_raise() -> None:
    attention, query, values = ContinuousAttention1d(SIZE), torch.randn(2, SIZE), torch.randn(2, 5, SIZE)
    mask = torch.ones(2, 5, dtype=torch.bool)
    for arguments, message in (
        ((None, values), "query must be a tensor with moments='query', got None"),
        ((torch.randn(2, 3), values), r"query must have shape \[2, 8\] or \[2, queries, 8\]"),
        ((torch.randn(3, SIZE), values), r"query must have shape \[2, 8\] or \[2, queries, 8\]"),
        ((query, values[..., :5]), r"values must have shape \[batch, length, 8\], got \(2, 5, 5\)"),
        ((query, values, mask, [5, 5]), "not both"),
        ((query, values, mask.float()), "mask must be boolean"),
        ((query, values, mask[:, :3]), r"mask must be boolean of shape \[2, 5\], got torch.bool of shape \[2, 3\]"),
        ((query, values, None, [5]), r"lengths must have shape \[2\], got \(1,\)"),
        ((query, values, None, [5, 6]), "from 1 to 5, got 6"),
        ((query, values, None, None, torch.rand(4)), r"positions must have shape \[\.\.\., 5\]"),
        ((query, values, None, None, torch.rand(3, 5)), r"\(2,\) of values, \(3,\) of positions"),
    ):
        with pytest.raises(ValueError, match=message):
            attention(*arguments)
    inputs = ContinuousAttention1d(SIZE, moments="scores")
    with pytest.raises(ValueError, match=r"\(2,\) of values, \(3,\) of positions"):
        inputs(torch.randn(2, 3, 5), values, positions=torch.rand(3, 5))
    with pytest.raises(ValueError, match=r"scores must have shape \[2, 5\]"):
        inputs(torch.randn(2, 3, 4), values)
    with pytest.raises(ValueError, match=r"scores must have shape .*2 or 1, queries, 5\], got \(2, 3, 1, 5\)"):
        ContinuousAttention1d(SIZE, 2, moments="scores")(torch.randn(2, 3, 1, 5), values)

    with pytest.raises(ValueError, match="query must be None"):
        ContinuousAttention1d(SIZE, moments="pooled")(query, values)
    with pytest.raises(ValueError, match=r"points must be one number or \(radial, angular\), got \(1, 2, 3\)"):
        ContinuousAttention2d(SIZE, points=(1, 2, 3))  # type: ignore[arg-type]
    plane = ContinuousAttention2d(SIZE)
    for more, message in (
        ({}, "grid or positions, got none"),
        ({"grid": (1, 5), "positions": torch.rand(5, 2)}, "grid or positions, got both"),
        ({"grid": (2, 2)}, "grid must have one cell per value, 5, got 2 x 2"),
        ({"grid": (-1, -5)}, "grid must be at least 1, got -1"),
        ({"grid": 5}, "grid must have one cell per value, 5, got 5 x 5"),
        ({"grid": (1, 5), "mask": mask.float()}, "mask must be boolean"),
        ({"positions": torch.rand(2, 5)}, r"positions must have shape \[\.\.\., 5, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            plane(query, values, **more)


@pytest.mark.parametrize("moments", ["query", "discrete"])
@pytest.mark.parametrize("density", [*DENSITIES, "truncated_paraboloid"])
def test_meta_tensors_have_the_expected_shapes(density: Any, moments: str) -> None:
    """Check shapes on the meta device, where models are built before their parameters are loaded."""
    query, values = (torch.randn(2, length, SIZE, device="meta", requires_grad=True) for length in (3, 12))
    layers = [ContinuousAttention1d] * (density != "truncated_paraboloid") + [ContinuousAttention2d] * (
        density in PLANE
    )
    masks: list[Any] = [{}, {"lengths": [12, 3]}, {"mask": torch.ones(2, 12, device="meta").bool()}]
    for layer in layers:
        attention = layer(SIZE, 2, density=density, moments=moments).to("meta")
        for options in [{"grid": (3, 4)}] if layer is ContinuousAttention2d else masks:
            out, _ = attention(query, values, **options)
            assert (out.device.type, out.shape) == ("meta", query.shape)
            assert torch.autograd.grad(out.sum(), values)[0].shape == values.shape


def test_arguments_of_wrong_types_are_rejected() -> None:
    line, plane = ContinuousAttention1d(SIZE), ContinuousAttention2d(SIZE, basis=2)
    combined = ContinuousGlobalAttention(SIZE, SIZE)
    query, values = torch.randn(2, SIZE), torch.randn(2, 6, SIZE)
    for make, message in (
        (lambda: plane(query, values, grid=(2.0, 3.0)), r"grid must be a whole number, got 2\.0"),
        (lambda: plane(query, values, positions=[0.0]), "positions must be a tensor, got list"),
        (lambda: line(query, values, positions=[0.0]), "positions must be a tensor, got list"),
        (lambda: line(query, values, [True]), "mask must be a tensor, got list"),
        (lambda: line([1.0], values), "query must be a tensor, got list"),
        (lambda: line(query.long(), values), "query must be floating point, got"),
        (lambda: combined(query, values, None), "mask must be a tensor, got NoneType"),
        (lambda: ContinuousAttention1d(SIZE, moments="pooled", filter_width=2.5), r"filter_width must .* got 2\.5"),
    ):
        with pytest.raises(TypeError, match=message):
            make()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("matching", ["covariance", "scale"])
def test_densities_in_the_plane_keep_their_precision(matching: str) -> None:
    """Under autocast, and for correlated axes, the smaller spread must not be lost."""
    values, query = torch.randn(2, 49, 32), 15 * torch.randn(2, 20, 32)
    for how in ("discrete", "query"):
        attention = ContinuousAttention2d(32, 4, moments=how, matching=matching)
        positions = grid_centres(7, 7)
        with torch.autocast("cpu", torch.bfloat16):
            context, density = attention(query, values, positions=positions, need_density=True)
            covariance = density.covariance
        assert context.isfinite().all() and covariance.dtype == torch.float32
        torch.testing.assert_close(covariance, density.factor @ density.factor.mT)


def test_scale_of_a_narrow_density_matches_float64() -> None:
    attention = ContinuousAttention2d(8, 1, moments="query", matching="scale")
    root = torch.tensor([[1.0, 0.0], [4.0, 1e-3]])
    factor, exact = (attention.kind.spread(root.new_zeros(2).to(x), x, 1).factor for x in (root, root.double()))
    torch.testing.assert_close(factor.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{"floor": 0.1}, {"floor": 0.01, "components": 4, "matching": "scale"}])
def test_a_large_floor_gives_finite_parameters(options: dict[str, Any]) -> None:
    assert all(x.isfinite().all() for x in ContinuousAttention1d(8, **options).parameters())
