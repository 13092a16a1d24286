"""Compute all operations with PyTorch, for any device and any positive alpha, in float32 and float64.

This backend computes every call that other backends do not support, and all derivatives of second and higher order.
"""

from __future__ import annotations

import sys

import torch

from tsallis.ops.eager.alpha_relu import alpha_relu_loss, alpha_relu_loss_gradient
from tsallis.ops.eager.linear import alpha_relu_support, spmm, support, support_sizes, transpose
from tsallis.ops.eager.losses import entmax_loss, entmax_loss_gradient
from tsallis.ops.eager.maps import entmax, entmax_gradient
from tsallis.ops.eager.ranking import best_symbols, log_entmax
from tsallis.ops.protocol import Capabilities, Status

CAPABILITIES = Capabilities(
    operations=("maps", "losses", "alpha-ReLU", "output layer", "search", "attention", "beams"),
    dtypes=(torch.float32, torch.float64),
    alphas=(1.0, sys.float_info.max),
    row_statistics=False,
)

__all__ = [
    "CAPABILITIES",
    "alpha_relu_loss",
    "alpha_relu_loss_gradient",
    "alpha_relu_support",
    "best_symbols",
    "entmax",
    "entmax_gradient",
    "entmax_loss",
    "entmax_loss_gradient",
    "log_entmax",
    "on_device",
    "spmm",
    "status",
    "support",
    "support_sizes",
    "transpose",
]


def status() -> Status:
    """Return the status of this backend, which can always be used."""
    return Status(True, "PyTorch's operations")


def on_device(kind: str) -> bool:
    """Return True: this backend supports every device."""
    return True
