"""Every comparison that this machine allows, one after the other: what `tsallis info --check` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from tsallis.ops import choice, registry
from tsallis.ops.self_check import guard
from tsallis.ops.self_check.families import families_of, measure
from tsallis.ops.self_check.trial import Result


class Row(NamedTuple):
    """One comparison: of a family of a backend's kernels, in a dtype, on a device."""

    backend: str
    kind: Mapping[str, str]  # of the device; empty: a CPU, of which nothing is remembered
    dtype: str
    family: str
    result: Result
    seconds: float  # compilation is a part of them


def devices(name: str) -> list[torch.device]:
    """Return a device of every kind on which a backend computes here: the CPU, or GPUs of different kinds."""
    if not registry.load(name).status().available:
        return []
    if "cuda" not in registry.BACKENDS[name].devices or not torch.cuda.is_available():
        return [torch.device("cpu")]
    every = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return list({str(guard.kind_of(name, device)): device for device in reversed(every)}.values())[::-1]


def survey() -> Iterator[Row]:
    """Compare all kernels with PyTorch's operations now: those of the backend that is asked for, or of all.

    Triton's interpreter is slow: it is left out unless it is asked for.
    """
    request = choice.request()
    for name, entry in registry.BACKENDS.items():
        if name == "eager" or request not in ("auto", name):
            continue
        if request == "auto" and "cuda" in entry.devices and not torch.cuda.is_available():
            continue
        for device in devices(name):
            yield from _compare(name, entry.self_check, device)


def _compare(name: str, remember: bool, device: torch.device) -> Iterator[Row]:
    kind = guard.kind_of(name, device) if remember else {}
    for dtype in registry.capabilities(name).dtypes:
        for family in families_of(name, dtype):
            start = time.perf_counter()
            result = (guard.check if remember else measure)(name, device, dtype, family)
            yield Row(name, kind, str(dtype).removeprefix("torch."), family, result, time.perf_counter() - start)
