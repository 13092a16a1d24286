"""A file imports only from its own part and from the layers below it."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tsallis
from layers import HEIGHT, LIBRARY, TOOLKIT
from repository_tools import load_program

ROOT = Path(tsallis.__file__).parent
# The front of the package: it exposes the core, and other files import only its version.
FRONT = {"__init__", "__main__"}
FILES = sorted(ROOT.rglob("*.py"))


def part(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[parts[0] == "toolkit"]


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1 + (parts[1] == "toolkit")]


every_part = pytest.mark.parametrize("own", sorted({part(path) for path in FILES}))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything from this package that a file imports, also inside functions."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tsallis":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "tsallis":
                yield from ((node.lineno, f"tsallis.{alias.name}") for alias in node.names)
            elif module.startswith("tsallis."):
                yield node.lineno, module


def test_every_part_has_a_layer() -> None:
    assert {part(path) for path in FILES} - FRONT == set(HEIGHT)


def test_the_library_lies_below_the_toolkit() -> None:
    """No import leads from the library to the toolkit, not even for types."""
    heights = [{HEIGHT[part] for layer in layers for part in layer} for layers in (LIBRARY, TOOLKIT)]
    assert max(heights[0]) < min(heights[1])


@every_part
def test_parts_import_only_from_lower_layers(own: str) -> None:
    lines = [(f"{path}:{line}", name) for path in FILES if part(path) == own for line, name in imports(path)]
    if own in FRONT:
        allowed = {"compat", "continuous", "distributions", "functional", "nn"} if own == "__init__" else {"cli"}
        assert {part_of(name) for _, name in lines} <= allowed
        return
    for line, name in lines:
        if name == "tsallis":
            assert own in ("cli", "serve"), f"{line}: imports the package's front"
            continue
        other = part_of(name)
        assert other in HEIGHT, f"{line}: {name} belongs to no layer"
        assert other == own or HEIGHT[other] < HEIGHT[own], f"{line}: {own} may not import {name}"


@every_part
def test_only_top_layers_import_pydantic_and_typer(own: str) -> None:
    """`training/schema.py` is an exception: it reads the settings in a run folder, which are of another kind."""
    if own in ("config", "tasks", "serve", "cli"):
        return
    for path in FILES:
        if part(path) == own and path != ROOT / "toolkit" / "training" / "schema.py":
            assert not packages(path) & {"pydantic", "typer"}, path


def test_modules_have_no_circular_imports() -> None:
    """Imports for type checks and inside functions also count."""
    size = load_program("tools/size")
    sources = [size.Source(path, ROOT.parent) for path in FILES]
    modules = {source.module for source in sources}
    graph = {source.module: {other for _, other in source.imports(modules)} - {source.module} for source in sources}
    assert any(graph.values()) and size.find_circles(graph) == []


def packages(path: Path) -> set[str]:
    """Return the top-level packages that a file imports."""
    nodes = nodes_of(path)
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("layer", ["ops", "functional", "continuous", "nn", "distributions", "compat"])
def test_the_core_imports_only_torch(layer: str) -> None:
    files = [p for p in FILES if part(p) == layer]
    assert files
    for path in files:
        others = {"torch", "tsallis"} | ({"triton"} if path.as_posix().endswith("ops/triton/language.py") else set())
        assert not packages(path) - others - sys.stdlib_module_names, path
