"""Every derivative of every operation that PyTorch can compute, compared with the float64 reference.

The operations are those of `contract.operations`. Each test computes one kind of derivative, or passes the operation to
one of PyTorch's tracers. The inputs are independent, the same tensor, computed from each other, or views of any layout.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tsallis
from backends import backends_for, skip_unless_usable
from contract.operations import OPERATIONS, Compute, Operation
from pairs import every_pair
from tsallis.ops.autograd import linear_chunks
from tsallis.ops.eager import attention as eager_attention

BACKENDS = backends_for("maps")
TILES = "eager in tiles"
pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Compute on one backend, or in tiles and chunks that are small enough to need several of them."""
    name = "eager" if request.param == TILES else request.param
    skip_unless_usable(name)
    if request.param == TILES:
        for size, value in (("TILE", 8), ("MIN_ROWS", 2), ("CAUSAL_ROWS", 2)):
            monkeypatch.setattr(eager_attention, size, value)
        monkeypatch.setattr(linear_chunks, "CPU", linear_chunks.CPU._replace(chunk=10, single_chunk=0))
    with tsallis.backend(name):
        yield request.param


def table(operations: Sequence[Operation], *more: str) -> pytest.MarkDecorator:
    """Run a test for all operations on all backends, and in tiles for operations that support them."""
    pairs = [(o, way) for o in operations for way in (*BACKENDS, *more) if way != TILES or o.tiled]
    return pytest.mark.parametrize(("operation", "way"), pairs, indirect=["way"], ids=str)


