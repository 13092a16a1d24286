"""Convert tensors of any shape, dtype and mask to rows [rows, d] for kernels, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha, check_alpha
from tsallis.ops.choice import choose_direct
from tsallis.ops.dtypes import autocast_enabled, compute_dtype, contiguous, upcast
from tsallis.ops.protocol import Backend
from tsallis.ops.transforms import (
    as_input,
    check_recordable,
    forward_mode,
    jit_tracing,
    savable,
    traced,
    varies,
    without_numbers,
)

_NUMBER_TYPES = (Real, torch.SymFloat, torch.SymInt)  # includes the numbers of numpy and of tracers
_INTEGER_TYPES = (Integral, torch.SymInt)

_STRIDED = torch.strided

_COMPUTE_DTYPES = (torch.float32, torch.float64)


class Rows(NamedTuple):
    """Scores in the layout of a backend, and how to restore the caller's layout."""

    scores: Tensor  # contiguous, in a dtype of the backend; without a backend: [rows, d] in float32 or float64
    alpha: Alpha  # a number, or [rows, 1]; or [..., 1] if scores [..., d] are not merged to rows
    dim: int  # dimension of the rows in `scores`: -1 or at least 0
    backend: Backend | None
    shape: torch.Size | None  # caller's shape with `dim` moved last; None if `scores` has this shape
    moved: int  # the caller's dimension, if it was moved last; else -1
    dtype: torch.dtype  # dtype of the result

    def restore(self, result: Tensor) -> Tensor:
        """Return a result in the caller's shape and dtype."""
        if self.shape is not None:
            result = result.reshape(self.shape)
        if self.moved != -1:
            result = result.movedim(result.dim() - 1, self.moved)
        return result if result.dtype == self.dtype else result.to(self.dtype)


def as_rows(
    scores: Tensor,
    alpha: Alpha,
    dim: int = -1,
    mask: Tensor | None = None,
    operation: str | None = None,
    positive: bool = False,
    merge: bool = True,
) -> Rows:
    """Check the arguments and return rows of `scores` along `dim` with their alphas; masked entries are -inf.

    Alphas must be at least 1; with `positive` they must be above 0. `operation` selects the backend that computes this
    operation, unless a tracer or a transform is active. This function takes as few steps as possible, because each step
    is measurable on small tensors. With neither `merge` nor a backend, scores stay [..., d] and alphas [..., 1].
    """
    if (
        type(scores) is not Tensor
        or not scores.is_floating_point()
        or scores.layout is not _STRIDED
        or scores.is_nested
        or torch._C._get_tracing_state()
    ):
        check_floating(scores)
    if mask is not None:
        scores = masked(scores, mask)
    dtype = scores.dtype
    if dtype not in _COMPUTE_DTYPES:
        dtype = result_dtype(scores)
    last = scores.dim() - 1
    if type(dim) is not int:
        check_dim(dim)
    axis = dim if dim >= 0 else last + 1 + dim
    if last < 0:
        if dim not in (-1, 0):
            raise IndexError(f"dim must be -1 or 0 for a tensor without dimensions, got {dim}")
    elif not 0 <= axis <= last:
        scores.size(dim)  # raises PyTorch's IndexError
    if isinstance(alpha, Tensor):
        alpha = alpha_along(alpha, scores, _moved_last(scores, axis), dim, last + 1, positive)
    elif type(alpha) is not float:
        alpha = number("alpha", alpha)
    if scores.dtype is not dtype:
        scores = upcast(scores)
    backend = choose_direct(operation, alpha, scores) if operation and last >= 0 else None
    if backend is None:
        if isinstance(alpha, float):
            alpha = alpha_along(alpha, scores, _moved_last(scores, axis), dim, last + 1, positive)
        return _plain_rows(scores, alpha, axis, dtype, merge)
    can = backend.CAPABILITIES
    if scores.dtype not in can.dtypes:
        scores = upcast(scores)
    if axis == last:
        return Rows(contiguous(scores), alpha, -1, backend, None, -1, dtype)
    if can.any_dim and scores.is_contiguous():
        return Rows(scores.resolve_neg(), alpha, axis, backend, None, -1, dtype)
    return Rows(contiguous(scores.movedim(axis, -1)), alpha, -1, backend, None, axis, dtype)


