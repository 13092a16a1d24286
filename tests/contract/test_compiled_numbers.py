"""Numbers that change from step to step under torch.compile need only one more graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import tsallis
from contract.maps import FUNCTIONS
from tsallis import compat, nn
from tsallis.distributions import EntmaxCategorical

SCORES = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(3))
TARGET = torch.tensor([[[1, 2, 0, 4], [0, -100, 3, 3], [2, 2, 1, 0]]] * 2)
STEPS = [1.1, 1.2, 1.5, 1.7, 2.0]  # 1.5 and 2 have special formulas, which must not cause another graph
QUICK = ("entmax", "entmax_loss", "linear_entmax_loss", "entmax_attention", "entmax_attention scale", "alpha_relu")


def annealed(make: Callable[[], torch.nn.Module]) -> Callable[[Tensor, float], Any]:
    """Return a function that sets the alpha of a module and calls it."""
    torch.manual_seed(1)
    made = make()

    def call(scores: Tensor, alpha: float) -> Any:
        made.alpha = alpha
        return made(scores)

    return call


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.flatten(0, 1), x.flatten(0, 1), x.flatten(0, 1), need_weights=False)[0]


def takes_alpha(function: Callable[..., Any]) -> bool:
    return list(inspect.signature(function).parameters)[1:2] == ["alpha"]


CALLS: dict[str, Callable[[Tensor, float], Any]] = {
    **{name: function for name in FUNCTIONS if takes_alpha(function := getattr(tsallis, name))},
    "entmax dim=1": lambda z, a: tsallis.entmax(z, a, 1),
    "entmax masked": lambda z, a: tsallis.entmax(z, a, mask=SCORES > -1),
    "compat": lambda z, a: compat.entmax_bisect(z, a),
    "tsallis_entropy": lambda z, a: tsallis.tsallis_entropy(z.softmax(-1), a),
    "escort": lambda z, a: tsallis.escort(z.softmax(-1), a),
    "alpha_relu": tsallis.alpha_relu,
    "alpha_relu tau": lambda z, a: tsallis.alpha_relu(z, 1.5, a),
    "entmax_loss": lambda z, a: tsallis.entmax_loss(z, TARGET, a),
    "entmax_loss of probabilities": lambda z, a: tsallis.entmax_loss(z, SCORES.softmax(-1), a),
    "alpha_relu_loss": lambda z, a: tsallis.alpha_relu_loss(z, TARGET, a),
    "alpha_relu_loss tau": lambda z, a: tsallis.alpha_relu_loss(z, TARGET, 1.5, a),
    "linear_entmax_loss": lambda z, a: tsallis.linear_entmax_loss(z, torch.eye(5), TARGET, a),
    "linear_alpha_relu_loss": lambda z, a: tsallis.linear_alpha_relu_loss(z, torch.eye(5), TARGET, a),
    "linear_alpha_relu_loss tau": lambda z, a: tsallis.linear_alpha_relu_loss(z, torch.eye(5), TARGET, 1.5, a),
    "entmax_attention": lambda z, a: tsallis.entmax_attention(z, z, z, a),
    "entmax_attention scale": lambda z, a: tsallis.entmax_attention(z, z, z, scale=a),
    "EntmaxCategorical": lambda z, a: EntmaxCategorical(z, a, validate_args=False).entropy(),
    "Entmax": annealed(nn.Entmax),
    "MultiheadAttention": annealed(lambda: Attention(5, 1, batch_first=True)),
}


def count(call: Callable[[Tensor, float], Any], values: list[float], backend: str) -> int:
    """Count the compiled graphs, and compare values and gradients with a call that is not compiled."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for value in values:
        results = []
        for function in (compiled, call):
            scores = SCORES.clone().requires_grad_()
            result = function(scores, value)
            results.append((result, *torch.autograd.grad(result.square().sum(), scores)))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    return counter.frame_count


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in CALLS])
def test_changing_numbers_compile_at_most_two_graphs(name: str) -> None:
    assert count(CALLS[name], STEPS, "aot_eager") <= 2
