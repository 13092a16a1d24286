"""Pictures for a terminal, in letters and blocks."""

from __future__ import annotations

import sys
from collections.abc import Sequence

BLOCKS = "░▒▓█"
PLAIN = ".:+#"  # for a terminal whose encoding lacks the blocks


def attention_lines(weights: Sequence[Sequence[float]], src: Sequence[str], tgt: Sequence[str]) -> list[str]:
    """Return a drawing of attention weights [tgt, src], a line for each target symbol; a weight of zero is blank.

    Example:
        >>> for line in attention_lines([[1.0, 0.0], [0.2, 0.8]], ["i", "n"], ["i", "m"]):
        ...     print(line.rstrip())
           i  n
        i  ██
        m  ░░ ██
    """
    shades = BLOCKS if _can_print(BLOCKS) else PLAIN
    margin = max(map(len, tgt)) + 2
    widths = [max(len(symbol), 2) + 1 for symbol in src]
    lines = [" " * margin + "".join(symbol.ljust(width) for symbol, width in zip(src, widths, strict=True))]
    for symbol, row in zip(tgt, weights, strict=True):
        cells = (_shade(weight, shades).ljust(width) for weight, width in zip(row, widths, strict=True))
        lines.append(symbol.ljust(margin) + "".join(cells))
    return lines


def _shade(weight: float, shades: str) -> str:
    return shades[min(int(weight * len(shades)), len(shades) - 1)] * 2 if weight > 0 else ""


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
