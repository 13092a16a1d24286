"""The package never executes its input: no evaluation of text, no pickle, no shell, no unpacking."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tsallis

SOURCE = Path(tsallis.__file__).parent
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
FORBIDDEN_METHODS = {"extractall", "unpack_archive", "system", "popen", "full_load", "unsafe_load"}


def faults(tree: ast.AST) -> Iterator[str]:
    """Yield everything in a module that could run code of a file, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = {module.split(".")[0]} | {alias.name.split(".")[0] for alias in node.names if not module}
            if names & FORBIDDEN_MODULES:
                yield f"{node.lineno}: import of {names & FORBIDDEN_MODULES}"
        if not isinstance(node, ast.Call):
            continue
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        called = ast.unparse(node.func)
        last = called.rsplit(".", 1)[-1]
        if called in FORBIDDEN_CALLS or last in FORBIDDEN_METHODS or called == "yaml.load":
            yield f"{node.lineno}: {called}"
        if called == "torch.load" and ast.unparse(options.get("weights_only", ast.Constant(None))) != "True":
            yield f"{node.lineno}: torch.load without weights_only=True"
        if called in ("np.load", "numpy.load") and ast.unparse(options.get("allow_pickle", ast.Constant(0))) != "False":
            yield f"{node.lineno}: numpy.load without allow_pickle=False"
        if ast.unparse(options.get("shell", ast.Constant(None))) != "None":
            yield f"{node.lineno}: a shell"


def test_no_module_executes_its_input() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 200
    words = re.compile("|".join([*FORBIDDEN_CALLS, *FORBIDDEN_MODULES, *FORBIDDEN_METHODS, r"\bload\(", "shell"]))
    texts = {path: path.read_text(encoding="utf-8") for path in modules}
    trees = {path: ast.parse(text) for path, text in texts.items() if words.search(text)}
    assert not [f"{path.relative_to(SOURCE)}:{fault}" for path, tree in trees.items() for fault in faults(tree)]


DANGEROUS = [
    "eval('1')",
    "import pickle",
    "from pickle import loads",
    "import os; os.system('ls')",
    "subprocess.run('ls', shell=True)",
    "torch.load(path)",
    "torch.load(path, weights_only=False)",
    "np.load(path)",
    "np.load(path, allow_pickle=True)",
    "yaml.load(text)",
    "archive.extractall(folder)",
]


@pytest.mark.parametrize("code", DANGEROUS)
def test_dangerous_calls_are_detected(code: str) -> None:
    assert len(list(faults(ast.parse(code)))) == 1
