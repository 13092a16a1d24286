"""PyTorch's operations as a backend: any device, any positive alpha, in float32 and float64.

They compute what the other backends leave, and every derivative of an order above the first.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from tsallis.ops.eager.alpha_relu import alpha_relu_loss, alpha_relu_loss_gradient
from tsallis.ops.eager.linear import alpha_relu_one_pass, alpha_relu_support, spmm, support, support_sizes, transpose
from tsallis.ops.eager.losses import entmax_loss, entmax_loss_gradient
from tsallis.ops.eager.maps import entmax, entmax_gradient
from tsallis.ops.eager.ranking import best_symbols
from tsallis.ops.protocol import Capabilities

CAPABILITIES = Capabilities((torch.float32, torch.float64), sys.float_info.max, row_statistics=False)

__all__ = [
    "CAPABILITIES",
    "alpha_relu_loss",
    "alpha_relu_loss_gradient",
    "alpha_relu_one_pass",
    "alpha_relu_support",
    "best_symbols",
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


class Status(NamedTuple):
    """PyTorch's operations are always there."""

    available: bool = True
    reason: str = "PyTorch's operations"


def status() -> Status:
    """Tell that PyTorch's operations can be used."""
    return Status()


def usable() -> bool:
    """Tell that PyTorch's operations can be used."""
    return True


def on_device(kind: str) -> bool:
    """Tell that they compute on all devices."""
    return True
