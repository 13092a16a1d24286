"""The kernels for GPUs, written in Triton: the same functions as `tsallis.ops.cpu` has, for tensors on a GPU.

Importing this folder imports Triton: only what has met a GPU does. The functions take tensors that the callers have
checked: contiguous, on one GPU, float32, bfloat16 or float16, alphas from 1 to 2. Half precision is computed in float32
and stored in its own dtype. Without a GPU they run on Triton's interpreter, if it was asked for.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from tsallis.ops.backend import Capabilities
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
CAPABILITIES = Capabilities(
    STORAGE, 2.0, asynchronous=True, attention_dtypes=STORAGE, largest_head=256, largest_batch=65535
)

__all__ = [
    "CAPABILITIES",
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
    "on_device",
    "relu_lists",
    "status",
    "support",
    "transpose",
    "usable",
]


class Status(NamedTuple):
    """Whether Triton's kernels can compute here, and why or why not."""

    available: bool
    reason: str


@functools.cache
def status() -> Status:
    """Tell whether Triton's kernels can compute here, and why or why not."""
    return Status(*available())


def usable() -> bool:
    """Tell whether Triton's kernels can compute here."""
    return status().available


def on_device(kind: str) -> bool:
    """Tell whether a type of devices is a GPU, or the CPU where there is none and the interpreter stands for it.

    Raises:
        RuntimeError: a tensor on the CPU of a machine that has a GPU.
    """
    if kind == "cpu" and torch.cuda.is_available():
        raise RuntimeError("backend 'triton' computes tensors on a GPU, got one on the CPU")
    return kind in ("cuda", "cpu")


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of what is kept for each row: float32 for all of them."""
    return torch.float32
