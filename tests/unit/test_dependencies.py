"""The table of dependencies in CONTRIBUTING.md is true, and their licences are permissive."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXTRAS = ("toolkit", "serve", "vision", "tensorboard", "hf")  # those that a user installs
# In the words of packages' metadata; what they mean, if that is not said as SPDX does.
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
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "LLVM-exception",
    "MIT",
    "MIT-CMU",
    "PSF",
    "PSF-2.0",
    "Zlib",
}
FILE_COPYLEFT = {"tqdm": "MPL-2.0"}  # of its own files alone


def table() -> dict[str, list[str]]:
    rows = re.findall(r"^\| ([a-z0-9]+) \| (.*) \|$", PAGE, re.M)
    return {
        name: [cell.strip() for cell in cells.split(" | ")]
        for name, cells in rows
        if cells.count(" | ") == 4 and name != "package"
    }


def direct() -> Iterator[tuple[str, str, str]]:
    """Extra, name and least version of every direct dependency, as `pyproject.toml` has them."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"core": project["dependencies"], **{name: project["optional-dependencies"][name] for name in EXTRAS}}
    for extra, requirements in extras.items():
        for requirement in requirements:
            name, _, least = requirement.partition(">=")
            yield extra, name, least


def licences(package: importlib.metadata.Distribution) -> set[str]:
    """Return the licences that a package's metadata name: an expression, classifiers or a word."""
    metadata = package.metadata
    named = metadata.get("License-Expression")
    classes = [
        c.rpartition("::")[2].strip() for c in metadata.get_all("Classifier") or () if c.startswith("License ::")
    ]
    named = named or ", ".join(c for c in classes if c != "OSI Approved") or metadata.get("License") or "none"
    return {SPDX.get(part, part) for part in re.split(r", | AND | OR | WITH ", named)}


def closure(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return the installed packages of these names, and all that they depend on without an extra."""
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


def test_the_table_has_the_licences_that_packages_name() -> None:
    for name, row in table().items():
        stated = licences(importlib.metadata.distribution(name))
        licence, _, others = row[2].partition(" and ")
        assert licence in stated and bool(others) == (len(stated) > 1), (name, row[2], stated)


def test_every_licence_is_permissive() -> None:
    packages = closure([name for _, name, _ in direct()])
    assert len(packages) > 40
    others = {name: licences(package) - PERMISSIVE for name, package in packages.items()}
    assert {name: ", ".join(some) for name, some in others.items() if some} == FILE_COPYLEFT
