"""Importing stays cheap: the core brings torch alone, without its compiler, and the command's help not even that."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tsallis

pytestmark = pytest.mark.process

TOOLKIT = ("pydantic", "typer", "yaml", "rich", "safetensors", "entmax", "scipy")
COMPILER = {"torch._dynamo", "torch._inductor", "sympy", "triton"}  # a second and 75 MB that only compiling needs


@functools.cache
def modules_after(statement: str) -> frozenset[str]:
    """Modules a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return frozenset(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement", ["import tsallis; tsallis.entmax", "from tsallis import nn", "import tsallis.compat", "import tsallis"]
)
def test_the_core_brings_torch_alone(statement: str) -> None:
    loaded = modules_after(statement)
    if statement == "import tsallis":
        loaded |= modules_after("import tsallis\nfor name in tsallis.__all__: getattr(tsallis, name)")
    assert "torch" in loaded
    # torch itself may load these; only what comes on top of it counts.
    assert not (loaded - modules_after("import torch")) & set(TOOLKIT)


LIBRARY = ("functional", "nn", "continuous", "distributions", "compat", "models", "search")
EXTRAS = (*TOOLKIT, "numpy", "sentencepiece", "sacrebleu", "jinja2", "matplotlib", "starlette", "uvicorn", "PIL")


@pytest.mark.parametrize("package", LIBRARY)
def test_the_library_needs_torch_alone(package: str) -> None:
    """PyTorch works without numpy, too, and so does everything that models and searches are made of."""
    loaded = modules_after(
        f"for name in {(*EXTRAS, 'transformers', 'tensorboard')}: sys.modules[name] = None\n"
        "import warnings; warnings.simplefilter('ignore')\n"  # PyTorch's, of numpy
        f"import tsallis.{package} as library\n"
        "for name in getattr(library, '__all__', ()): getattr(library, name)"
    )
    assert f"tsallis.{package}" in loaded


def test_the_public_modules_need_no_import_of_their_own() -> None:
    """Each in its own process: a name that was used before may have brought it along."""
    modules_after(
        "import os, tsallis\n"
        "for name in ('compat', 'continuous', 'distributions', 'nn'):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        known = f'tsallis.{name}' in sys.modules or getattr(tsallis, name).__name__ != f'tsallis.{name}'\n"
        "        os._exit(known)\n"
        "    assert not os.waitpid(child, 0)[1], name"
    )


# One call of each public function by each backend, with the gradients of what has some.
FIRST_CALLS = """
import torch, tsallis
scores, weight = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
target, probs = torch.tensor([0, 1, 2, 3]), torch.full((4, 6), 1 / 6, requires_grad=True)
heads = torch.randn(1, 2, 4, 8, requires_grad=True)
alpha = torch.full((4, 1), 1.3, requires_grad=True)
calls = {
    "alpha_relu": lambda f: f(scores),
    "alpha_relu_loss": lambda f: f(scores, target),
    "budgeted_entmax": lambda f: f(scores),
    "entmax": lambda f: f(scores, alpha),
    "entmax15": lambda f: f(scores),
    "entmax_attention": lambda f: f(heads, heads, heads),
    "entmax_loss": lambda f: f(scores, target),
    "escort": lambda f: f(probs, 2.0),
    "estimate_tau": lambda f: torch.tensor(f(8, 6)),
    "estimate_tau_from_scores": lambda f: torch.tensor(f(scores.detach())),
    "linear_alpha_relu_loss": lambda f: f(scores, weight, target),
    "linear_entmax_loss": lambda f: f(scores, weight, target),
    "normmax": lambda f: f(scores),
    "sparsemax": lambda f: f(scores),
    "tsallis_entropy": lambda f: f(probs, 1.5),
}
modules = {"compat", "continuous", "distributions", "nn"}
assert {*calls, *modules, "backend"} == {*tsallis.__all__}, {*tsallis.__all__} ^ {*calls, *modules, "backend"}
for name, call in calls.items():
    for backend in ("auto", "eager"):
        with tsallis.backend(backend):
            result = call(getattr(tsallis, name))
        if result.requires_grad:
            result.square().sum().backward()
rows = torch.randn(2, 5, 8)
tsallis.nn.MultiheadAttention(8, 2)(rows, rows, rows)[0].sum().backward()
tsallis.distributions.EntmaxCategorical(scores.detach(), 1.5).sample()
tsallis.compat.entmax15(scores).square().sum().backward()
"""
FIRST_DENSITY = """
import torch, tsallis
rows = torch.randn(2, 5, 8)
tsallis.nn.ContinuousAttention1d(8, 2)(rows[:, 0], rows)[0].sum().backward()
"""


@pytest.mark.parametrize(
    ("statement", "spared"),
    [
        ("import tsallis\nfor name in tsallis.__all__: getattr(tsallis, name)", COMPILER),
        (FIRST_CALLS, COMPILER),
        (FIRST_DENSITY, COMPILER - {"sympy"}),  # torch.broadcast_shapes, which all densities need, loads that
    ],
    ids=["import", "calls", "density"],
)
def test_nothing_but_compiling_loads_the_compiler(statement: str, spared: set[str]) -> None:
    assert not modules_after(statement) & spared


def test_help_does_not_load_torch() -> None:
    pytest.importorskip("typer")
    loaded = modules_after(
        "sys.argv = ['tsallis', '--help']\n"
        "from tsallis.cli import main\n"
        "try:\n    main()\nexcept SystemExit as leave:\n    assert not leave.code"
    )
    assert "typer" in loaded
    assert "torch" not in loaded and "pydantic" not in loaded


def test_importing_starts_no_device() -> None:
    modules_after("import torch, tsallis\ntsallis.entmax\nassert not torch.cuda.is_initialized()")


def test_without_the_toolkit_the_command_says_what_it_needs() -> None:
    code = "import sys; sys.modules['typer'] = None; import tsallis.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "tsallis[toolkit]" in done.stderr
