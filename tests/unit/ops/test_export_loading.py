"""Tests that programs saved by torch.export run on any machine, with the kernels available there."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from tsallis.ops import cpu
from tsallis.ops.arguments import AttentionArgs


class Weights(torch.nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return tsallis.entmax(scores, 1.5)


def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return tsallis.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, alpha="learned").eval()


def export(module: torch.nn.Module, example: Tensor) -> Any:
    batch = ({0: torch.export.Dim("b")},)
    return torch.export.export(module, (example,), dynamic_shapes=batch)


def through_a_file(program: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(("exported", "run"), [("auto", "eager"), ("eager", "auto"), ("auto", "auto")])
def test_exported_program_runs_on_another_backend(exported: str, run: str, gradients: bool) -> None:
    module = layer().requires_grad_(gradients)
    with tsallis.backend(exported):
        program = through_a_file(export(module, torch.randn(3, 24, 16)))
    for batch in (1, 8):
        x, y = (x.requires_grad_() for x in torch.randn(2, batch, 24, 16).unbind())
        y.data.copy_(x.data)
        expected = module(x)
        expected.square().sum().backward()
        with tsallis.backend(run):
            result = program.module()(y)
            result.square().sum().backward()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
def test_exported_program_does_not_store_the_thread_count() -> None:
    (call,) = (
        node for node in export(layer(), torch.randn(3, 24, 16)).graph.nodes if "tsallis.attention" in str(node.target)
    )
    fields = dict(zip(AttentionArgs._fields, call.args, strict=False))
    assert fields["threads"] == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs compiler: g++")
def test_aot_compiled_program_runs_on_another_backend(tmp_path: Path) -> None:
    module, x = layer(), torch.randn(5, 24, 16)
    batch = ({0: torch.export.Dim("b", min=2, max=64)},)
    with torch.no_grad():
        program = torch.export.export(module, (torch.randn(3, 24, 16),), dynamic_shapes=batch)
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
        run = torch._inductor.aoti_load_package(path)
        for name in ("auto", "eager"):
            with tsallis.backend(name):
                torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.process
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"TSALLIS_KERNEL_PATH": "/no/kernel.so"}, id="missing"),
        pytest.param({"TSALLIS_BACKEND": "eager"}, id="eager", marks=pytest.mark.slow),
        pytest.param({}, id="loaded", marks=pytest.mark.slow),
    ],
)
def test_exported_program_runs_in_a_new_process(settings: dict[str, str], tmp_path: Path) -> None:
    """Check two operations, with and without the kernel."""
    path, module, x = tmp_path / "layer.pt2", torch.nn.Sequential(layer(), Weights()), torch.randn(5, 24, 16)
    torch.export.save(export(module, torch.randn(3, 24, 16)), path)
    torch.save((x, module(x)), tmp_path / "expected.pt")
    code = (
        "import sys, torch, tsallis.nn\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "torch.testing.assert_close(torch.export.load(sys.argv[1]).module()(x), expected, rtol=1e-4, atol=1e-5)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    assert not settings or ("compiled kernels" in done.stderr) == ("TSALLIS_KERNEL_PATH" in settings)
