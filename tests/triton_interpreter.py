"""The kernels for GPUs in tests: on a GPU where there is one, else run by Triton's interpreter, as conftest asks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

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

__all__ = ["DEVICE", "attention", "compile_for_a_gpu", "gpu", "language", "lists", "losses", "maps", "relu"]


def compile_for_a_gpu(program: str) -> None:
    """Run a program whose kernels are compiled, by `run`, and not run: names and hashes are in `compiled`."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", COMPILER + program], check=True, env=environment)
