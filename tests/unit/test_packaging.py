"""What an installation brings along, and what the files around the package say."""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path

import pytest

import tsallis

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(tsallis.__file__).parent


@pytest.fixture(scope="module")
def project() -> dict:
    if sys.version_info < (3, 11):
        pytest.skip("needs tomllib of Python 3.11")
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_data_files_are_found_through_the_package() -> None:
    package = resources.files("tsallis")
    assert package.joinpath("py.typed").is_file()
    verbs = package.joinpath("data/embedded/english_verbs.tsv").read_text(encoding="utf-8")
    assert verbs.count("\n") > 2000
    assert package.joinpath("recipes/demo.yaml").is_file()


def test_ignored_paths_leave_the_package_whole() -> None:
    """The build obeys .gitignore: an unanchored `data/` there would empty `tsallis.data`."""
    patterns = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    folders = {p.name for p in SOURCE.rglob("*") if p.is_dir()} - {"__pycache__"}
    assert not folders & {p.rstrip("/") for p in patterns}


def test_versions_agree(project: dict) -> None:
    assert project["project"]["version"] == tsallis.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(tsallis.__version__)}$", citation, re.MULTILINE)
    assert f"## {tsallis.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_core_depends_on_torch_alone(project: dict) -> None:
    assert [re.split(r"[><=]", d)[0] for d in project["project"]["dependencies"]] == ["torch"]


def test_every_dependency_is_pinned(project: dict) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {_normal(line.split("==")[0]) for line in lines if "==" in line}
    extras = project["project"]["optional-dependencies"].values()
    wanted = {_normal(re.split(r"[\[><=]", d)[0]) for extra in extras for d in extra} - {"tsallis"}
    assert wanted | {"torch"} <= pinned


def test_the_citation_names_the_four_papers() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == "Apache-2.0"
    papers = {(paper["authors"][0]["family-names"], paper["year"]) for paper in citation["references"]}
    assert papers == {("Peters", 2019), ("Correia", 2019), ("Martins", 2020), ("Tezekbayev", 2022)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().strip()
