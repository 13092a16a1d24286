"""Tests that the code blocks of the Hugging Face pages run in order and print what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before the imports that need it
pytest.importorskip("accelerate")

from pages import DOCS, run_blocks

PAGES = sorted(DOCS.glob("how-to/hugging-face*.md"))


@pytest.mark.parametrize(
    "page", [path for path in PAGES if "```python" in path.read_text(encoding="utf-8")], ids=lambda path: path.stem
)
def test_code_blocks_print_their_documented_output(page: Path) -> None:
    assert run_blocks(page) >= 3
