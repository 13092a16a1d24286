"""Tests of backend selection by context or environment, of missing backends, and of memory kept for backward."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import tsallis
from tsallis.errors import InputError
from tsallis.ops import choice, cpu, eager, registry
from tsallis.ops.eager import maps

pytestmark = pytest.mark.process

PACKAGE = Path(tsallis.__file__).parent
needs_kernel = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choice.VARIABLE, raising=False)


def python(code: str, root: Path = PACKAGE.parent, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that imports the package from a given folder."""
    saved = {k: v for k, v in os.environ.items() if k not in (choice.VARIABLE, "TSALLIS_KERNEL_PATH")}
    saved = {**saved, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=saved)


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the other backend was called")


def test_nested_backend_contexts_restore_the_outer_backend() -> None:
    assert choice.request() == "auto"
    with tsallis.backend("eager") as outer:
        assert choice.request() == outer.name == "eager"
        with tsallis.backend("auto"):
            assert choice.request() == "auto"
        assert choice.request() == "eager"
        with pytest.raises(ZeroDivisionError), tsallis.backend("auto"):
            raise ZeroDivisionError
        assert choice.request() == "eager"
        with outer:  # the same context manager again
            assert choice.request() == "eager"
        assert choice.request() == "eager"
    assert choice.request() == "auto"


@pytest.mark.parametrize("name", ["gpu", "", "Eager"])
def test_unknown_backend_error_lists_the_available_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = f"{', '.join(('auto', *registry.BACKENDS))}, got '{name}'"
    with pytest.raises(ValueError, match=listed):
        tsallis.backend(name)
    if name:
        monkeypatch.setenv(choice.VARIABLE, name)
        with pytest.raises(InputError, match=f"TSALLIS_BACKEND must be one of {listed}"):
            tsallis.sparsemax(torch.zeros(3))


def test_backend_context_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.VARIABLE, "eager")
    assert choice.request() == "eager"
    with tsallis.backend("auto"):
        assert choice.request() == "auto"
    monkeypatch.setenv(choice.VARIABLE, "")
    assert choice.request() == "auto"


def test_auto_is_eager_and_cpu_raises_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "status", lambda: cpu.Status(False, "not compiled: no compiler"))
    monkeypatch.setattr(cpu, "run", refuse)
    with pytest.raises(RuntimeError, match="backend 'cpu' can't be used: not compiled: no compiler"):
        tsallis.backend("cpu")
    z = torch.randn(2, 5, requires_grad=True)
    tsallis.entmax15(z).square().sum().backward()
    assert choice.explain() == "eager (not compiled: no compiler)"
    monkeypatch.setenv(choice.VARIABLE, "cpu")
    with pytest.raises(InputError, match="TSALLIS_BACKEND 'cpu' can't be used"):
        tsallis.entmax15(z)


