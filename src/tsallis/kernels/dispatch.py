"""Which kernels compute: the compiled ones where they can, plain PyTorch operations everywhere else."""

from __future__ import annotations

import os
from contextvars import ContextVar, Token

import torch
from torch import Tensor

from tsallis.kernels import cpu

Alpha = float | Tensor

BACKENDS = ("auto", "eager", "cpu")
VARIABLE = "TSALLIS_BACKEND"
_PLAIN = (Tensor, torch.nn.Parameter)

_wanted: ContextVar[str | None] = ContextVar("tsallis_backend", default=None)


class backend:
    """Compute with one backend inside a `with` block: `"eager"`, `"cpu"` (the compiled kernels) or `"auto"`.

    `"auto"` is the default, and what the environment variable `TSALLIS_BACKEND` overrules: the compiled kernels for
    tensors on the CPU where they were built, plain PyTorch operations for everything else. `"cpu"` is an error where
    they were not built; what they don't compute (alpha above 2, budgets) stays with PyTorch's operations. What a
    forward pass was computed with, its gradients are too; second derivatives are PyTorch's operations always.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: `"cpu"` where there are no compiled kernels; it says why.

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
    return name


def wanted() -> str:
    """The backend asked for: by the innermost `backend` block, else by the environment, else `auto`."""
    name = _wanted.get()
    return name if name is not None else _checked(os.environ.get(VARIABLE) or "auto", VARIABLE)


def explain() -> str:
    """Which backend computes tensors on the CPU, and why, in one line."""
    name, status = wanted(), cpu.status()
    if name == "eager":
        return "eager (asked for)"
    return f"cpu ({status.reason})" if status.available else f"eager ({status.reason})"


def compiled(x: Tensor, alpha: Alpha) -> bool:
    """Whether the compiled CPU kernels compute this; no alpha that they do needs another check."""
    if x.device.type != "cpu" or type(x) not in _PLAIN or x.dtype not in cpu.STORAGE or x.numel() == 0:
        return False
    if wanted() == "eager" or not cpu.status().available:
        return False
    if isinstance(alpha, float):
        return 1 <= alpha <= 2
    least, most = alpha.detach().aminmax()
    return bool(least >= 1) and bool(most <= 2)
