"""Choose the dtypes of computations, and prepare tensors for kernels."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a tensor is computed: float64 for float64, float32 for all other dtypes."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def upcast(x: Tensor) -> Tensor:
    """Return a tensor in its compute dtype: half precision becomes float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def exact_products() -> bool:
    """Return whether PyTorch multiplies float32 matrices on a GPU without TF32.

    `torch.get_float32_matmul_precision` can't be used: it raises an error once the newer setting has been changed.
    """
    return bool(torch.backends.cuda.matmul.fp32_precision != "tf32")


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the current dtype of autocast, or None without autocast."""
    return torch.get_autocast_dtype(device.type) if autocast_enabled(device.type) else None


def autocast_enabled(device: str) -> bool:
    """Return whether autocast is on for a type of device; False for the device "meta"."""
    return device != "meta" and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which autocast is off. It costs nothing if autocast is already off."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else contextlib.nullcontext()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices in their own dtype, also under autocast."""
    with without_autocast(a.device.type):
        return a @ b


def contiguous(x: Tensor) -> Tensor:
    """Return a tensor with contiguous memory and resolved negation, as kernels need it."""
    x = x.clone() if x._is_zerotensor() else x  # forward mode's zero tensors have no memory
    return x.resolve_neg().contiguous()


def contiguous_alpha(alpha: Alpha) -> Alpha:
    """Return alphas in the form that kernels read."""
    return contiguous(alpha) if isinstance(alpha, Tensor) else alpha
