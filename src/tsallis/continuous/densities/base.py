"""Standardised densities, of mean 0 and covariance I: every density is one of them, moved and stretched.

A family knows its own shape. A density has a factor beside it, its standard deviation or the Cholesky factor of its
covariance, and an entropy needs no more of that than `log_det`, the logarithm of its determinant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tsallis.continuous import quadrature as rules
from tsallis.continuous.quadrature import Rule
from tsallis.ops.transforms import outside_tracers, physical

Shape = Sequence[int]


class Family(Protocol):
    """A standardised density."""

    dims: int

    def reach(self, like: Tensor) -> float | Tensor:
        """Return half the width of the support: a number, or one for each alpha; infinite where it has no end."""

    def alpha(self, like: Tensor) -> float | Tensor:
        """Return the alpha of the entropy that the density maximises."""

    def factor(self, scale: Tensor) -> Tensor:
        """Return the factor that belongs to a scale as the paper writes it."""

    def scale(self, factor: Tensor) -> Tensor:
        """Return the scale that belongs to a factor."""

    def log_density(self, squared: Tensor) -> Tensor:
        """Return the log-density at this squared distance from the mean; -inf outside the support."""

    def density(self, squared: Tensor) -> Tensor:
        """Return the density at this squared distance from the mean; zero outside the support."""

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        """Return the Tsallis entropy of the density's own alpha."""

    def entropy(self, log_det: Tensor) -> Tensor:
        """Return the Shannon entropy in nats."""

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        """Draw points [*shape], or [*shape, dims]."""

    def rule(self, sharpness: float, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        """Return a quadrature rule for functions of this sharpness, or with so many points."""


def broadcast_batch(**shapes: Shape) -> torch.Size:
    """Return the batch shape that shapes [...] broadcast to; an error names them and what they belong to."""
    try:
        return torch.Size(torch.broadcast_shapes(*shapes.values()))
    except RuntimeError as error:
        names = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(f"batch shapes can't be broadcast to each other: {names}") from error


def log_det(factor: Tensor, dims: int) -> Tensor:
    """Compute the log-determinant [...] of a standard deviation [...] or Cholesky factor [..., n, n], in float64."""
    return factor.double().log() if dims == 1 else factor.double().diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(cov: Tensor, dims: int) -> Tensor:
    """Factorise a variance [...] or covariances [..., n, n], whose shapes are checked."""
    if dims > 1 and cov.shape[-2:] != (dims, dims):
        raise ValueError(f"in {dims} dimensions a covariance must be [..., {dims}, {dims}], got {tuple(cov.shape)}")
    if dims == 1:
        return cov.sqrt()
    if dims == 2:
        return rules.tril_2x2(cov)
    root, info = torch.linalg.cholesky_ex((cov + cov.mT) / 2)
    return torch.where((info != 0)[..., None, None], math.nan, root)


@outside_tracers()
def check_symmetric(cov: Tensor, name: str = "covariance") -> None:
    """Check that [..., n, n] is symmetric but for rounding; numbers that are not finite are checked elsewhere."""
    cov = physical(cov)
    size = cov.diagonal(dim1=-2, dim2=-1).abs().amax(-1)[..., None, None]
    mismatch = (cov - cov.mT).abs() > size * math.sqrt(torch.finfo(cov.dtype).eps)
    if bool(mismatch.any()):
        pair = cov[mismatch][0].item(), cov.mT[mismatch][0].item()
        raise ValueError(f"{name} must be symmetric, got {pair[0]:g} and {pair[1]:g} beside the diagonal")


def tensors(mean: Tensor | float, spread: Tensor | float) -> tuple[Tensor, Tensor]:
    """Convert numbers to tensors: like the other one, or of torch's default dtype."""
    for name, x in (("mean", mean), ("variance or covariance", spread)):
        if not isinstance(x, (Tensor, int, float)) or isinstance(x, bool):
            raise TypeError(f"{name} must be a tensor or a number, got {type(x).__name__}")
    like = mean if isinstance(mean, Tensor) else spread
    if not isinstance(like, Tensor):
        like = torch.empty(())
    elif not like.is_floating_point():
        like = torch.empty((), device=like.device)
    return tuple(x if isinstance(x, Tensor) else torch.full((), float(x)).to(like) for x in (mean, spread))  # type: ignore[return-value]


def one_number(points: int | tuple[int, int]) -> int:
    if isinstance(points, tuple):
        raise ValueError(f"a rule on the line has one number of points, got {points}")
    return points
