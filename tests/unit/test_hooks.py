"""The hooks of pre-commit find their tools, in a fresh clone too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_environment_is_made_before_a_hook_uses_it() -> None:
    yaml = pytest.importorskip("yaml")
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    first, *others = local["hooks"]
    assert first["entry"] == "make tools VENV=.venv"
    assert first["always_run"] and first["fail_fast"]
    tools = [hook["entry"].split()[0] for hook in others]
    assert tools == [f".venv/bin/{name}" for name in ("ruff", "ruff", "clang-format", "mypy")]


def test_tools_are_installed_where_they_are_missing(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "tools", f"VENV={tmp_path}", f"PYTHON={sys.executable}"]
    missing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{sys.executable} -m venv {tmp_path}" in missing and '".[dev]"' in missing
    (tmp_path / "bin").mkdir()
    for tool in ("ruff", "clang-format"):
        (tmp_path / "bin" / tool).touch()
    there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip" not in there
