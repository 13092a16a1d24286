"""Print the size of the repository and the import dependencies of its parts.

    python tools/size.py [REPOSITORY]

Needs only Python. `REPOSITORY` is the root of a working tree; the default is the tree of this file.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

LONG_FUNCTION = 60  # lines
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A Python file: its text, its syntax tree and the name of its module."""

    def __init__(self, path: Path, root: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(root).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.module = ".".join(parts[:-1] if self.is_package else parts)

    def code_lines(self) -> int:
        """Return the number of lines, without blank lines, comments and docstrings."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        lines = [line.strip() for line in self.text.splitlines()]
        dropped = {number for number, line in enumerate(lines, start=1) if not line or line.startswith("#")}
        for node in ast.walk(self.tree):
            if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
                dropped.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        return len(lines) - len(dropped)

    def functions(self) -> Iterator[tuple[Function, int]]:
        """Yield each function with its number of lines, without decorators."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node, (node.end_lineno or node.lineno) - node.lineno + 1

    def public_names(self) -> list[str]:
        """Return the names in `__all__`, or an empty list if the file has no `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return [str(name.value) for name in ast.walk(node.value) if isinstance(name, ast.Constant)]
        return []

    def imports(self, modules: set[str]) -> Iterator[tuple[int, str]]:
        """Yield the line and the module of each import from `modules`, also in functions and for type checking."""
        yield from sorted(set(self._imports(modules)))

    def _imports(self, modules: set[str]) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names if alias.name in modules)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    if inner in modules or base in modules:
                        yield node.lineno, inner if inner in modules else base

    def _absolute(self, node: ast.ImportFrom) -> str:
        parts = self.module.split(".") + ["__init__"] * self.is_package
        parents = parts[: len(parts) - node.level] if node.level else []
        return ".".join([*parents, *filter(None, [node.module])])


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with two or more modules (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            position = stack.index(module)
            if len(stack) - position > 1:
                circles.append(sorted(stack[position:]))
            del stack[position:]

    for module in graph:
        if module not in index:
            visit(module)
    return circles


def is_public(source: Source) -> bool:
    """Return whether `__all__` lists names for users: in packages and top-level modules, except in `ops`."""
    parts = source.module.split(".")
    return "ops" not in parts and (source.is_package or len(parts) == 2)


def unseen_names(repository: Path, names: list[str]) -> list[str]:
    """Return the names that no page mentions, except the reference `docs/api.md`."""
    pages = [page for page in repository.glob("docs/**/*.md") if page != repository / "docs" / "api.md"]
    pages = [page for page in [*pages, repository / "README.md"] if "_build" not in page.parts]
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text(encoding="utf-8"))}
    return [name for name in names if name not in words]


def is_toolkit(module: str) -> bool:
    return module.split(".")[1:2] in (["toolkit"], ["__main__"])


def measure(repository: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the rows of the table, and lines that list the counted places."""
    package = repository / "src" / "tsallis"
    sources = [Source(path, package.parent) for path in sorted(package.rglob("*.py"))]
    tests = [Source(path, repository) for path in sorted((repository / "tests").rglob("*.py"))]
    modules = {source.module for source in sources}
    imports = {source.module: [*source.imports(modules)] for source in sources}
    top_level = [path for path in package.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))]
    top_level = [path for path in top_level if path.stem not in ("__init__", "__main__")]
    public = [name for source in sources if is_public(source) for name in source.public_names()]
    unseen = unseen_names(repository, public)
    long = [(s.module, node, size) for s in sources for node, size in s.functions() if size > LONG_FUNCTION]
    upward = [
        f"{module}:{line} imports {other}"
        for module, found in imports.items()
        for line, other in found
        if not is_toolkit(module) and module != "tsallis" and is_toolkit(other)
    ]
    circles = find_circles({module: {other for _, other in found} - {module} for module, found in imports.items()})
    rows = [
        ("code lines in src, without docstrings, comments, blanks", sum(source.code_lines() for source in sources)),
        ("lines in src", sum(len(source.text.splitlines()) for source in sources)),
        ("code lines in tests", sum(test.code_lines() for test in tests)),
        ("lines in tests", sum(len(test.text.splitlines()) for test in tests)),
        ("packages and modules at the top level", len(top_level)),
        ("public names", len(public)),
        ("public names on no page but docs/api.md", len(unseen)),
        (f"functions above {LONG_FUNCTION} lines", len(long)),
        ("imports from library to toolkit", len(upward)),
        ("circles of imports", len(circles)),
    ]
    places = ["", f"Functions above {LONG_FUNCTION} lines"]
    places += [f"  {size:4} {module}.{node.name}" for module, node, size in sorted(long, key=lambda row: -row[2])]
    places += ["", "Imports from library to toolkit", *(f"  {place}" for place in upward)]
    places += ["", "Circles of imports", *(f"  {', '.join(circle)}" for circle in circles)]
    places += ["", "Public names on no page but docs/api.md", f"  {' '.join(sorted(unseen))}"]
    return rows, places


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how large the repository is.")
    parser.add_argument("repository", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--list", action="store_true", help="also list the counted items")
    arguments = parser.parse_args()
    rows, places = measure(arguments.repository)
    for title, count in rows:
        print(f"{title:<56}{count:>8,}")
    if arguments.list:
        print("\n".join(places))


if __name__ == "__main__":
    main()
