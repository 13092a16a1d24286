"""A batch whose targets are all ignored has a loss of NaN, as in PyTorch, and gradients of zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tsallis

IGNORED = torch.full((3,), -100)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "entmax": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORED),
    "entmax, weights": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORED, weight=torch.ones(6)),
    "entmax, smoothed": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORED, label_smoothing=0.1),
    "entmax, learned": lambda h, w, a: tsallis.entmax_loss(h @ w.t(), IGNORED, a),
    "alpha-ReLU": lambda h, w, a: tsallis.alpha_relu_loss(h @ w.t(), IGNORED, 1.5, 0.1),
    "linear": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORED),
    "linear, softmax": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORED, 1.0),
    "linear, learned": lambda h, w, a: tsallis.linear_entmax_loss(h, w, IGNORED, a),
    "linear alpha-ReLU": lambda h, w, a: tsallis.linear_alpha_relu_loss(h, w, IGNORED, 1.5, 0.1),
}


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("name", LOSSES)
def test_all_targets_ignored(name: str, backend: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    with tsallis.backend(backend):
        loss = LOSSES[name](hidden, weight, alpha)
        loss.backward()
    assert loss.isnan()
    for tensor in (hidden, weight, *([alpha] if "learned" in name else [])):
        assert tensor.grad is not None and not tensor.grad.any()