def in_pairs(operations: Sequence[Operation], name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Run a test for all pairs among operations, ways to compute them, and values of an option."""
    return every_pair(
        indirect=["way"],
        valid=lambda operation, _, way: way != TILES or operation.tiled,
        **{"operation": operations, name: values, "way": (*BACKENDS, TILES)},
    )


SEVERAL = [o for o in OPERATIONS if len(o.shapes) > 1]
TRACED = [o for o in OPERATIONS if o.traced]
DISTINCT = [o for o in OPERATIONS if o.traced or o.tiled or o.name == "entmax alpha[] dim=-1"]
every_way = table(OPERATIONS, TILES)
distinct = table(DISTINCT)
# Similar operations alternate between the backends; one operation of each kind runs on all of them.
ALIKE = [o for o in OPERATIONS if o not in DISTINCT]
BY_TURNS = [
    *((o, way) for o in DISTINCT for way in (*BACKENDS, TILES) if way != TILES or o.tiled),
    *zip(ALIKE, itertools.cycle(BACKENDS)),
]
every = pytest.mark.parametrize(("operation", "way"), BY_TURNS, indirect=["way"], ids=str)
one_of_each_kind = pytest.mark.parametrize("operation", TRACED, ids=str)


def weighted(x: Tensor) -> Tensor:
    """Sum the entries of a tensor, each with a different weight."""
    return (x * torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device).cos().reshape(x.shape)).sum()


def derivatives(function: Compute, leaves: Sequence[Tensor], orders: int) -> list[tuple[Tensor, ...]]:
    """Return the gradients of the output's weighted sum, then the gradients of their weighted sum, and so on."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    value, result = weighted(function(*leaves)), []
    for _ in range(orders):
        gradients = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
        result.append(tuple(g.detach() for g in gradients))
        value = sum((weighted(g) for g in gradients), torch.zeros_like(value))
        if not value.requires_grad:
            return result + [tuple(map(torch.zeros_like, leaves))] * (orders - len(result))
    return result


def gradients(function: Compute, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute first-order gradients as training does."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    return torch.autograd.grad(weighted(function(*leaves)), leaves)


def hessian_product(function: Compute, inputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the second derivative of the output's weighted sum along the tangents of the leaves."""
    first = torch.autograd.grad(weighted(function(*inputs)), leaves, create_graph=True, materialize_grads=True)
    moved = sum((g * t).sum() for g, t in zip(first, tangents(leaves), strict=True))
    if not moved.requires_grad:  # the function is piecewise linear
        return tuple(map(torch.zeros_like, leaves))
    return torch.autograd.grad(moved, leaves, materialize_grads=True)


def tangents(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.arange(x.numel(), dtype=x.dtype).sin().reshape(x.shape) + 0.3 for x in inputs)


def pushed(function: Compute, inputs: Sequence[Tensor]) -> Tensor:
    """Compute the output's derivative along the tangents, by differentiating reverse mode by its upstream gradient."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    dual = torch.zeros_like(out, requires_grad=True)
    pulled = torch.autograd.grad(out, leaves, dual, create_graph=True, materialize_grads=True)
    along = sum((g * t).sum() for g, t in zip(pulled, tangents(inputs), strict=True))
    return torch.autograd.grad(along, dual)[0]


@functools.cache
def right(operation: Operation, relation: str = "independent", orders: int = 2) -> list[tuple[Tensor, ...]]:
    function, leaves = RELATIONS[relation](operation, operation.exact)
    return derivatives(function, leaves, orders)


@functools.cache
def right_along(operation: Operation) -> Tensor:
    return pushed(operation.exact, operation.inputs())


def assert_near(results: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-7) -> None:
    assert len(results) == len(expected)
    for result, exact in zip(results, expected, strict=True):
        assert result.shape == exact.shape
        scale = max(1.0, float(exact.abs().max()) if exact.numel() else 1.0)
        torch.testing.assert_close(result.to(exact.dtype), exact, atol=tolerance * scale, rtol=0)


# How inputs are related: a function of leaves, and the leaves.
Related = tuple[Compute, tuple[Tensor, ...]]


def independent(operation: Operation, function: Compute) -> Related:
    return function, operation.inputs()


def resized(x: Tensor, like: Tensor) -> Tensor:
    """Return the entries of `x`, repeated, in the shape of `like`."""
    copies = -(-max(like.numel(), 1) // x.numel())
    return x.reshape(-1).repeat(copies)[: like.numel()].reshape(like.shape)


def derived(operation: Operation, function: Compute, backwards: bool = False) -> Related:
    """Compute each input from the one before it, and all of them from one leaf."""
    inputs = operation.inputs()
    first, *rest = reversed(list(enumerate(inputs))) if backwards else enumerate(inputs)

    def compute(leaf: Tensor) -> Tensor:
        made = {first[0]: leaf}
        before = leaf
        for i, own in rest:
            before = own.to(leaf) + 0.04 * resized(before, own).sin()  # alpha stays between 1 and 2
            made[i] = before
        return function(*(made[i] for i in range(len(made))))

    return compute, (first[1],)


def shared(operation: Operation, function: Compute) -> Related:
    """Use one tensor for all inputs of the same shape; hidden states are computed from a part of a tied weight."""
    inputs = operation.inputs()
    by_shape: dict[tuple[int, ...], int] = {}
    index = [i if n == "alpha" else by_shape.setdefault(tuple(x.shape), i) for i, (n, x) in enumerate(named(operation))]
    distinct = sorted(set(index))

    def compute(*leaves: Tensor) -> Tensor:
        made = [leaves[distinct.index(i)] for i in index]
        if "hidden" in operation.shapes:
            made[0] = made[0] + 2 * resized(made[1], made[0])
        return function(*made)

    return compute, tuple(inputs[i] for i in distinct)


def named(operation: Operation) -> list[tuple[str, Tensor]]:
    return list(zip(operation.shapes, operation.inputs(), strict=True))


def viewed(make: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Callable[..., Related]:
    """Make each input a view `make(leaf)` of a leaf `back(input)`; the reference gets contiguous copies."""

    def relation(operation: Operation, function: Compute) -> Related:
        def compute(*leaves: Tensor) -> Tensor:
            views = [make(x) if x.dim() else x for x in leaves]
            exact = function is operation.exact
            return function(*(x.resolve_neg().contiguous() if exact else x for x in views))

        return compute, tuple(back(x) if x.dim() else x for x in operation.inputs())

    return relation


def spread(x: Tensor) -> Tensor:
    """Return a leaf whose every other entry belongs to the input."""
    leaf = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 1.5, dtype=x.dtype)
    leaf[..., ::2] = x
    return leaf


RELATIONS: dict[str, Callable[..., Related]] = {
    "independent": independent,
    "shared": shared,
    "derived": derived,
    "derived backwards": functools.partial(derived, backwards=True),
    "transposed": viewed(lambda x: x.transpose(0, -1), lambda x: x.transpose(0, -1).contiguous()),
    "expanded": viewed(lambda x: x.expand(-1, *x.shape[1:])[:1].expand(x.shape), lambda x: x),
    "negative": viewed(torch._neg_view, lambda x: -x),
    "strided": viewed(lambda x: x[..., ::2], spread),
    "offset": viewed(lambda x: x[1:], lambda x: torch.cat([x[:1], x])),
}
VIEWS = ("transposed", "expanded", "negative", "strided", "offset")


@every_way
def test_values_and_two_derivative_orders_match_reference(operation: Operation, way: str) -> None:
    inputs = operation.inputs()
    assert_near([operation.ours(*inputs)], [operation.exact(*inputs)], 1e-9)
    first, second = right(operation)
    assert_near(gradients(operation.ours, inputs), first)
    results = derivatives(operation.ours, inputs, 2)
    assert_near(results[0], first)
    assert_near(results[1], second, 1e-6)


@table(TRACED, TILES)
def test_third_derivatives_match_reference(operation: Operation, way: str) -> None:
    third = right(operation, orders=3)[2]
    assert_near(derivatives(operation.ours, operation.inputs(), 3)[2], third, 1e-4)


@in_pairs(SEVERAL, "relation", ["shared", "derived", "derived backwards"])
def test_derivatives_of_dependent_inputs_match_reference(operation: Operation, relation: str, way: str) -> None:
    function, leaves = RELATIONS[relation](operation, operation.ours)
    first, second = right(operation, relation)
    assert_near(gradients(function, leaves), first)
    results = derivatives(function, leaves, 2)
    assert_near(results[0], first)
    assert_near(results[1], second, 1e-6)
    batched = [x.detach().requires_grad_() for x in leaves]
    out = function(*batched)
    dual = torch.stack([torch.ones_like(out), 2 * torch.ones_like(out)])
    once = torch.autograd.grad(out, batched, dual[0], retain_graph=True)
    twice = torch.autograd.grad(out, batched, dual, is_grads_batched=True)
    assert_near(twice, [torch.stack([g, 2 * g]) for g in once], 1e-9)


@in_pairs(DISTINCT, "relation", VIEWS)
def test_inputs_of_any_layout_match_reference(operation: Operation, relation: str, way: str) -> None:
    function, leaves = RELATIONS[relation](operation, operation.ours)
    exact, _ = RELATIONS[relation](operation, operation.exact)
    assert_near([function(*leaves)], [exact(*leaves)], 1e-9)
    first, second = right(operation, relation)
    assert_near(gradients(function, leaves), first)
    assert_near(derivatives(function, leaves, 2)[1], second, 1e-6)


@table(DISTINCT, TILES)
def test_upstream_gradients_of_any_layout_are_supported(operation: Operation, way: str) -> None:
    leaves = [x.requires_grad_() for x in operation.inputs()]
    out = operation.ours(*leaves)
    dual = torch.randn(out.shape, dtype=out.dtype)
    spread_out = torch.stack([dual, dual], -1)[..., 0]
    turned = dual.transpose(0, -1).contiguous().transpose(0, -1) if dual.dim() else dual
    expected = torch.autograd.grad(out, leaves, dual, retain_graph=True)
    for same in (torch._neg_view(-dual), torch.complex(dual, -dual).conj().imag, spread_out, turned):
        assert_near(torch.autograd.grad(out, leaves, same, retain_graph=True), expected, 1e-12)
    one = torch.ones((), dtype=out.dtype)
    expected = torch.autograd.grad(out, leaves, torch.ones_like(out), retain_graph=True)
    assert_near(torch.autograd.grad(out, leaves, one.expand(out.shape)), expected, 1e-12)


@every
def test_forward_mode_matches_reference(operation: Operation, way: str) -> None:
    inputs = operation.inputs()
    directions = tangents(inputs)
    expected = right_along(operation)
    value, moved = torch.func.jvp(operation.ours, inputs, directions)
    assert_near([value, moved], [operation.exact(*inputs), expected])
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, directions, strict=True)]
        assert_near([forward_ad.unpack_dual(operation.ours(*duals)).tangent], [expected])


@every
def test_forward_over_reverse_matches_reference(operation: Operation, way: str) -> None:
    """Check tangents through the gradient, with and without a graph of it."""

    def along(function: Compute, create_graph: bool) -> list[Tensor]:
        with forward_ad.dual_level():
            leaves = [x.requires_grad_() for x in operation.inputs()]
            duals = [forward_ad.make_dual(x, t) for x, t in zip(leaves, tangents(leaves), strict=True)]
            result = torch.autograd.grad(weighted(function(*duals)), duals, create_graph=create_graph)
            unpacked = [forward_ad.unpack_dual(g).tangent for g in result]
            return [torch.zeros_like(x) if t is None else t.detach() for x, t in zip(leaves, unpacked, strict=True)]

    leaves = [x.requires_grad_() for x in operation.inputs()]
    expected = hessian_product(operation.exact, leaves, leaves)
    for create_graph in (False, True):
        assert_near(along(operation.ours, create_graph), expected, 1e-6)


@every
def test_vmap_matches_single_calls(operation: Operation, way: str) -> None:
    inputs = operation.inputs()
    other = operation.inputs(1)
    for batched in ({0}, {len(inputs) - 1}, set(range(len(inputs)))):
        pairs = [(x, y if i in batched else x) for i, (x, y) in enumerate(zip(inputs, other, strict=True))]
        expected = [[g for g in gradients(operation.ours, [p[n] for p in pairs])] for n in (0, 1)]
        values = torch.stack([operation.ours(*(p[n] for p in pairs)) for n in (0, 1)])
        for where in (0, -1):
            in_dims = tuple(where if i in batched else None for i in range(len(inputs)))
            stacked = [torch.stack(p, where) if i in batched else p[0] for i, p in enumerate(pairs)]
            assert_near([torch.vmap(operation.ours, in_dims)(*stacked)], [values], 1e-9)
            slopes = torch.func.grad(lambda *x: weighted(operation.ours(*x)), tuple(range(len(inputs))))
            result = torch.vmap(slopes, in_dims)(*stacked)
            assert_near(result, [torch.stack(g) for g in zip(*expected, strict=True)], 1e-9)


@distinct
def test_func_hessian_matches_reference(operation: Operation, way: str) -> None:
    """Forward over reverse over vmap, in the first input, equals the reference's double backward."""
    first, *rest = operation.inputs()
    hessian = torch.func.hessian(lambda x: weighted(operation.ours(x, *rest)))(first)
    product = torch.einsum("ij,j->i", hessian.reshape(first.numel(), -1), tangents([first])[0].flatten())
    leaf = first.clone().requires_grad_()
    (expected,) = hessian_product(operation.exact, [leaf, *rest], [leaf])
    assert_near([product], [expected.flatten()], 1e-6)


@distinct
def test_make_fx_graphs_match_reference_for_new_inputs(operation: Operation, way: str) -> None:
    """Check that traced graphs of the operation and of its gradients are right for other inputs."""

    def slopes(*inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(weighted(operation.ours(*leaves)), leaves)

    def ours(*inputs: Tensor) -> Tensor:
        return operation.ours(*inputs)

    inputs, other = operation.inputs(), operation.inputs(1)
    for mode in ("real", "fake") if operation.traced else ("real",):
        options: dict[str, Any] = {"tracing_mode": mode, "_allow_non_fake_inputs": True}  # targets aren't fake
        assert_near([make_fx(ours, **options)(*inputs)(*other)], [operation.exact(*other)], 1e-9)
        assert_near(make_fx(slopes, **options)(*inputs)(*other), gradients(operation.exact, other))


class Watched(TorchDispatchMode):
    """A mode of a user, which sees only operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in args:
            assert not isinstance(x, Tensor) or x.device.type != "cpu" or x.untyped_storage().data_ptr() or not len(x)
        return func(*args, **(kwargs or {}))


@every
def test_derivatives_under_a_dispatch_mode_match_reference(operation: Operation, way: str) -> None:
    inputs = operation.inputs()
    first, second = right(operation)
    with Watched():
        value = operation.ours(*inputs)
        once = gradients(operation.ours, inputs)
        results = derivatives(operation.ours, inputs, 2)
    assert_near([value, *once, *results[0]], [operation.exact(*inputs), *first, *first])
    assert_near(results[1], second, 1e-6)


@every
def test_meta_outputs_have_the_right_shapes_and_dtypes(operation: Operation, way: str) -> None:
    inputs = operation.inputs()
    of_meta = [x.to("meta").requires_grad_() for x in inputs]
    with torch.device("meta"):
        out = operation.ours(*of_meta)
    value = operation.ours(*inputs)
    assert (out.device.type, out.shape, out.dtype) == ("meta", value.shape, value.dtype)
    for x, gradient in zip(inputs, torch.autograd.grad(out.sum(), of_meta), strict=True):
        assert gradient.device.type == "meta" and gradient.shape == x.shape and gradient.dtype == x.dtype


@in_pairs(OPERATIONS, "reentrant", [False, True])
def test_checkpointed_derivatives_match_reference(operation: Operation, reentrant: bool, way: str) -> None:
    def function(*inputs: Tensor) -> Tensor:
        result: Tensor = checkpoint(operation.ours, *inputs, use_reentrant=reentrant)
        return result

    leaves = [x.requires_grad_() for x in operation.inputs()]
    weighted(function(*leaves)).backward()
    first, second = right(operation)
    assert_near([x.grad for x in leaves if x.grad is not None], first)
    if not reentrant:
        assert_near(derivatives(function, leaves, 2)[1], second, 1e-6)


@pytest.fixture
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield


@one_of_each_kind
@pytest.mark.usefixtures("compiler")
def test_compiled_values_and_gradients_match_reference(operation: Operation) -> None:
    inputs = operation.inputs()
    compiled = torch.compile(operation.ours, backend="aot_eager", fullgraph=True)
    assert_near([compiled(*inputs)], [operation.exact(*inputs)], 1e-9)
    assert_near(gradients(compiled, inputs), right(operation)[0])


@one_of_each_kind
@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore")  # warnings of the compiler about code outside its graph
def test_compiled_torch_func_derivatives_match_reference(operation: Operation) -> None:
    """Derivatives by torch.func run outside the graph, and are right; with `fullgraph=True` they raise."""
    inputs = operation.inputs()

    def pushes(*inputs: Tensor) -> Tensor:
        return torch.func.jvp(operation.ours, inputs, tangents(inputs))[1]

    def slopes(*inputs: Tensor) -> Any:
        return torch.func.grad(lambda *x: weighted(operation.ours(*x)), tuple(range(len(inputs))))(*inputs)

    assert_near([torch.compile(pushes, backend="aot_eager")(*inputs)], [right_along(operation)])
    assert_near(torch.compile(slopes, backend="aot_eager")(*inputs), right(operation)[0])
