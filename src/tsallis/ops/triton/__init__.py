"""Compute maps, losses and attention with GPU kernels written in Triton.

This package is imported only when a tensor is on a GPU, because its import loads Triton. Callers pass contiguous
tensors on one GPU, in float32, bfloat16 or float16, and alphas from 1 to 2. Kernels compute half precision in float32
and store results in the dtype of the input. Without a GPU, Triton's interpreter can run the kernels.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.protocol import Capabilities, Status
from tsallis.ops.triton.alpha_relu import alpha_relu_one_pass
from tsallis.ops.triton.attention.launch import largest_head, min_shared_memory
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
    largest_head=largest_head(min_shared_memory()),  # the smallest limit among this machine's GPUs
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
    """Return whether Triton's kernels can be used, and the reason."""
    return Status(*available())


def usable() -> bool:
    """Return whether Triton's kernels can be used."""
    return status().available


def on_device(kind: str) -> bool:
    """Return whether the kernels accept tensors on this type of device.

    The CPU is accepted on machines without a GPU, where Triton's interpreter runs the kernels.

    Raises:
        RuntimeError: The tensor is on the CPU of a machine with a GPU.
    """
    if kind == "cpu" and torch.cuda.is_available():
        raise RuntimeError("backend 'triton' needs tensors on a GPU, got one on the CPU")
    return kind in ("cuda", "cpu")


def support_sizes(scores: Tensor, alpha: Alpha, stats: Tensor, target: Tensor) -> Tensor:
    """Return the support size of each row [rows]; 0 for ignored targets."""
    return stats[:, -1].masked_fill_(target < 0, 0).long()
