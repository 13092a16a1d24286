"""Importing stays cheap: the core brings torch alone, and the command's help doesn't bring even that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tsallis

TOOLKIT = ("pydantic", "typer", "yaml", "rich", "safetensors", "entmax", "scipy")


def modules_after(statement: str) -> set[str]:
    """Top-level modules a fresh interpreter has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(tsallis.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


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
