"""The kernels for GPUs, written in Triton: the same functions as `tsallis.ops.cpu` has, for tensors on a GPU.

Importing this folder imports Triton: only what has met a GPU does. The functions take tensors that the callers have
checked: contiguous, on one GPU, float32, bfloat16 or float16, alphas from 1 to 2. Half precision is computed in float32
and stored in its own dtype. Without a GPU they run on Triton's interpreter, if it was asked for.
"""

from __future__ import annotations

import torch

from tsallis.ops.triton.alpha_relu import relu_lists
from tsallis.ops.triton.language import available
from tsallis.ops.triton.losses import (
    STATS,
    alpha_relu_loss,
    alpha_relu_loss_gradient,
    alpha_relu_support,
    entmax_loss,
    entmax_loss_gradient,
    support,
)
from tsallis.ops.triton.maps import entmax, entmax_gradient
from tsallis.ops.triton.sparse import Lists, gather, transpose

STORAGE = (torch.float32, torch.bfloat16, torch.float16)

__all__ = [
    "STATS",
    "STORAGE",
    "Lists",
    "alpha_relu_loss",
    "alpha_relu_loss_gradient",
    "alpha_relu_support",
    "available",
    "computed_in",
    "entmax",
    "entmax_gradient",
    "entmax_loss",
    "entmax_loss_gradient",
    "gather",
    "relu_lists",
    "support",
    "transpose",
]


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of what is kept for each row: float32 for all of them."""
    return torch.float32
