"""Shared style of the figures in the documentation: fonts, colours, and SVG files without a date."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

WIDTH = 8.0  # inches
POINTS = 72.0  # per inch
SIZE, SMALL = 9.0, 7.5  # font sizes in points
INK, GREY, FAINT = "#1a1a1a", "#6e6e6e", "#c9c9c9"
WEIGHTS, DENSITY = "#3a76b0", "#b8430f"
# Colours for the kinds of attention: dark enough on white, and distinct with colour blindness.
KINDS = {"encoder": "#0068a8", "decoder": "#b45309", "cross": "#0b7d62"}


def blank(width: float, height: float) -> Figure:
    """Return an empty figure that needs no window; its sizes are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path | str) -> None:
    """Write a figure as SVG; the same figure always gives the same file."""
    rcParams["svg.hashsalt"] = "tsallis"
    figure.savefig(path, format="svg", metadata={"Date": None})


def lettering(size: float = SIZE, color: str = INK) -> dict[str, Any]:
    """Return matplotlib options for plain text."""
    return {"fontsize": size, "color": color, "parse_math": False}


@cache
def text_width(text: str, size: float) -> float:
    """Return the width of a text in points."""
    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0])


def quiet(ax: Axes, sides: Iterable[str] = ()) -> None:
    """Draw only the given sides of the frame, in thin lines with small grey numbers."""
    for name, spine in ax.spines.items():
        spine.set_visible(name in sides)
        spine.set_color(FAINT)
        spine.set_linewidth(0.8)
    ax.tick_params(length=2, width=0.8, color=FAINT, labelsize=SMALL, labelcolor=GREY)


def heading(ax: Axes, title: str) -> None:
    """Set a title at the left of the axes."""
    ax.set_title(title, loc="left", pad=5.0, **lettering(SIZE + 0.5))


@cache
def shades(name: str, low: float, high: float) -> ListedColormap:
    """Return a part of a matplotlib colour map."""
    return ListedColormap([colormaps[name](low + (high - low) * i / 255) for i in range(256)], name=name)


def name_lines(ax: Axes, names: Sequence[tuple[str, Any]]) -> None:
    """Add a legend of names and colours at the right of the axes."""
    handles = [Line2D([], [], color=color, linewidth=2, label=name) for name, color in names]
    ax.legend(
        handles=handles, fontsize=SMALL, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1.2
    )
