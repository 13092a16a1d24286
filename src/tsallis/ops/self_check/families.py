"""The families of kernels that stand or fall together, and the comparison of one with PyTorch's operations."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

from tsallis.ops.registry import load, load_attention
from tsallis.ops.self_check.attention import check_attention
from tsallis.ops.self_check.layer import check_output_layer
from tsallis.ops.self_check.rows import check_alpha_relu, check_losses, check_maps
from tsallis.ops.self_check.trial import Result, Trial


class Family(NamedTuple):
    """The comparison of a family of kernels, and the functions of a backend that call them."""

    check: Callable[[Trial], None]
    functions: tuple[str, ...]


ATTENTION = "attention"
FAMILIES = {
    "maps": Family(check_maps, ("entmax", "entmax_gradient")),
    "losses": Family(check_losses, ("entmax_loss", "entmax_loss_gradient", "support")),
    "alpha-ReLU": Family(check_alpha_relu, ("alpha_relu_loss", "alpha_relu_loss_gradient", "alpha_relu_support")),
    "output layer": Family(check_output_layer, ("spmm", "transpose", "alpha_relu_one_pass")),
    ATTENTION: Family(check_attention, ()),  # of a backend's file `attention`
}


def families_of(name: str, dtype: torch.dtype) -> list[str]:
    """Return the families that a backend computes in a dtype."""
    can = load(name).CAPABILITIES
    computed = [family for family in FAMILIES if family in can.operations]
    return [family for family in computed if dtype in (can.attention_dtypes if family == ATTENTION else can.dtypes)]


def measure(name: str, device: torch.device, dtype: torch.dtype, family: str) -> Result:
    """Compare a family of a backend's kernels with PyTorch's operations in float64 on the CPU; return the worst result.

    A thread of its own computes: a tracer, a transformation, autograd or a mode that is at work in this one does not
    see it, and the kernels need no stream that another waits for.

    Raises:
        torch.OutOfMemoryError: there was no memory for it now.
    """
    outcomes: list[Result | BaseException] = []

    def work() -> None:
        trial = Trial(load(name), load_attention(name), device, dtype)
        try:
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext(), torch.no_grad():
                FAMILIES[family].check(trial)
            outcomes.append(trial.result)
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=work, name=f"tsallis self-check of {family}", daemon=True)
    thread.start()
    thread.join()
    outcome = outcomes[0]
    if isinstance(outcome, torch.OutOfMemoryError):
        raise outcome
    if isinstance(outcome, BaseException):
        return Result(family, math.inf, 0.0, f"{type(outcome).__name__}: {outcome}"[:300])
    return outcome
