"""Which kernels compute: the compiled or Triton's where they can, plain PyTorch operations everywhere else."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from contextvars import ContextVar, Token
from types import ModuleType

import torch
from torch import Tensor

from tsallis.ops import cpu
from tsallis.ops.alphas import Alpha, extremes
from tsallis.ops.transforms import modes_active

BACKENDS = ("auto", "eager", "cpu", "triton")
HALVES = (torch.float32, torch.bfloat16, torch.float16)  # what Triton's kernels compute; the compiled ones float64 too
VARIABLE = "TSALLIS_BACKEND"
_PLAIN = (Tensor, torch.nn.Parameter)

_wanted: ContextVar[str | None] = ContextVar("tsallis_backend", default=None)


class backend:
    """The choice of a backend for the calls inside a `with` block: `"eager"`, `"cpu"`, `"triton"` or `"auto"`.

    `"auto"` is the default, and what the environment variable `TSALLIS_BACKEND` overrules: the compiled kernels for
    tensors on the CPU where they were built, Triton's for float32, bfloat16 and float16 on a GPU where Triton works,
    plain PyTorch operations for everything else. `"cpu"` (the compiled kernels) and `"triton"` are errors where these
    are missing; what they don't compute (alpha above 2, budgets) stays with PyTorch's operations. The backend of a
    forward pass computes its gradients, too; second derivatives are always PyTorch's operations.

    Args:
        name: one of the four names.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: `"cpu"` where there are no compiled kernels, `"triton"` where Triton can't be used; it says why.

    Example:
        >>> import tsallis
        >>> with tsallis.backend("eager"):
        ...     tsallis.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, name: str) -> None:
        self.name = _checked(name, "backend")
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> backend:
        self._tokens.append(_wanted.set(self.name))
        return self

    def __exit__(self, *_: object) -> None:
        _wanted.reset(self._tokens.pop())


def _checked(name: str, what: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{what} must be one of {', '.join(BACKENDS)}, got {name!r}")
    if name == "cpu" and not cpu.status().available:
        raise RuntimeError(f"{what} 'cpu' can't be used: {cpu.status().reason}")
    if name == "triton":
        able, reason = triton_status()
        if not able:
            raise RuntimeError(f"{what} 'triton' can't be used: {reason}")
    return name


def triton_kernels() -> ModuleType:
    """Triton's kernels; this imports Triton, or finds that it is missing."""
    return importlib.import_module("tsallis.ops.triton")


@functools.cache
def triton_status() -> tuple[bool, str]:
    """Tell whether Triton's kernels can compute here, and why or why not; this imports Triton."""
    able, reason = triton_kernels().available()
    return bool(able), str(reason)


def wanted() -> str:
    """Return the backend asked for: by the innermost `backend` block, else by the environment, else `auto`."""
    name = _wanted.get()
    return name if name is not None else _checked(os.environ.get(VARIABLE) or "auto", VARIABLE)


def explain() -> str:
    """Tell which backend computes tensors on the CPU, and why, in one line."""
    name, status = wanted(), cpu.status()
    if name == "eager":
        return "eager (asked for)"
    if name == "triton":
        interpreted = not torch.cuda.is_available()
        return f"triton ({triton_status()[1]})" if interpreted else "none (triton was asked for, which needs a GPU)"
    return f"cpu ({status.reason})" if status.available else f"eager ({status.reason})"


def explain_gpu() -> str:
    """Which backend computes tensors on a GPU, and why, in one line; Triton is imported only where there is one."""
    if not torch.cuda.is_available():
        return "none (PyTorch finds no GPU)"
    name = wanted()
    if name in ("eager", "cpu"):
        return f"eager ({name} was asked for)"
    able, reason = triton_status()
    return f"triton ({reason})" if able else f"eager ({reason})"


def kernels(x: Tensor, alpha: Alpha) -> ModuleType | None:
    """Return the kernels that compute this, or None: PyTorch's operations. No alpha that they do needs another check.

    None where a dispatch mode is active, which would not see them called: there they are called by an operator.
    """
    if torch._C._len_torch_dispatch_stack():  # `modes_active`: of small tensors every call counts
        return None
    name, where = wanted(), x.device.type
    if where == "cpu":
        if name != "triton":
            return cpu if _compiled(alpha, (x,), name) else None
        if torch.cuda.is_available():
            raise RuntimeError("backend 'triton' computes tensors on a GPU, got one on the CPU")
    elif where != "cuda" or name in ("eager", "cpu"):
        return None
    if type(x) not in _PLAIN or x.dtype not in HALVES or x.numel() == 0 or not triton_status()[0]:
        return None
    least, most = (alpha, alpha) if isinstance(alpha, float) else extremes(alpha)
    return triton_kernels() if 1 <= least <= most <= 2 else None


def compiled(alpha: Alpha, *tensors: Tensor) -> bool:
    """Tell whether the compiled CPU kernels compute these; an alpha that they accept needs no other check."""
    return not modes_active() and all(x.device.type == "cpu" for x in tensors) and _compiled(alpha, tensors, wanted())


def _compiled(alpha: Alpha, tensors: Sequence[Tensor], name: str) -> bool:
    for x in tensors:
        if type(x) not in _PLAIN or x.dtype not in cpu.STORAGE or x.numel() == 0:
            return False
    if name in ("eager", "triton"):
        return False
    least, most = (alpha, alpha) if isinstance(alpha, float) else extremes(alpha)
    if not 1 <= least <= most <= 2:
        return False
    if not cpu.status().available:
        cpu.warn_of_absence()
    return cpu.status().available
