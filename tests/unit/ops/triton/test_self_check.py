"""The kernels for GPUs before their first use: they agree with PyTorch's operations, and one made wrong is not used."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from triton_interpreter import DEVICE, gpu, language, maps
from tsallis.ops import choice
from tsallis.ops.self_check import guard
from tsallis.ops.self_check.families import FAMILIES, measure
from tsallis.ops.triton import kind

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, which interprets
PLACE = torch.device(DEVICE, 0) if DEVICE == "cuda" else torch.device(DEVICE)


@pytest.mark.parametrize("dtype", gpu.STORAGE, ids=str)
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.slow if family == "attention" else ()) for family in FAMILIES]
)
def test_the_kernels_agree(family: str, dtype: torch.dtype) -> None:
    result = measure("triton", PLACE, dtype, family)
    assert result.agrees and result.error > 0, result


@pytest.fixture
def first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are what "auto" means, and nothing is known of the device."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.delenv(guard.VARIABLE, raising=False)
    monkeypatch.setattr(choice, "_UNCHECKED", {DEVICE: ()})
    monkeypatch.setattr(choice, "_SELF_CHECKED", {DEVICE: ("triton",)})
    for name in ("_results", "_verdicts", "_backends"):
        monkeypatch.setattr(guard, name, {})


@pytest.mark.usefixtures("first_use")
def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    run, names = maps.run, []

    def spoil(kernel: Any, grid: Any, where: Tensor, **arguments: Any) -> None:
        names.append(kernel.fn.__name__)
        run(kernel, grid, where, **arguments)
        if kernel.fn.__name__ == "long_gradient":  # of rows that a program sweeps
            arguments["scores_grad"].mul_(1.01)

    monkeypatch.setattr(maps, "run", spoil)
    z = torch.randn(3, 9, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always", UserWarning)
        results = [tsallis.entmax15(z) for _ in range(2)]
    assert "long_gradient" in names
    (message,) = (str(each.message) for each in records if each.category is UserWarning)
    assert "entmax of long rows, gradient of the scores: error" in message and f"triton {language.version()}" in message
    names.clear()
    with tsallis.backend("eager"):
        right = [tsallis.entmax15(z) for _ in results]
    for pair in zip(results, right, strict=True):
        torch.testing.assert_close(*pair)
        torch.testing.assert_close(*(torch.autograd.grad(p.square().sum(), z)[0] for p in pair))
    tsallis.entmax15(z)
    assert not names


@pytest.mark.usefixtures("first_use")
def test_kernels_that_are_right_are_used_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    run = maps.run

    def watch(kernel: Any, *arguments: Any, **options: Any) -> None:
        names.append(kernel.fn.__name__)
        run(kernel, *arguments, **options)

    monkeypatch.setattr(maps, "run", watch)
    z = torch.randn(3, 9, device=DEVICE, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tsallis.entmax15(z)
        every = {"short_map", "short_gradient", "long_map", "long_gradient", "part_scan", "part_gradient"}
        assert every - set(names) <= ({"part_gradient"} if DEVICE == "cpu" else set())
        names.clear()
        tsallis.entmax15(z).square().sum().backward()
    assert names == ["short_map", "short_gradient"]


def test_the_kind_of_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = kind.device_kind(PLACE)
    assert set(numbers) == {"device", "capability", "driver", "torch", "triton", "sources"}
    assert numbers["torch"] == torch.__version__ and numbers["triton"] == sys.modules["triton"].__version__
    assert len(numbers["sources"]) == 16
    file = tmp_path / "version"
    file.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC 12.3.0"
    )
    monkeypatch.setattr(kind, "DRIVER", file)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12020, raising=False)
    assert kind.driver_version() == "535.104.05 CUDA 12020"
    file.unlink()
    assert kind.driver_version() == "CUDA 12020"


def test_the_digest_is_of_every_source_of_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "triton"
    shutil.copytree(Path(kind.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kind, "__file__", str(folder / "kind.py"))
    digest = kind.sources_digest.__wrapped__
    before = digest()
    assert before == kind.sources_digest()
    for name in ("maps.py", "attention/decode.py"):
        with (folder / name).open("a") as file:
            file.write("# another\n")
        assert digest() != before
        before = digest()
