"""The public names are those of the list, and importing a module brings each of them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import tsallis
from public_names import PUBLIC_NAMES
from public_signatures import FILE, lines

ROOT = Path(tsallis.__file__).parent
TOOLKIT = ("analysis", "data", "datasets", "evaluation", "models", "report", "search", "tasks", "training")


def names_of(path: Path) -> list[str] | None:
    """Return what a file writes into `__all__`, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def test_every_module_with_public_names_is_in_the_list() -> None:
    files = [ROOT / "__init__.py", *ROOT.glob("*/__init__.py"), *ROOT.glob("*.py")]
    files += [*ROOT.glob("integrations/*/*.py"), ROOT / "report" / "page.py"]
    modules = {
        ".".join(["tsallis", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        for path in files
        if names_of(path) is not None
    }
    assert modules == set(PUBLIC_NAMES)


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names(module: str) -> None:
    if module.split(".")[-1] in (*TOOLKIT, "recording", "page"):
        pytest.importorskip("numpy")
    if "huggingface" in module.split("."):
        pytest.importorskip("transformers")
    public = importlib.import_module(module)
    assert sorted(public.__all__) == PUBLIC_NAMES[module]
    assert [name for name in public.__all__ if not hasattr(public, name)] == []
    assert set(public.__all__) <= set(dir(public))


def test_functional_offers_what_the_package_offers() -> None:
    modules = {name for name in PUBLIC_NAMES["tsallis"] if f"tsallis.{name}" in PUBLIC_NAMES}
    assert set(PUBLIC_NAMES["tsallis"]) - modules == set(PUBLIC_NAMES["tsallis.functional"])


def test_signatures_of_the_core_are_those_of_the_file() -> None:
    """After a change that is meant: python tests/public_signatures.py."""
    recorded, current = FILE.read_text(encoding="utf-8").splitlines(), lines()
    assert [line for line in recorded if line not in current] == []  # what users call is gone, or called otherwise
    assert [line for line in current if line not in recorded] == []
    assert recorded == current
