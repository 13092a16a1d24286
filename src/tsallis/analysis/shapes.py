"""Compute curves, outlines and supports of single densities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tsallis.continuous import Density, Ellipse, Elliptical, Interval, Mixture
from tsallis.continuous.densities.beta_gaussian import BetaGaussian

Index = int | tuple[int, ...]
FAR = 6.0  # the curve of an unbounded density is fine within this number of standard deviations
FINE, COARSE = 201, 401  # number of points of a curve: around each part, and along the whole line


def numbers(values: Any) -> Tensor:
    """Return numbers of any type as a float64 tensor on the CPU."""
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
    return tensor.detach().to("cpu", torch.float64)


def one_of(density: Density, index: Index, dims: int) -> Density:
    """Return one density of a batch, in float64 on the CPU.

    Raises:
        ValueError: The density has another number of dimensions, or the index does not select one density.
    """
    if density.dims != dims:
        raise ValueError(f"density must have {dims} dimension{'s' * (dims > 1)}, got {density.dims}")
    index = (index,) if isinstance(index, int) else tuple(index)
    batch = tuple(density.batch_shape)
    if math.prod(batch[len(index) :]) == 1:  # dimensions that the index omits, such as heads and queries, have size 1
        index += (0,) * (len(batch) - len(index))
    if len(index) != len(batch) or any(not -n <= i < n for i, n in zip(index, batch, strict=True)):
        raise ValueError(f"index must select one density of a batch of shape {list(batch)}, got {list(index)}")
    return _select(density, index)


def _select(density: Density, index: tuple[int, ...]) -> Density:
    if isinstance(density, Mixture):
        weights = numbers(density.weights[index])
        parts = [_select(part, index) for part in density.parts]
        return Mixture(weights, parts[0] if density.stacked else parts, validate_args=False)
    if isinstance(density, Elliptical):
        family, alpha = density.family, density.alpha
        if isinstance(alpha, Tensor):
            family = BetaGaussian(float(alpha.expand(density.batch_shape)[index]), density.dims)
        return Elliptical(numbers(density.mean[index]), numbers(density.factor[index]), family)
    if index:
        raise TypeError(f"index can't select from a batch of {type(density).__name__}: pass a single density")
    return density


def parts_of(density: Density) -> list[Density]:
    """Return the parts of a mixture that have non-zero weight; for other densities, return the density itself."""
    if not isinstance(density, Mixture):
        return [density]
    weights = density.weights.tolist()
    parts = [_select(density.parts[0], (k,)) for k in range(len(weights))] if density.stacked else density.parts
    return [
        component for weight, part in zip(weights, parts, strict=True) if weight > 0 for component in parts_of(part)
    ]


def intervals(density: Density) -> list[tuple[float, float]] | None:
    """Return the support of a density on the line as ascending disjoint intervals; None if it is unbounded."""
    ends: list[tuple[float, float]] = []
    for part in parts_of(density):
        if not isinstance(part.support, Interval) or not part.support.bounded:
            return None
        ends.append((float(part.support.lower), float(part.support.upper)))
    merged: list[tuple[float, float]] = []
    for lower, upper in sorted(ends):
        if merged and lower <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(upper, merged[-1][1]))
        else:
            merged.append((lower, upper))
    return merged


def curve(density: Density) -> tuple[Tensor, Tensor]:
    """Return points from 0 to 1, closer together where the density changes, and the density at each point."""
    places = [torch.linspace(0, 1, COARSE, dtype=torch.float64)]
    for part in parts_of(density):
        mean, reach = float(part.mean), FAR * math.sqrt(float(part.variance))
        bounds = (mean - reach, mean + reach)
        if isinstance(part.support, Interval) and part.support.bounded:
            bounds = (float(part.support.lower), float(part.support.upper))
        places.append(torch.linspace(*bounds, FINE, dtype=torch.float64))
        places.append(torch.tensor([mean], dtype=torch.float64))
    t = torch.cat(places).clamp(0, 1).unique()
    return t, numbers(density.pdf(t))


def outlines(density: Density, points: int) -> list[Tensor]:
    """Return outlines [points, 2]: the edge of each support, or ellipses at one and two standard deviations."""
    lines: list[Tensor] = []
    for part in parts_of(density):
        if isinstance(part.support, Ellipse) and part.support.bounded:
            lines.append(numbers(part.support.boundary(points)))
        elif isinstance(part, Elliptical):
            mean, factor = numbers(part.mean), numbers(part.factor)
            lines += [Ellipse(mean, sigmas * factor).boundary(points) for sigmas in (1, 2)]
    return lines
