"""Tests of the self-check, which compares GPU kernels with PyTorch's operations and reports wrong kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from triton_interpreter import DEVICE, gpu, maps

pytest.importorskip("typer")
from tsallis.toolkit.cli.self_check import FAMILIES, measure

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, in Triton's interpreter
PLACE = torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device(DEVICE)


@pytest.mark.parametrize("dtype", gpu.STORAGE, ids=str)
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.slow if family == "attention" else ()) for family in FAMILIES]
)
def test_kernels_agree_with_pytorch(family: str, dtype: torch.dtype) -> None:
    row = measure("triton", PLACE, dtype, family)
    assert row.agrees and row.error > 0, row


def test_every_map_kernel_is_checked_and_errors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run, names = maps.run, set()

    def spoil(kernel: Any, grid: Any, where: Tensor, **arguments: Any) -> None:
        names.add(kernel.fn.__name__)
        run(kernel, grid, where, **arguments)
        if kernel.fn.__name__ == "long_gradient":  # the kernel for long rows
            arguments["scores_grad"].mul_(1.01)

    monkeypatch.setattr(maps, "run", spoil)
    row = measure("triton", PLACE, torch.float32, "maps")
    assert not row.agrees and row.case == "entmax of long rows, gradient of scores"
    every = {"short_map", "short_gradient", "long_map", "long_gradient", "part_scan", "part_gradient"}
    assert every - names <= ({"part_gradient"} if DEVICE == "cpu" else set())
