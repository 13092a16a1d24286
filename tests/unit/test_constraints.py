"""constraints.txt fits what the public index has, for every supported Python, and `make` installs with it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
INDEX = "https://index.invalid/cpu"
# torch names their versions, and no other build of it needs them.
CUDA = ("cuda-", "nvidia-")


@pytest.fixture(scope="module")
def registry() -> None:
    """Skip where packages cannot be looked up. `uv` resolves for a Python that is not installed; pip cannot."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv: of the extra dev")
    known = _resolve("six==1.17.0", "--no-deps")
    if known.returncode:
        pytest.skip(f"needs network: to ask a package index; {known.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("python", PYTHONS)
def test_every_extra_installs_with_the_constraints(python: str) -> None:
    """Of torch's builds the public index's is asked about, whichever one this machine has."""
    done = _resolve(
        "torch\n",
        str(ROOT / "pyproject.toml"),
        "--all-extras",
        "--only-binary=:all:",
        f"--constraints={ROOT / 'constraints.txt'}",
        f"--python-version={python}",
        "--python-platform=linux",
    )
    assert done.returncode == 0, done.stderr
    names = {_normal(line.split("==")[0]) for line in done.stdout.splitlines()}
    assert {"torch", "triton", "sphinx", "pytest"} <= names
    assert {name for name in names - _pinned() if not name.startswith(CUDA)} == set()


def test_each_constraint_names_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.match(r'[\w.-]+==[\w.]+(; \w+ (==|<|>=) "[\w.]+")?( #|$)', pin)] == []
    assert [pin for pin in pins if _normal(pin).startswith(CUDA)] == []


@pytest.mark.parametrize("index", ["", INDEX])
def test_the_index_for_torch_is_asked_for_torch_alone(tmp_path: Path, index: str) -> None:
    command = ["make", "--dry-run", "test", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    done = subprocess.run([*command, f"TORCH_INDEX={index}"], cwd=ROOT, capture_output=True, text=True, check=True)
    installs = [line.split(" install --quiet ")[1] for line in done.stdout.splitlines() if " install --quiet " in line]
    assert installs == [f"--extra-index-url {INDEX} torch" if index else "torch", '--editable ".[dev]"']


def _resolve(requirement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `uv` would install, for requirements on its standard input; nothing is."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", *arguments]
    quiet = ("--no-config", "--quiet", "--no-header", "--no-annotate", f"--python={sys.executable}")
    return subprocess.run([*command, *quiet], input=requirement, cwd=ROOT, capture_output=True, text=True, timeout=300)


def _pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_normal(line.split("==")[0]) for line in lines if "==" in line and not line.startswith("#")}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()
