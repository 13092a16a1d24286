"""Attention to an image: weights of cells, contours of densities, and the ellipse of their support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.analysis.shapes import Index, numbers, one_of, outlines
from tsallis.continuous import Density, Mixture
from tsallis.report import style
from tsallis.report.style import GREY, INK, SIZE, SMALL, WIDTH
from tsallis.report.views import View, check_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

PALE = 0.3  # how far an image is lightened below the colours
VEIL = 0.62  # how far the colours of attention cover an image
FIELD = 240  # points of a density along each side
BANDS = 8  # of its filled contours
LEAST = 1e-300  # of a density that is taken for zero
EDGE, TITLE, LEGEND, SCALE = 0.1, 0.28, 0.42, 0.7  # inches around panels, above, below, and of the scale of colours
ANSWER = 15.0  # points
DASHES: dict[int | None, Any] = {None: "solid", 1: (0, (4, 2)), 2: (0, (1, 1.6))}


def image_attention(
    image: Any,
    weights: Any = None,
    density: Density | None = None,
    *,
    grid: tuple[int, int] | None = None,
    index: Index = (),
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw an image with weights as a heat map of cells, or a density as contours and the ellipse of its support.

    The colours run from zero to the largest value, over the image in grey. Cells with a weight of exactly zero stay
    uncovered, and a line goes round the others; outside the support of a density nothing is covered. A density whose
    support is unbounded, such as the Gaussian, has dashed ellipses of one and two standard deviations instead; the
    legend says how much of the mass an ellipse holds. Without weights and density the image is drawn as it is. Axes
    are in units of the image, from 0 to 1, with y downwards.

    Args:
        image: [height, width, 3], [height, width, 4] or [height, width]; uint8, or floating point from 0 to 1.
        weights: [rows, columns], or [rows * columns] with `grid`.
        density: in the unit square, such as :class:`tsallis.continuous.TruncatedParaboloid`; mixtures too.
        grid: (rows, columns) of the cells.
        index: which density of a batch.
        title: above, at the left.
        ax: to draw in; by default a figure of its own.

    Returns:
        The axes.

    Raises:
        ValueError: an image or weights that don't have such a shape or such values, a density that is not in the plane.

    Example:
        >>> from tsallis.continuous import TruncatedParaboloid
        >>> density = TruncatedParaboloid(torch.tensor([0.5, 0.4]), 0.02 * torch.eye(2))
        >>> ax = image_attention(torch.zeros(48, 64, 3, dtype=torch.uint8), density=density)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['support holds 100 %']
    """
    picture, view = _picture(image), View(title, weights, density, index)
    cells = None if weights is None else _cells(weights, grid)
    single = None if density is None else one_of(density, index, 2)
    if ax is None:
        shape = picture.shape[0] / picture.shape[1]
        ax = style.blank(4.0, min(max(4.0 * shape, 1.0), 8.0) + 0.6).add_subplot()
    _draw(ax, picture, view, cells, single)
    return ax


def image_panels(
    image: Any,
    views: Sequence[View],
    *,
    grid: tuple[int, int] | None = None,
    question: str = "",
    answers: Sequence[str] = (),
    columns: int = 4,
    width: float = WIDTH,
) -> Figure:
    """Draw an image, and beside it the attention of each of several models to it, with a question and their answers.

    Args:
        image: as for :func:`image_attention`.
        views: discrete attention, continuous softmax, and so on.
        grid: (rows, columns) of the cells of weights that are flat.
        question: above all.
        answers: one for each view, below it.
        columns: panels in a row, the image among them.
        width: in inches.

    Returns:
        The figure.

    Raises:
        ValueError: as for :func:`image_attention`, or answers that are not as many as views.

    Example:
        >>> image = torch.rand(48, 64, 3)
        >>> views = [View("softmax", torch.full((2, 2), 0.25)), View("sparsemax", torch.eye(2) / 2)]
        >>> figure = image_panels(image, views, question="What is it?", answers=["noise", "noise"])
        >>> [ax.get_title("left") for ax in figure.axes[:3]]
        ['image', 'softmax', 'sparsemax']
    """
    views = list(views)
    if answers and len(answers) != len(views):
        raise ValueError(f"answers must be as many as views, got {len(answers)} for {len(views)}")
    picture = _picture(image)
    columns = max(1, min(columns, len(views) + 1))
    plan = _Plan(picture, len(views) + 1, columns, width, question, bool(answers))
    figure = style.blank(width, plan.height, constrained=False)
    if plan.question:
        figure.text(
            EDGE / width, 1 - EDGE / plan.height, plan.question, ha="left", va="top", **style.lettering(SIZE + 1)
        )
    first = figure.add_axes(plan.box(0))
    _draw(first, picture, View("image"), None, None)
    for number, view in enumerate(views):
        ax = figure.add_axes(plan.box(number + 1))
        cells = None if view.weights is None else _cells(view.weights, grid)
        density = None if view.density is None else one_of(view.density, view.index, 2)
        _draw(ax, picture, view, cells, density, ANSWER if answers else 0.0)
        if answers:
            answer = style.shorten(answers[number], 30)
            ax.set_xlabel(answer, labelpad=9, loc="left", va="baseline", **style.lettering(SIZE))
    if views:
        _bar(figure, plan)
    return figure


