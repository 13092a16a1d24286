"""From discrete attention to a density: the mean and covariance of weights over positions."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from tsallis.continuous.densities.elliptical import Elliptical
from tsallis.functional.rows import check_floating
from tsallis.ops.dtypes import upcast

Kind = TypeVar("Kind", bound=Elliptical)
Matching = Literal["covariance", "scale"]


def moments(weights: Tensor, positions: Tensor, dims: int = 1) -> tuple[Tensor, Tensor]:
    r"""Return the mean and covariance of positions under discrete weights.

    .. math:: \mu = \sum_\ell p_\ell\, t_\ell, \qquad C = \sum_\ell p_\ell\, (t_\ell - \mu)(t_\ell - \mu)^\top

    (Martins et al. 2020, sec. 4.)

    Args:
        weights: [..., length], summing to 1; positions of weight 0 have no effect but on the gradient in that weight,
            NaN and infinite ones none at all.
        positions: [length] or [..., length]; with `dims` above 1 one more dimension of that size.
        dims: the number of dimensions of the space.

    Returns:
        Mean [...] and variance [...], or [..., dims] and [..., dims, dims].

    Raises:
        ValueError: positions whose shape doesn't fit the weights.
        TypeError: weights that are not floating point.

    Example:
        >>> mean, variance = moments(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 1.0, 2.0]))
        >>> mean, variance
        (tensor(0.5000), tensor(0.2500))
    """
    check_floating(weights, "weights")
    w = upcast(weights)
    t = positions.to(w)
    event = () if dims == 1 else (dims,)
    if t.shape[t.dim() - len(event) :] != event or t.shape[: t.dim() - len(event)][-1:] != w.shape[-1:]:
        target = f"[..., {w.shape[-1]}{f', {dims}' if event else ''}]"
        raise ValueError(
            f"with dims={dims} positions must be {target} for weights of shape {tuple(w.shape)}, got {tuple(t.shape)}"
        )
    limit = torch.finfo(t.dtype).max ** 0.25  # a larger number may be anything, and its square would be infinite
    if dims == 1:
        t = torch.where((w == 0) & ~(t.abs() < limit), 0, t)
        mean = (w * t).sum(-1)
        return mean, (w * (t - mean.unsqueeze(-1)).square()).sum(-1)
    w = w.unsqueeze(-1)
    t = torch.where((w == 0) & ~(t.abs() < limit), 0, t)  # [..., length, dims]
    mean = (w * t).sum(-2)
    apart = t - mean.unsqueeze(-2)
    return mean, (w * apart).mT @ apart


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
    r"""Return the density of a class with the mean and covariance of discrete attention weights.

    For the truncated paraboloid in the plane that is :math:`\Sigma = 9\pi\sqrt{\det C}\,C`, for the truncated parabola
    :math:`\sigma^2 = \frac23 (5 C)^{3/2}`. `matching="scale"` takes the covariance for the *scale* instead, as in the
    paper's text classifiers (:math:`\sigma^2 = C`; Martins et al. 2020, sec. 4): below a variance of .018 that density
    is the wider one.

    Args:
        kind: the class of the density.
        weights: [..., length], summing to 1.
        positions: as in :func:`moments`.
        matching: "covariance" or "scale".
        floor: added to the variances, so that weights on one position alone give a density too.
        dims: the number of dimensions of the space; the default is that of the class: 2 for the truncated paraboloid, 1
            for all others.
        shape: further arguments of the class, such as `alpha`.

    Returns:
        A density of batch shape [...].

    Raises:
        ValueError: another `matching`, a negative floor, shapes that don't fit.
        TypeError: weights that are not floating point.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> weights, positions = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.25, 0.5, 0.75])
        >>> match_moments(TruncatedParabola, weights, positions).variance
        tensor(0.0313)
    """
    if matching not in ("covariance", "scale"):
        raise ValueError(f"matching must be 'covariance' or 'scale', got {matching!r}")
    if not floor >= 0:
        raise ValueError(f"floor must not be negative, got {floor:g}")
    if dims is None:
        dims = kind.default_dims
    mean, cov = moments(weights, positions, dims)
    cov = cov + floor if dims == 1 else cov + floor * torch.eye(dims, dtype=cov.dtype, device=cov.device)
    mean = mean.to(weights.dtype)
    if kind.any_dims:
        shape["dims"] = dims
    make = kind.from_mean_cov if matching == "covariance" else kind.from_scale
    return make(mean, cov, **shape)
