"""Truncated paraboloids and narrow Gaussians in the plane: one direction by quadrature, the other in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Widest function, by the long half-axis, at which strips are quicker than a disk; beyond .4 they also lose digits.
NARROW = 0.15


def largest(factor: Tensor) -> Tensor:
    """The larger eigenvalue of `factor @ factor.mT` for lower triangular factors [..., 2, 2]; no other size will do.

    >>> largest(torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor(9.)
    """
    if factor.shape[-1] != 2:
        raise NotImplementedError(f"quadrature is for the line and the plane, got {factor.shape[-1]} dimensions")
    a, b, c = factor[..., 0, 0].square(), factor[..., 1, 0].square(), factor[..., 1, 1].square()
    return (a + b + c + ((a - b - c).square() + 4 * a * b).sqrt()) / 2


def _short_axis_first(factor: Tensor) -> Tensor:
    """A rotation [..., 2, 2] with which `factor @ rotation` has its columns along the short and the long axis.

    Without a gradient: the density doesn't change with it, so neither do derivatives.
    """
    f = factor.detach()
    gram = f.mT @ f
    angle = torch.atan2(2 * gram[..., 0, 1], gram[..., 0, 0] - gram[..., 1, 1]) / 2  # of the larger eigenvalue
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([torch.stack([-sine, cosine], -1), torch.stack([cosine, sine], -1)], -2)


def strip_expectation(mean: Tensor, factor: Tensor, centres: Tensor, covs: Tensor, points: int) -> Tensor:
    r"""Expectations of normal densities under the truncated paraboloid on the ellipse `mean + factor @ u`, |u| <= 1.

    .. math:: E_p[\psi_j] = \frac2\pi \int_{-1}^1 \int_{-\sqrt{1-x^2}}^{\sqrt{1-x^2}} (1 - x^2 - y^2)\,
              \psi_j(\mu + A (x, y)) \, dy \, dx

    with x along the short axis by the midpoint rule after :math:`x = \sin f`, which converges geometrically, and y
    along the long one by :math:`\mathrm{erf}` (Martins et al. 2020, eq. 50).

    Args:
        mean: [..., 2].
        factor: [..., 2, 2], of the ellipse.
        centres: [functions, 2].
        covs: [functions, 2, 2].
        points: of the rule.

    Returns:
        [..., functions]

    Example:
        >>> round_ = strip_expectation(torch.zeros(2), torch.eye(2), torch.zeros(1, 2), 0.01 * torch.eye(2)[None], 48)
        >>> round(float(round_), 4)  # 2/pi, less what a Gaussian of variance .01 smooths away
        0.6239
    """
    a = factor @ _short_axis_first(factor)
    inverse = torch.linalg.inv(a).unsqueeze(-3)  # [..., 1, 2, 2]
    m = (inverse @ (centres - mean.unsqueeze(-2)).unsqueeze(-1)).squeeze(-1)  # [..., functions, 2]
    s = inverse @ covs @ inverse.mT  # [..., functions, 2, 2]
    s11, s12 = s[..., 0, 0].unsqueeze(-1), s[..., 0, 1].unsqueeze(-1)
    slope = s12 / s11
    conditional = (s[..., 1, 1].unsqueeze(-1) - s12 * slope).sqrt()
    f = (torch.arange(points, dtype=mean.dtype, device=mean.device) + 0.5) * (math.pi / points) - math.pi / 2
    x, edge = torch.sin(f), torch.cos(f)  # [points]
    apart = x - m[..., :1]  # [..., functions, points]
    outer = torch.exp(-apart.square() / (2 * s11)) / (2 * math.pi * s11).sqrt()
    inner = _parabola_of_normal(edge, m[..., 1:] + slope * apart, conditional)
    det = (a[..., 0, 0] * a[..., 1, 1] - a[..., 0, 1] * a[..., 1, 0]).abs()
    total = (outer * inner * edge).sum(-1) * (2 / points)  # 2/pi of the density times pi/points of the rule
    found: Tensor = total / det.unsqueeze(-1)
    return found


def _parabola_of_normal(edge: Tensor, centre: Tensor, std: Tensor) -> Tensor:
    """The integral of `edge² - y²` times a normal density from -edge to edge."""
    v, u = (edge - centre) / std, (-edge - centre) / std
    mass = (torch.erf(v / math.sqrt(2)) - torch.erf(u / math.sqrt(2))) / 2
    at_v, at_u = (torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) for z in (v, u))
    whole = (edge.square() - centre.square() - std.square()) * mass
    return whole - 2 * centre * std * (at_u - at_v) - std.square() * (u * at_u - v * at_v)
