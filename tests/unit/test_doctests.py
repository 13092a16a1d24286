"""The examples in the docstrings run and print the documented output."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import tsallis

CORE = {"errors", "files", "ops", "functional", "continuous", "nn", "distributions", "compat"}
TOOLKIT = ("matplotlib", "numpy", "pydantic", "rich", "safetensors", "sacrebleu", "sentencepiece", "typer", "yaml")
FOLDER = Path(tsallis.__file__).parent
# List the files without importing them: each test imports only its own file, so collecting imports none.
MODULES = [
    ".".join(["tsallis", *path.relative_to(FOLDER).with_suffix("").parts]).removesuffix(".__init__")
    for path in sorted(FOLDER.rglob("*.py"))
    if path.name != "__main__.py"
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    if {*name.split(".")[1:2]} - CORE:
        for package in TOOLKIT:
            pytest.importorskip(package)
    if ".huggingface" in name:
        pytest.importorskip("transformers")
    if name.startswith("tsallis.toolkit.serve."):
        pytest.importorskip("starlette")
        pytest.importorskip("uvicorn")
    module = importlib.import_module(name)
    result = doctest.DocTestFinder().find(module, extraglobs={"torch": torch, "tsallis": tsallis})
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for example in result:
        runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)
