"""Which kernels are trusted on a device: those that agree with PyTorch's operations, or are known to."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from tsallis.ops.protocol import Backend
from tsallis.ops.registry import load
from tsallis.ops.self_check import memory
from tsallis.ops.self_check.evidence import has_evidence
from tsallis.ops.self_check.families import ATTENTION, FAMILIES, measure
from tsallis.ops.self_check.trial import Result

VARIABLE = "TSALLIS_SELF_CHECK"
MODES = ("1", "0", "force")  # check what is not remembered, nothing, or everything once in a process

STATISTICS = {  # which argument they are
    "entmax_loss_gradient": 3,
    "alpha_relu_loss_gradient": 3,
    "support": 2,
    "alpha_relu_support": 2,
}

_lock = threading.Lock()
_results: dict[tuple[str, str, str], Result] = {}  # of this process, by kind of device, family and dtype
_verdicts: dict[tuple[str, torch.device, str, torch.dtype], bool] = {}
_backends: dict[tuple[str, int, torch.dtype], Backend] = {}


class DeviceBackend(Protocol):
    """A backend that is compared with PyTorch's operations on every kind of devices."""

    def device_kind(self, device: torch.device) -> dict[str, str]:
        """Return all that decides whether kernels are right there: the device, versions, a digest of the sources."""


def mode() -> str:
    """Return what the environment variable `TSALLIS_SELF_CHECK` asks for.

    Raises:
        ValueError: something else than `0`, `1` or `force`.
    """
    value = os.environ.get(VARIABLE) or "1"
    if value not in MODES:
        raise ValueError(f"{VARIABLE} must be 0, 1 or force, got {value!r}")
    return value


def backend_for(name: str, x: Tensor) -> Backend:
    """Return the backend that computes tensors of this device and dtype: its kernels where they are trusted."""
    key = (name, x.get_device(), x.dtype)
    backend = _backends.get(key)
    if backend is None:
        backend = _backends[key] = _new_backend(name, x.device, x.dtype)
    return backend


def _new_backend(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    kernels = load(name)
    if _trusted(name, device):
        return kernels
    return cast(Backend, MixedBackend(kernels, lambda family: agrees(name, device, dtype, family)))


def attention_agrees(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether a backend's attention is trusted; also where that can't be found out now."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _verdicts.get((name, device, ATTENTION, dtype)) or agrees(name, device, dtype, ATTENTION) is not False


def agrees(name: str, device: torch.device, dtype: torch.dtype, family: str) -> bool | None:
    """Tell whether a family of kernels computes what PyTorch's operations do; compare them at the first call.

    Returns:
        None where they can't be compared now: a CUDA graph is captured, or no memory is left.
    """
    key = (name, device, family, dtype)
    if key in _verdicts:
        return _verdicts[key]
    if _capturing(device):
        return None
    with _lock:
        if key in _verdicts:  # another thread was first
            return _verdicts[key]
        if _trusted(name, device):
            _verdicts[key] = True
            return True
        try:
            result = recall(name, device, dtype, family) or check(name, device, dtype, family)
        except torch.OutOfMemoryError:
            return None
        _verdicts[key] = result.agrees
    if not result.agrees:
        _warn(name, device, dtype, family, result)
    return result.agrees


def recall(name: str, device: torch.device, dtype: torch.dtype, family: str) -> Result | None:
    """Return the result that this process or the user's cache folder remembers."""
    kind = kind_of(name, device)
    result = _results.get((memory.digest(kind), family, str(dtype)))
    if result is None and mode() != "force":
        result = memory.load(kind).get((family, str(dtype)))
    return result


def check(name: str, device: torch.device, dtype: torch.dtype, family: str) -> Result:
    """Compare a family of kernels with PyTorch's operations now, and remember the result.

    An exception is remembered by this process alone: what it came from, a full disk or a missing compiler, may pass.
    """
    kind, result = kind_of(name, device), measure(name, device, dtype, family)
    _results[memory.digest(kind), family, str(dtype)] = result
    if not result.raised:
        memory.store(kind, {(family, str(dtype)): result})
    return result


@functools.cache
def kind_of(name: str, device: torch.device) -> dict[str, str]:
    """Return the kind of a device, as the backend describes it."""
    return cast(DeviceBackend, load(name)).device_kind(device)


def _trusted(name: str, device: torch.device) -> bool:
    """Tell whether nothing is to be compared."""
    return mode() == "0" or (mode() != "force" and has_evidence(kind_of(name, device)))


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _warn(name: str, device: torch.device, dtype: torch.dtype, family: str, result: Result) -> None:
    kind = kind_of(name, device)
    versions = ", ".join(f"{what} {value}" for what, value in kind.items() if what != "device" and value)
    fault, again = (
        ("fail", "The next process tries again")
        if result.raised
        else ("are wrong", "It is remembered; `tsallis info --check` compares again")
    )
    warnings.warn(
        f"tsallis computes {family} in {str(dtype).removeprefix('torch.')} on {kind['device']} with PyTorch's "
        f"operations: its kernels {fault} there ({result.kernel}: {result.verdict}). Please report this line and "
        f"what `tsallis info --check` prints to the issue tracker of tsallis ({versions}). {again}, "
        f"{VARIABLE}=0 trusts the kernels.",
        stacklevel=2,
    )


class MixedBackend:
    """Kernels that agree with PyTorch's operations, and these operations in the place of the others.

    A family is decided when its first function is called. From then on its functions are attributes: a call costs
    nothing more. Statistics tell who made them: they go to whom they belong even where that was decided in between.
    """

    def __init__(self, kernels: Backend, verdict: Callable[[str], bool | None]) -> None:
        self._kernels, self._verdict = kernels, verdict
        self.CAPABILITIES = kernels.CAPABILITIES
        self.status = kernels.status
        self.usable = kernels.usable
        self.on_device = kernels.on_device
        for family in FAMILIES:
            for function in self._functions(family):
                setattr(self, function, functools.partial(self._decide, family, function))

    def _decide(self, family: str, function: str, *args: Any, **kwargs: Any) -> Any:
        verdict = self._verdict(family)
        if verdict is None:
            return getattr(self._kernels, function)(*args, **kwargs)
        for each in self._functions(family):
            setattr(self, each, getattr(self._kernels, each) if verdict else self._substitute(each))
        if not verdict and family in ("losses", "alpha-ReLU"):
            self.CAPABILITIES = self.CAPABILITIES._replace(row_statistics=False)
        return getattr(self, function)(*args, **kwargs)

    def _functions(self, family: str) -> list[str]:
        """Return the functions of a family that the kernels have."""
        return [function for function in FAMILIES[family].functions if hasattr(self._kernels, function)]

    def _substitute(self, function: str) -> Callable[..., Any]:
        """Return PyTorch's operations for a function, except for statistics of the kernels."""
        if function == "alpha_relu_one_pass":
            return lambda *_: None  # the caller then computes the scores
        own, other = getattr(self._kernels, function), getattr(load("eager"), function)
        if function not in STATISTICS:
            return cast(Callable[..., Any], other)
        index = STATISTICS[function]
        return lambda *args, **kwargs: (own if isinstance(args[index], Tensor) else other)(*args, **kwargs)

    def support_sizes(self, scores: Tensor, alpha: Any, stats: Any, target: Tensor) -> Tensor:
        """Return the size of each row's support [rows]; losses and alpha-ReLU have this function in common."""
        owner = self._kernels if isinstance(stats, Tensor) else load("eager")
        return owner.support_sizes(scores, alpha, stats, target)
