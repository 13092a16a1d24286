"""Run the GPU kernels in tests: on a GPU if there is one, otherwise in Triton's interpreter (see conftest.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.ops.triton import language

pytest.importorskip("numpy")  # the interpreter is based on it
if not language.available()[0]:
    pytest.skip(f"needs triton: {language.available()[1]}", allow_module_level=True)

from tsallis.ops import triton as gpu
from tsallis.ops.triton import alpha_relu as relu
from tsallis.ops.triton import losses, maps
from tsallis.ops.triton import sparse as lists
from tsallis.ops.triton.attention import calls as attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

COMPILER = """
import torch, triton
from triton.backends.compiler import GPUTarget

class Driver:  # of a GPU that isn't there
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0

triton.runtime.driver.set_active(Driver())
compiled = {}

def run(kernel, grid, where, **arguments):
    binary = kernel.warmup(grid=grid, **arguments)
    assert binary.metadata.shared <= 227 * 1024, (kernel.fn.__name__, binary.metadata.shared)
    compiled.setdefault(kernel.fn.__name__, set()).add(binary.hash)
"""

__all__ = ["DEVICE", "attention", "gpu", "language", "lists", "losses", "maps", "relu"]


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compare with a tolerance relative to the largest expected number, or to 1 if that is larger."""
    assert actual.shape == expected.shape
    if expected.numel():
        actual, expected = actual.double().cpu(), expected.double().cpu()
        assert (actual - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


def watch_launches(monkeypatch: pytest.MonkeyPatch, module: Any, note: Callable[..., object]) -> None:
    """Call `note` with the name, grid and arguments of each kernel that a module launches."""
    run = module.run

    def watched(kernel: Any, grid: tuple[int, ...], where: Any, **arguments: Any) -> None:
        note(kernel.fn.__name__, grid, arguments)
        run(kernel, grid, where, **arguments)

    monkeypatch.setattr(module, "run", watched)


def compile_for_a_gpu(program: str) -> None:
    """Run a program in which `run` compiles kernels without launching them; `compiled` has their names and hashes."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", COMPILER + program], check=True, env=environment)
