"""Every comparison that this machine allows, one after the other: what `tsallis info --check` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from tsallis.ops import choice, registry
from tsallis.ops.self_check.attention import check_attention
from tsallis.ops.self_check.layer import check_output_layer
from tsallis.ops.self_check.rows import check_alpha_relu, check_losses, check_maps
from tsallis.ops.self_check.trial import Result, Trial

FAMILIES: dict[str, Callable[[Trial], None]] = {
    "maps": check_maps,
    "losses": check_losses,
    "alpha-ReLU": check_alpha_relu,
    "output layer": check_output_layer,
    "attention": check_attention,
}


class Row(NamedTuple):
    """The comparison of one family of a backend's kernels, in one dtype on one device."""

    backend: str
    device: str
    dtype: str
    family: str
    result: Result
    seconds: float  # with the time to compile


def survey() -> Iterator[Row]:
    """Compare all kernels of the requested backend, or of every backend, with PyTorch's operations."""
    for name in registry.BACKENDS:
        for device in _devices(name):
            for dtype in registry.capabilities(name).dtypes:
                for family in families_of(name, dtype):
                    start = time.perf_counter()
                    result = measure(name, device, dtype, family)
                    seconds = time.perf_counter() - start
                    yield Row(name, str(device), str(dtype).removeprefix("torch."), family, result, seconds)


def _devices(name: str) -> list[torch.device]:
    """Return the devices on which to compare a backend: the CPU, or one GPU of each kind."""
    request = choice.request()
    if name == "eager" or request not in ("auto", name):
        return []
    has_gpu, for_gpu = torch.cuda.is_available(), "cuda" in registry.BACKENDS[name].devices
    if request == "auto" and for_gpu and not has_gpu:  # Triton's interpreter is slow
        return []
    if not registry.load(name).status().available:
        return []
    if not (for_gpu and has_gpu):
        return [torch.device("cpu")]
    kinds = {torch.cuda.get_device_name(i): torch.device("cuda", i) for i in range(torch.cuda.device_count())}
    return list(kinds.values())


def families_of(name: str, dtype: torch.dtype) -> list[str]:
    """Return the families that a backend computes in a dtype."""
    can = registry.capabilities(name)
    computed = [family for family in FAMILIES if family in can.operations]
    return [family for family in computed if dtype in (can.attention_dtypes if family == "attention" else can.dtypes)]


def measure(name: str, device: torch.device, dtype: torch.dtype, family: str) -> Result:
    """Compare a family of a backend's kernels with PyTorch's operations in float64; return the worst result."""
    trial = Trial(name, device, dtype)
    with trial.kernel(family):
        FAMILIES[family](trial)
    return trial.result
