"""Tests of attention under torch.compile and torch.export on a CPU: one operator, with memory linear in the lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import tsallis
from tsallis import entmax_attention
from tsallis.ops import cpu

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

ALPHAS = torch.tensor([1.0, 1.2, 1.5, 2.0])


def tensors(queries: int = 20, keys: int = 30, key_heads: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = ((4, queries, 8), (key_heads, keys, 8), (key_heads, keys, 5))
    return [torch.randn(2, *shape, dtype=dtype) for shape in shapes]


def results(call: Any, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = call(*leaves, **options)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def compiled(**options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(entmax_attention, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("shape", [(2, 4, 20, 30), (4, 20, 30), (20, 30), (30,)], ids=str)
def test_compiled_added_mask_gradients_match_eager(shape: tuple[int, ...]) -> None:
    inputs = [*tensors(), ALPHAS.double(), torch.randn(shape, dtype=torch.float64)]

    def of(call: Any) -> Any:
        return lambda *x: call(*x[:4], attn_mask=x[4])

    assert_same(results(of(compiled()), inputs), results(of(entmax_attention), inputs))


def test_compiled_float_and_constant_alphas_match_eager() -> None:
    function = compiled()
    for alpha in (1.0, 1.5, 2.0, 2.5):
        inputs = tensors()

        def of(call: Any) -> Any:
            return lambda *x: call(*x, alpha)  # noqa: B023

        assert_same(results(of(function), inputs), results(of(entmax_attention), inputs))
    with torch.no_grad():
        query, key, value = tensors()
        torch.testing.assert_close(function(query, key, value, ALPHAS), entmax_attention(query, key, value, ALPHAS))
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(function(query, key, value, ALPHAS), entmax_attention(query, key, value, ALPHAS))


def test_other_lengths_do_not_recompile() -> None:
    function = compiled(dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for queries, keys in ((20, 30), (21, 47), (150, 200)):
            inputs = [*tensors(queries, keys), ALPHAS.double()]
            assert_same(results(function, inputs), results(entmax_attention, inputs))


def test_no_tensor_in_the_graph_holds_all_weights() -> None:
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        def run(*inputs: Any) -> Any:
            class Sizes(torch.fx.Interpreter):
                def run_node(self, node: torch.fx.Node) -> Any:
                    actual = super().run_node(node)
                    sizes.extend(x.numel() for x in torch.utils._pytree.tree_leaves(actual) if isinstance(x, Tensor))
                    return actual

            return Sizes(graph).run(*inputs)

        return run

    torch._dynamo.reset()
    query = torch.randn(1, 1, 3000, 8)
    torch.compile(entmax_attention, fullgraph=True, backend=backend)(query, query, query)
    assert max(sizes) < 3000 * 300


def test_compiled_dropout_has_the_requested_rate() -> None:
    function = compiled()
    query = torch.zeros(1, 1, 500, 8, requires_grad=True)
    value = torch.eye(40).expand(1, 1, 40, 40)
    weights = function(query, torch.zeros(1, 1, 40, 8), value, 1.0, dropout_p=0.25) * 40
    positive = weights != 0
    torch.testing.assert_close(weights[positive], torch.full_like(weights[positive], 1 / 0.75))
    assert abs(positive.double().mean() - 0.75) < 0.02
    again = function(query, torch.zeros(1, 1, 40, 8), value, 1.0, dropout_p=0.25) != 0
    assert not torch.equal(again, positive)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_recomputation_in_backward_repeats_dropout(backend: str) -> None:
    def layer(value: Tensor) -> Tensor:
        return entmax_attention(query, key, value, 1.5, dropout_p=0.5).sin()

    torch._dynamo.reset()
    query, key, value = tensors()
    function = torch.compile(lambda x: checkpoint(layer, x, use_reentrant=False), backend=backend)

    def loss(step: float) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        leaf = (value + step * direction).requires_grad_()
        total = function(leaf).sum()
        return total.detach(), torch.autograd.grad(total, leaf)[0]

    direction = torch.randn_like(value)
    difference = (loss(1e-5)[0] - loss(-1e-5)[0]) / 2e-5
    torch.testing.assert_close((loss(0.0)[1] * direction).sum(), difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_two_calls_in_a_graph_drop_differently(backend: str) -> None:
    def twice(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (entmax_attention(query, key, value, 1.5, dropout_p=0.5) for _ in range(2))
        return first, second

    torch._dynamo.reset()
    first, second = torch.compile(twice, backend=backend)(*(x.requires_grad_() for x in tensors()))
    assert not torch.equal(first, second)


def test_a_graph_without_dropout_has_no_seed() -> None:
    inputs = tensors()
    graph = make_fx(lambda *x: entmax_attention(*x, 1.5), tracing_mode="fake")(*inputs)
    values = [node.meta["val"] for node in graph.graph.nodes if str(node.target) == "tsallis.attention.default"]
    assert len(values) == 1 and all(x.is_floating_point() or x.dtype == torch.int32 for x in values[0])


@pytest.mark.parametrize("alpha", [1.0, 1.5, "learned"])
def test_export_supports_dynamic_batch_and_length(alpha: float | str) -> None:
    """Check one dynamic length of queries and keys, whose two dimensions must not be merged."""
    module = tsallis.nn.MultiheadAttention(8, 2, batch_first=True, alpha=alpha).eval()

    class Itself(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, x, x, need_weights=True)

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=128)
    program = torch.export.export(Itself(), (torch.randn(3, 10, 8),), dynamic_shapes={"x": {0: batch, 1: length}})
    for shape in ((3, 10, 8), (2, 2, 8), (1, 33, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), Itself()(x), atol=1e-5, rtol=1e-5)


def test_compiled_calls_check_alphas_and_lengths_at_run_time() -> None:
    function, inputs = compiled(), tensors()
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got a tensor with 0\.5"):
        function(*inputs, torch.tensor([1.0, 1.0, 0.5, 1.0]))
    with pytest.raises(ValueError, match="key_lengths must be from 0 to the number of keys, 30, got 31"):
        function(*inputs, key_lengths=torch.tensor([3, 31]))
    steep = [*inputs, torch.tensor([1.0, 1.0, 2.5, 1.0], dtype=torch.float64)]
    assert_same(results(function, steep), results(entmax_attention, steep))
