"""The data of a figure: discrete weights, one density of a batch, and their supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.analysis.shapes import Index, numbers, one_of
from tsallis.continuous import Density, cell_masses


@dataclass(frozen=True)
class View:
    """The attention of one model to words or to an image: discrete weights, a density, or both.

    Args:
        title: above its panel.
        weights: [words] or [height, width], at least zero; a tensor, an array or a list.
        density: on the line from 0 to 1, or in the unit square, with y downwards.
        index: which density of a batch.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> parabola = TruncatedParabola(torch.tensor([0.2, 0.5]), torch.tensor(0.01))
        >>> View("sparsemax", density=parabola, index=1).title
        'sparsemax'
    """

    title: str = ""
    weights: Any = None
    density: Density | None = None
    index: Index = ()

    @classmethod
    def of(cls, attention: Any, row: int = 0, size: int | None = None, title: str = "") -> View:
        """Return the view of one row of a batch, from the result of a model's method `attention`.

        Args:
            attention: with `weights` and `density`, either of which may be None.
            row: of the batch.
            size: how many words the row has: the weights behind them belong to padding.
            title: above its panel.
        """
        weights = None if attention.weights is None else numbers(attention.weights)[row]
        if weights is not None and size is not None:
            weights = weights[:size]
        return cls(title, weights, attention.density, row if attention.density is not None else ())


def check_weights(values: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return weights of this shape, finite and not negative."""
    weights = numbers(values)
    if tuple(weights.shape) != shape:
        raise ValueError(f"weights must be {list(shape)}, one for each {what}, got shape {list(weights.shape)}")
    invalid = weights[~((weights >= 0) & weights.isfinite())]
    if len(invalid):
        raise ValueError(f"weights must be at least zero and finite, got {invalid[0].item():g}")
    return weights


def check_words(words: Sequence[str]) -> list[str]:
    """Return a list of words, at least one."""
    if isinstance(words, str):
        raise TypeError(f"words must be a sequence of strings, got one string: {words[:40]!r}")
    if not len(words):
        raise ValueError("words must not be empty")
    return [str(word) for word in words]


def word_masses(view: View, count: int) -> Tensor:
    """Return the mass of each of `count` words, the larger of weights' and density's [count]; zero outside supports."""
    masses = torch.zeros(count, dtype=torch.float64)
    if view.weights is not None:
        masses = check_weights(view.weights, (count,), "word")
    if view.density is not None:
        density = one_of(view.density, view.index, 1)
        edges = torch.linspace(0, 1, count + 1, dtype=torch.float64)
        masses = torch.maximum(masses, cell_masses(density, edges))
    return masses
