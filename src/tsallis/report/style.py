"""Figures without a window: made, lettered and saved, with no global state of matplotlib's touched."""

from __future__ import annotations

import io
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsallis.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure, SubFigure

WIDTH = 8.0  # inches: 800 pixels at 100 dots an inch
POINTS = 72.0  # an inch
SIZE, SMALL = 9.0, 7.5  # of letters, in points
HEADING = SIZE + 0.5
INK, GREY, FAINT = "#1a1a1a", "#6e6e6e", "#c9c9c9"
WEIGHTS, DENSITY = "#3a76b0", "#b8430f"  # told apart in grey by their shapes: bars and a curve
# Of kinds of attention: dark enough on white, told apart with every kind of colour vision.
KINDS = {"encoder": "#0068a8", "decoder": "#b45309", "cross": "#0b7d62"}
ENDINGS = ("png", "svg", "pdf")
LONGEST = 18  # columns of a word that are shown
BOX = "\N{WHITE SQUARE}"  # for a character that no font has
LAST_RESORT = "Last Resort High-Efficiency"  # comes with newer matplotlibs, has a box for every character
# Fonts of other scripts, those that systems bring along or people install: Chinese, Japanese and Korean, then Arabic
# and Devanagari; Cyrillic letters are in DejaVu Sans, which comes with matplotlib.
FALLBACKS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "IPAexGothic",
    "TakaoGothic",
    "VL Gothic",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
    "Noto Sans CJK SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "Apple SD Gothic Neo",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Droid Sans Fallback",
    "Noto Sans Arabic",
    "Noto Naskh Arabic",
    "Amiri",
    "Geeza Pro",
    "Noto Sans Devanagari",
    "Noto Serif Devanagari",
    "Lohit Devanagari",
    "Kohinoor Devanagari",
    "Devanagari MT",
    "Nirmala UI",
    "Mangal",
    "Segoe UI",
    "FreeSans",
    "FreeSerif",
    "Unifont",
)

logger = logging.getLogger(__name__)


def require() -> None:
    """Raise an error that says what to install where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install 'tsallis[report]'") from error


def blank(width: float = WIDTH, height: float = 3.0, constrained: bool = True) -> Figure:
    """Return a figure of its own, on a canvas that needs no window; sizes in inches."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if constrained else None, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure | Axes, path: Path | str, dpi: float = 200) -> None:
    """Write a figure, or the one that axes belong to, as PNG, SVG or PDF.

    The folder is created if it is missing. The file has no date: with matplotlib's setting `svg.hashsalt` two SVGs of
    one figure are equal byte by byte.

    Args:
        figure: or axes of it.
        path: ends in .png, .svg or .pdf.
        dpi: pixels an inch, of a PNG.

    Raises:
        InputError: another ending.

    Example:
        >>> import tempfile, pathlib
        >>> from tsallis.report import text_attention
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "words.svg"
        >>> save(text_attention(["one", "two"], [0.25, 0.75]), path)
        >>> path.read_text()[:5]
        '<?xml'
    """
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        endings = ", ".join(f".{e}" for e in ENDINGS)
        raise InputError(f"{path}: a figure's file must end in one of {endings}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(figure, ending, dpi))


def render(figure: Figure | Axes, ending: str, dpi: float = 200) -> bytes:
    """Return a figure as PNG, SVG or PDF, without a date."""
    stream = io.BytesIO()
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    whole(figure).savefig(stream, format=ending, dpi=dpi, metadata=undated[ending])
    return stream.getvalue()


def whole(figure: Figure | SubFigure | Axes) -> Figure:
    """Return the figure that something is part of."""
    root = figure.get_figure(root=True)
    assert root is not None
    return root


@lru_cache(maxsize=16)
def _installed_fonts(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of those fonts that are installed."""
    from matplotlib.font_manager import fontManager

    there = set(fontManager.get_font_names())
    return tuple(name for name in names if name in there)


def families() -> list[str]:
    """Return fonts to take characters from, in this order: the user's settings, then those of other scripts.

    A name that isn't installed would be warned about at every text.
    """
    require()  # widths of texts are measured before there is a figure
    from matplotlib import rcParams

    settings: Any = rcParams
    own: list[str] = []
    for name in settings["font.family"]:
        own += settings[f"font.{name}"] if name in ("serif", "sans-serif", "monospace") else [name]
    return [*_installed_fonts((*dict.fromkeys((*own, "DejaVu Sans", *FALLBACKS)), LAST_RESORT))]


@lru_cache(maxsize=16)
def _characters(fonts: tuple[str, ...]) -> frozenset[int]:
    """Return the code points that these fonts cover, without the last-resort font."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(
        code
        for name in fonts
        if name != LAST_RESORT
        for code in get_font(findfont(FontProperties(family=name))).get_charmap()
    )


@lru_cache(maxsize=64)
def _say_missing(block: str) -> None:
    """Once for each script: a warning for each character would bury everything else."""
    logger.warning("no installed font has %s letters: boxes stand for them (a Noto font would do)", block)


def clean(text: object) -> str:
    """Return text as it can be drawn: on one line, without control characters, a box for what no font has."""
    plain = " ".join(str(text).split())
    plain = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in plain)
    if plain.isascii():
        return plain
    fonts = families()
    covered = _characters(tuple(fonts))
    missing = {c for c in plain if ord(c) not in covered and unicodedata.category(c) not in ("Cf", "Mn")}
    for c in sorted(missing):
        _say_missing(unicodedata.name(c, "such").split()[0])
    if missing and LAST_RESORT not in fonts:
        plain = "".join(BOX if c in missing else c for c in plain)
    return plain


