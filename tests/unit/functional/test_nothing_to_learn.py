"""Tests of batches whose targets are all ignored: the mean loss is NaN, as in PyTorch, and gradients are zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tsallis

IGNORE_INDEX = torch.full((3,), -100)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "entmax": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORE_INDEX),
    "entmax, weights": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORE_INDEX, weight=torch.ones(6)),
    "entmax, smoothed": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORE_INDEX, label_smoothing=0.1),
    "entmax, learned": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORE_INDEX, a),
    "alpha-ReLU": lambda h, w, a: tsallis.alpha_relu_loss(h @ w.t(), IGNORE_INDEX, 1.5, 0.1),
    "linear": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORE_INDEX),
    "linear, softmax": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORE_INDEX, 1.0),
    "linear, learned": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORE_INDEX, a),
    "linear alpha-ReLU": lambda h, w, a: tsallis.linear_alpha_relu_loss(h, w, IGNORE_INDEX, 1.5, 0.1),
}


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", LOSSES)
def test_ignored_targets_give_nan_loss_and_zero_gradients(name: str, backend: str) -> None:
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    with tsallis.backend(backend):
        loss = LOSSES[name](hidden, weight, alpha)
        loss.backward()
    assert loss.isnan()
    for tensor in (hidden, weight, *([alpha] if "learned" in name else [])):
        assert tensor.grad is not None and not tensor.grad.any()


EMPTY = torch.zeros(0, dtype=torch.long)
Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
EMPTY_BATCHES: dict[str, Function] = {
    "entmax": lambda h, w, b, a: tsallis.entmax(h, a),
    "entmax of no class": lambda h, w, b, a: tsallis.entmax(h.new_zeros(3, 0) + h.sum(), a),
    "budgeted": lambda h, w, b, a: tsallis.budgeted_entmax(h, a, 2),
    "entropy": lambda h, w, b, a: tsallis.tsallis_entropy(h, a),
    "loss": lambda h, w, b, a: tsallis.entmax_loss(h, EMPTY, a, reduction="sum"),
    "loss, probabilities": lambda h, w, b, a: tsallis.entmax_loss(h, torch.zeros(0, 4), a, reduction="sum"),
    "linear": lambda h, w, b, a: tsallis.linear_entmax_loss(h, w, EMPTY, a, bias=b, reduction="sum"),
    "linear, each": lambda h, w, b, a: tsallis.linear_entmax_loss(h, w, EMPTY, a, bias=b, reduction="none"),
    "linear alpha-ReLU": lambda h, w, b, a: tsallis.linear_alpha_relu_loss(h, w, EMPTY, bias=b, reduction="sum"),
}


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", EMPTY_BATCHES)
def test_empty_batches_have_zero_gradients(name: str, backend: str) -> None:
    """Check that gradients are zero and not missing: optimizers and data parallelism expect them."""
    hidden, weight, bias = (torch.randn(s, requires_grad=True) for s in ((0, 4), (6, 4), (6,)))
    alpha = torch.nn.Parameter(torch.tensor(1.5))
    with tsallis.backend(backend):
        result = EMPTY_BATCHES[name](hidden, weight, bias, alpha)
    result.sum().backward()
    used = [hidden, *([weight, bias] if "linear" in name else []), *([alpha] if "ReLU" not in name else [])]
    for tensor in used:
        assert tensor.grad is not None and tensor.grad.shape == tensor.shape and not tensor.grad.any()
