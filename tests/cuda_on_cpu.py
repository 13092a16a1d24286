"""Run a GPU benchmark on the CPU in Triton's interpreter: python cuda_on_cpu.py SCRIPT ARGUMENTS...

The device "cuda" is replaced by the CPU, PyTorch's GPU timers and counters return invented values, and the settings
are tiny. This only shows that a script runs from start to end.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import tsallis

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import gpu


def on_cpu(x: Any) -> Any:
    return "cpu" if isinstance(x, str) and x == "cuda" else x


class OnCpu(TorchFunctionMode):
    """Replaces the device "cuda" by the CPU in calls of PyTorch."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {name: on_cpu(x) for name, x in (kwargs or {}).items()}
        return function(*(on_cpu(x) for x in args), **named)


class Event:
    """Replaces `torch.cuda.Event`; measures time on the CPU."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return max((end.time - self.time) * 1e3, 1e-6)


class Generator(torch.Generator):
    """A generator on the CPU: a class, because PyTorch also evaluates annotations with `torch.Generator`."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, on_cpu(device))


def tiny_settings(groups: Any, lengths: Any, quick: bool) -> Iterator[Any]:
    module = importlib.import_module("gpu_attention")
    for group in groups:
        queries = 1 if group == "decode" else 24
        empty = 0.5 if group in ("long", "powers") else 0.0
        yield module.Setting(group, 1, 2, 2, queries, 24, 16, group != "decode", empty, torch.float32)


def main() -> None:
    script, *arguments = sys.argv[1:]
    module = importlib.import_module(Path(script).stem)
    if hasattr(module, "settings"):
        module.settings = tiny_settings
    module.require_gpu = lambda: None
    gpu.FLUSHED = 1
    torch.cuda.Event = Event  # type: ignore[assignment, misc]
    for name, value in (("synchronize", None), ("reset_peak_memory_stats", None), ("empty_cache", None)):
        setattr(torch.cuda, name, lambda *_, value=value: value)
    torch.cuda.memory_allocated = lambda *_: 0  # type: ignore[assignment]
    torch.cuda.max_memory_allocated = lambda *_: gpu.MIB  # type: ignore[assignment]
    torch.Generator = Generator  # type: ignore[misc]
    if hasattr(module, "bandwidth"):
        module.bandwidth = lambda: 1e12
    sys.argv = [script, *arguments]
    with OnCpu(), tsallis.backend("triton"):
        module.main()


if __name__ == "__main__":
    main()
