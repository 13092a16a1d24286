"""Importing a module gives each of its public names, and signatures equal the recorded ones."""

from __future__ import annotations

import importlib

import pytest

from public_names import PUBLIC_NAMES
from public_signatures import FILE, lines

TOOLKIT = ("analysis", "data", "datasets", "evaluation", "models", "report", "search", "tasks", "training")


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_modules_export_the_recorded_public_names(module: str) -> None:
    if module.split(".")[-1] in (*TOOLKIT, "recording", "page"):
        pytest.importorskip("numpy")
    if "huggingface" in module.split("."):
        pytest.importorskip("transformers")
    public = importlib.import_module(module)
    assert PUBLIC_NAMES[module] == sorted(set(public.__all__))
    assert [name for name in public.__all__ if not hasattr(public, name)] == []
    assert set(public.__all__) <= set(dir(public))


def test_functional_has_the_same_functions_as_the_package() -> None:
    modules = {name for name in PUBLIC_NAMES["tsallis"] if f"tsallis.{name}" in PUBLIC_NAMES}
    assert set(PUBLIC_NAMES["tsallis"]) - modules == set(PUBLIC_NAMES["tsallis.functional"])


def test_core_signatures_match_the_recorded_file() -> None:
    """Run python tests/public_signatures.py after an intended change."""
    recorded, current = FILE.read_text(encoding="utf-8").splitlines(), lines()
    assert [line for line in recorded if line not in current] == []  # something that users call was removed or changed
    assert [line for line in current if line not in recorded] == []
    assert recorded == current
