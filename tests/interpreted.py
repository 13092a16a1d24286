"""The kernels for GPUs in tests: on a GPU where there is one, else run by Triton's interpreter.

Import this before anything else imports Triton, and take the fixture `asked_for_interpreter` into the test file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_VARIABLE = "TRITON_INTERPRET"

pytest.importorskip("numpy")  # of which the interpreter is made
_before = os.environ.get(_VARIABLE)
if DEVICE == "cpu":
    if "triton" in sys.modules and "tsallis.kernels.gpu.language" not in sys.modules and _before != "1":
        pytest.skip("Triton was imported before its interpreter was asked for", allow_module_level=True)
    os.environ[_VARIABLE] = "1"  # read when Triton is imported, and when a kernel is made
try:
    pytest.importorskip("triton")
    # Every file of kernels, while the interpreter is asked for.
    from tsallis.kernels import gpu
    from tsallis.kernels.gpu import attention, language, lists, losses, maps, relu
finally:
    if _before is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = _before
if DEVICE == "cpu" and not language.interpreted():
    pytest.skip("the kernels were imported before the interpreter was asked for", allow_module_level=True)

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
    found = kernel.warmup(grid=grid, **arguments)
    assert found.metadata.shared <= 227 * 1024, (kernel.fn.__name__, found.metadata.shared)
    compiled.setdefault(kernel.fn.__name__, set()).add(found.hash)
"""

__all__ = [
    "DEVICE",
    "asked_for_interpreter",
    "attention",
    "compile_for_a_gpu",
    "gpu",
    "language",
    "lists",
    "losses",
    "maps",
    "relu",
]


@pytest.fixture(autouse=True)
def asked_for_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Asked for while these tests run, and by no other."""
    if DEVICE == "cpu":
        monkeypatch.setenv(_VARIABLE, "1")
    yield


def compile_for_a_gpu(program: str) -> None:
    """Runs a program whose kernels are compiled, by `run`, and not run: names and hashes are in `compiled`."""
    environment = {**os.environ, _VARIABLE: "0"}
    subprocess.run([sys.executable, "-c", COMPILER + program], check=True, env=environment)
