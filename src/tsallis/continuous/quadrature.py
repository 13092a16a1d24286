"""Define quadrature rules in float64 for continuous densities, and ridge regression onto basis functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tsallis.errors import check_integer
from tsallis.functional.rows import check_floating
from tsallis.ops import tracing
from tsallis.ops.transforms import outside_tracers

T = TypeVar("T")
# Truncate densities at exp(-39) of their peak, which is below the rounding of float64.
TAIL = 39.0
# Limit of (alpha - 1) / (alpha + 1) for rules that are differentiable in alpha. Above this limit, a rule covers the
# whole support; below the limit, it omits the tail.
FULL_SUPPORT = 0.1


class Rule(NamedTuple):
    """Quadrature rule with positive weights: the expectation of f is the weighted sum of f at the nodes."""

    nodes: Tensor  # [..., points] on the line, [..., points, 2] in the plane
    weights: Tensor  # [..., points], summing to 1

    def to(self, like: Tensor) -> Rule:
        """Return the rule with the dtype and device of a tensor."""
        return Rule(self.nodes.to(like), self.weights.to(like))


def _golub_welsch(diagonal: Tensor, off_diagonal: Tensor) -> Rule:
    """Return the Gauss rule of orthogonal polynomials from their recurrence (Golub and Welsch 1969)."""
    jacobi = torch.diag(diagonal) + torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(jacobi)
    weights = vectors[0].square()
    return Rule(nodes, weights / weights.sum())


def _range(n: int) -> Tensor:
    return torch.arange(1, n, dtype=torch.float64, device="cpu")


def constant(function: Callable[..., T]) -> Callable[..., T]:
    """Cache a function's results by arguments; results are plain tensors even inside transformations of torch.

    The compiler treats these results as constants.
    """

    @lru_cache(maxsize=512)
    def cached(*arguments: Any) -> T:
        with outside_tracers():
            return function(*arguments)

    def wrapper(*arguments: Any) -> T:
        return cached(*arguments)

    wrapper.__name__, wrapper.__doc__ = function.__name__, function.__doc__
    return tracing.constant(wrapper)


def _check_points(points: int) -> int:
    return check_integer("points", points, 1)


@constant
def gauss_jacobi(points: int, a: float, b: float) -> Rule:
    r"""Return the Gauss-Jacobi rule for the normalised weight :math:`(1-x)^a (1+x)^b` on [-1, 1].

    It is exact for polynomials of degree `2 points - 1`; `a` and `b` must be above -1.

    >>> nodes, weights = gauss_jacobi(8, 0.5, 0.5)
    >>> round(float(weights @ nodes**2), 12)  # of the semicircle law
    0.25
    """
    n = _range(_check_points(points))
    if a == b == 0:
        first, diagonal, square = 0.0, torch.zeros_like(n), n.square() / (4 * n.square() - 1)
    else:
        first, m = (b - a) / (a + b + 2), 2 * n + a + b
        diagonal = (b * b - a * a) / (m * (m + 2))
        square = 4 * n * (n + a) * (n + b) * (n + a + b) / (m.square() * (m + 1) * (m - 1))
        square[:1] = 4 * (1 + a) * (1 + b) / ((2 + a + b) ** 2 * (3 + a + b))  # the ratio above is 0/0 at a + b = -1
    rule = _golub_welsch(torch.cat([diagonal.new_tensor([first]), diagonal]), square.sqrt())
    return _symmetrize(rule) if a == b else rule


def gauss_legendre(points: int) -> Rule:
    """Return the Gauss-Legendre rule for the uniform density on [-1, 1]; its weights sum to 1.

    >>> nodes, weights = gauss_legendre(2)
    >>> nodes.tolist(), weights.tolist()
    ([-0.5773502691896257, 0.5773502691896257], [0.5, 0.5])
    """
    return gauss_jacobi(points, 0.0, 0.0)


@constant
def gauss_hermite(points: int) -> Rule:
    """Return the Gauss-Hermite rule for the normal distribution, exact for polynomials of degree `2 points - 1`.

    >>> nodes, weights = gauss_hermite(6)
    >>> round(float(weights @ nodes**4), 12)
    3.0
    """
    n = _range(_check_points(points))
    return _symmetrize(_golub_welsch(torch.zeros(points, dtype=torch.float64, device="cpu"), n.sqrt()))


@constant
def gauss_laguerre(points: int) -> Rule:
    """Return the Gauss-Laguerre rule for the density exp(-x), x > 0; exact up to degree `2 points - 1`.

    >>> nodes, weights = gauss_laguerre(6)
    >>> round(float(weights @ nodes**3), 10)
    6.0
    """
    n = _range(_check_points(points) + 1)
    return _golub_welsch(2 * n - 1, n[:-1])


def _symmetrize(rule: Rule) -> Rule:
    """Make the rule of an even weight exactly symmetric."""
    nodes, weights = rule
    return Rule((nodes - nodes.flip(0)) / 2, (weights + weights.flip(0)) / 2)


def squared_reach(alpha: float, dims: int) -> float:
    r"""Return the squared radius of a beta-Gaussian's support at unit covariance, :math:`n + 2\alpha/(\alpha-1)`."""
    return math.inf if alpha == 1 else dims + 2 * alpha / (alpha - 1)