class _Plan:
    """The layout of a figure in inches: legends and answers don't change the size of an image."""

    def __init__(self, picture: Tensor, panels: int, columns: int, width: float, question: str, answered: bool) -> None:
        self.columns, self.width = columns, width
        self.rows = -(-panels // columns)
        room = (width - EDGE - SCALE) / columns
        self.side = room - EDGE
        self.tall = self.side * picture.shape[0] / picture.shape[1]
        self.below = LEGEND + ANSWER / style.POINTS * answered
        lines = style.wrapped(question, (width - 2 * EDGE) * style.POINTS, SIZE + 1) if question.strip() else ""
        self.question = lines
        self.asked = 0.2 * (lines.count("\n") + 1) + EDGE if lines else 0.0
        self.height = self.asked + self.rows * (TITLE + self.tall + self.below)

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of a panel, as shares of the figure's."""
        row, column = divmod(number, self.columns)
        left = EDGE + column * (self.side + EDGE)
        top = self.asked + row * (TITLE + self.tall + self.below) + TITLE
        bottom = self.height - top - self.tall
        return left / self.width, bottom / self.height, self.side / self.width, self.tall / self.height

    def bar(self) -> tuple[float, float, float, float]:
        """Return left, bottom, width and height of the colour bar, beside the first row."""
        _, bottom, _, tall = self.box(0)
        return 1 - (SCALE - EDGE / 2) / self.width, bottom, 0.1 / self.width, tall


def _picture(image: Any) -> Tensor:
    """Return the picture [height, width, 3], from 0 to 1."""
    if not isinstance(image, Tensor):
        import numpy as np

        image = torch.from_numpy(np.array(image))
    pixels = numbers(image)
    if pixels.dim() == 2:
        pixels = pixels.unsqueeze(-1).expand(-1, -1, 3)
    if pixels.dim() != 3 or pixels.shape[-1] not in (3, 4) or 0 in pixels.shape:
        raise ValueError(f"image must be [height, width, 3], got shape {list(image.shape)}")
    pixels = pixels[..., :3]
    if not image.is_floating_point():
        pixels = pixels / 255
    low, high = (float(x) for x in pixels.aminmax())
    if not 0 <= low <= high <= 1:
        expected = "from 0 to 1" if image.is_floating_point() else "from 0 to 255"
        raise ValueError(f"the values of an image of {image.dtype} must be {expected}, found others")
    return pixels


def _cells(weights: Any, grid: tuple[int, int] | None) -> Tensor:
    """Return the weights [rows, columns]."""
    cells = numbers(weights)
    if grid is not None:
        if cells.numel() != grid[0] * grid[1]:
            raise ValueError(f"a grid of {grid[0]} x {grid[1]} doesn't fit weights of shape {list(cells.shape)}")
        cells = cells.reshape(grid)
    if cells.dim() != 2:
        raise ValueError(f"weights must be [rows, columns] or come with a grid, got shape {list(cells.shape)}")
    return check_weights(cells, tuple(cells.shape), "cell")


def _colours() -> ListedColormap:
    return style.shades("inferno", 0.12, 0.97)


def _draw(
    ax: Axes, picture: Tensor, view: View, cells: Tensor | None, density: Density | None, drop: float = 0.0
) -> None:
    """`drop`: points that are left free between image and legend."""
    height, width = picture.shape[:2]
    style.quiet(ax)
    covered = cells is not None or density is not None
    if covered:  # in grey: a colour is then one of attention alone
        grey = picture @ torch.tensor([0.299, 0.587, 0.114], dtype=picture.dtype)
        picture = PALE + (1 - PALE) * grey.unsqueeze(-1).expand(-1, -1, 3)
    ax.imshow(picture.numpy(), extent=(0, 1, 1, 0), aspect=height / width, label="image")
    handles: list[Any] = []
    if cells is not None:
        handles += _draw_cells(ax, cells)
    if density is not None:
        handles += _draw_density(ax, density)
    ax.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    style.heading(ax, view.title, pad=4.0, width=style.points_wide(ax))
    if handles:
        from matplotlib.transforms import ScaledTranslation

        shift = ScaledTranslation(0, -drop / style.POINTS, style.whole(ax).dpi_scale_trans)
        ax.legend(
            handles=handles,
            prop={"family": style.families(), "size": SMALL},
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=ax.transAxes + shift,
            frameon=False,
            labelcolor=INK,
            borderpad=0.1,
            borderaxespad=0.3,
            labelspacing=0.3,
            handlelength=1.8,
            handletextpad=0.5,
        )


def _draw_cells(ax: Axes, cells: Tensor) -> list[Any]:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Patch
    from matplotlib.patheffects import withStroke

    rows, columns = cells.shape
    largest = float(cells.max()) or 1.0
    colours = _colours()(cells.div(largest).numpy())  # [rows, columns, 4]
    colours[..., 3] = VEIL * (cells > 0).numpy()
    ax.imshow(colours, extent=(0, 1, 1, 0), aspect=ax.get_aspect(), interpolation="nearest", label="weights")
    lines = _border(cells > 0)
    support_size = int((cells > 0).sum())
    if support_size < cells.numel():
        edge = LineCollection(lines, colors="white", linewidths=1.0, label="edge of what is above zero")
        edge.set_path_effects([withStroke(linewidth=2.2, foreground=INK)])
        ax.add_collection(edge)
    return [Patch(facecolor=_colours()(0.6), alpha=VEIL, label=f"{support_size} of {rows * columns} cells")]


def _border(there: Tensor) -> list[list[tuple[float, float]]]:
    """Draw lines between cells that are there and cells that are not."""
    rows, columns = there.shape
    across = (there[:, 1:] != there[:, :-1]).nonzero().tolist()
    down = (there[1:] != there[:-1]).nonzero().tolist()
    upright = [[((x + 1) / columns, y / rows), ((x + 1) / columns, (y + 1) / rows)] for y, x in across]
    level = [[(x / columns, (y + 1) / rows), ((x + 1) / columns, (y + 1) / rows)] for y, x in down]
    return upright + level


def _draw_density(ax: Axes, density: Density) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon
    from matplotlib.patheffects import withStroke

    side = torch.linspace(0, 1, FIELD, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    values = numbers(density.pdf(torch.stack([x, y], -1)))
    largest = float(values.max())
    if largest > 0:
        levels = [0.0, *(largest * k / BANDS for k in range(1, BANDS + 1))]
        levels[0] = LEAST  # where the density is zero nothing is covered
        levels[-1] *= 1 + 1e-9
        ax.contourf(
            side.numpy(), side.numpy(), values.numpy(), levels=levels, cmap=_colours(), alpha=VEIL, antialiased=True
        )
    dark = [withStroke(linewidth=3.0, foreground=INK)]
    shapes = outlines(density)
    for shape in shapes:
        ax.add_patch(
            Polygon(
                shape.boundary.numpy(),
                closed=True,
                fill=False,
                edgecolor="white",
                linewidth=1.4,
                linestyle=DASHES[shape.sigmas],
                path_effects=dark if shape.sigmas is None else [withStroke(linewidth=2.4, foreground=INK)],
                label=_meaning(density, shape.sigmas),
            )
        )
    handles: list[Any] = []
    for sigmas in dict.fromkeys(shape.sigmas for shape in shapes):
        handles.append(
            Line2D([], [], color=INK, linewidth=1.4, linestyle=DASHES[sigmas], label=_meaning(density, sigmas))
        )
    return handles


def _meaning(density: Density, sigmas: int | None) -> str:
    several = isinstance(density, Mixture)
    if sigmas is None:
        return "supports hold 100 %" if several else "support holds 100 %"
    share = {1: 39, 2: 86}[sigmas]  # of a Gaussian in the plane: 1 - exp(-sigmas² / 2)
    return f"{sigmas}σ holds {share} %{' of each' if several else ''}, no end"


def _bar(figure: Figure, plan: _Plan) -> None:
    """Draw a scale of the colours, the same for all panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), _colours()), cax=figure.add_axes(plan.bar()), alpha=VEIL)
    bar.set_ticks([0, 1], labels=["0", "largest"])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=GREY, labelfontfamily=style.families())
