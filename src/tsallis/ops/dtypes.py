"""The dtypes of the computation, and tensors as kernels read them."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a tensor is computed: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def upcast(x: Tensor) -> Tensor:
    """Return a tensor in the dtype of the computation: half precision is computed in float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def exact_products() -> bool:
    """Tell whether PyTorch multiplies float32 on a GPU exactly, by whichever of its settings that was asked for.

    `torch.get_float32_matmul_precision` raises an error where a newer setting was used.
    """
    return bool(torch.backends.cuda.matmul.fp32_precision != "tf32")


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype in which autocast multiplies now; None without autocast."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def contiguous(x: Tensor) -> Tensor:
    """Return a tensor as a kernel reads it by its pointer: its numbers in order, with the signs they stand for."""
    x = x.clone() if x._is_zerotensor() else x  # zeros of forward mode have no memory
    return x.resolve_neg().contiguous()


def contiguous_alpha(alpha: Alpha) -> Alpha:
    """Return alphas as a kernel reads them."""
    return contiguous(alpha) if isinstance(alpha, Tensor) else alpha
