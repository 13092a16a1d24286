"""A program that torch.export saved is loaded by another process, as the page on maps says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tsallis


class Weights(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return tsallis.entmax(scores, 1.5)


@pytest.mark.slow
def test_an_exported_program_loads_after_the_import(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt2"
    torch.export.save(torch.export.export(Weights(), (torch.randn(2, 3),)), path)
    code = (
        "import sys, torch, tsallis.nn\n"
        "weights = torch.export.load(sys.argv[1]).module()(torch.tensor([[2.0, 1.0, 0.1], [0.0, 0.0, 0.0]]))\n"
        "assert weights[0, 2] == 0 and weights.sum(-1).sub(1).abs().max() < 1e-6, weights\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
