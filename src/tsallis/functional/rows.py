"""From tensors of any shape, dtype and mask to the rows [rows, d] the kernels work on, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops import backend, cpu
from tsallis.ops.alphas import Alpha
from tsallis.ops.transforms import forward_mode, traced, widen, without_numbers

_NUMBERS = (Real, torch.SymFloat, torch.SymInt)  # numpy's are among the real ones, and a tracer's are not


class Rows(NamedTuple):
    """Scores as rows in the dtype of the computation, and the way back to the caller's layout."""

    scores: Tensor  # [rows, d], float32 or float64; for kernels also half
    shape: torch.Size  # of the caller's tensor with `dim` moved last
    dim: int
    dtype: torch.dtype  # of the result

    def restore(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.shape).movedim(-1, self.dim).to(self.dtype)


def as_rows(scores: Tensor, dim: int, mask: Tensor | None, halves: bool = False) -> Rows:
    """Return rows of `scores` along `dim`; entries that `mask` leaves out are -inf. Kernels take halves as they are."""
    check_floating(scores)
    if mask is not None:
        scores = masked(scores, mask)
    if scores.dim() == 0:
        if dim not in (-1, 0):
            raise IndexError(f"dim must be -1 or 0 for a tensor without dimensions, got {dim}")
        return Rows(widen(scores.reshape(1, 1)), scores.shape, 0, result_dtype(scores))
    moved = scores.resolve_neg().movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1]) if moved.numel() else moved.reshape(0, max(moved.shape[-1], 1))
    dtype = result_dtype(scores)
    return Rows(rows if halves and dtype == rows.dtype else widen(rows), moved.shape, dim, dtype)


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return -inf where a boolean mask is False."""
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True takes part), got {mask.dtype}")
    try:
        return scores.masked_fill(~mask, -torch.inf)
    except RuntimeError as error:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} can't be broadcast to scores of shape {tuple(scores.shape)}"
        ) from error


def kernels_for(scores: Tensor, alpha: Alpha) -> Any:
    """Return the kernels that these scores go to as they are: none where torch compiles, transforms or records."""
    # `transforms_active` and `modes_active`, the latter in `dispatch`: of small tensors every call counts.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    if not isinstance(scores, Tensor) or scores.dim() == 0:
        return None
    if isinstance(alpha, Tensor):
        return backend.kernels(scores, alpha) if alpha.numel() and alpha.is_floating_point() else None
    return backend.kernels(scores, alpha if type(alpha) is float else number("alpha", alpha))


def check_floating(scores: Tensor, name: str = "scores") -> None:
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(scores).__name__}")
    if not scores.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {scores.dtype}; convert first, as in {name}.float()")


def result_dtype(scores: Tensor) -> torch.dtype:
    """Return the caller's dtype, or float32 for half precision under autocast, as softmax and cross_entropy have it."""
    if scores.dtype in (torch.float16, torch.bfloat16) and autocast_enabled(scores.device.type):
        return torch.float32
    return scores.dtype


def autocast_enabled(device: str) -> bool:
    """Tell whether autocast is on for a type of devices; the device "meta" has none."""
    return device != "meta" and torch.is_autocast_enabled(device)


def number(name: str, value: Any) -> float:
    """Return an argument that is a number as a float.

    Raises:
        TypeError: anything else, text and truth values among it.
    """
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def alpha_number(alpha: float) -> float:
    """Return an alpha that is a number, checked."""
    alpha = number("alpha", alpha)
    if not 1 <= alpha < math.inf:  # a tracer follows comparisons alone
        raise ValueError(f"alpha must be finite and at least 1, got {alpha:g}")
    return alpha


def alpha_rows(alpha: Alpha, rows: Rows, ndim: int) -> Alpha:
    """Return alpha as a checked float, or as a tensor [rows, 1]; `ndim` is the number of dimensions of the scores."""
    return alpha_along(alpha, rows.scores, rows.shape, rows.dim, ndim)


def alpha_along(alpha: Alpha, scores: Tensor, shape: Sequence[int], dim: int, ndim: int) -> Alpha:
    """Return alpha as :func:`alpha_rows` does, for scores whose shape with `dim` moved last is `shape`."""
    if not isinstance(alpha, Tensor):
        return alpha_number(alpha)
    argument = alpha
    check_floating(alpha, "alpha")
    one_number = alpha.numel() == 1 and alpha.dim() <= ndim
    if one_number and not (alpha.requires_grad or forward_mode() or traced() or without_numbers(alpha)):
        return alpha_number(alpha.item())
    if alpha.dim() > ndim:
        raise ValueError(f"alpha of shape {tuple(alpha.shape)} has more dimensions than the scores, which have {ndim}")
    alpha = alpha.to(device=scores.device, dtype=cpu.computed_in(scores.dtype))
    if ndim == 0:
        return alpha.reshape(1, 1)
    if alpha.dim() < ndim:
        alpha = alpha.reshape((1,) * (ndim - alpha.dim()) + alpha.shape)
    if dim % ndim != ndim - 1:  # of small tensors every operation counts
        alpha = alpha.movedim(dim, -1)
    if alpha.shape[-1] != 1:
        raise ValueError(
            f"alpha must have size 1 along dim {dim} of the scores: one alpha a row, got size {alpha.shape[-1]}"
            + _layout_of(argument, shape, dim % ndim)
        )
    try:
        alpha = alpha.expand(*shape[:-1], 1)
    except RuntimeError as error:
        raise ValueError(
            f"alpha of shape {tuple(alpha.shape)} can't be broadcast to rows of shape {tuple(shape[:-1])}"
        ) from error
    return alpha.reshape(-1, 1)


def _layout_of(alpha: Tensor, shape: Sequence[int], dim: int) -> str:
    """Say which shape an alpha [n] must have that fits another dimension than its own; `dim` was moved last."""
    sizes = [*shape[:dim], 0, *shape[dim:-1]]
    fitting = [i for i, n in enumerate(sizes) if n == alpha.numel()]
    if alpha.dim() != 1 or not fitting:
        return ""
    first = next((i for i in fitting if i), 0)  # the first dimension is a batch's where another one fits too
    ones = ", ".join(["1"] * (len(sizes) - 1 - first))
    return f"; for one alpha a slice of dimension {first} take alpha.view(-1, {ones})"
