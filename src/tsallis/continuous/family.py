"""Standardised densities, of mean 0 and covariance I: every density is one of them, moved and stretched.

A family knows its own shape. A density has a factor beside it, its standard deviation or the Cholesky factor of its
covariance, and an entropy needs no more of that than `log_det`, the logarithm of its determinant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tsallis.functional import continuous as rules
from tsallis.functional.continuous import Rule

Shape = Sequence[int]


class Family(Protocol):
    """A standardised density."""

    dims: int

    def reach(self, like: Tensor) -> float | Tensor:
        """Half the width of the support: a number, or one for each alpha; infinite where it has no end."""

    def alpha(self, like: Tensor) -> float | Tensor:
        """Of the entropy that the density maximises."""

    def factor(self, scale: Tensor) -> Tensor:
        """The factor that belongs to a scale as the paper writes it."""

    def scale(self, factor: Tensor) -> Tensor:
        """The scale that belongs to a factor."""

    def log_density(self, squared: Tensor) -> Tensor:
        """At points of this squared distance from the mean; -inf outside the support."""

    def density(self, squared: Tensor) -> Tensor:
        """The same without the logarithm; zero outside the support."""

    def tsallis_entropy(self, log_det: Tensor) -> Tensor:
        """Of its own alpha."""

    def entropy(self, log_det: Tensor) -> Tensor:
        """Shannon's, in nats."""

    def sample(self, shape: Shape, like: Tensor) -> Tensor:
        """Points [*shape], or [*shape, dims]."""

    def rule(self, ratio: float, degree: int, points: int | tuple[int, int] | None, like: Tensor) -> Rule:
        """For functions of this standard deviation (infinite: polynomials of this degree), or with so many points."""


def log_det(factor: Tensor, dims: int) -> Tensor:
    """[...], of a standard deviation [...] or a Cholesky factor [..., n, n]; in float64, as the entropies are."""
    return factor.double().log() if dims == 1 else factor.double().diagonal(dim1=-2, dim2=-1).log().sum(-1)


def cholesky(cov: Tensor, dims: int) -> Tensor:
    """The factor of a variance [...] or of covariances [..., n, n], for which shapes are checked."""
    if dims > 1 and cov.shape[-2:] != (dims, dims):
        raise ValueError(f"in {dims} dimensions a covariance must be [..., {dims}, {dims}], got {tuple(cov.shape)}")
    if dims == 1:
        return cov.sqrt()
    return rules.tril_2x2(cov) if dims == 2 else torch.linalg.cholesky((cov + cov.mT) / 2)


def one_number(points: int | tuple[int, int]) -> int:
    if isinstance(points, tuple):
        raise ValueError(f"a rule on the line has one number of points, got {points}")
    return points
