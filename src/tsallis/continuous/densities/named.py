"""Define the public density classes that continuous attention uses."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from tsallis.continuous.densities import beta_gaussian, distance
from tsallis.continuous.densities.base import Family, cholesky, tensors
from tsallis.continuous.densities.elliptical import Elliptical
from tsallis.errors import check_integer
from tsallis.functional.rows import alpha_number
from tsallis.ops.alphas import Alpha
from tsallis.ops.dtypes import upcast

Self = TypeVar("Self", bound="Quadratic")
Distance = TypeVar("Distance", bound="_Absolute")


class Quadratic(Elliptical):
    r"""Density with a quadratic score, :math:`f(t) = -\frac12 (t - \mu)^\top S^{-1} (t - \mu)`, for any alpha."""

    @classmethod
    def from_scores(
        cls: type[Self],
        theta: Tensor,
        *,
        validate_args: bool | None = None,
        **shape: object,
    ) -> Self:
        r"""Return the density with canonical parameters :math:`\theta = [S^{-1}\mu, \mathrm{vec}(-\frac12 S^{-1})]`.

        The parameters are the score's coefficients of :math:`t` and :math:`t t^\top` (Martins et al. 2020, sec. 2.4).

        Args:
            theta: Canonical parameters, [..., 2] on the line, [..., n + n²] in n dimensions.

        Raises:
            ValueError: If the last dimension has another size, or the quadratic part is not negative definite.
        """
        family = cls._checked_family(shape)
        n = family.dims
        if theta.dim() == 0 or theta.shape[-1] != n + n * n:
            raise ValueError(f"theta must have shape [..., {n + n * n}] in {n} dimensions, got {tuple(theta.shape)}")
        wide = upcast(theta)
        if n == 1:
            scale = -0.5 / wide[..., 1]
            mean = wide[..., 0] * scale
        else:
            precision = -2 * wide[..., n:].unflatten(-1, (n, n))
            root = cholesky(precision, n)
            cls._check_spread(precision, family, validate_args, None)
            mean = torch.cholesky_solve(wide[..., :n].unsqueeze(-1), root).squeeze(-1)
            scale = torch.cholesky_inverse(root)
        return cls._make(mean.to(theta.dtype), family.factor(scale), family, validate_args)

    @property
    def theta(self) -> Tensor:
        """Return the canonical parameters [..., n + n²], in the format of :meth:`from_scores`."""
        scale = self.scale
        if self.dims == 1:
            return torch.stack([self._mean / scale, -0.5 / scale], -1).to(self.dtype)
        root = cholesky(scale, self.dims)
        linear = torch.cholesky_solve(self._mean.unsqueeze(-1), root).squeeze(-1)
        return torch.cat([linear, -0.5 * torch.cholesky_inverse(root).flatten(-2)], -1).to(self.dtype)


class BetaGaussian(Quadratic):
    r"""Density of a quadratic score for any alpha >= 1, fixed or learned; Gaussian at 1, truncated parabola at 2.

    .. math:: p(t) = \Big[ (\alpha-1)\big(-\tau - \tfrac12 (t-\mu)^\top S^{-1} (t-\mu)\big) \Big]_+^{1/(\alpha-1)},
              \qquad \mathrm{Cov} = \frac{-2\tau}{n + 2\alpha/(\alpha-1)} S

    This is the solution of :math:`\max_p E_p[f] + H_\alpha(p)` (Martins et al. 2020, prop. 1; Martins et al. 2022).

    Args:
        mean: Mean, [...] on the line, [..., n] in n dimensions.
        cov: Variance [...], or covariance [..., n, n].
        alpha: Number >= 1, or a tensor that broadcasts to the batch shape and may require a gradient.
        dims: Number of dimensions n; 2 for a covariance matrix in the plane. Expectations by
            quadrature support 1 and 2.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If alpha is below 1 or not finite, shapes don't fit, or the covariance is not positive definite.

    Example:
        >>> density = BetaGaussian(torch.tensor([0.2, 0.5]), torch.tensor(0.01), alpha=1.5)
        >>> density.support.lower, density.support.length
        (tensor([-0.0646,  0.2354]), tensor([0.5292, 0.5292]))
        >>> density.expect(lambda t: t**2)
        tensor([0.0500, 0.2600])
    """

    shape_names = ("alpha", "dims")

    def __init__(
        self,
        mean: Tensor | float,
        cov: Tensor | float,
        alpha: Alpha = 1.5,
        dims: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        family = BetaGaussian._family(alpha, dims)
        super().__init__(*self._factorize(mean, cov, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls, alpha: Alpha = 1.5, dims: int = 1) -> Family:  # type: ignore[override]
        check_integer("dims", dims, 1)
        return beta_gaussian.BetaGaussian(alpha if isinstance(alpha, Tensor) else alpha_number(alpha), dims)


class Gaussian(Quadratic):
    r"""Normal density, the continuous softmax on the line or in space (alpha 1).

    .. math:: p(t) \propto \exp\big(-\tfrac12 (t-\mu)^\top \Sigma^{-1} (t-\mu)\big)

    (Martins et al. 2020, sec. 2.2.) Expectations of Gaussian functions have a closed form (eq. 46).

    Args:
        mean: Mean, [...] on the line, [..., n] in n dimensions.
        cov: Variance [...], or covariance [..., n, n].
        dims: Number of dimensions n; 2 for a covariance matrix in the plane.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, or the covariance is not positive definite.

    Example:
        >>> Gaussian(torch.tensor(0.0), torch.tensor(1.0)).pdf(torch.tensor(0.0))
        tensor(0.3989)
    """

    shape_names = ("dims",)

    def __init__(
        self, mean: Tensor | float, cov: Tensor | float, dims: int = 1, validate_args: bool | None = None
    ) -> None:
        family = Gaussian._family(dims)
        super().__init__(*self._factorize(mean, cov, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls, dims: int = 1) -> Family:  # type: ignore[override]
        return BetaGaussian._family(1.0, dims)


class TruncatedParabola(Quadratic):
    r"""Continuous sparsemax of a quadratic score on the line (alpha 2); zero far from the mean.

    .. math:: p(t) = \Big[ -\lambda - \frac{(t-\mu)^2}{2\sigma^2} \Big]_+, \qquad
              \lambda = -\tfrac12 \Big(\frac{3}{2\sigma}\Big)^{2/3}

    (Martins et al. 2020, eq. 10.) The support is :math:`|t - \mu| \le a` with :math:`a = (3\sigma^2/2)^{1/3}`. The
    variance is :math:`a^2 / 5`, and `scale` is :math:`\sigma^2`.

    Args:
        mean: Mean [...].
        variance: Variance [...]; :meth:`from_scale` takes :math:`\sigma^2` instead.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, or the variance is not positive.

    Example:
        >>> density = TruncatedParabola.from_scale(torch.tensor(0.0), torch.tensor(2 / 3))  # Epanechnikov's kernel
        >>> density.pdf(torch.tensor([0.0, 0.5, 1.5])), density.variance
        (tensor([0.7500, 0.5625, 0.0000]), tensor(0.2000))
    """

    def __init__(self, mean: Tensor | float, variance: Tensor | float, validate_args: bool | None = None) -> None:
        family = TruncatedParabola._family()
        super().__init__(*self._factorize(mean, variance, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls) -> Family:  # type: ignore[override]
        return BetaGaussian._family(2.0, 1)


class TruncatedParaboloid(Quadratic):
    r"""Continuous sparsemax of a quadratic score in the plane or in space (alpha 2); zero outside an ellipse.

    .. math:: p(t) = \Big[ -\lambda - \tfrac12 (t-\mu)^\top \Sigma^{-1} (t-\mu) \Big]_+, \qquad
              \lambda = -\Big(\frac{\Gamma(n/2 + 2)}{\sqrt{\det(2\pi\Sigma)}}\Big)^{2/(2+n)}

    (Martins et al. 2020, eq. 11.) `scale` is :math:`\Sigma`. In the plane, a density with covariance C has
    :math:`\Sigma = 9\pi\sqrt{\det C}\,C`.

    Args:
        mean: Mean [..., n].
        cov: Covariance [..., n, n]; :meth:`from_scale` takes :math:`\Sigma` instead.
        dims: Number of dimensions n; 2 for a covariance matrix in the plane.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, or the covariance is not positive definite.

    Example:
        >>> density = TruncatedParaboloid(torch.zeros(2), torch.eye(2))
        >>> density.support.semi_axes, density.pdf(torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
        (tensor([2.4495, 2.4495]), tensor([0.1061, 0.0000]))
    """

    shape_names = ("dims",)
    default_dims = 2

    def __init__(
        self, mean: Tensor | float, cov: Tensor | float, dims: int = 2, validate_args: bool | None = None
    ) -> None:
        family = TruncatedParaboloid._family(dims)
        super().__init__(*self._factorize(mean, cov, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls, dims: int = 2) -> Family:  # type: ignore[override]
        return BetaGaussian._family(2.0, dims)


class _Absolute(Elliptical):
    """Density whose score is the negative distance from the mean, divided by a scale."""

    @classmethod
    def from_scores(
        cls: type[Distance], theta: Tensor | float, mean: Tensor | float, *, validate_args: bool | None = None
    ) -> Distance:
        r"""Return the density with a mean and the coefficient :math:`\theta = -1/b` [...] of :math:`|t - \mu|`.

        Raises:
            ValueError: If the parameter is not finite or not negative.
        """
        mean, theta = tensors(mean, theta)
        return cls.from_scale(mean, -1 / upcast(theta), validate_args=validate_args)

    @property
    def theta(self) -> Tensor:
        """Return the canonical parameter [...], in the format of :meth:`from_scores`."""
        return (-1 / self.scale).to(self.dtype)


class Laplace(_Absolute):
    r"""Laplace density: the continuous softmax of a score that falls linearly with the distance (alpha 1).

    .. math:: p(t) = \frac{1}{2b} \exp(-|t - \mu| / b)

    (Martins et al. 2020, sec. 2.2.)

    Args:
        mean: Mean [...].
        variance: Variance :math:`2b^2` [...]; :meth:`from_scale` takes b.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, or the variance is not positive.

    Example:
        >>> Laplace.from_scale(torch.tensor(0.0), torch.tensor(0.5)).pdf(torch.tensor([0.0, 0.5]))
        tensor([1.0000, 0.3679])
    """

    def __init__(self, mean: Tensor | float, variance: Tensor | float, validate_args: bool | None = None) -> None:
        family = distance.Laplace()
        super().__init__(*self._factorize(mean, variance, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls) -> Family:  # type: ignore[override]
        return distance.Laplace()


class Triangular(_Absolute):
    r"""Triangular density: the continuous sparsemax of a score that falls linearly with the distance (alpha 2).

    .. math:: p(t) = \Big[ -\lambda - \frac{|t-\mu|}{b} \Big]_+, \qquad \lambda = -b^{-1/2}

    (Martins et al. 2020, eq. 12.) The support is :math:`|t - \mu| \le \sqrt b`.

    Args:
        mean: Mean [...].
        variance: Variance :math:`b/6` [...]; :meth:`from_scale` takes b.
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If shapes don't fit, or the variance is not positive.

    Example:
        >>> Triangular.from_scale(torch.tensor(0.0), torch.tensor(1.0)).pdf(torch.tensor([0.0, 0.5, 2.0]))
        tensor([1.0000, 0.5000, 0.0000])
    """

    def __init__(self, mean: Tensor | float, variance: Tensor | float, validate_args: bool | None = None) -> None:
        family = distance.Triangular()
        super().__init__(*self._factorize(mean, variance, family, validate_args), family, validate_args)

    @classmethod
    def _family(cls) -> Family:  # type: ignore[override]
        return distance.Triangular()
