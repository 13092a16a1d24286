"""The examples of the page on sparse parts in PyTorch code."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pages import DOCS

EXAMPLES = DOCS.parent / "examples"


@pytest.fixture
def classifier(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class of the example, imported by name because scikit-learn's checks pickle it."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("sparse_classifier").EntmaxClassifier


@pytest.mark.slow
def test_the_classifier_passes_the_checks_of_scikit_learn(classifier: Any) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(classifier())


def test_the_classifier_has_exact_zeros_and_finds_the_classes(classifier: Any) -> None:
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    probs = classifier(alpha=1.5).fit(x, y).predict_proba(x)
    assert (probs.argmax(1) == y).mean() > 0.95
    assert (probs == 0).mean() > 0.3 and ((probs == 0).sum(1) < 3).all()
    assert abs(probs.sum(1) - 1).max() < 1e-12


def run(name: str, *arguments: str) -> list[str]:
    """Run an example as the page does, and return the printed lines."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_classifier_is_compared_with_logistic_regression() -> None:
    pytest.importorskip("sklearn")
    lines = run("sparse_classifier")
    assert [line.split(":")[0] for line in lines] == ["logistic regression", "entmax, alpha 1.5", "entmax, alpha 2"]
    text = "\n".join(lines)
    right, left = ([float(x) for x in re.findall(pattern, text)] for pattern in (r"(\S+)% right", r"(\S+) of"))
    assert min(right) > 90 and left[0] == 10 and 1 <= left[2] < left[1] < 5


@pytest.mark.slow
def test_the_export_agrees_with_the_model(tmp_path: Path) -> None:
    lines = run("export", "--folder", str(tmp_path))
    assert [line.split(":")[0] for line in lines] == ["torch.export", "AOTInductor"]
    assert all(float(line.split()[-3]) < 1e-5 for line in lines)