@constant
def beta_line(points: int, alpha: float) -> Rule:
    r"""Return the rule for the density :math:`\propto (1 - u^2/c^2)_+^{1/(\alpha-1)}` of variance 1, alpha > 1.

    >>> rule = beta_line(16, 2.0)
    >>> round(float(rule.weights @ rule.nodes**2), 12), round(float(rule.nodes.max() ** 2), 1)
    (1.0, 4.8)
    """
    power = 1 / (alpha - 1)
    nodes, weights = gauss_jacobi(points, power, power)
    return Rule(nodes * math.sqrt(squared_reach(alpha, 1)), weights)


@constant
def beta_disk(radial: int, angular: int, alpha: float) -> Rule:
    r"""Return the rule for the density :math:`\propto (1 - |u|^2/c^2)_+^{1/(\alpha-1)}` in the plane, covariance I.

    The rule combines Gauss-Jacobi in the squared radius with equal angles; every other ring is turned by half a step.

    >>> rule = beta_disk(6, 12, 2.0)
    >>> (rule.weights * rule.nodes[:, 0] ** 2).sum().round(decimals=12), rule.nodes.shape
    (tensor(1., dtype=torch.float64), torch.Size([72, 2]))
    """
    x, weights = gauss_jacobi(radial, 1 / (alpha - 1), 0.0)
    radii = ((x + 1) / 2).clamp(min=0).sqrt() * math.sqrt(squared_reach(alpha, 2))
    nodes = radii[:, None, None] * _circles(radial, angular)
    return Rule(nodes.reshape(-1, 2), (weights / angular).repeat_interleave(angular))


def _circles(rings: int, angular: int) -> Tensor:
    """Return unit vectors [rings, angular, 2]."""
    shift = torch.arange(rings, dtype=torch.float64, device="cpu")[:, None] % 2 / 2
    angles = (torch.arange(_check_points(angular), dtype=torch.float64, device="cpu") + shift) * (2 * math.pi / angular)
    return torch.stack([angles.cos(), angles.sin()], -1)


@constant
def gaussian_line(points: int) -> Rule:
    """Return a rule with evenly distributed points for narrow functions under the standard normal distribution.

    The rule is Gauss-Legendre on the interval where the density is above exp(-39) of its peak. For functions of a given
    width, the number of points needed is proportional to 1 / width; for :func:`gauss_hermite`, to 1 / width².

    >>> rule = gaussian_line(64)
    >>> round(float(rule.weights @ rule.nodes**2), 12)
    1.0
    """
    x, weights = gauss_legendre(points)
    nodes = x * math.sqrt(2 * TAIL)
    weights = weights * torch.exp(-nodes.square() / 2)
    return Rule(nodes, weights / weights.sum())


