"""The kernels for GPUs in tests: on a GPU where there is one, else run by Triton's interpreter, as conftest asks."""

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

pytest.importorskip("numpy")  # of which the interpreter is made
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
    """Compare with an error relative to the largest number or to 1."""
    assert actual.shape == expected.shape
    if expected.numel():
        actual, expected = actual.double().cpu(), expected.double().cpu()
        assert (actual - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1)


def watch_launches(monkeypatch: pytest.MonkeyPatch, module: Any, note: Callable[..., object]) -> None:
    """Note name, grid and arguments of each kernel that a module launches."""
    run = module.run

    def watched(kernel: Any, grid: tuple[int, ...], where: Any, **arguments: Any) -> None:
        note(kernel.fn.__name__, grid, arguments)
        run(kernel, grid, where, **arguments)

    monkeypatch.setattr(module, "run", watched)


def compile_for_a_gpu(program: str) -> None:
    """Run a program whose kernels are compiled, by `run`, and not run: names and hashes are in `compiled`."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", COMPILER + program], check=True, env=environment)
