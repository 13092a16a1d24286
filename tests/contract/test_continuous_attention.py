"""Properties of all continuous attention, in one and two dimensions, for all densities and kinds of moments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.continuous import Density, cell_centres, grid_centres
from tsallis.nn import ContinuousAttention1d, ContinuousAttention2d

SIZE, HEADS, LENGTH, QUERIES = 6, 2, 9, 3
GRID = (3, 3)
DENSITIES = {
    1: ["gaussian", "truncated_parabola", "laplace", "triangular", 1.4, "learned"],
    2: ["gaussian", "truncated_paraboloid", 1.4, "learned"],
}
MOMENTS = ["query", "discrete", "scores", "pooled"]
KINDS = [(dims, density, moments) for dims in (1, 2) for density in DENSITIES[dims] for moments in MOMENTS]
every_kind = pytest.mark.parametrize(("dims", "density", "moments"), KINDS)
# For tests that don't need every pair: all densities with one kind of moments, and all moments with one density.
SOME = [k for k in KINDS if k[2] == "discrete" or k[1] in ("truncated_parabola", "truncated_paraboloid")]
some_kinds = pytest.mark.parametrize(("dims", "density", "moments"), SOME)
both = pytest.mark.parametrize("dims", [1, 2])


def make(dims: int, density: Any, moments: str, **more: Any) -> nn.Module:
    torch.manual_seed(7)
    kind = ContinuousAttention1d if dims == 1 else ContinuousAttention2d
    more.setdefault("basis", 8 if dims == 1 else 3)
    combine = more.pop("combine", moments == "discrete")
    module = kind(SIZE, HEADS, density=density, moments=moments, combine=combine, **more)
    with torch.no_grad():
        for parameter in module.parameters():  # so that no bias stays at zero
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module.double()


def inputs(moments: str, batch: int = 3, length: int = LENGTH, dtype: torch.dtype = torch.float64) -> Any:
    g = torch.Generator().manual_seed(3)
    values = torch.randn(batch, length, SIZE, generator=g, dtype=torch.float64).to(dtype)
    width = length if moments == "scores" else SIZE
    query = torch.randn(batch, QUERIES, width, generator=g, dtype=torch.float64).to(dtype)
    return (None if moments == "pooled" else query), values


def where(dims: int) -> dict[str, Any]:
    return {} if dims == 1 else {"grid": GRID}


def integral(density: Density, value: Any) -> Tensor:
    """Return the expectation [batch, heads, queries, d] of values [points, batch, heads, d] by the trapezoidal rule."""
    if density.dims == 1:
        t = torch.linspace(-4, 5, 36001, dtype=torch.float64)
        step = float(t[1] - t[0])
    else:
        line = torch.linspace(-3, 4, 501, dtype=torch.float64)
        t, step = torch.cartesian_prod(line, line), float(line[1] - line[0]) ** 2
    shape = (-1, *[1] * len(density.batch_shape), *t.shape[1:])
    return torch.einsum("pbhq,pbhd->bhqd", density.pdf(t.reshape(shape)), value(t)) * step


@every_kind
def test_the_context_is_the_expectation_of_the_signal(dims: int, density: Any, moments: str) -> None:
    """Compare with the ridge regression and the integral written out, without projections."""
    module = make(dims, density, moments, project=False, combine=False, ridge=0.3)
    query, values = inputs(moments)
    if dims == 2:  # use one row and one query, because the plane has many points
        values, query = values[:1], None if query is None else query[:1, :1]
    with torch.no_grad():
        context, result = module(query, values, need_density=True, **where(dims))
        t = cell_centres(LENGTH) if dims == 1 else grid_centres(*GRID)
        f = module.fit.basis(t)  # [length, functions]
        coefficients = torch.linalg.solve(f.T @ f + 0.3 * torch.eye(f.shape[1]).double(), f.T @ values)
        coefficients = coefficients.unflatten(-1, (HEADS, -1))  # [batch, functions, heads, d]
        expected = integral(result, lambda t: torch.einsum("pn,bnhd->pbhd", module.fit.basis(t), coefficients))
    assert result.batch_shape == (len(values), HEADS, 1 if query is None else query.shape[1])
    expected = expected.transpose(1, 2).flatten(2)
    expected = expected.squeeze(1) if moments == "pooled" else expected
    accuracy = {"laplace": 2e-5}.get(density, 1e-6) if dims == 1 else 2e-4  # accuracy of the trapezoidal rule
    torch.testing.assert_close(context, expected, atol=accuracy, rtol=0)


@every_kind
def test_gradients_reach_all_inputs_and_parameters(dims: int, density: Any, moments: str) -> None:
    module = make(dims, density, moments)
    query, values = inputs(moments, batch=1)
    leaves = [values.requires_grad_(), *([] if query is None else [query[:, :1].clone().requires_grad_()])]
    names = [name for name, _ in module.named_parameters()]

    def context(*tensors: Tensor) -> Tensor:
        arguments, request = tensors[0], tensors[1] if query is not None else None
        parameters = dict(zip(names, tensors[len(leaves) :], strict=True))
        result: Tensor = torch.func.functional_call(module, parameters, (request, arguments), where(dims))[0]
        return result

    parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]
    assert torch.autograd.gradcheck(context, (*leaves, *parameters), fast_mode=True)
    grads = torch.autograd.grad(context(*leaves, *parameters).sum(), (*leaves, *parameters))
    for name, grad in zip(["values", "query"][: len(leaves)] + names, grads, strict=True):
        # `key_proj.bias` changes all scores of a query by the same amount, which softmax ignores.
        assert (grad != 0).any() or name == "key_proj.bias", name


@some_kinds
def test_padding_does_not_change_the_context(dims: int, density: Any, moments: str) -> None:
    module = make(dims, density, moments).float()
    lengths = torch.tensor([LENGTH, 4, 1])
    query, values = inputs(moments, dtype=torch.float32)
    mask = torch.arange(LENGTH) < lengths[:, None]
    more = 4
    padded = torch.cat([values.masked_fill(~mask.unsqueeze(-1), torch.nan), torch.full((3, more, SIZE), torch.inf)], 1)
    longer = torch.cat([mask, torch.zeros(3, more, dtype=torch.bool)], 1)
    request = torch.cat([query, torch.full((3, QUERIES, more), torch.nan)], -1) if moments == "scores" else query
    if dims == 1:
        one = module(query, values, lengths=lengths)[0]
        others = [module(query, values, mask=mask)[0], module(request, padded, lengths=lengths)[0]]
    else:
        t = torch.rand(3, LENGTH, 2)
        one = module(query, values, mask=mask, positions=t)[0]
        t = torch.cat([t.masked_fill(~mask.unsqueeze(-1), torch.nan), torch.full((3, more, 2), torch.nan)], 1)
        others = [module(request, padded, mask=longer, positions=t)[0]]
    assert one.isfinite().all()
    for other in others:
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-6)
    if dims == 1:  # each row equals the result without the batch; float32 rounds differently for other sizes
        module, (query, values) = module.double(), inputs(moments)
        one = module(query, values, lengths=lengths)[0]
        for row, length in enumerate(lengths.tolist()):
            part = None if query is None else query[row : row + 1]
            part = part[..., :length] if moments == "scores" else part
            alone = module(part, values[row : row + 1, :length])[0]
            torch.testing.assert_close(one[row : row + 1], alone)


@both
def test_nan_padding_does_not_affect_gradients(dims: int) -> None:
    for moments in MOMENTS:
        module = make(dims, "gaussian", moments)
        query, values = inputs(moments)
        mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [1]])
        values = values.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
        module(query, values, mask=mask, **where(dims))[0].sum().backward()
        grads = [values.grad, *(p.grad for p in module.parameters())]
        assert all(grad is not None and grad.isfinite().all() for grad in grads), moments
        assert (values.grad[~mask] == 0).all() and (values.grad[mask] != 0).any()


@both
def test_fully_masked_rows_give_the_output_bias(dims: int) -> None:
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    mask[1] = False
    for moments in MOMENTS:
        module = make(dims, 1.4, moments)
        query, values = inputs(moments)
        for values_there in (values, values.masked_fill(~mask.unsqueeze(-1), torch.nan)):
            context = module(query, values_there, mask=mask, **where(dims))[0]
            nothing = module.out_proj.bias.expand_as(context[1])
            torch.testing.assert_close(context[1], nothing, atol=1e-12, rtol=0)
        context.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@some_kinds
def test_rows_and_queries_are_independent(dims: int, density: Any, moments: str) -> None:
    module = make(dims, density, moments)
    query, values = inputs(moments)
    context = module(query, values, **where(dims))[0]
    for row in range(3):
        request = None if query is None else query[row : row + 1]
        alone = module(request, values[row : row + 1], **where(dims))[0]
        torch.testing.assert_close(context[row : row + 1], alone)
    if query is not None:
        for i in range(QUERIES):
            torch.testing.assert_close(module(query[:, i : i + 1], values, **where(dims))[0], context[:, i : i + 1])
            single = query[:, i]
            torch.testing.assert_close(module(single, values, **where(dims))[0], context[:, i])
        spoilt = query.clone()
        spoilt[1] = torch.nan
        result = module(spoilt, values, **where(dims))[0]
        assert result[1].isnan().all()
        torch.testing.assert_close(result[[0, 2]], context[[0, 2]])


@every_kind
def test_float32_is_near_float64(dims: int, density: Any, moments: str) -> None:
    double = make(dims, density, moments)
    query, values = inputs(moments)
    expected = double(query, values, **where(dims))[0]
    expected.square().sum().backward()
    grads = [p.grad.clone() for p in double.parameters()]
    single = make(dims, density, moments).float()
    result = single(None if query is None else query.float(), values.float(), **where(dims))[0]
    result.square().sum().backward()
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-4)
    largest = max(float(grad.abs().max()) for grad in grads)
    for parameter, grad in zip(single.parameters(), grads, strict=True):
        assert (parameter.grad.double() - grad).abs().max() < 1e-4 * largest


@some_kinds
def test_half_precision_computes_moments_in_float32(dims: int, density: Any, moments: str) -> None:
    """Means and variances are computed in float32, regardless of the dtype of the module."""
    half = make(dims, density, moments).bfloat16()
    module = make(dims, density, moments).bfloat16().float()  # the same parameter values
    query, values = inputs(moments, dtype=torch.bfloat16)
    wide = None if query is None else query.float(), values.float()
    expected = module(*wide, **where(dims))[0]
    largest = expected.detach().abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        context, result = module(*wide, need_density=True, **where(dims))
        context.square().sum().backward()
    assert result.mean.dtype == torch.float32
    assert (context.float() - expected).abs().max() < 0.03 * largest
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    context, result = half(query, values, need_density=True, **where(dims))
    assert context.dtype == torch.bfloat16 and result.mean.dtype == torch.float32
    assert (context.float() - expected).abs().max() < 0.03 * largest


@both
@pytest.mark.parametrize("moments", MOMENTS)
def test_compiled_module_matches_eager(dims: int, moments: str) -> None:
    density = "truncated_parabola" if dims == 1 else "truncated_paraboloid"
    module = make(dims, density, moments).float()
    query, values = inputs(moments, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager")
    expected, result = (f(query, values, **where(dims))[0] for f in (module, compiled))
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
    grads = [torch.autograd.grad(x.sum(), list(module.parameters())) for x in (expected, result)]
    torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@both
@pytest.mark.parametrize("moments", MOMENTS)
def test_modules_with_points_compile_in_one_graph(dims: int, moments: str) -> None:
    """No regression is in the cache before tracing, and tracing adds none."""
    module = make(dims, "learned", moments, points=24 if dims == 1 else (8, 16)).float()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(3, LENGTH, generator=g) > 0.4
    positions = torch.rand(3, LENGTH, *([2] if dims == 2 else []), generator=g)
    options: list[dict[str, Any]] = [where(dims), {**where(dims), "mask": mask}, {"positions": positions}]
    if dims == 1:
        options.append({"lengths": torch.tensor([LENGTH, 4, 1])})
    for more in options:
        query, values = inputs(moments, dtype=torch.float32)
        result = compiled(query, values, **more)[0]
        assert not module.fit._solvers
        expected = module(query, values, **more)[0]
        module.fit._solvers.clear()
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
        grads = [torch.autograd.grad(x.sum(), list(module.parameters())) for x in (expected, result)]
        torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)


@both
def test_exported_module_supports_any_batch_size(dims: int) -> None:
    """Export creates quadrature rules without concrete numbers; such rules must not stay in the cache."""
    points = 25 if dims == 1 else (9, 18)
    module = make(dims, 1.37, "query", points=points).float()
    query, values = inputs("query", dtype=torch.float32)
    batch = torch.export.Dim("batch", min=1, max=64)
    more = {"lengths": torch.tensor([LENGTH, 4, 1])} if dims == 1 else where(dims)
    shapes = {"lengths": {0: batch}} if dims == 1 else {"grid": (None, None)}
    shapes |= {"query": {0: batch}, "values": {0: batch}}
    program = torch.export.export(module, (query, values), more, dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(query, values, **more)[0], module(query, values, **more)[0])
    more = {"lengths": more["lengths"][:2]} if dims == 1 else more
    result, expected = (f(query[:2], values[:2], **more)[0] for f in (program.module(), module))
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@every_kind
def test_empty_batches_give_empty_contexts(dims: int, density: Any, moments: str) -> None:
    module = make(dims, density, moments)
    query, values = inputs(moments, batch=3)
    query, values = None if query is None else query[:0], values[:0]
    mask = torch.ones(0, LENGTH, dtype=torch.bool)
    options: list[dict[str, Any]] = [where(dims), {**where(dims), "mask": mask}]
    if dims == 1:
        options.append({"lengths": torch.zeros(0, dtype=torch.long)})
    for more in options:
        context = module(query, values, **more)[0]
        assert context.shape == ((0, SIZE) if query is None else (0, QUERIES, SIZE))
        context.sum().backward()


@both
@pytest.mark.parametrize("moments", ["query", "discrete", "pooled"])
def test_mixture_context_is_the_weighted_mean(dims: int, moments: str) -> None:
    """The context of a mixture is the weighted mean of its components' contexts."""
    module = make(dims, 1.4, moments, components=2, combine=False, project=False)
    query, values = inputs(moments)
    context, result = module(query, values, need_density=True, **where(dims))
    assert result.batch_shape == (3, HEADS, 1 if query is None else QUERIES) and result.weights.shape[-1] == 2
    (parts,) = result.parts
    signal = module.fit(values, **where(dims)).heads(HEADS)
    each = signal.expect(parts)  # [batch, heads, queries, components, d]
    expected = (result.weights.unsqueeze(-1) * each).sum(-2).transpose(1, 2).flatten(2)
    torch.testing.assert_close(context, expected.squeeze(1) if query is None else expected)
    assert not torch.allclose(parts.mean[..., 0] if dims == 1 else parts.mean[..., 0, :], result.mean)
    context.square().sum().backward()
    assert all((p.grad != 0).any() for name, p in module.named_parameters() if name != "key_proj.bias")
