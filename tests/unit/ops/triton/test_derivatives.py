"""Tests of first and second derivatives of the GPU kernels, of negative views and of traced graphs."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from contract.operations import OPERATIONS, Operation
from contract.test_derivatives import RELATIONS, assert_near, derivatives, gradients, right
from triton_interpreter import DEVICE

NAMES = (
    "entmax alpha[] dim=-1",
    "entmax alpha[3, 1] dim=-1",
    "entmax_loss alpha[3, 1]",
    "alpha_relu_loss",
    "linear_entmax_loss alpha[] sum",
    "attention alpha[2]",
    "attention alpha[2] mask[4, 4]",
)
pytestmark = pytest.mark.usefixtures("triton")
some = pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.name in NAMES], ids=str)


def on_device(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(DEVICE, torch.float32) for x in tensors)


def back(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [x.cpu() for x in tensors]


@some
@pytest.mark.parametrize("relation", ["independent", "derived"])
def test_first_and_second_derivatives_match_float64(operation: Operation, relation: str) -> None:
    function, leaves = RELATIONS[relation](operation, operation.ours)
    first, second = right(operation, relation)
    inputs = on_device(leaves)
    assert_near(back(gradients(function, inputs)), first, 1e-4)
    results = derivatives(function, inputs, 2)
    assert_near(back(results[0]), first, 1e-4)
    assert_near(back(results[1]), second, 1e-3)


@some
def test_negative_views_and_traced_graphs_match_float64(operation: Operation) -> None:
    inputs, other = on_device(operation.inputs()), on_device(operation.inputs(1))
    negative = [torch._neg_view(-x) for x in inputs]
    assert_near(back((operation.ours(*negative),)), [operation.exact(*operation.inputs())], 1e-4)
    assert_near(back(gradients(operation.ours, negative)), right(operation)[0], 1e-4)

    def ours(*inputs: torch.Tensor) -> torch.Tensor:
        return operation.ours(*inputs)

    result = make_fx(ours)(*inputs)(*other)
    assert_near([result.cpu()], [operation.exact(*operation.inputs(1))], 1e-4)
