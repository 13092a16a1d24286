"""Check alphas, which are one number or a tensor with one number per row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Alpha = float | Tensor


def extremes(alpha: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest alpha, or NaN if an alpha is NaN, with one transfer from a GPU."""
    limits = alpha.detach().aminmax()
    least, most = torch.stack(limits).tolist() if alpha.is_cuda else (x.item() for x in limits)
    return least, most


def check_alpha(alpha: Alpha, positive: bool = False) -> None:
    """Raise a ValueError unless every alpha is finite and at least 1.

    With `positive`, alphas between 0 and 1 are valid too. While a CUDA graph is captured, nothing is checked.
    """
    limits = "positive and finite" if positive else "finite and at least 1"
    if isinstance(alpha, float):
        if not _valid(alpha, positive):
            raise ValueError(f"alpha must be {limits}, got {alpha:g}")
    elif alpha.numel() and not capturing(alpha) and not all(_valid(extreme, positive) for extreme in extremes(alpha)):
        invalid = next(value for value in alpha.detach().flatten().tolist() if not _valid(value, positive))
        hint = "; clamp a learned alpha, or use tsallis.nn.PerHeadAlpha" if alpha.requires_grad else ""
        raise ValueError(f"alpha must be {limits}, got a tensor with {invalid:g}{hint}")


def _valid(alpha: float, positive: bool) -> bool:
    return (alpha > 0 if positive else alpha >= 1) and alpha < math.inf


def capturing(alpha: Tensor) -> bool:
    """Return whether a CUDA graph is being captured, so that tensors can't be read."""
    return alpha.is_cuda and torch.cuda.is_current_stream_capturing()


def bounds(alpha: Alpha) -> tuple[float, float] | None:
    """Return the smallest and the largest alpha, or None while a CUDA graph is captured.

    A float is returned twice without a check.

    Raises:
        ValueError: An alpha is below 1 or not finite.
    """
    if isinstance(alpha, float):
        return alpha, alpha
    if capturing(alpha):
        return None
    least, most = extremes(alpha) if alpha.numel() else (1.0, 1.0)
    if not 1 <= least <= most < torch.inf:
        check_alpha(alpha)
    return least, most
