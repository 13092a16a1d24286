"""Draw the pictures of the gallery that show formulas and need no model or data.

python docs/figures/gallery.py docs/figures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import style
import torch

import tsallis
from tsallis import continuous

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = {1.0: "#0068a8", 1.5: "#b45309", 2.0: "#0b7d62", 4.0: "#7a3e9d"}
LINE = 1.6


def maps() -> Figure:
    """Draw the first of two probabilities against the difference of their scores, and the loss of the second class."""
    difference = torch.linspace(-4, 4, 401)
    scores = torch.stack([difference, torch.zeros(401)], -1)
    figure = style.blank(6.8, 2.6)
    left, right = figure.subplots(1, 2)
    for alpha, color in ALPHAS.items():
        left.plot(difference, tsallis.entmax(scores, alpha)[:, 0], color=color, linewidth=LINE)
        loss = tsallis.entmax_loss(scores, torch.ones(401, dtype=torch.long), alpha=alpha, reduction="none")
        right.plot(difference, loss, color=color, linewidth=LINE)
    for ax, title in ((left, "probability of the first of two"), (right, "loss of the second")):
        style.quiet(ax, ("left", "bottom"))
        style.heading(ax, title)
        ax.set_xlabel("score of the first less that of the second", **style.lettering(style.SMALL, style.GREY))
    style.name_lines(right, [(f"alpha {alpha:g}", color) for alpha, color in ALPHAS.items()])
    return figure


def supports() -> Figure:
    """Draw the number of non-zero probabilities for vectors of three scores."""
    from matplotlib.colors import ListedColormap

    # Scores whose sum is zero are enough: adding a constant doesn't change the probabilities.
    x, y = torch.meshgrid(torch.linspace(-3, 3, 301), torch.linspace(-3, 3, 301), indexing="xy")
    basis = torch.tensor([[1.0, -1.0, 0.0], [-1.0, -1.0, 2.0]])
    basis = basis / basis.norm(dim=1, keepdim=True)
    scores = x[..., None] * basis[0] + y[..., None] * basis[1]
    figure = style.blank(6.8, 2.4)
    axes = figure.subplots(1, len(ALPHAS), squeeze=False)[0]
    colors = ListedColormap(["#1f4e79", "#7fa8cf", "#e6eef6"])
    for ax, alpha in zip(axes, ALPHAS, strict=True):
        count = (tsallis.entmax(scores, alpha) > 0).sum(-1)
        ax.imshow(count, origin="lower", extent=(-3, 3, -3, 3), cmap=colors, vmin=1, vmax=3, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])
        style.heading(ax, f"alpha {alpha:g}")
    return figure


def densities() -> Figure:
    """Draw one-dimensional densities with the same mean and variance, only where they are positive."""
    mean, variance = torch.tensor(0.0), torch.tensor(1.0)
    families = {
        "Gaussian": (continuous.Gaussian, "#0068a8"),
        "BetaGaussian, 1.5": (lambda m, v: continuous.BetaGaussian(m, v, alpha=1.5), "#b45309"),
        "TruncatedParabola": (continuous.TruncatedParabola, "#0b7d62"),
        "Triangular": (continuous.Triangular, "#7a3e9d"),
        "Laplace": (continuous.Laplace, "#a3324b"),
    }
    times = torch.linspace(-4, 4, 801)
    figure = style.blank(6.8, 2.6)
    ax = figure.add_subplot()
    style.quiet(ax, ("left", "bottom"))
    for make, color in families.values():
        density = make(mean, variance)
        values = density.log_prob(times).exp()
        ax.plot(times, torch.where(values > 0, values, torch.nan), color=color, linewidth=LINE)
    style.name_lines(ax, [(name, color) for name, (_, color) in families.items()])
    return figure


def main(folder: str) -> None:
    for figure in (maps, supports, densities):
        style.save(figure(), Path(folder) / f"gallery-{figure.__name__}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
