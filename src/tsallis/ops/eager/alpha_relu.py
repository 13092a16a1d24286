"""Compute alpha-ReLU and its loss with PyTorch operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.dtypes import upcast
from tsallis.ops.transforms import as_input, varies


class ReluStats(NamedTuple):
    """Threshold of the loss, from which backward recomputes the values."""

    tau: float


def alpha_relu(scores: Tensor, eps: float, tau: float | Tensor) -> Tensor:
    """Return `[eps z - tau]_+^{1/eps}` of every score; NaN stays NaN."""
    return _relu_power(_relu_margin(scores, eps, tau), eps)


def alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float, tau: float) -> tuple[Tensor, ReluStats]:
    """Return two values: losses [rows] for class targets [rows] and a constant threshold; and statistics."""
    return loss(upcast(scores), target, alpha - 1, tau), ReluStats(tau)


def alpha_relu_loss_gradient(
    scores: Tensor, target: Tensor, alpha: float, stats: ReluStats, grad: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of the scores, (r - e_y) times the gradients of the losses [rows], differentiably."""
    has_loss = target >= 0
    # Set ignored rows to 0 first: their values would otherwise spread to second derivatives.
    values = alpha_relu(torch.where(has_loss.unsqueeze(-1), upcast(scores), 0), alpha - 1, ReluStats(*stats).tau)
    gold = target.clamp(min=0).unsqueeze(-1)
    values = values.scatter_add(-1, gold, torch.full_like(gold, -1, dtype=values.dtype))
    return (values * torch.where(has_loss, grad, 0).unsqueeze(-1)).to(scores.dtype)


def loss(scores: Tensor, target: Tensor, eps: float, tau: float | Tensor) -> Tensor:
    """Return `sum r u / alpha + 1/(alpha eps) + tau/eps - z_y` [rows], without a difference of large numbers."""
    u = _relu_margin(scores, eps, tau)
    total = (_relu_power(u, eps) * u.clamp(min=0)).sum(-1) / (1 + eps) + 1 / ((1 + eps) * eps)
    shift = (tau.to(scores).squeeze() if isinstance(tau, Tensor) else tau) / eps
    gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(target >= 0, total + shift - gold, 0)


def _relu_margin(scores: Tensor, eps: float, tau: float | Tensor) -> Tensor:
    return eps * scores - (tau.to(scores) if isinstance(tau, Tensor) else tau)


def _relu_power(u: Tensor, eps: float) -> Tensor:
    inverse = 1 / eps
    power: float | Tensor = inverse
    if varies(eps):  # avoid a comparison, which would become a guard of the graph
        power = as_input(inverse, u)
    elif eps == 0.5:
        return u.relu().square()
    elif eps == 1.0:
        return u.relu()
    outside = u <= 0  # NaN counts as inside and stays NaN
    return torch.where(outside, 0, torch.where(outside, 1, u) ** power)
