"""Import programs of the repository that are not part of the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load_program(path: str) -> ModuleType:
    """Import a file of the repository without running it: `tools/size` or `examples/shapes`."""
    spec = importlib.util.spec_from_file_location(Path(path).name, ROOT / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