def _moved_last(scores: Tensor, axis: int) -> Sequence[int]:
    shape = scores.shape
    return shape if axis == len(shape) - 1 else [*shape[:axis], *shape[axis + 1 :], *shape[axis : axis + 1]]


def _plain_rows(scores: Tensor, alpha: Alpha, axis: int, dtype: torch.dtype, merge: bool) -> Rows:
    if scores.dim() == 0:
        return Rows(upcast(scores.reshape(1, 1)), alpha, -1, None, scores.shape, -1, dtype)
    last = scores.dim() - 1
    moved = scores.resolve_neg()
    if axis == last:
        axis = -1
    else:  # use non-negative dimensions: the tracing ONNX exporter would write negative ones to the file
        moved = moved.movedim(axis, last)
    if not merge and last:  # still reshape one row [d] to [1, d]: under vmap it is part of a batch
        alpha = alpha.reshape(*moved.shape[:-1], 1) if isinstance(alpha, Tensor) else alpha
        return Rows(upcast(moved), alpha, -1, None, None, axis, dtype)
    rows = moved.reshape(-1, moved.shape[-1]) if moved.numel() else moved.reshape(0, max(moved.shape[-1], 1))
    return Rows(upcast(rows), alpha, -1, None, moved.shape, axis, dtype)


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the scores with -inf where a boolean mask is False."""
    check_dense(mask, "mask")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True keeps a score), got {mask.dtype}")
    try:
        expanded = mask.expand(scores.shape)
    except RuntimeError as error:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} can't be broadcast to scores of shape {tuple(scores.shape)}"
        ) from error
    if mask.device != scores.device and mask.dim():
        raise ValueError(f"mask must be on the device of scores, {scores.device}, got {mask.device}")
    return scores.masked_fill(~expanded, -torch.inf)


def check_dim(dim: Any) -> None:
    """Raise a TypeError unless a dimension is an integer; PyTorch checks its range."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"dim must be an integer, got {dim!r}")


def check_dense(x: Tensor, name: str) -> None:
    """Raise a TypeError unless x is a dense tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    kind = type(x).__name__
    if x.is_nested or x.layout is not _STRIDED or kind in ("MaskedTensor", "DTensor"):
        kind = f"{kind} of layout {x.layout}" + (", nested" if x.is_nested else "")
        raise TypeError(
            f"{name} must be a dense tensor, got {kind}. Convert it: pad a nested tensor and pass a mask; "
            "call to_dense() on a sparse tensor, get_data() on a MaskedTensor, full_tensor() or to_local() on a DTensor"
        )


def check_floating(scores: Tensor, name: str = "scores") -> None:
    """Raise a TypeError unless scores are a dense floating-point tensor."""
    check_recordable()
    check_dense(scores, name)
    if not scores.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {scores.dtype}; convert it with {name}.float()")


def check_integers(x: Tensor, name: str) -> None:
    """Raise a TypeError unless x is a dense tensor of integers."""
    check_dense(x, name)
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        hint = "; SparseRows.from_dense makes a target of probabilities" if name == "class targets" else ""
        raise TypeError(f"{name} must contain integers, got {x.dtype}{hint}")


def integer(name: str, value: Any) -> int:
    """Convert an integer, or a tensor with one integer, to an `int`, which stays dynamic in compiled graphs.

    Raises:
        TypeError: The argument is anything else, such as 2.0 or True.
    """
    if type(value) is int:
        return value
    if isinstance(value, Tensor) and _readable(value):
        value = value.item()
    if isinstance(value, Tensor) and jit_tracing() and value.dim() == 0:  # torch.jit.trace represents sizes as tensors
        check_integers(value, name)
        return cast(int, value)
    if isinstance(value, bool) or not isinstance(value, _INTEGER_TYPES):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return cast(int, value)


def check_real(x: Tensor, name: str) -> None:
    """Raise a TypeError unless x is a dense tensor of integers or floating-point numbers."""
    check_dense(x, name)
    if x.dtype == torch.bool or x.is_complex():
        raise TypeError(f"{name} must contain integers or floating-point numbers, got {x.dtype}")


def result_dtype(scores: Tensor) -> torch.dtype:
    """Return the caller's dtype, or float32 for half precision under autocast, as softmax does."""
    if scores.dtype in (torch.float16, torch.bfloat16) and autocast_enabled(scores.device.type):
        return torch.float32
    return scores.dtype


