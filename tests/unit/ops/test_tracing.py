"""Tests of markers for torch.compile, which are set without importing the compiler and match PyTorch's decorators."""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import tsallis
from tsallis.ops import tracing


def test_constant_functions_run_only_at_trace_time() -> None:
    calls: list[int] = []

    @tracing.constant
    def constant(x: int) -> int:
        calls.append(x)
        return x + 1 if os.getpid() else x  # os.getpid cannot be traced

    def function(x: Tensor) -> Tensor:
        return x * constant(2)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    traced = len(calls)
    assert traced
    compiled(torch.ones(3))
    assert len(calls) == traced


def test_untraced_functions_run_eagerly_with_a_graph_break() -> None:
    record: list[bool] = []

    @tracing.untraced
    def look(x: Tensor) -> Tensor:
        """Look at a number."""
        record.append(torch.compiler.is_compiling())
        return x * 2 if float(x.sum()) > 0 else x * 3

    def function(x: Tensor) -> Tensor:
        return look(x + 1) - 1

    assert look.__name__ == "look" and look.__doc__ == "Look at a number."
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    for x in (torch.ones(3), -2 * torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(compiled(x), function(x))
    assert record == [False] * 6
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, fullgraph=True, backend="eager")(torch.ones(3))


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([[1.5], [2.0]])], ids=["number", "tensor"])
def test_forward_mode_inside_compiled_functions_is_left_out_of_the_graph(alpha: float | Tensor) -> None:
    def tangent(x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(tsallis.entmax(forward_ad.make_dual(x, x.square()), alpha)).tangent

    torch._dynamo.reset()
    x = torch.tensor([[2.0, 1.0, 0.1], [0.5, 1.0, -3.0]])
    torch.testing.assert_close(torch.compile(tangent, backend="eager")(x), tangent(x))


def test_syncing_operators_are_tagged_cudagraph_unsafe() -> None:
    importlib.import_module("tsallis.ops.autograd.linear")  # registers the operators
    for name in ("entmax_loss", "linear_loss", "linear_loss_backward"):
        assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.tsallis, name).default.tags
    assert torch.Tag.cudagraph_unsafe not in torch.ops.tsallis.entmax.default.tags
