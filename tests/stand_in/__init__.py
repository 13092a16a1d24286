"""A backend for a missing device: PyTorch operations replace its kernels, and tests can make each of them wrong.

`FAULTS` maps names of functions to functions that change their results.
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


def status() -> Status:
    return Status(True, "a stand-in")


def watch(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function whose result `FAULTS` can change."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return FAULTS[name](result) if name in FAULTS else result

    return call


def _spmm(lists: CsrRows, table: Tensor, **options: Any) -> Any:
    onto = options.pop("onto", None)
    out, total = eager.spmm(lists, upcast(table), **options, onto=None if onto is None else upcast(onto))
    return out.to(table.dtype), total


entmax = watch(eager.entmax, "entmax")
entmax_gradient = watch(eager.entmax_gradient, "entmax_gradient")
entmax_loss = watch(eager.entmax_loss, "entmax_loss")
entmax_loss_gradient = watch(eager.entmax_loss_gradient, "entmax_loss_gradient")
alpha_relu_loss = watch(eager.alpha_relu_loss, "alpha_relu_loss")
alpha_relu_loss_gradient = watch(eager.alpha_relu_loss_gradient, "alpha_relu_loss_gradient")
support_sizes = watch(eager.support_sizes, "support_sizes")
support = watch(eager.support, "support")
alpha_relu_support = watch(eager.alpha_relu_support, "alpha_relu_support")
spmm = watch(_spmm, "spmm")
transpose = watch(eager.transpose, "transpose")