def columns(text: str) -> int:
    """Count the columns that text takes where wide characters take two."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(word: str, longest: int = LONGEST) -> str:
    """Return a word of at most so many columns; an ellipsis stands for the rest, whitespace alone for itself.

    >>> shorten("Donaudampfschifffahrtsgesellschaft"), shorten("cost $5")
    ('Donaudampfschifff…', 'cost $5')
    """
    text = clean(word) or "␣"
    width = end = 0  # columns so far, and the characters that leave one of them for the ellipsis
    for number, character in enumerate(text, start=1):
        width += columns(character)
        if width > longest:
            return text[:end] + "…"
        if width < longest:
            end = number
    return text


def lettering(size: float = SIZE, color: str = INK, **more: Any) -> dict[str, Any]:
    """Return matplotlib's text options: fonts that have the characters, and no parsing of formulas."""
    return {"fontfamily": families(), "fontsize": size, "color": color, "parse_math": False, "usetex": False, **more}


def text_width(text: str, size: float = SIZE) -> float:
    """In points."""
    return _text_width(text, size, tuple(families()))


@lru_cache(maxsize=1 << 14)
def _text_width(text: str, size: float, fonts: tuple[str, ...]) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(family=list(fonts), size=size), False)
    return float(width)


def points_wide(ax: Axes) -> float:
    """Return the width of axes in points."""
    return float(ax.bbox.width) / whole(ax).dpi * POINTS


def wrapped(text: str, width: float, size: float = SIZE) -> str:
    """Return text in lines of at most so many points, broken at spaces."""
    return "\n".join(_fill(clean(text).split(" "), width, size))


def _fill(words: Sequence[str], width: float, size: float) -> list[str]:
    """Return lines of as many words as fit in each."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def quiet(ax: Axes, sides: Iterable[str] = ()) -> None:
    """Only the named sides of the frame, thin, and small grey numbers."""
    for name, spine in ax.spines.items():
        spine.set_visible(name in sides)
        spine.set_color(FAINT)
        spine.set_linewidth(0.8)
    ax.tick_params(length=2, width=0.8, color=FAINT, labelsize=SMALL, labelcolor=GREY, labelfontfamily=families())


def cut(text: str, width: float, size: float = SIZE) -> str:
    """Return the beginning of a text that takes at most so many points; an ellipsis stands for the rest."""
    while len(text) > 1 and text_width(text, size) > width + 0.5:
        text = text.removesuffix("…")[:-1] + "…"
    return text


def title_words(title: str) -> list[str]:
    """Return the words of a heading between which it may be broken: a number stays with what it counts.

    >>> title_words("layer 1 head 2, alpha 1.5")
    ['layer 1', 'head 2,', 'alpha 1.5']
    """
    return re.split(r" (?!\d)", clean(title))


def title_lines(title: str, width: float) -> str:
    """Return a heading in lines of at most so many points, about as long as each other; a longer word is cut."""
    words, lines, longest = title_words(title), [""], width
    while len(trial := _fill(words, longest, HEADING)) <= len(lines) or longest == width:
        lines, before = trial, longest
        longest = max(text_width(line, HEADING) for line in lines) - 0.1
        if longest >= before:  # of one word
            break
    return "\n".join(cut(line, width, HEADING) for line in lines)


def heading(
    ax: Axes, title: str, note: str = "", pad: float = 5.0, width: float | None = None, wrap: bool = False
) -> None:
    """Set the axes' title at the left, and a short note at the right.

    Args:
        ax: the axes.
        title: of one line, but for `wrap`.
        note: in small letters.
        pad: points below.
        width: points that the title has at most.
        wrap: break the title into lines of that width, where smaller letters and an ellipsis would fit it in one.
    """
    title = clean(title)
    size = HEADING
    if width is not None and title and wrap:
        title = title_lines(title, width)
    elif width is not None and title:
        size = max(SMALL, min(size, size * width / text_width(title, size)))
        title = cut(title, width, size)
    if title:
        ax.set_title(title, loc="left", pad=pad, **lettering(size))
    if note:
        ax.set_title(clean(note), loc="right", pad=pad, **lettering(SMALL, GREY))


@lru_cache(maxsize=8)
def shades(name: str, low: float, high: float) -> ListedColormap:
    """Return a part of one of matplotlib's perceptually uniform colour maps, itself uniform."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    steps = 256
    return ListedColormap([colormaps[name](low + (high - low) * i / (steps - 1)) for i in range(steps)], name=name)


def name_lines(ax: Axes, names: Sequence[tuple[str, Any]]) -> None:
    """Set a legend of names and their colours at the right of axes."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, linewidth=2, label=name) for name, color in names]
    letters = {"family": families(), "size": SMALL}
    ax.legend(
        handles=handles, prop=letters, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1.2
    )
