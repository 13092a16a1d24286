"""Group parameters for an optimizer, with a separate learning rate for alphas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.maps import AlphaModule
from tsallis.nn.multihead_attention import MultiheadAttention


def parameter_groups(
    module: nn.Module, lr: float, *, alpha_lr_scale: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return three parameter groups for an optimizer: matrices, vectors and learned alphas.

    The learned alphas are those of the modules in :mod:`tsallis.nn` and :mod:`tsallis.compat`. Only matrices get weight
    decay. Alphas are few and have small gradients, so they need a larger learning rate. How much larger depends on the
    length of the training (:doc:`/how-to/own-models`).

    Args:
        module: module, with or without learned alphas.
        lr: learning rate of all parameters except alphas.
        alpha_lr_scale: learning rate of the alphas as a multiple of `lr`.
        weight_decay: weight decay of matrices.

    Returns:
        Groups for `torch.optim`, without empty ones.

    Raises:
        ValueError: The scale is negative or not finite.

    Example:
        >>> from tsallis.nn import MultiheadAttention
        >>> attention = MultiheadAttention(8, 2, alpha="learned")
        >>> groups = parameter_groups(attention, 0.1, alpha_lr_scale=5, weight_decay=0.01)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(2, 0.1, 0.01), (2, 0.1, 0.0), (1, 0.5, 0.0)]
    """
    if not 0 <= alpha_lr_scale < float("inf"):
        raise ValueError(f"alpha_lr_scale must be finite and at least 0, got {alpha_lr_scale}")
    alpha_ids = {id(p) for part in module.modules() for p in _learned_alphas(part)}
    trained = [p for p in module.parameters() if p.requires_grad]
    alphas = [p for p in trained if id(p) in alpha_ids]
    non_alphas = [p for p in trained if id(p) not in alpha_ids]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in non_alphas if p.dim() > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in non_alphas if p.dim() < 2], "lr": lr, "weight_decay": 0.0},
        {"params": alphas, "lr": lr * alpha_lr_scale, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _learned_alphas(part: nn.Module) -> Iterable[nn.Parameter]:
    """Return the learned alphas of one module."""
    alpha = part if isinstance(part, PerHeadAlpha) else getattr(part, "alpha", None)
    if isinstance(alpha, nn.Module) and isinstance(part, PerHeadAlpha | MultiheadAttention):
        return alpha.parameters()
    has_alpha = isinstance(part, AlphaModule | MultiheadAttention) or getattr(part, "has_alpha", False) is True
    return [alpha] if has_alpha and isinstance(alpha, nn.Parameter) else []
