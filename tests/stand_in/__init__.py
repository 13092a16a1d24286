"""A backend for a device that isn't there: PyTorch's operations stand for kernels, and any of them can be made wrong.

`FAULTS` maps names of functions to what is done with their results; `CALLS` lists the functions that ran.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tsallis.ops import eager
from tsallis.ops.dtypes import upcast
from tsallis.ops.protocol import Capabilities, Status
from tsallis.ops.sparse_rows import CsrRows

DTYPES = (torch.float32, torch.bfloat16)
OPERATIONS = ("maps", "losses", "alpha-ReLU", "output layer", "attention")
CAPABILITIES = Capabilities(OPERATIONS, DTYPES, attention_dtypes=DTYPES)
FAULTS: dict[str, Callable[..., Any]] = {}
CALLS: list[str] = []
KIND = {"device": "Stand-in 1000", "driver": "7.5", "sources": "abc"}


def status() -> Status:
    return Status(True, "a stand-in")


def device_kind(device: torch.device) -> dict[str, str]:
    return KIND


def watch(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that notes its calls, and is made wrong by `FAULTS`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        CALLS.append(name)
        result = function(*args, **kwargs)
        return FAULTS[name](result) if name in FAULTS else result

    return call


_statistics: dict[int, Any] = {}


def _as_tensor(stats: Any) -> Tensor:
    """Return a tensor that stands for statistics."""
    number = len(_statistics)
    _statistics[number] = stats
    return torch.tensor(float(number))


def _entmax_loss(scores: Tensor, target: Tensor, alpha: Any, need_alpha: bool, listed: bool = False) -> Any:
    loss, stats, slope = eager.entmax_loss(scores, target, alpha, need_alpha)
    return loss, _as_tensor(stats), slope


def _alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float, tau: float) -> Any:
    loss, stats = eager.alpha_relu_loss(scores, target, alpha, tau)
    return loss, _as_tensor(stats)


def _with_statistics(function: Callable[..., Any], index: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        stats = _statistics[int(args[index])]
        return function(*args[:index], stats, *args[index + 1 :], **kwargs)

    return call


def _spmm(lists: CsrRows, table: Tensor, **options: Any) -> Any:
    onto = options.pop("onto", None)
    out, total = eager.spmm(lists, upcast(table), **options, onto=None if onto is None else upcast(onto))
    return out.to(table.dtype), total


entmax = watch(eager.entmax, "entmax")
entmax_gradient = watch(eager.entmax_gradient, "entmax_gradient")
entmax_loss = watch(_entmax_loss, "entmax_loss")
entmax_loss_gradient = watch(_with_statistics(eager.entmax_loss_gradient, 3), "entmax_loss_gradient")
alpha_relu_loss = watch(_alpha_relu_loss, "alpha_relu_loss")
alpha_relu_loss_gradient = watch(_with_statistics(eager.alpha_relu_loss_gradient, 3), "alpha_relu_loss_gradient")
support_sizes = watch(_with_statistics(eager.support_sizes, 2), "support_sizes")
support = watch(_with_statistics(eager.support, 2), "support")
alpha_relu_support = watch(_with_statistics(eager.alpha_relu_support, 2), "alpha_relu_support")
spmm = watch(_spmm, "spmm")
transpose = watch(eager.transpose, "transpose")
