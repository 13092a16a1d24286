"""The page on Hugging Face models: its blocks run in their order, and print what their comments say."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")  # before what imports it
pytest.importorskip("accelerate")

from pages import DOCS, run_blocks

PAGE = DOCS / "how-to" / "hugging-face.md"


def test_every_block_runs_and_prints_what_it_says() -> None:
    assert run_blocks(PAGE) > 10
