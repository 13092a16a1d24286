"""Define the common base of all densities with one mode: a standardised density, shifted and scaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from tsallis.continuous import fourier
from tsallis.continuous import quadrature as rules
from tsallis.continuous.bases import Basis
from tsallis.continuous.densities.base import (
    Family,
    broadcast_batch,
    check_points,
    check_positive,
    check_symmetric,
    cholesky,
    log_det,
    tensors,
)
from tsallis.continuous.densities.beta_gaussian import NEARLY_GAUSSIAN, BetaGaussian
from tsallis.continuous.quadrature import Rule
from tsallis.continuous.supports import Ellipse, Interval, WholeSpace
from tsallis.functional.rows import check_floating, result_dtype
from tsallis.ops.dtypes import product, upcast, without_autocast
from tsallis.ops.transforms import (
    forward_mode,
    graph_outlives_values,
    outside_tracers,
    physical,
    recording,
    traced,
    without_numbers,
)

Points = int | tuple[int, int] | None
Function = Basis | Callable[[Tensor], Tensor]
Self = TypeVar("Self", bound="Elliptical")


class Density(Distribution):
    r"""Interface of every density on the line or in space; it extends `torch.distributions`.

    A density maximises :math:`E_p[f(t)] + H_\alpha(p)` for some score f (Martins et al. 2020, def. 1 and eq. 7).

    Args:
        batch_shape: Shape [...] of the batch of densities.
        event_shape: Shape of a point: [] on the line, [n] in n dimensions.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Example:
        >>> from tsallis.continuous import Gaussian, Mixture, Triangular
        >>> densities = Triangular(torch.zeros(3), 1.0), Mixture(torch.ones(2) / 2, Gaussian(torch.zeros(2), 1.0))
        >>> [isinstance(density, Density) for density in densities]
        [True, True]
    """

    dims: int
    dtype: torch.dtype  # dtype of results

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        return {}  # no constraints: constructors raise clearer messages

    def pdf(self, t: Tensor) -> Tensor:
        """Evaluate the density, zero outside the support."""
        raise NotImplementedError

    def _check_points(self, t: Any) -> None:
        """Raise unless points [*sample, ...] or [*sample, ..., n] are a tensor that fits the batch."""
        if not isinstance(t, Tensor):
            raise TypeError(f"points must be a tensor, got {type(t).__name__}")
        if len(self.event_shape) and t.shape[-1:] != self.event_shape:
            raise ValueError(f"points must have shape [..., {self.dims}], got {tuple(t.shape)}")
        broadcast_batch(points=t.shape[: t.dim() - len(self.event_shape)], density=self.batch_shape)

    def expect(self, function: Function, points: Points = None) -> Tensor:
        """Return expectations of basis functions [..., size], or of another function."""
        raise NotImplementedError

    @property
    def covariance(self) -> Tensor:
        """Return the covariance [..., n, n]; on the line the variance [...]."""
        raise NotImplementedError


class Elliptical(Density):
    r"""Base class of densities with one mode: a standardised density q, shifted and scaled.

    .. math:: p(t) = |A|^{-1} q(A^{-1}(t - \mu)), \qquad A A^\top = \mathrm{Cov}

    Every density of Martins et al. 2020, sec. 2, is of this form. On the line, mean and variance are [...]; in n
    dimensions the mean is [..., n] and the covariance [..., n, n]. Constructors of subclasses take mean and
    (co)variance; :meth:`from_factor` and :meth:`from_scale` take other parameters.

    Args:
        mean: Mean :math:`\mu`, floating point. Half precision is computed in float32. Subclasses also accept plain
            numbers.
        factor: Standard deviation A, or the lower triangular Cholesky factor of the covariance.
        family: Standardised density q, see :class:`tsallis.continuous.densities.base.Family`.
        validate_args: Whether to check that the mean is finite and the spread positive, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, the mean is not finite, or the spread is not positive (definite).
        TypeError: If a tensor is not floating point.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> density = TruncatedParabola.from_factor(0.0, 1.0)  # from the standard deviation
        >>> density.support.upper, density.alpha, density.expect(lambda t: t**4)
        (tensor(2.2361), 2.0, tensor(2.1429))
    """

    has_rsample = True
    shape_names: tuple[str, ...] = ()  # arguments of the class besides mean and spread
    default_dims = 1

    def __init__(self, mean: Tensor, factor: Tensor, family: Family, validate_args: bool | None = None) -> None:
        check_floating(mean, "mean")
        check_floating(factor, "factor")
        n = self.dims = family.dims
        self.family = family
        dtype = torch.promote_types(upcast(mean).dtype, upcast(factor).dtype)
        self.dtype = result_dtype(mean) if mean.dtype in (torch.float16, torch.bfloat16) else dtype
        mean, factor = mean.to(dtype), factor.to(dtype)
        if n > 1 and (mean.shape[-1:] != (n,) or factor.shape[-2:] != (n, n)):
            raise ValueError(
                f"mean must have shape [..., {n}] and covariance [..., {n}, {n}] in {n} dimensions, "
                f"got {tuple(mean.shape)} and {tuple(factor.shape)}"
            )
        event = mean.shape[-1:] if n > 1 else torch.Size()
        alpha = family.alpha(mean)
        batch = broadcast_batch(
            mean=mean.shape[: mean.dim() - len(event)],
            spread=factor.shape[: factor.dim() - 2 * len(event)],
            **({"alpha": alpha.shape} if isinstance(alpha, Tensor) else {}),
        )
        self._mean, self._factor = mean.expand(batch + event), factor.expand(batch + event + event)
        if torch.compiler.is_compiling():
            validate_args = False
        super().__init__(batch, event, validate_args=validate_args)
        if self._validate_args:
            self._check()

    @outside_tracers()
    def _check(self) -> None:
        mean, factor, alpha = physical(self._mean), physical(self._factor), self.family.alpha(self._mean)
        diagonal = factor if self.dims == 1 else factor.diagonal(dim1=-2, dim2=-1)
        if not bool(mean.isfinite().all()):
            raise ValueError(f"mean must be finite, got {mean[~mean.isfinite()][0].item():g}")
        if not bool(((diagonal > 0) & (diagonal < math.inf)).all()):
            requirement = (
                "variance must be positive and finite" if self.dims == 1 else "covariance must be positive definite"
            )
            value = diagonal[~((diagonal > 0) & (diagonal < math.inf))][0].item()
            raise ValueError(f"{requirement}, got {value:g} on the diagonal of its factor")
        if self.dims > 1:
            _check_triangle(factor)
        if isinstance(alpha, Tensor):
            alpha = physical(alpha)
            if not bool(((alpha >= 1) & (alpha < math.inf)).all()):
                value = alpha[~((alpha >= 1) & (alpha < math.inf))][0].item()
                raise ValueError(f"alpha must be finite and at least 1, got a tensor with {value:g}")

    @classmethod
    def _family(cls, **shape: Any) -> Family:
        """Return the class's family for its shape arguments, such as alpha."""
        raise NotImplementedError

    @classmethod
    def _checked_family(cls, shape: dict[str, Any]) -> Family:
        """Return the class's family; raise if the class has no such shape argument."""
        for name in shape:
            if name not in cls.shape_names:
                hint = "; only BetaGaussian has one" if name == "alpha" else ""
                raise TypeError(f"{cls.__name__} has no argument {name!r}, got {shape[name]!r}{hint}")
        return cls._family(**shape)

    @classmethod
    def _make(cls: type[Self], mean: Tensor, factor: Tensor, family: Family, validate_args: bool | None) -> Self:
        new = cls.__new__(cls)
        Elliptical.__init__(new, mean, factor, family, validate_args)
        return new

    @classmethod
    def from_mean_cov(
        cls: type[Self], mean: Tensor | float, cov: Tensor | float, *, validate_args: bool | None = None, **shape: Any
    ) -> Self:
        """Return the density with a mean and a covariance (on the line: a variance)."""
        family = cls._checked_family(shape)
        return cls._make(*cls._factorize(mean, cov, family, validate_args), family, validate_args)

    @classmethod
    def _factorize(
        cls, mean: Tensor | float, cov: Tensor | float, family: Family, validate_args: bool | None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean as a tensor, and the factor of a variance or covariance."""
        mean, cov = tensors(mean, cov)
        factor = cholesky(upcast(cov), family.dims)
        cls._check_spread(cov, family, validate_args, "variance")
        return mean, factor

    @classmethod
    def _check_spread(cls, cov: Tensor, family: Family, validate_args: bool | None, variance: str | None) -> None:
        """Raise if a matrix is not symmetric, or if a variance of this name is not positive and finite."""
        validate = Distribution._validate_args if validate_args is None else validate_args
        if not validate or torch.compiler.is_compiling():
            return
        if family.dims > 1:
            check_symmetric(cov)
        elif variance is not None:
            check_positive(cov, variance)

    @classmethod
    def from_factor(
        cls: type[Self],
        mean: Tensor | float,
        factor: Tensor | float,
        *,
        validate_args: bool | None = None,
        **shape: Any,
    ) -> Self:
        """Return the density with the given mean and `factor`: standard deviation, or Cholesky factor of covariance."""
        return cls._make(*tensors(mean, factor), cls._checked_family(shape), validate_args)

    @classmethod
    def from_scale(
        cls: type[Self], mean: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None, **shape: Any
    ) -> Self:
        """Return the density with a mean and the scale parameter of the paper's formula."""
        family = cls._checked_family(shape)
        mean, scale = tensors(mean, scale)
        factor = family.factor(upcast(scale))
        cls._check_spread(scale, family, validate_args, "scale")
        return cls._make(mean, factor, family, validate_args)

    @property
    def mean(self) -> Tensor:
        """Return the mean [...], or [..., n]."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """Return the point of largest density, which is the mean."""
        return self._mean

    @property
    def factor(self) -> Tensor:
        """Return the standard deviation [...], or the Cholesky factor of the covariance [..., n, n]."""
        return self._factor

    @property
    def covariance(self) -> Tensor:
        return self._factor.square() if self.dims == 1 else product(self._factor, self._factor.mT)

    @property
    def variance(self) -> Tensor:
        """Return the variance [...], or the diagonal of the covariance [..., n]."""
        return self._factor.square() if self.dims == 1 else self._factor.square().sum(-1)

    @property
    def scale(self) -> Tensor:
        """Return the scale parameter of the paper's formula."""
        return self.family.scale(self._factor)

    @property
    def alpha(self) -> float | Tensor:
        """Return the alpha of the Tsallis entropy in the objective that the density maximises."""
        return self.family.alpha(self._mean)

    @property
    def support(self) -> Interval | Ellipse | WholeSpace:
        """Return the set of points where the density is above zero."""
        reach = self.family.reach(self._mean)
        if not isinstance(reach, Tensor) and math.isinf(reach):
            return WholeSpace(self.dims)
        if self.dims == 1:
            half = (self._factor * reach).detach()
            return Interval(self._mean.detach() - half, self._mean.detach() + half)
        factor = self._factor.detach()
        if isinstance(reach, Tensor):
            reach = reach.detach()[..., None, None]
            return Ellipse(self._mean.detach(), torch.where(factor == 0, 0, factor * reach))  # 0 * inf would be NaN
        return Ellipse(self._mean.detach(), factor * reach)

    def _squared_distance(self, t: Tensor) -> Tensor:
        """Return the squared distance from the mean in standard deviations [*sample, ...].

        Infinite distances have no gradient.
        """
        difference = t.to(self._mean.dtype) - self._mean
        infinite = difference.isinf()
        if self.dims == 1:
            return torch.where(infinite, math.inf, (torch.where(infinite, 0, difference) / self._factor).square())
        infinite = infinite.any(-1) & ~difference.isnan().any(-1)
        difference = torch.where(infinite.unsqueeze(-1), 0, difference)
        factor = self._factor.expand(*difference.shape, self.dims)
        u: Tensor = torch.linalg.solve_triangular(factor, difference.unsqueeze(-1), upper=False).squeeze(-1)
        return torch.where(infinite, math.inf, u.square().sum(-1))

    def _volume(self) -> Tensor:
        return self._factor if self.dims == 1 else self._factor.diagonal(dim1=-2, dim2=-1).prod(-1)

    def pdf(self, t: Tensor) -> Tensor:
        """Return the density at t [*sample, ...] or [*sample, ..., n], which is zero outside the support."""
        self._check_points(t)
        return (self.family.density(self._squared_distance(t)) / self._volume()).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density; -inf, with gradient zero, outside the support."""
        self._check_points(value)
        log_q = self.family.log_density(self._squared_distance(value))
        inside = log_q != -math.inf
        return torch.where(inside, log_q - log_det(self._factor, self.dims).to(log_q), log_q).to(self.dtype)

    def tsallis_entropy(self) -> Tensor:
        r"""Return :math:`(1 - \int p^\alpha) / (\alpha(\alpha-1))` [...] for the density's alpha; Shannon's at 1."""
        return self.family.tsallis_entropy(log_det(self._factor, self.dims)).expand(self.batch_shape).to(self.dtype)

    def entropy(self) -> Tensor:
        """Return Shannon's differential entropy in nats [...]."""
        return self.family.entropy(log_det(self._factor, self.dims)).expand(self.batch_shape).to(self.dtype)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        """Draw points [*sample_shape, ...] or [*sample_shape, ..., n] with gradients in mean and spread."""
        shape = torch.Size(sample_shape) + self.batch_shape
        u = self.family.sample(shape, self._mean)
        if self.dims == 1:
            return (self._mean + self._factor * u).to(self.dtype)
        return (self._mean + product(self._factor, u.unsqueeze(-1)).squeeze(-1)).to(self.dtype)

    def expect(self, function: Function, points: Points = None) -> Tensor:
        r"""Return the expectation :math:`E_p[\psi(t)]`: the attention of :math:`\psi` (Martins et al. 2020, eq. 15).

        A fixed quadrature rule with positive weights computes the expectation. The derivatives are the generalised
        covariances of proposition 3. Gaussian functions under a Gaussian density have a closed form.

        Args:
            function: Basis, or function from points [..., points] ([..., points, n] in space) to values
                [..., points, any...].
            points: Size of the rule: on the line a number, in the plane also (radial, angular). The default for a basis
                keeps the error below 1e-12 of a function's peak in float64, and below 1e-6 in float32. The bound of the
                error depends on the narrowest function and on the widest density. If this needs more than 1024 points,
                or more than 96 rings of 384 points, a warning gives the bound and the required size. The default for
                other functions is 128 points, or 32 rings of 64 points. Reading the widest density synchronizes with
                the GPU; pass `points` to avoid this. For a basis without a width, the default assumes that functions
                are a tenth as wide as the support. Compiled graphs need `points` for a basis.

        Returns:
            [..., size] for a basis, [..., any...] for a function.

        Raises:
            ValueError: If the basis has another number of dimensions, or `points` is below 1 or has a wrong length.
            TypeError: If `points` is not a whole number.
            NotImplementedError: If quadrature would need more than two dimensions, or a compiled graph needs `points`.
        """
        if not torch.compiler.is_compiling():
            check_points(points, self.dims)
        with without_autocast(self._mean.device.type):
            return self._expect(function, points).to(self.dtype)

    def _expect(self, function: Function, points: Points) -> Tensor:
        if not isinstance(function, Basis):
            rule = self._rule(math.nan, points if points is not None else 128 if self.dims == 1 else (32, 64))
            values = function(self._to_points(rule))
            axis = len(self.batch_shape)
            weights = rule.weights.expand(*self.batch_shape, -1)
            return (weights.reshape(weights.shape + (1,) * (values.dim() - axis - 1)) * values).sum(axis)
        if function.dims != self.dims:
            raise ValueError(f"the basis must have as many dimensions as the density, {self.dims}, got {function.dims}")
        closed = self._closed_form(function)
        if closed is not None:
            return closed
        if points is None:
            expectation = self._fourier_expectation(function)
            if expectation is not None:
                return expectation
        rule = self._rule(self._sharpness(function, points), points)
        if self.dims == 1:
            return function.weighted_sum(rule.weights, self._to_points(rule))
        u, v = rule.nodes.unbind(-1)
        factor, mean = self._factor.unsqueeze(-3), self._mean.unsqueeze(-2)
        x = mean[..., 0] + factor[..., 0, 0] * u  # [..., points]
        y = mean[..., 1] + factor[..., 1, 0] * u + factor[..., 1, 1] * v
        return function.weighted_sum(rule.weights, x, y)

    def _rule(self, sharpness: float, points: Points) -> Rule:
        return self.family.rule(sharpness, points, self._mean)

    def _sharpness(self, basis: Basis, points: Points) -> float:
        """Return the ratio of the widest standard deviation to the narrowest function; NaN if unknown.

        With a given number of points, only densities with unbounded support need this ratio: it selects their rule.
        """
        if math.isnan(basis.width):
            return math.nan
        reach = self.family.reach(self._mean) if points is not None else math.inf
        if isinstance(reach, Tensor) or math.isfinite(reach):
            return math.nan
        if points is None and graph_outlives_values():
            raise NotImplementedError(
                "can't export or compile an expectation whose number of points depends on the density: pass points="
            )
        widest = self._largest_deviation() or math.nan
        return widest / basis.width

    def _to_points(self, rule: Rule) -> Tensor:
        """Map the nodes of a standardised rule to this density's points [..., points] or [..., points, n]."""
        if self.dims == 1:
            return self._mean.unsqueeze(-1) + self._factor.unsqueeze(-1) * rule.nodes
        return self._mean.unsqueeze(-2) + rule.nodes @ self._factor.mT

    def _largest_deviation(self) -> float:
        """Return the largest standard deviation in any direction."""
        if recording() or without_numbers(self._mean) or not self._mean.numel():
            return math.nan
        factor = physical(self._factor)  # vmap uses one rule for the whole batch
        with outside_tracers():
            if self.dims == 1:
                return float(factor.nan_to_num(0.0).amax())
            return math.sqrt(float(fourier.largest(factor).nan_to_num(0.0).amax()))

    def _closed_form(self, basis: Basis) -> Tensor | None:
        gaussian = isinstance(self.family, BetaGaussian) and self.family.number == 1
        gaussians = basis.gaussians(self._mean) if gaussian else None
        if gaussians is None:
            return None
        if self.dims == 1:
            return rules.gaussian_overlap(self._mean[..., None], self.covariance[..., None, None], *gaussians)
        return rules.gaussian_overlap(self._mean, self.covariance, *gaussians)

    def _fourier_expectation(self, basis: Basis) -> Tensor | None:
        """Return expectations of Gaussians in the plane by Fourier transforms, or None if these don't apply."""
        family = self.family
        if self.dims != 2 or not isinstance(family, BetaGaussian) or not self._mean.numel():
            return None
        if traced() or forward_mode() or without_numbers(self._mean):
            return None
        if family.number is None or family.number < NEARLY_GAUSSIAN or not basis.fixed_gaussians:
            return None
        factor = self._factor * math.sqrt(rules.squared_reach(family.number, 2))
        return fourier.wave_expectation(basis, self._mean, factor, 2 + 1 / (family.number - 1))

    def expand(self: Self, batch_shape: Any, _instance: Any = None) -> Self:
        new: Self = self._get_checked_instance(type(self), _instance)
        shape = torch.Size(batch_shape)
        new.__dict__.update(self.__dict__)
        event = self.event_shape
        new._mean, new._factor = self._mean.expand(shape + event), self._factor.expand(shape + event + event)
        Distribution.__init__(new, shape, event, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, dims={self.dims})"


def _check_triangle(factor: Tensor) -> None:
    """Raise if a factor is not lower triangular, or not finite below the diagonal."""
    lower, upper = factor.tril(-1), factor.triu(1)
    if bool((upper != 0).any()):
        raise ValueError(f"factor must be lower triangular, got {upper[upper != 0][0].item():g} above the diagonal")
    if not bool(lower.isfinite().all()):
        raise ValueError(f"factor must be finite, got {lower[~lower.isfinite()][0].item():g} below the diagonal")
