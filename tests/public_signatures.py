"""Write the signatures of the core's public names to `public_signatures.txt`: python tests/public_signatures.py.

A change in that file is a change of the public interface.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from public_names import PUBLIC_NAMES

CORE = ("tsallis", "tsallis.compat", "tsallis.continuous", "tsallis.distributions", "tsallis.nn")
FILE = Path(__file__).with_suffix(".txt")


def lines() -> list[str]:
    """Return one line per public function and class, and per public method or property defined in this package."""
    return [line for module in CORE for name in sorted(PUBLIC_NAMES[module]) for line in _describe(module, name)]


def _describe(module: str, name: str) -> Iterator[str]:
    value, path = getattr(importlib.import_module(module), name), f"{module}.{name}"
    if inspect.ismodule(value):
        return
    if not inspect.isclass(value):
        yield f"{path}{_signature(value) if callable(value) else ''}"
        return
    yield f"class {path}{'' if issubclass(value, enum.Enum) else _signature(value)}"
    for attribute, member in sorted(_members(value).items()):
        if isinstance(member, property):
            yield f"    {name}.{attribute}: property"
        elif callable(getattr(value, attribute)) and not inspect.isclass(member):
            yield f"    {name}.{attribute}{_signature(getattr(value, attribute))}"


def _members(value: type[Any]) -> dict[str, Any]:
    """Return the public attributes that a class and its base classes in this package define."""
    own = [base for base in reversed(value.__mro__) if base.__module__.split(".")[0] == "tsallis"]
    return {name: member for base in own for name, member in vars(base).items() if not name.startswith("_")}


def _signature(function: Any) -> str:
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))
        return re.sub(r"ForwardRef\(('[^']+')[^)]*\)", r"\1", text)  # Python versions print it differently
    except ValueError:  # written in C
        return "(...)"


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
