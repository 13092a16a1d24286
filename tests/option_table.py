"""The table of the options of searches in the documentation. To write it anew: python tests/option_table.py."""

from __future__ import annotations

import re
from pathlib import Path

from tsallis.search.options import MODES, OPTIONS
from tsallis.toolkit.cli.options import flag

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
PLACE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table() -> str:
    """Return the table in Markdown."""
    rows = [
        f"| `{flag(name)}` | {'every' if info.modes == MODES else ', '.join(info.modes)} | {info.help} |"
        for name, info in OPTIONS.items()
    ]
    return "\n".join(["| option | modes | meaning |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