def number(name: str, value: Any) -> float:
    """Convert a number, or a tensor with one number, to a float.

    Raises:
        TypeError: The argument is anything else, such as text, a bool or a tensor that needs a gradient.
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        if not _readable(value):
            raise TypeError(
                f"{name} must be a number, or a tensor with one number that is not traced and needs no gradient, "
                f"got a tensor of shape {tuple(value.shape)}"
            )
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, _NUMBER_TYPES):
        kinds = "a number or a tensor" if name == "alpha" and isinstance(value, (list, tuple)) else "a number"
        raise TypeError(f"{name} must be {kinds}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        large_integer: Any = value
        return math.inf if large_integer > 0 else -math.inf


def finite_number(name: str, value: Any) -> float:
    """Return a finite number as a float."""
    result = number(name, value)
    if not -math.inf < result < math.inf:  # torch.compile can't trace math.isfinite of a dynamic number
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def _readable(x: Tensor) -> bool:
    """Return whether a tensor holds one number that can be read without losing a derivative or a recorded input."""
    return not (x.requires_grad or forward_mode() or traced() or without_numbers(x)) and x.numel() == 1


def check_flag(name: str, value: Any) -> None:
    """Raise a TypeError unless a value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def alpha_number(alpha: float, positive: bool = False) -> float:
    """Check alpha and return it as a float."""
    alpha = number("alpha", alpha)
    check_alpha(alpha, positive)
    return alpha


def stored_alpha(alpha: Alpha, positive: bool = False) -> Alpha:
    """Check an alpha that a module or distribution stores: a number, or a tensor, unless its values can't be read."""
    if not isinstance(alpha, Tensor):
        return alpha_number(alpha, positive)
    check_real(alpha, "alpha")
    if not (traced() or without_numbers(alpha)):
        check_alpha(alpha, positive)
    return alpha


def alpha_along(
    alpha: Alpha, scores: Tensor, shape: Sequence[int], dim: int, ndim: int, positive: bool = False
) -> Alpha:
    """Return alpha as a checked float or as a tensor [rows, 1], for scores of `shape` with `dim` moved last.

    `ndim` is the number of dimensions of the scores. The values of a tensor are checked when a backend is chosen. A
    number that is an input of a compiled graph becomes a tensor.
    """
    if not isinstance(alpha, Tensor):
        alpha = alpha_number(alpha, positive)
        if not varies(alpha):
            return alpha
        alpha = as_input(alpha, scores)
    argument = alpha
    check_real(alpha, "alpha")
    if alpha.dim() <= ndim and _readable(alpha):
        return alpha_number(alpha.item(), positive)
    if alpha.dim() > ndim:
        raise ValueError(f"alpha must have at most {ndim} dimensions, like the scores, got shape {tuple(alpha.shape)}")
    alpha = savable(alpha).to(device=scores.device, dtype=compute_dtype(scores.dtype))
    if ndim == 0:
        return alpha.reshape(1, 1)
    if alpha.dim() < ndim:
        alpha = alpha.reshape((1,) * (ndim - alpha.dim()) + alpha.shape)
    if dim % ndim != ndim - 1:  # each extra operation is measurable on small tensors
        alpha = alpha.movedim(dim % ndim, ndim - 1)
    if alpha.shape[-1] != 1:
        raise ValueError(
            f"alpha must have size 1 along dim {dim} of the scores, one alpha per row, got size {alpha.shape[-1]}"
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
    """Return a hint on how to reshape an alpha [n] to match another dimension; in `shape`, `dim` was moved last."""
    sizes = [*shape[:dim], 0, *shape[dim:-1]]
    fitting = [i for i, n in enumerate(sizes) if n == alpha.numel()]
    if alpha.dim() != 1 or not fitting:
        return ""
    first = next((i for i in fitting if i), 0)  # avoid the first dimension, which is often the batch
    ones = ", ".join(["1"] * (len(sizes) - 1 - first))
    return f"; for one alpha per slice of dimension {first} use alpha.view(-1, {ones})"
