"""Create densities that have the mean and covariance of discrete attention weights over positions."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from tsallis.continuous.densities.base import broadcast_batch
from tsallis.continuous.densities.elliptical import Elliptical
from tsallis.errors import check_integer
from tsallis.functional.rows import check_floating, check_real, finite_number
from tsallis.ops.dtypes import product, upcast

Kind = TypeVar("Kind", bound=Elliptical)
Matching = Literal["covariance", "scale"]


def moments(weights: Tensor, positions: Tensor, dims: int = 1) -> tuple[Tensor, Tensor]:
    r"""Return the mean and covariance of positions under discrete weights.

    .. math:: \mu = \sum_\ell p_\ell\, t_\ell, \qquad C = \sum_\ell p_\ell\, (t_\ell - \mu)(t_\ell - \mu)^\top

    (Martins et al. 2020, sec. 4.)

    Args:
        weights: Weights [..., length], summing to 1. A position of weight 0 affects only the gradient in this weight; a
            NaN or infinite position of weight 0 has no effect at all.
        positions: Positions [length] or [..., length], or [..., length, dims] if `dims` is above 1.
        dims: Number of dimensions of the space.

    Returns:
        Mean [...] and variance [...], or [..., dims] and [..., dims, dims].

    Raises:
        ValueError: If the shape of the positions doesn't fit the weights.
        TypeError: If the weights are not floating point, or the positions not a tensor of numbers.

    Example:
        >>> mean, variance = moments(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> mean, variance
        (tensor(0.5000), tensor(0.2500))
    """
    check_floating(weights, "weights")
    check_real(positions, "positions")
    check_integer("dims", dims, 1)
    if weights.dim() == 0:
        raise ValueError("weights must have shape [..., length], got a tensor without dimensions")
    w = upcast(weights)
    t = positions.to(w)
    event = () if dims == 1 else (dims,)
    if t.shape[t.dim() - len(event) :] != event or t.shape[: t.dim() - len(event)][-1:] != w.shape[-1:]:
        target = f"[..., {w.shape[-1]}{f', {dims}' if event else ''}]"
        raise ValueError(
            f"positions must have shape {target} for dims={dims} and weights of shape {tuple(w.shape)}, "
            f"got {tuple(t.shape)}"
        )
    broadcast_batch(weights=w.shape[:-1], positions=t.shape[: t.dim() - 1 - len(event)])
    limit = torch.finfo(t.dtype).max ** 0.25  # the square of a larger number could overflow
    if dims == 1:
        t = torch.where((w == 0) & ~(t.abs() < limit), 0, t)
        mean = (w * t).sum(-1)
        return mean, (w * (t - mean.unsqueeze(-1)).square()).sum(-1)
    w = w.unsqueeze(-1)
    t = torch.where((w == 0) & ~(t.abs() < limit), 0, t)  # [..., length, dims]
    mean = (w * t).sum(-2)
    centred = t - mean.unsqueeze(-2)
    return mean, product((w * centred).mT, centred)


def match_moments(
    kind: type[Kind],
    weights: Tensor,
    positions: Tensor,
    *,
    matching: Matching = "covariance",
    floor: float = 1e-6,
    dims: int | None = None,
    **shape: Any,
) -> Kind:
    r"""Return a density of class `kind` with the mean and covariance of discrete attention weights.

    For a covariance C, the scale of the truncated paraboloid in the plane is :math:`\Sigma = 9\pi\sqrt{\det C}\,C`, and
    the scale of the truncated parabola is :math:`\sigma^2 = \frac23 (5 C)^{3/2}`. `matching="scale"` uses the
    covariance as the *scale* instead, like the paper's text classifiers (:math:`\sigma^2 = C`; Martins et al. 2020,
    sec. 4). For variances below 0.018, this makes the density wider.

    Args:
        kind: Class of the density.
        weights: Weights [..., length], summing to 1.
        positions: Positions, as in :func:`moments`.
        matching: Parameter that gets the covariance, "covariance" or "scale".
        floor: Constant added to the variances, so that weights on a single position also give a density.
        dims: Number of dimensions of the space (default: 2 for the truncated paraboloid, 1 for other classes).
        shape: Further arguments of the class, such as `alpha`.

    Returns:
        A density of batch shape [...].

    Raises:
        ValueError: If `matching` is unknown, the floor is negative, or shapes don't fit.
        TypeError: If the weights are not floating point, or `kind` is not a class of densities with one mode.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> weights, positions = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.25, 0.5, 0.75])
        >>> match_moments(TruncatedParabola, weights, positions).variance
        tensor(0.0313)
    """
    if not (isinstance(kind, type) and issubclass(kind, Elliptical)):
        raise TypeError(f"kind must be a class of densities with one mode, such as Gaussian, got {kind!r}")
    if matching not in ("covariance", "scale"):
        raise ValueError(f"matching must be 'covariance' or 'scale', got {matching!r}")
    floor = finite_number("floor", floor)
    if floor < 0:
        raise ValueError(f"floor must be at least 0, got {floor:g}")
    if dims is None:
        dims = kind.default_dims
    elif dims != kind.default_dims and "dims" not in kind.shape_names:
        raise ValueError(f"dims must be {kind.default_dims} for {kind.__name__}, got {dims}")
    mean, cov = moments(weights, positions, dims)
    cov = cov + floor if dims == 1 else cov + floor * torch.eye(dims, dtype=cov.dtype, device=cov.device)
    mean = mean.to(weights.dtype)
    if "dims" in kind.shape_names:
        shape["dims"] = dims
    make = kind.from_mean_cov if matching == "covariance" else kind.from_scale
    return make(mean, cov, **shape)
