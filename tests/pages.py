"""Run the Python blocks of a documentation page in order; their output must match their comments."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run_blocks(page: Path) -> int:
    """Run all blocks of a page in one namespace, compare their output with their comments, and return their number."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(page), "exec"), namespace)
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, re.M)
        lines = [line for line in printed.getvalue().splitlines() if not line.startswith("{")]  # printed by Trainer
        assert lines == expected, block
    return len(blocks)