@constant
def laplace_line(points: int) -> Rule:
    """Return the rule for the Laplace density of variance 1: Gauss-Laguerre with `points` points on each side.

    >>> rule = laplace_line(8)
    >>> round(float(rule.weights @ rule.nodes**4), 10)
    6.0
    """
    x, weights = gauss_laguerre(points)
    return _reflect(x / math.sqrt(2), weights)


@constant
def laplace_narrow_line(points: int) -> Rule:
    """Return a rule for the Laplace density of variance 1 and functions that are narrower than the density.

    The rule is Gauss-Legendre in the square root of the distance, so that points are dense on both sides of the peak.

    >>> rule = laplace_narrow_line(40)
    >>> round(float(rule.weights @ rule.nodes**2), 10)
    1.0
    """
    x, weights = gauss_legendre(points)
    v = (x + 1) / 2
    weights = weights * v * torch.exp(-TAIL * v.square())
    return _reflect(TAIL * v.square() / math.sqrt(2), weights / weights.sum())


def split_line(points: int, reach: float, profile: Callable[[Tensor], Tensor]) -> Rule:
    """Return the rule for an even density with a kink at 0: Gauss-Legendre with `points` points on each side.

    The density is proportional to `profile(abs(u))` on -`reach` < u < `reach`.

    >>> rule = split_line(16, 1.0, lambda u: 1 - u)
    >>> round(float(rule.weights @ rule.nodes**2), 12)
    0.166666666667
    """
    x, weights = gauss_legendre(points)
    u = (x + 1) * (reach / 2)
    weights = weights * profile(u)
    return _reflect(u, weights / weights.sum())


def _reflect(nodes: Tensor, weights: Tensor) -> Rule:
    return Rule(torch.cat([-nodes.flip(0), nodes]), torch.cat([weights.flip(0), weights]) / 2)


@constant
def plane_of(rule: Callable[[int], Rule], points: int) -> Rule:
    """Return a rule in the plane, the product of a rule on the line with itself; its nodes are [points², 2].

    >>> plane_of(gauss_hermite, 3).nodes.shape
    torch.Size([9, 2])
    """
    nodes, weights = rule(points)
    return Rule(torch.cartesian_prod(nodes, nodes), torch.outer(weights, weights).flatten())


def sine_line(points: int, alpha: Tensor) -> Rule:
    r"""Return a rule, differentiable in alpha >= 1 to every order, for the density of :func:`beta_line`.

    The rule is Gauss-Legendre after substituting :math:`u = c \sin f`, with weight :math:`\cos^{2/(\alpha-1)+1} f`.
    Above alpha 2, this power is below 3, and the rule also substitutes :math:`f = \frac\pi2 \sin g`.

    Args:
        points: Number of points.
        alpha: Alphas [...], at least 1, in float64.

    Returns:
        Nodes and weights [..., points].

    Example:
        >>> alpha = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
        >>> rule = sine_line(48, alpha)
        >>> (rule.weights * rule.nodes**2).sum(-1).round(decimals=12).tolist()
        [1.0, 1.0, 1.0]
    """
    alpha = alpha.unsqueeze(-1)
    x, weights = _crowd(gauss_legendre(points).to(alpha), alpha)
    nodes, density = _sine_nodes(x, alpha, 1)
    weights = weights * density
    return Rule(nodes, weights / weights.sum(-1, keepdim=True))


def sine_disk(radial: int, angular: int, alpha: Tensor) -> Rule:
    """Return a rule, differentiable in alphas >= 1 [...], for the density of :func:`beta_disk`.

    The nodes are [..., radial * angular, 2].

    >>> alpha = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
    >>> rule = sine_disk(32, 8, alpha)
    >>> (rule.weights * rule.nodes[..., 0] ** 2).sum(-1).round(decimals=12).tolist()
    [1.0, 1.0, 1.0]
    """
    x, weights = gauss_legendre(radial).to(alpha)
    x, weights = _crowd(Rule((x + 1) / 2, weights), alpha.unsqueeze(-1))
    radii, density = _sine_nodes(x, alpha.unsqueeze(-1), 2)
    weights = weights * density * radii
    weights = weights / weights.sum(-1, keepdim=True)
    nodes = radii[..., None, None] * _circles(radial, angular).to(alpha)  # [..., radial, angular, 2]
    return Rule(nodes.flatten(-3, -2), (weights / angular).repeat_interleave(angular, -1))


