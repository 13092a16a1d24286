"""The public names in the `__all__` of every module; `docs/api.md` and `public_signatures.txt` list them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tsallis

ROOT = Path(tsallis.__file__).parent


def public_files() -> Iterator[Path]:
    """Yield the packages except `ops`, the top-level modules, and two modules with their own pages."""
    yield from (path for path in sorted(ROOT.rglob("__init__.py")) if "ops" not in path.relative_to(ROOT).parts)
    yield from sorted(ROOT.glob("[!_]*.py"))
    yield from (ROOT / "huggingface" / "recording.py", ROOT / "report" / "page.py")


def names_in(path: Path) -> list[str]:
    """Return the names in a file's `__all__` without importing the file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value))
    return []


PUBLIC_NAMES = {
    ".".join(["tsallis", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): names
    for path in public_files()
    if (names := names_in(path))
}