@needs_kernel
def test_explain_reports_backend_and_instruction_set() -> None:
    assert choice.explain() == f"cpu ({cpu.status().reason})"
    assert cpu.status().instructions in choice.explain()
    with tsallis.backend("eager"):
        assert choice.explain() == "eager (requested)"


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_kernels_are_used_unless_eager_is_requested(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    z, y = torch.randn(3, 7, dtype=dtype), torch.tensor([0, 1, 2])
    with tsallis.backend("eager"), monkeypatch.context() as patch:
        patch.setattr(cpu, "run", refuse)
        probs, loss = tsallis.entmax(z, 1.3), tsallis.entmax_loss(z, y, 1.3)
    monkeypatch.setattr(eager, "entmax", refuse)
    monkeypatch.setattr(eager, "entmax_loss", refuse)
    for name in ("auto", "cpu"):
        with tsallis.backend(name):
            torch.testing.assert_close(tsallis.entmax(z, 1.3), probs)
            torch.testing.assert_close(tsallis.entmax_loss(z, y, 1.3), loss)
            torch.testing.assert_close(tsallis.entmax(z.T, 1.3, dim=0).T, probs)


@needs_kernel
def test_backward_uses_the_backend_of_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.tensor([0, 1, 2])

    def forward(name: str) -> tuple[Tensor, Tensor]:
        z = torch.linspace(-1, 1, 1500).view(3, 500).requires_grad_()
        with tsallis.backend(name):
            return z, tsallis.entmax(z, 1.5).square().sum() + tsallis.entmax_loss(z, y, 1.3)

    by_eager, by_kernel = forward("eager"), forward("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "run", refuse)
        by_eager[1].backward()
    with monkeypatch.context() as patch, tsallis.backend("eager"):
        patch.setattr(maps, "pullback", refuse)
        patch.setattr(maps, "pullback_in_place", refuse)
        by_kernel[1].backward()
    torch.testing.assert_close(by_eager[0].grad, by_kernel[0].grad)


def test_unusable_triton_raises_with_the_reason() -> None:
    code = "import tsallis; tsallis.backend('triton')"
    hidden = "import sys; sys.modules['triton'] = None; " + code
    missing = python(hidden)
    assert "RuntimeError: backend 'triton' can't be used: Triton can't be imported" in missing.stderr
    if not torch.cuda.is_available():
        pytest.importorskip("triton")
        done = python(code, TRITON_INTERPRET="0")
        assert "RuntimeError: backend 'triton' can't be used: no GPU that PyTorch can use" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs no-gpu: there is one")
def test_triton_interpreter_computes_on_the_cpu() -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    code = """
import sys, torch, tsallis
from tsallis.ops import choice, cpu, eager, registry
from tsallis.ops.eager import maps
z, y = torch.randn(2, 9, requires_grad=True), torch.tensor([1, 2])
alpha = torch.tensor([[1.2], [2.0]], requires_grad=True)
with tsallis.backend("eager"):
    right = tsallis.entmax(z, 1.5), tsallis.entmax(z, alpha, -1), tsallis.entmax_loss(z, y)
    grads = [torch.autograd.grad(x.square().sum(), z) for x in right]
def refuse(*_, **__): raise AssertionError("another backend was called")
assert "tsallis.ops.triton" not in sys.modules
cpu.run = eager.entmax = eager.entmax_loss = maps.pullback = maps.pullback_in_place = refuse
with tsallis.backend("triton"):
    assert choice.explain() == "triton (Triton's interpreter)", choice.explain()
    actual = tsallis.entmax(z, 1.5), tsallis.entmax(z, alpha, -1), tsallis.entmax_loss(z, y)
    assert choice.choose("maps", 1.5, z) is registry.load("triton")
    assert choice.choose("maps", 1.5, z.double()) is eager and choice.choose("maps", 2.5, z) is eager
for a, b, grad in zip(actual, right, grads):
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(torch.autograd.grad(a.square().sum(), z), grad)
"""
    done = python(code, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


def test_triton_kernels_are_not_imported_without_a_gpu() -> None:
    code = (
        "import sys, torch, tsallis; from tsallis.ops import choice\n"
        "tsallis.sparsemax(torch.zeros(3)); choice.explain()\n"
        "print(choice.explain_gpu())\n"
        "print([name for name in sys.modules if name.startswith(('tsallis.ops.triton', 'tsallis.toolkit'))])"
    )
    if not torch.cuda.is_available():
        assert python(code).stdout.splitlines() == ["none (PyTorch finds no GPU)", "[]"]


TRY = (
    "import torch, tsallis; from tsallis.ops import choice, cpu; print(cpu.status().available);"
    "print(tsallis.sparsemax(torch.tensor([1.0, 0.5, -1.0])).tolist()); print(choice.explain())"
)


@pytest.mark.parametrize("kind", ["nothing", "text", "another library"])
def test_invalid_kernel_files_fall_back_to_eager(tmp_path: Path, kind: str) -> None:
    path, reason = tmp_path / "kernel.so", "kernel.so can't be loaded"
    if kind == "text":
        path.write_text("not a library")
    elif kind == "another library":
        shutil.copy(torch._C.__file__, path)
    else:
        reason = "not compiled"
    done = python(TRY, TSALLIS_KERNEL_PATH=str(path))
    assert done.returncode == 0, done.stderr
    available, values, explained = done.stdout.splitlines()
    assert available == "False" and values == "[0.75, 0.25, 0.0]"
    assert explained.startswith(f"eager ({reason}")


@pytest.mark.slow
def test_missing_kernels_warn_once_if_they_would_be_used(tmp_path: Path) -> None:
    code = "import torch, tsallis\nz = torch.zeros(3)\n"
    path = str(tmp_path / "kernel.so")
    words = "it can't use its compiled kernels: not compiled"
    for rest, environment, times in (
        ("tsallis.entmax(z, 2.5)", {}, 0),  # alphas above 2 never use the kernels
        ("for _ in range(3): tsallis.sparsemax(z)\ntsallis.entmax_loss(z, torch.tensor(1))", {}, 1),
        ("tsallis.entmax_attention(z.view(1, 1, 3), z.view(1, 1, 3), z.view(1, 1, 3))", {}, 1),
        ("tsallis.sparsemax(z)", {choice.VARIABLE: "eager"}, 0),
        ("with tsallis.backend('eager'): tsallis.sparsemax(z)", {}, 0),
    ):
        done = python(code + rest, TSALLIS_KERNEL_PATH=path, **environment)
        assert done.returncode == 0 and done.stderr.count(words) == times, done.stderr
    (tmp_path / "_no_kernel.txt").write_text("left out of this installation, as TSALLIS_KERNEL=0 asked\n")
    code += "tsallis.sparsemax(z)\nfrom tsallis.ops import choice; print(choice.explain())"
    done = python(code, TSALLIS_KERNEL_PATH=path)
    assert done.stdout == "eager (left out of this installation, as TSALLIS_KERNEL=0 asked)\n" and not done.stderr


@needs_kernel
def test_kernel_built_from_other_sources_is_not_used(tmp_path: Path) -> None:
    root = tmp_path / "tsallis"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__"))
    same = python(TRY, root=tmp_path, TSALLIS_KERNEL_PATH=cpu.status().path)
    assert same.stdout.splitlines()[0] == "True", same.stderr
    source = root / "ops" / "cpu" / "csrc" / "threshold.h"
    source.write_text(source.read_text() + "\n")
    done = python(TRY, root=tmp_path, TSALLIS_KERNEL_PATH=cpu.status().path)
    available, values, explained = done.stdout.splitlines()
    assert available == "False" and values == "[0.75, 0.25, 0.0]"
    assert "is older than its sources" in explained


def tensors_saved_by(compute: object) -> list[Tensor]:
    """Return the tensors that autograd keeps for backward, one per storage."""
    saved: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        saved[x.data_ptr()] = x
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        compute()  # type: ignore[operator]
    return list(saved.values())


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_maps_save_only_their_output_for_backward(dtype: torch.dtype, dim: int) -> None:
    z = torch.randn(40, 500).to(dtype).requires_grad_()
    rows = 500 if dim == 0 else 40
    with tsallis.backend("cpu"):
        (saved,) = tensors_saved_by(lambda: tsallis.entmax(z, 1.3, dim))
        assert saved.dtype == dtype and saved.numel() == z.numel()
        alpha = torch.full((1, 500) if dim == 0 else (40, 1), 1.3, requires_grad=True)
        many = tensors_saved_by(lambda: tsallis.entmax(z, alpha, dim))
    assert sum(x.nbytes for x in many) == z.nbytes + 4 * rows


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_save_scores_and_per_row_statistics(dtype: torch.dtype) -> None:
    z = torch.randn(40, 500).to(dtype).requires_grad_()
    y = torch.arange(40)
    with tsallis.backend("cpu"):
        saved = tensors_saved_by(lambda: tsallis.entmax_loss(z, y, 1.3, reduction="sum"))
    assert any(x.data_ptr() == z.data_ptr() for x in saved)
    rest = sum(x.nbytes for x in saved if x.data_ptr() != z.data_ptr())
    assert rest == 40 * (8 + 4 * cpu.STATS)  # the target and the statistics


@needs_kernel
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs proc: a process's memory is read from it")
def test_repeated_steps_do_not_leak_memory() -> None:
    code = """
import torch, tsallis
z = torch.randn(300, 700, requires_grad=True)
alpha = torch.rand(300, 1).add(1).requires_grad_()
y = torch.randint(700, (300,))
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
for step in range(100):
    if step == 20:
        before = resident()
    tsallis.entmax(z, 1.3).square().sum().backward()
    tsallis.entmax(z, alpha, dim=-1).square().sum().backward()
    tsallis.entmax(z.bfloat16(), 1.5, dim=0).float().square().sum().backward()
    tsallis.entmax_loss(z, y, alpha).backward()
print(resident() - before)
"""
    done = python(code, TSALLIS_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    # Leaking a score matrix per step would add 65 MB; allocators alone cause changes of up to 5 MB.
    assert int(done.stdout) < 15e6


@needs_kernel
def test_beams_fall_back_if_a_backend_rejects_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check beams on the CPU with a backend that rejects CPU tensors, like Triton with a GPU."""

    def on_device(kind: str) -> bool:
        raise RuntimeError("needs tensors on a GPU")

    can = eager.CAPABILITIES._replace(operations=("maps",))
    chosen = SimpleNamespace(CAPABILITIES=can, status=cpu.status, usable=lambda: True, on_device=on_device)
    monkeypatch.setattr(choice, "load", lambda name: chosen)
    with tsallis.backend("triton"):
        assert choice.choose_beams(10).__name__ == "tsallis.ops.eager.beams"