def _crowd(rule: Rule, alpha: Tensor) -> Rule:
    """Move the nodes of a rule closer to 1 if alpha is above 2, because the weight then falls steeply at 1."""
    steep, angle = alpha.detach() > 2, rule.nodes * (math.pi / 2)
    slope = torch.where(steep, torch.cos(angle) * (math.pi / 2), 1)
    return Rule(torch.where(steep, torch.sin(angle), rule.nodes), rule.weights * slope)


def _sine_nodes(x: Tensor, alpha: Tensor, dims: int) -> tuple[Tensor, Tensor]:
    r"""Return `c sin f` and `cos(f)^(2/(alpha-1)+1)` at `f = x f_max`, without a singularity at alpha = 1.

    With h = (alpha-1)/(alpha+1) and s = f/sqrt(h), `c sin f` and the logarithm of the weight are smooth in h. If the
    rule ends at the edge of the support, f_max = pi/2 and the gradient in h goes through s. If it ends in the tail, s
    is held fixed instead; this is exact up to rounding because the density is negligible there.
    """
    h = (alpha - 1) / (alpha + 1)
    full_support = h > FULL_SUPPORT
    tail = torch.where(h.detach() > 0, h.detach(), 1)
    cut = torch.asin((-torch.expm1(-2 * TAIL * tail)).sqrt()) / tail.sqrt()
    cut = torch.where(h.detach() > 0, cut, math.sqrt(2 * TAIL))
    s = x * torch.where(full_support, math.pi / 2 / torch.where(full_support, h, 1).sqrt(), cut)
    y = h * s.square()
    reach = (((dims + 2) * (alpha - 1) + 2) / (alpha + 1)).sqrt()  # c sqrt(h)
    return reach * s * sine_ratio(y), torch.exp(-s.square() / 2 * log_cosine_ratio(y))


