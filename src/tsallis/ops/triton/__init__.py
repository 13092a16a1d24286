"""The kernels for GPUs, written in Triton: the same functions as `tsallis.ops.cpu` has, for tensors on a GPU.

Importing this folder imports Triton: only what has met a GPU does. The functions take tensors that the callers have
checked: contiguous, on one GPU, float32, bfloat16 or float16, alphas from 1 to 2. Half precision is computed in float32
and stored in its own dtype. Without a GPU they run on Triton's interpreter, if it was asked for.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.protocol import Capabilities, Status
from tsallis.ops.triton.alpha_relu import alpha_relu_one_pass
from tsallis.ops.triton.attention.launch import largest_head, least_shared_memory
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
from tsallis.ops.triton.sparse import spmm, transpose

STORAGE = (torch.float32, torch.bfloat16, torch.float16)
CAPABILITIES = Capabilities(
    operations=("maps", "losses", "alpha-ReLU", "output layer", "one pass", "attention"),
    dtypes=STORAGE,
    asynchronous=True,
    attention_dtypes=STORAGE,
    largest_head=largest_head(least_shared_memory()),  # one for all GPUs here
    largest_batch=65535,
)

__all__ = [
    "CAPABILITIES",
    "STATS",
    "STORAGE",
    "alpha_relu_loss",
    "alpha_relu_loss_gradient",
    "alpha_relu_one_pass",
    "alpha_relu_support",
    "available",
    "entmax",
    "entmax_gradient",
    "entmax_loss",
    "entmax_loss_gradient",
    "on_device",
    "spmm",
    "status",
    "support",
    "support_sizes",
    "transpose",
    "usable",
]


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


def support_sizes(scores: Tensor, alpha: Alpha, stats: Tensor, target: Tensor) -> Tensor:
    """Return the size of each row's support [rows]; none where there is no target, which statistics then say too."""
    return stats[:, -1].masked_fill_(target < 0, 0).long()
