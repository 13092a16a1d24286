"""Define the interface of standardised densities, which have mean 0 and covariance I.

All densities are standardised densities that are shifted and scaled. A family describes the shape. A density adds a
factor: its standard deviation, or the Cholesky factor of its covariance. An entropy depends on the factor only through
`log_det`, the logarithm of the factor's determinant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tsallis.continuous import quadrature as rules
from tsallis.continuous.quadrature import Rule
from tsallis.errors import check_integer
from tsallis.ops.transforms import outside_tracers, physical

Shape = Sequence[int]


class Family(Protocol):
    """A standardised density."""

    dims: int

    def reach(self, like: Tensor) -> float | Tensor:
        """Return half the width of the support, as a number or a tensor with one value per alpha; it may be inf."""

    def alpha(self, like: Tensor) -> float | Tensor:
        """Return the alpha of the entropy that the density maximises."""

    def factor(self, scale: Tensor) -> Tensor:
        """Return the factor for the scale parameter in the paper's formula."""

    def scale(self, factor: Tensor) -> Tensor:
        """Return the scale parameter for a factor."""

    def log_density(self, squared: Tensor) -> Tensor:
        """Return the log-density at a squared distance from the mean; -inf outside the support."""

    def density(self, squared: Tensor) -> Tensor:
        """Return the density at a squared distance from the mean; zero outside the support."""

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        """Return the Tsallis entropy for the density's alpha."""

    def entropy(self, log_det: Tensor) -> Tensor:
        """Return the Shannon entropy in nats."""

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        """Draw points [*shape], or [*shape, dims]."""

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        """Return a quadrature rule for functions with a given sharpness, or with a given number of points."""


def broadcast_batch(**shapes: Shape) -> torch.Size:
    """Return the broadcast batch shape; an error lists each shape with its argument's name."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError as error:
        names = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(f"batch shapes can't be broadcast to each other: {names}") from error


def log_det(factor: Tensor, dims: int) -> Tensor:
    """Compute the log-determinant [...] of a standard deviation [...] or Cholesky factor [..., n, n], in float64."""
    return factor.double().log() if dims == 1 else factor.double().diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(cov: Tensor, dims: int) -> Tensor:
    """Return the standard deviation or Cholesky factor of a variance [...] or covariance [..., n, n]."""
    if dims > 1 and cov.shape[-2:] != (dims, dims):
        raise ValueError(
            f"covariance must have shape [..., {dims}, {dims}] in {dims} dimensions, got {tuple(cov.shape)}"
        )
    if dims == 1:
        return cov.sqrt()
    if dims == 2:
        return rules.tril_2x2(cov)
    root, info = torch.linalg.cholesky_ex((cov + cov.mT) / 2)
    return torch.where((info != 0)[..., None, None], math.nan, root)


@outside_tracers()
def check_positive(numbers: Tensor, name: str) -> None:
    """Raise if a number is not positive and finite."""
    numbers = physical(numbers)
    if not bool((valid := (numbers > 0) & (numbers < math.inf)).all()):
        raise ValueError(f"{name} must be positive and finite, got {numbers[~valid][0].item():g}")


@outside_tracers()
def check_symmetric(cov: Tensor, name: str = "covariance") -> None:
    """Raise if matrices [..., n, n] are not symmetric up to rounding; non-finite entries are not checked."""
    cov = physical(cov)
    size = cov.diagonal(dim1=-2, dim2=-1).abs().amax(-1)[..., None, None]
    mismatch = (cov - cov.mT).abs() > size * math.sqrt(torch.finfo(cov.dtype).eps)
    if bool(mismatch.any()):
        pair = cov[mismatch][0].item(), cov.mT[mismatch][0].item()
        raise ValueError(f"{name} must be symmetric, got {pair[0]:g} and {pair[1]:g} in mirrored entries")


def tensors(mean: Tensor | float, spread: Tensor | float) -> tuple[Tensor, Tensor]:
    """Convert mean and spread to tensors; numbers get the other argument's dtype, or torch's default dtype."""
    for name, x in (("mean", mean), ("variance or covariance", spread)):
        if not isinstance(x, (Tensor, int, float)) or isinstance(x, bool):
            raise TypeError(f"{name} must be a tensor or a number, got {type(x).__name__}")
    like = mean if isinstance(mean, Tensor) else spread
    if not isinstance(like, Tensor):
        like = torch.empty(())
    elif not like.is_floating_point():
        like = torch.empty((), device=like.device)
    return tuple(x if isinstance(x, Tensor) else torch.full((), float(x)).to(like) for x in (mean, spread))  # type: ignore[return-value]


def check_points(points: Any, dims: int) -> None:
    """Raise unless the size of a quadrature rule is None, a number, or two numbers in the plane."""
    sizes = points if isinstance(points, tuple) else () if points is None else (points,)
    if isinstance(points, tuple) and (dims == 1 or len(points) != 2):
        valid = "one number for a density in 1 dimension" if dims == 1 else "one number or (radial, angular)"
        raise ValueError(f"points must be {valid}, got {points}")
    for size in sizes:
        check_integer("points", size, 1)


def one_number(points: int | tuple[int, int]) -> int:
    if isinstance(points, tuple):
        raise ValueError(f"points must be one number for a density in 1 dimension, got {points}")
    return points
