"""The table of dependencies in CONTRIBUTING.md is correct, and their licences are permissive."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXTRAS = ("toolkit", "serve", "vision", "tensorboard", "hf")  # extras for users
# Licence names in the metadata of packages, and their SPDX identifiers.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF",
}
PERMISSIVE = {"0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python"}
PERMISSIVE |= {"ISC", "LLVM-exception", "MIT", "MIT-CMU", "PSF", "PSF-2.0", "Zlib"}
FILE_COPYLEFT = {"tqdm": "MPL-2.0"}  # only for its own files


def table() -> dict[str, list[str]]:
    rows = re.findall(r"^\| ([a-z0-9]+) \| (.*) \|$", PAGE, re.M)
    return {
        name: [cell.strip() for cell in cells.split(" | ")]
        for name, cells in rows
        if cells.count(" | ") == 4 and name != "package"
    }


def direct() -> Iterator[tuple[str, str, str]]:
    """Yield extra, name and minimum version of every direct dependency in `pyproject.toml`."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"core": project["dependencies"], **{name: project["optional-dependencies"][name] for name in EXTRAS}}
    for extra, requirements in extras.items():
        for requirement in requirements:
            name, _, least = requirement.partition(">=")
            yield extra, name, least


def licences(package: importlib.metadata.Distribution) -> set[str]:
    """Return the licences in a package's metadata: an expression, classifiers or a word."""
    metadata = package.metadata
    named = metadata.get("License-Expression")
    classes = metadata.get_all("Classifier") or ()
    classes = [c.rpartition("::")[2].strip() for c in classes if c.startswith("License ::")]
    named = named or ", ".join(c for c in classes if c != "OSI Approved") or metadata.get("License") or "none"
    return {SPDX.get(part, part) for part in re.split(r", | AND | OR | WITH ", named)}


def closure(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return the installed packages of these names, and all their dependencies without extras."""
    from packaging.requirements import Requirement

    packages: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in packages:
            continue
        packages[name] = importlib.metadata.distribution(name)
        needs = map(Requirement, packages[name].requires or ())
        names += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return packages


def test_the_table_has_every_direct_dependency() -> None:
    rows = table()
    assert len(rows) > 10
    assert {name: (row[0], row[3]) for name, row in rows.items()} == {n: (e, v) for e, n, v in direct()}


def test_the_table_has_the_pinned_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    pins = dict(line.split(";")[0].strip().split("==") for line in reversed(lines) if "==" in line and line[0] != "#")
    assert {name: row[4] for name, row in table().items()} == {name: pins[name] for name in table()}


def test_the_table_matches_the_licences_in_package_metadata() -> None:
    for name, row in table().items():
        stated = licences(importlib.metadata.distribution(name))
        licence, _, others = row[2].partition(" and ")
        assert licence in stated and bool(others) == (len(stated) > 1), (name, row[2], stated)


def test_every_licence_is_permissive() -> None:
    packages = closure([name for _, name, _ in direct()])
    assert len(packages) > 40
    others = {name: licences(package) - PERMISSIVE for name, package in packages.items()}
    assert {name: ", ".join(some) for name, some in others.items() if some} == FILE_COPYLEFT


PYTHONS = ("3.10", "3.11", "3.12", "3.13")
INDEX = "https://index.invalid/cpu"
# torch fixes the versions of these packages, and only its CUDA builds need them.
CUDA = ("cuda-", "nvidia-")


@pytest.fixture(scope="module")
def registry() -> None:
    """Skip if no package index is available. `uv` resolves for a Python that is not installed; pip cannot."""
    if importlib.util.find_spec("uv") is None:
        pytest.skip("needs uv: of the extra dev")
    known = _resolve("six==1.17.0", "--no-deps")
    if known.returncode:
        pytest.skip(f"needs network: to ask a package index; {known.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("python", PYTHONS)
def test_every_extra_installs_with_the_constraints(python: str) -> None:
    """Resolve the torch of the public index, regardless of the build on this machine."""
    target = (f"--python-version={python}", "--python-platform=linux", "--only-binary=:all:")
    packages = (str(ROOT / "pyproject.toml"), "--all-extras", f"--constraints={ROOT / 'constraints.txt'}")
    done = _resolve("torch\n", *packages, *target)
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
def test_the_torch_index_is_used_only_for_torch(tmp_path: Path, index: str) -> None:
    command = ["make", "--dry-run", "test", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    done = subprocess.run([*command, f"TORCH_INDEX={index}"], cwd=ROOT, capture_output=True, text=True, check=True)
    installs = [line.split(" install --quiet ")[1] for line in done.stdout.splitlines() if " install --quiet " in line]
    assert installs == [f"--extra-index-url {INDEX} torch" if index else "torch", '--editable ".[dev]"']


def _resolve(requirement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Resolve requirements from standard input with `uv`, without installing them."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", *arguments]
    quiet = ("--no-config", "--quiet", "--no-header", "--no-annotate", f"--python={sys.executable}")
    return subprocess.run([*command, *quiet], input=requirement, cwd=ROOT, capture_output=True, text=True, timeout=300)


def _pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {_normal(line.split("==")[0]) for line in lines if "==" in line and not line.startswith("#")}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()


def test_the_environment_is_made_before_a_hook_uses_it() -> None:
    yaml = pytest.importorskip("yaml")
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    first, *others = local["hooks"]
    assert first["entry"] == "make tools VENV=.venv"
    assert first["always_run"] and first["fail_fast"]
    tools = [hook["entry"].split()[0] for hook in others]
    assert tools == [f".venv/bin/{name}" for name in ("ruff", "ruff", "clang-format", "mypy")]


def test_missing_tools_are_installed(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "tools", f"VENV={tmp_path}", f"PYTHON={sys.executable}"]
    missing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{sys.executable} -m venv {tmp_path}" in missing and '".[dev]"' in missing
    (tmp_path / "bin").mkdir()
    for tool in ("ruff", "clang-format"):
        (tmp_path / "bin" / tool).touch()
    there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip" not in there