def _series_near_zero(x: Tensor, limit: float, series: tuple[float, ...], direct: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute a function with a removable singularity at 0; use its Taylor series near 0."""
    near = x.abs() < limit
    inner = torch.where(near, x, 0)
    value = torch.full_like(inner, series[-1])
    for coefficient in reversed(series[:-1]):
        value = value * inner + coefficient
    return torch.where(near, value, direct(torch.where(near, 1, x)))


def sine_ratio(y: Tensor) -> Tensor:
    r"""Return :math:`\sin\sqrt y / \sqrt y`, smooth at 0.

    >>> sine_ratio(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.8415])
    """
    series = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(8))
    return _series_near_zero(y, 0.05, series, lambda y: torch.sin(y.sqrt()) / y.sqrt())


def log_cosine_ratio(y: Tensor) -> Tensor:
    r"""Return :math:`-2 \log\cos\sqrt y / y`, smooth at 0, for y below :math:`\pi^2/4`.

    >>> log_cosine_ratio(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.2313])
    """
    series = (1, 1 / 6, 2 / 45, 17 / 1260, 62 / 14175, 1382 / 935550, 21844 / 42567525, 929569 / 5108103000)
    return _series_near_zero(y, 0.01, series, lambda y: -2 * torch.log(torch.cos(y.sqrt())) / y)


def log1p_ratio(x: Tensor) -> Tensor:
    r"""Return :math:`\log(1 + x) / x`, smooth at 0.

    >>> log1p_ratio(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.6931])
    """
    series = tuple((-1) ** i / (i + 1) for i in range(9))
    return _series_near_zero(x, 0.01, series, lambda x: torch.log1p(x) / x)


def expm1_ratio(x: Tensor) -> Tensor:
    r"""Return :math:`(e^x - 1) / x`, smooth at 0.

    >>> expm1_ratio(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.7183])
    """
    series = tuple(1 / math.factorial(i + 1) for i in range(9))
    return _series_near_zero(x, 0.05, series, lambda x: torch.expm1(x) / x)


def gaussian_overlap(mean: Tensor, cov: Tensor, centres: Tensor, covs: Tensor) -> Tensor:
    r"""Return the integral of the product of two normal densities, :math:`N(\mu; \mu_j, \Sigma + \Sigma_j)`.

    This is the expectation of a Gaussian basis function under a Gaussian density (Martins et al. 2020, eq. 46).

    Args:
        mean: Mean of the density [..., n].
        cov: Covariance of the density [..., n, n], symmetric.
        centres: Centres of the functions [functions, n].
        covs: Covariances of the functions [functions, n, n].

    Returns:
        Integrals [..., functions].

    Example:
        >>> one = torch.eye(1)
        >>> gaussian_overlap(torch.zeros(1), one, torch.tensor([[0.0], [2.0]]), one.expand(2, 1, 1))
        tensor([0.2821, 0.1038])
    """
    difference = mean.unsqueeze(-2) - centres  # [..., functions, n]
    total = cov.unsqueeze(-3) + covs  # [..., functions, n, n]
    n = mean.shape[-1]
    if n == 1:
        variance = total[..., 0, 0]
        return torch.exp(-difference[..., 0].square() / (2 * variance)) / (2 * math.pi * variance).sqrt()
    factor = torch.linalg.cholesky(total) if n > 2 else tril_2x2(total)
    z = torch.linalg.solve_triangular(factor, difference.unsqueeze(-1), upper=False).squeeze(-1)
    volume = (2 * math.pi) ** (n / 2) * factor.diagonal(dim1=-2, dim2=-1).prod(-1)
    overlap: Tensor = torch.exp(-z.square().sum(-1) / 2) / volume
    return overlap


def tril_2x2(cov: Tensor) -> Tensor:
    """Return the Cholesky factors of symmetric matrices [..., 2, 2]; NaN if not positive definite.

    >>> tril_2x2(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    a = cov[..., 0, 0].sqrt()
    b = (cov[..., 0, 1] + cov[..., 1, 0]) / 2 / a
    c = (cov[..., 1, 1] - b.square()).sqrt()
    return torch.stack([torch.stack([a, torch.zeros_like(a)], -1), torch.stack([b, c], -1)], -2)


def ridge_regression(features: Tensor, ridge: float, mask: Tensor | None = None) -> Tensor:
    r"""Return the matrix G of a ridge regression; the coefficients are :math:`B^\top = G^\top H^\top`.

    .. math:: \min_B \lVert B F - H \rVert_F^2 + \lambda \lVert B \rVert_F^2, \qquad
              G = M F^\top (F M F^\top + \lambda I)^{-1}

    (Martins et al. 2020, eq. 16, with a 0/1 mask M.) The system is solved in float64, because it is ill-conditioned.

    Args:
        features: Basis functions at the positions, :math:`F^\top` [..., length, functions].
        ridge: Penalty :math:`\lambda`, above 0.
        mask: Boolean mask [..., length], True for observations to use. Other observations have no effect, even if NaN.

    Returns:
        :math:`G` [..., length, functions] in float64, zeros where the mask is False.

    Example:
        >>> line = torch.stack([torch.ones(4), torch.arange(4.0)], -1)
        >>> (ridge_regression(line, 1e-9).T @ torch.tensor([1.0, 3.0, 5.0, 7.0]).double()).round(decimals=6)
        tensor([1., 2.], dtype=torch.float64)
    """
    check_floating(features, "features")
    f = features.double()
    if mask is not None:
        f = torch.where(mask.unsqueeze(-1), f, 0)
    gram = f.mT @ f + ridge * torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
    return torch.cholesky_solve(f.mT, torch.linalg.cholesky(gram)).mT
