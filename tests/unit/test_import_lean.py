"""Importing stays cheap: the core loads only torch, without its compiler, and the command's help not even torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tsallis
from layers import TORCH_ALONE

pytestmark = pytest.mark.process

TOOLKIT = ("pydantic", "typer", "yaml", "rich", "safetensors", "entmax", "scipy")
PATHS = (Path(tsallis.__file__).parents[1], Path(__file__).parents[1])
COMPILER = {"torch._dynamo", "torch._inductor", "sympy", "triton"}  # only compiling needs them (one second and 75 MB)

LIBRARY = sorted(TORCH_ALONE)
EXTRAS = (*TOOLKIT, "numpy", "sentencepiece", "sacrebleu", "jinja2", "matplotlib", "starlette", "uvicorn", "PIL")
BLOCK = (
    f"for name in {(*EXTRAS, 'transformers', 'tensorboard')}: sys.modules[name] = None\n"
    "import warnings; warnings.simplefilter('ignore')\n"  # PyTorch's warning about numpy
)
# Run each statement of a list in a fork of one interpreter, and print the modules that are loaded afterwards.
SERVER = """
import json, os, sys
{before}
for statement in json.loads(sys.stdin.read()):
    child = os.fork()
    if not child:
        exec(statement, {{"sys": sys}})
        print(*sys.modules, flush=True)
        os._exit(0)
    assert not os.waitpid(child, 0)[1], statement
"""


def run(code: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
    return subprocess.run([sys.executable, "-c", code], input=stdin, capture_output=True, text=True, env=environment)


def modules_after(*statements: str, before: str = "") -> list[frozenset[str]]:
    """Return the modules that are loaded after each statement, each run separately after the same beginning."""
    done = run(SERVER.format(before=before), json.dumps(statements))
    assert done.returncode == 0, done.stderr
    loaded = [frozenset(line.split()) for line in done.stdout.splitlines() if line.startswith("sys ")]
    assert len(loaded) == len(statements), done.stdout
    return loaded


def test_the_library_imports_with_only_torch_installed() -> None:
    """PyTorch also works without numpy, and so must models and searches."""
    statements = [
        f"import tsallis.{package} as library\nfor name in getattr(library, '__all__', ()): getattr(library, name)"
        for package in LIBRARY
    ]
    for package, loaded in zip(LIBRARY, modules_after(*statements, before=f"{BLOCK}import torch"), strict=True):
        assert f"tsallis.{package}" in loaded


# One call of each public function on each backend, with gradients if it has any.
FIRST_CALLS = """
import torch, tsallis
from contract.maps import FUNCTIONS
scores, weight = torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
target, probs = torch.tensor([0, 1, 2, 3]), torch.full((4, 6), 1 / 6, requires_grad=True)
heads = torch.randn(1, 2, 4, 8, requires_grad=True)
alpha = torch.full((4, 1), 1.3, requires_grad=True)
calls = {
    "SparseRows": lambda f: f.from_dense(probs).probs,
    "alpha_relu": lambda f: f(scores),
    "alpha_relu_loss": lambda f: f(scores, target),
    **{name: lambda _, m=m: m.ours(scores) for name, m in FUNCTIONS.items()},
    "entmax": lambda f: f(scores, alpha),
    "entmax_attention": lambda f: f(heads, heads, heads),
    "entmax_loss": lambda f: f(scores, target),
    "escort": lambda f: f(probs, 2.0),
    "estimate_tau": lambda f: torch.tensor(f(8, 6)),
    "estimate_tau_from_scores": lambda f: torch.tensor(f(scores.detach())),
    "linear_alpha_relu_loss": lambda f: f(scores, weight, target),
    "linear_entmax_loss": lambda f: f(scores, weight, target),
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


EVERY_NAME = "import tsallis\nfor name in tsallis.__all__: getattr(tsallis, name)"
SUBMODULES = ("compat", "continuous", "distributions", "nn")


def test_the_core_loads_only_torch_and_starts_no_device() -> None:
    """Try each public module alone, because another one could have imported it."""
    modules = [f"import tsallis\nassert tsallis.{name}.__name__ == 'tsallis.{name}'" for name in SUBMODULES]
    no_device = "import torch, tsallis\ntsallis.entmax\nassert not torch.cuda.is_initialized()"
    imports = [EVERY_NAME, *modules, no_device]
    bare, *loaded = modules_after("import torch", *imports, FIRST_CALLS, FIRST_DENSITY, before="import torch")
    for statement, names in zip(imports, loaded, strict=False):
        # torch itself may load these; only additional modules count.
        assert not (names - bare) & {*TOOLKIT}, statement
    assert not (loaded[0] | loaded[-2]) & COMPILER
    assert not loaded[-1] & COMPILER - {"sympy"}  # torch.broadcast_shapes, which all densities need, loads sympy


def test_help_does_not_load_torch() -> None:
    pytest.importorskip("typer")
    (loaded,) = modules_after(
        "sys.argv = ['tsallis', '--help']\n"
        "from tsallis.toolkit.cli import main\n"
        "try:\n    main()\nexcept SystemExit as leave:\n    assert not leave.code"
    )
    assert "typer" in loaded
    assert "torch" not in loaded and "pydantic" not in loaded


def test_tasks_do_not_load_the_list_of_data_sets() -> None:
    pytest.importorskip("pydantic")
    (loaded,) = modules_after("import tsallis.toolkit.tasks.registry")
    assert "tsallis.toolkit.datasets.embedded" in loaded and "tsallis.toolkit.datasets.registry" not in loaded


def test_the_command_without_the_toolkit_names_the_extra() -> None:
    done = run("import sys; sys.modules['typer'] = None; import tsallis.toolkit.cli")
    assert done.returncode == 2 and "tsallis[toolkit]" in done.stderr
