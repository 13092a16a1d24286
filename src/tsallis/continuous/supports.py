"""Supports of densities: intervals, ellipses, the whole space, and unions of supports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from tsallis.errors import check_integer
from tsallis.ops.dtypes import product
from tsallis.ops.transforms import outside_tracers, physical, without_numbers


class WholeSpace(constraints.Constraint):
    """The set of all finite points on the line or in n-dimensional space.

    Args:
        dims: Number of dimensions n.

    Example:
        >>> WholeSpace(1).check(torch.tensor([0.0, torch.inf])).tolist()
        [True, False]
    """

    bounded = False

    def __init__(self, dims: int) -> None:
        self.dims, self.event_dim = dims, int(dims > 1)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        finite = value.isfinite()
        return finite.all(-1) if self.dims > 1 else finite

    def __repr__(self) -> str:
        return f"WholeSpace(dims={self.dims})"


class Interval(constraints.Constraint):
    """Closed interval from `lower` to `upper`; infinite ends are excluded.

    Args:
        lower: Lower ends [...].
        upper: Upper ends [...].

    Example:
        >>> support = Interval(torch.tensor(-1.0), torch.tensor(2.0))
        >>> support.length, support.check(torch.tensor([0.0, 3.0]))
        (tensor(3.), tensor([ True, False]))
    """

    dims = 1

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self.lower, self.upper = lower, upper
        super().__init__()

    @property
    def bounded(self) -> bool:
        """Return whether all intervals have finite length."""
        return not _any_infinite(self.length)

    @property
    def centre(self) -> Tensor:
        """Return the middle of each interval [...]; it is NaN if both ends are infinite."""
        return (self.lower + self.upper) / 2

    @property
    def length(self) -> Tensor:
        """Return the length of each interval [...]; it is infinite if an end is infinite."""
        return self.upper - self.lower

    def check(self, value: Tensor) -> Tensor:
        return (value >= self.lower) & (value <= self.upper) & value.isfinite()

    def __repr__(self) -> str:
        return f"Interval(shape={tuple(self.lower.shape)})"


class Ellipse(constraints.Constraint):
    r"""Closed ellipse (ellipsoid) of the points :math:`c + A u` with :math:`|u| \le 1`.

    Args:
        centre: Centre c [..., n].
        factor: Factor A [..., n, n], lower triangular. If it contains infinity, the ellipse is the whole space.

    Example:
        >>> support = Ellipse(torch.zeros(2), torch.diag(torch.tensor([3.0, 2.0])))
        >>> support.semi_axes, support.check(torch.tensor([[2.9, 0.0], [0.0, 2.9]]))
        (tensor([2., 3.]), tensor([ True, False]))
    """

    event_dim = 1

    def __init__(self, centre: Tensor, factor: Tensor) -> None:
        self.centre, self.factor, self.dims = centre, factor, centre.shape[-1]
        super().__init__()

    @property
    def _unbounded(self) -> Tensor:
        """Return which ellipses are the whole space [...]."""
        return self.factor.isinf().flatten(-2).any(-1)

    @property
    def bounded(self) -> bool:
        """Return whether no ellipse is the whole space."""
        return not _any_infinite(self.factor)

    @property
    def semi_axes(self) -> Tensor:
        """Return half the lengths of the principal axes [..., n], shortest first, without a gradient.

        They are infinite if the ellipse is the whole space.
        """
        unbounded = self._unbounded.unsqueeze(-1)
        axes = torch.linalg.svdvals(torch.where(unbounded.unsqueeze(-1), 0, self.factor.detach())).flip(-1)
        return torch.where(unbounded, math.inf, axes)

    def boundary(self, points: int = 64) -> Tensor:
        """Return points [..., points, 2] along the boundary for drawing; in the plane only.

        The points are NaN if the ellipse is the whole space, because then there is no boundary.

        Raises:
            ValueError: If the ellipse has more than two dimensions, or `points` is below 1.
        """
        if self.dims != 2:
            raise ValueError(f"only an ellipse in 2 dimensions has a boundary curve, got {self.dims} dimensions")
        check_integer("points", points, 1)
        angle = torch.arange(points, dtype=self.centre.dtype, device=self.centre.device) * (2 * torch.pi / points)
        circle = torch.stack([angle.cos(), angle.sin()], -1)
        factor = torch.where(self._unbounded[..., None, None], math.nan, self.factor)
        return self.centre.unsqueeze(-2) + product(circle, factor.mT)

    def check(self, value: Tensor) -> Tensor:
        difference = (value - self.centre).unsqueeze(-1)
        unbounded = self._unbounded
        factor = torch.where(unbounded[..., None, None], torch.eye(self.dims).to(self.factor), self.factor)
        u = torch.linalg.solve_triangular(factor.expand(*difference.shape[:-1], -1), difference, upper=False)
        return torch.where(unbounded, value.isfinite().all(-1), u.squeeze(-1).square().sum(-1) <= 1)

    def __repr__(self) -> str:
        return f"Ellipse(shape={tuple(self.centre.shape)})"


@outside_tracers()
def _any_infinite(x: Tensor) -> bool:
    """Return whether a number is infinite; False if the numbers can't be read."""
    x = physical(x)
    return not without_numbers(x) and bool(x.isinf().any())


class Union(constraints.Constraint):
    """Union of supports.

    Args:
        parts: Supports with the same batch shape [...].
        stacked: Whether `parts` is a single support with batch shape [..., K]; the union is over its K members.

    Example:
        >>> halves = Interval(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 4.0]))
        >>> Union([halves], stacked=True).check(torch.tensor([0.5, 2.0, 3.5])).tolist()
        [True, False, True]
    """

    def __init__(self, parts: Sequence[Interval | Ellipse | WholeSpace | Union], stacked: bool = False) -> None:
        self.parts, self.stacked = list(parts), stacked
        self.dims: int = parts[0].dims
        self.event_dim = int(self.dims > 1)
        super().__init__()

    @property
    def bounded(self) -> bool:
        """Return whether all parts are bounded."""
        return all(part.bounded for part in self.parts)

    def check(self, value: Tensor) -> Tensor:
        if self.stacked:  # the members lie along the last batch dimension of the single part
            inside: Tensor = self.parts[0].check(value.unsqueeze(-1 - self.event_dim))
            return inside.any(-1)
        mask: Tensor = self.parts[0].check(value)
        for part in self.parts[1:]:
            mask = mask | part.check(value)
        return mask

    def __repr__(self) -> str:
        return f"Union({self.parts}, stacked={self.stacked})"
