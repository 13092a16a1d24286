"""Basis functions for value functions: Gaussians on the line and in the plane, and products of bases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from tsallis.continuous.densities.base import check_positive, check_symmetric
from tsallis.continuous.gaussian_products import bells, peaks, plane_sum
from tsallis.errors import check_integer
from tsallis.functional.rows import check_floating, number
from tsallis.ops.transforms import forward_mode, traced, without_numbers


class Basis(nn.Module):
    r"""Base class of a set of basis functions :math:`\psi`, which are evaluated together.

    A basis is a module, so its tensors move with the model and are saved. The attribute `width` is the standard
    deviation of the narrowest Gaussian; densities compute the size of their quadrature rule from this width. For a
    basis without a width, a density assumes a tenth of half its support, or a tenth of its standard deviation if the
    support is infinite.

    Example:
        >>> class Cubes(Basis):
        ...     size = 2
        ...
        ...     def at(self, t):
        ...         return torch.stack([t**3, (1 - t) ** 3], -1)
        >>> from tsallis.continuous import TruncatedParabola
        >>> TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01)).expect(Cubes())
        tensor([0.1400, 0.1400])
    """

    dims: int = 1
    width: float = math.nan

    @property
    def size(self) -> int:
        """Return the number of functions."""
        raise NotImplementedError

    def forward(self, t: Tensor) -> Tensor:
        """Evaluate the functions at points [...], or [..., 2] in the plane; return [..., size]."""
        t = t if t.is_floating_point() else t.to(torch.get_default_dtype())
        if self.dims == 1:
            return self.at(t)
        if t.dim() == 0 or t.shape[-1] != self.dims:
            raise ValueError(f"points must have shape [..., {self.dims}], got {tuple(t.shape)}")
        return self.at(*t.unbind(-1))

    def at(self, *coordinates: Tensor) -> Tensor:
        """Evaluate the functions at points given as coordinates, each [...]; return [..., size]."""
        raise NotImplementedError

    def weighted_sum(self, weights: Tensor, *coordinates: Tensor) -> Tensor:
        """Return weighted sums of the functions [..., size] over points; weights and coordinates are [..., points]."""
        values = self.at(*coordinates)  # [..., points, size]
        if weights.dim() == 1:
            return torch.einsum("q,...qn->...n", weights, values)
        return (weights.unsqueeze(-2) @ values).squeeze(-2)

    def gaussians(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return centres [size, dims] and covariances [size, dims, dims] if all functions are normal densities."""
        return None

    @property
    def fixed_gaussians(self) -> bool:
        """Return whether all functions are normal densities made of buffers without a gradient."""
        return False


class GaussianBasis(Basis):
    r"""Normal densities :math:`\psi_j(t) = N(t; \mu_j, \Sigma_j)`, on the line or in the plane.

    (Martins et al. 2020, app. G.)

    Args:
        centres: :math:`\mu_j` [size], or [size, 2] in the plane.
        variance: :math:`\Sigma_j`: a number, [size] (circular functions in the plane), or [size, 2, 2].

    Raises:
        ValueError: If shapes don't fit, or a variance is not positive.
        TypeError: If the centres are not floating point.

    Example:
        >>> basis = GaussianBasis(torch.linspace(0, 1, 4), 0.01)
        >>> basis(torch.tensor([0.0, 0.5])).shape, basis.width
        (torch.Size([2, 4]), 0.1)
    """

    centres: Tensor
    covs: Tensor

    def __init__(self, centres: Tensor, variance: float | Tensor) -> None:
        super().__init__()
        check_floating(centres, "centres")
        self.dims = 1 if centres.dim() == 1 else centres.shape[-1]
        if centres.dim() not in (1, 2) or centres.shape[0] == 0 or self.dims not in (1, 2) or centres.shape[1:] == (1,):
            raise ValueError(f"centres must have shape [size] or [size, 2], got {tuple(centres.shape)}")
        size = centres.shape[0]
        variances = torch.as_tensor(variance, dtype=centres.dtype, device=centres.device).detach()
        if variances.shape in ((), (1,), (size,)):
            variances = variances.expand(size)
            covs = variances if self.dims == 1 else variances[:, None, None] * torch.eye(2).to(centres)
        else:
            covs = variances
        if covs.shape != centres.shape + centres.shape[1:]:
            raise ValueError(
                f"variance must be a number, or have shape ({size},) or {tuple(centres.shape + centres.shape[1:])}, "
                f"got shape {tuple(variances.shape)}"
            )
        for name, numbers in (("centres", centres), ("variance", covs)):
            if not bool(numbers.isfinite().all()):
                raise ValueError(f"{name} must be finite, got {numbers[~numbers.isfinite()][0].item():g}")
        if self.dims == 2:
            check_symmetric(covs, "variance")
        eigenvalues = covs if self.dims == 1 else torch.linalg.eigvalsh(covs.double())
        if not bool((eigenvalues > 0).all()):
            message = (
                "variance must be positive, got"
                if self.dims == 1
                else "variance must be positive definite, got eigenvalue"
            )
            raise ValueError(f"{message} {eigenvalues.min().item():g}")
        self.register_buffer("centres", centres.detach())
        self.register_buffer("covs", covs.clone())
        self._measured: tuple[tuple[int, int], float] = (0, 0), self._measure_width()

    @property
    def width(self) -> float:  # type: ignore[override]
        """Return the standard deviation of the narrowest function; it is updated if the variances change."""
        if traced() or without_numbers(self.covs) or self.covs.is_inference():  # changes can't be detected
            return self._measured[1]
        version = self.covs.data_ptr(), self.covs._version
        if self._measured[0] != version:
            self._measured = version, self._measure_width()
        return self._measured[1]

    def _measure_width(self) -> float:
        """Return the width, or NaN if the variances are no longer finite."""
        covs = self.covs.detach().double()
        if not bool(covs.isfinite().all()):
            return math.nan
        eigenvalues = covs if self.dims == 1 else torch.linalg.eigvalsh(covs)
        digits = 6 if self.covs.dtype == torch.float32 else 15
        return float(f"{eigenvalues.min().sqrt().item():.{digits}g}")

    @property
    def size(self) -> int:
        return self.centres.shape[0]

    def at(self, *coordinates: Tensor) -> Tensor:
        like = coordinates[0]
        centres, covs = self.centres.to(like), self.covs.to(like)
        if self.dims == 1:
            return torch.exp(-bells(centres, covs).z(like).square()) * peaks(covs)
        inverse = torch.linalg.inv(torch.linalg.cholesky(covs))
        x, y = (c.unsqueeze(-1) - centres[:, i] for i, c in enumerate(coordinates))
        first, second = inverse[:, 0, 0] * x, inverse[:, 1, 0] * x + inverse[:, 1, 1] * y
        peak = inverse[:, 0, 0] * inverse[:, 1, 1] / (2 * math.pi)
        values: Tensor = torch.exp(-(first.square() + second.square()) / 2) * peak
        return values

    @property
    def fixed_gaussians(self) -> bool:
        return not (self.centres.requires_grad or self.covs.requires_grad)

    def gaussians(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        centres, covs = self.centres.to(like), self.covs.to(like)
        return (centres[:, None], covs[:, None, None]) if self.dims == 1 else (centres, covs)

    def extra_repr(self) -> str:
        return f"size={self.size}, dims={self.dims}, width={self.width:g}"


class ProductBasis(Basis):
    r"""Products of a basis in x and a basis in y, :math:`\psi_{ij}(x, y) = a_i(x) b_j(y)`; y varies fastest.

    An expectation evaluates the two bases at every node instead of their products, and takes one batched matrix
    product.

    Args:
        first: Basis on the line, for x.
        second: Basis on the line, for y (default: `first`).

    Raises:
        ValueError: If a basis is not on the line.
        TypeError: If an argument is not a Basis.

    Example:
        >>> grid = ProductBasis(GaussianBasis(torch.linspace(0, 1, 10), 0.01))
        >>> grid.size, grid(torch.rand(5, 2)).shape
        (100, torch.Size([5, 100]))
    """

    dims = 2

    def __init__(self, first: Basis, second: Basis | None = None) -> None:
        super().__init__()
        self.first = first
        # Register a shared basis once: otherwise the state dict would contain its tensors under two names.
        self.other = second if second is not first else None
        for basis in (self.first, self.second):
            if not isinstance(basis, Basis):
                raise TypeError(f"each part of a product must be a Basis, got {type(basis).__name__}")
            if basis.dims != 1:
                raise ValueError(f"each basis of a product must have 1 dimension, got {basis.dims}")

    @property
    def second(self) -> Basis:
        """Return the basis for y."""
        return self.first if self.other is None else self.other

    @property
    def width(self) -> float:  # type: ignore[override]
        """Return the smaller width of the two bases, or NaN if a width is unknown."""
        widths = self.first.width, self.second.width
        return math.nan if math.isnan(sum(widths)) else min(widths)

    @property
    def size(self) -> int:
        return self.first.size * self.second.size

    def at(self, *coordinates: Tensor) -> Tensor:
        x, y = coordinates
        return (self.first.at(x).unsqueeze(-1) * self.second.at(y).unsqueeze(-2)).flatten(-2)

    def weighted_sum(self, weights: Tensor, *coordinates: Tensor) -> Tensor:
        x, y = coordinates
        if isinstance(self.first, GaussianBasis) and isinstance(self.second, GaussianBasis):
            a, b = ((basis.centres.to(x), basis.covs.to(x)) for basis in (self.first, self.second))
            fixed = weights.dim() == 1 and not weights.requires_grad and self.fixed_gaussians
            if fixed and not traced() and not forward_mode():
                sums = plane_sum(weights, x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), bells(*a), bells(*b))
                return (sums * torch.outer(peaks(a[1]), peaks(b[1]))).reshape(*x.shape[:-1], self.size)
        left = self.first.at(x) * weights.unsqueeze(-1)  # [..., points, first]
        return (left.mT @ self.second.at(y)).flatten(-2)

    @property
    def fixed_gaussians(self) -> bool:
        return self.first.fixed_gaussians and self.second.fixed_gaussians

    def gaussians(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        a, b = self.first.gaussians(like), self.second.gaussians(like)
        if a is None or b is None:
            return None
        centres = torch.cartesian_prod(a[0].flatten(), b[0].flatten())
        covs = torch.diag_embed(torch.cartesian_prod(a[1].flatten(), b[1].flatten()))
        return centres, covs


def gaussian_grid(size: int, widths: float | Sequence[float]) -> GaussianBasis:
    """Return Gaussians on the line: the same number for each width, with evenly spaced centres from 0 to 1.

    Args:
        size: Number of functions; a multiple of the number of widths.
        widths: Standard deviations, or a single one.

    Returns:
        A basis of `size` functions on the line, grouped by width in the order of `widths`.

    Raises:
        ValueError: If `size` is not a multiple of the number of widths, or a width is not positive.

    Example:
        >>> gaussian_grid(6, [0.1, 0.5]).centres
        tensor([0.0000, 0.5000, 1.0000, 0.0000, 0.5000, 1.0000])
    """
    check_integer("size", size, 1)
    widths = [number("widths", width) for width in (widths if isinstance(widths, Iterable) else [widths])]
    if not widths or size % len(widths):
        raise ValueError(f"size must be a multiple of the number of widths, got size {size} and {len(widths)} widths")
    size_per_width = size // len(widths)
    centres = torch.linspace(0, 1, size_per_width, dtype=torch.float64, device="cpu").repeat(len(widths))
    deviations = torch.tensor(widths, dtype=torch.float64, device="cpu")
    check_positive(deviations, "widths")
    variance = deviations.square().repeat_interleave(size_per_width)
    dtype = torch.get_default_dtype()
    return GaussianBasis(centres.to(dtype), variance.to(dtype))


def text_basis(size: int = 64) -> GaussianBasis:
    """Return the basis of the paper's text classifiers: Gaussians of widths 0.1 and 0.5.

    The centres are on [0, 1] (Martins et al. 2020, sec. 4 and table 1: 32, 64 and 128 functions).

    Args:
        size: Number of functions, even.

    Returns:
        A basis on the line.

    Raises:
        ValueError: If `size` is odd.

    Example:
        >>> text_basis(32)
        GaussianBasis(size=32, dims=1, width=0.1)
    """
    return gaussian_grid(size, (0.1, 0.5))


def translation_basis(size: int = 30) -> GaussianBasis:
    """Return the basis of the paper's translation models: widths 0.03, 0.1 and 0.3.

    The functions are Gaussians with centres on [0, 1] (Martins et al. 2020, sec. 4: 30 functions).

    Args:
        size: Number of functions, a multiple of 3.

    Returns:
        A basis on the line.

    Raises:
        ValueError: If `size` is not a multiple of 3.

    Example:
        >>> translation_basis()
        GaussianBasis(size=30, dims=1, width=0.03)
    """
    return gaussian_grid(size, (0.03, 0.1, 0.3))


def image_basis(side: int = 10, variance: float = 0.01) -> ProductBasis:
    """Return circular Gaussians with centres on a square grid over :math:`[0, 1]^2`.

    (Martins et al. 2020, sec. 4.) The default variance is ten times the paper's, so that the functions can represent a
    constant.

    Args:
        side: Number of centres along each axis.
        variance: Variance of the Gaussians.

    Returns:
        A basis of `side` times `side` functions in the plane, the y coordinate varying fastest.

    Raises:
        ValueError: If `side` is below 1, or the variance is not positive.

    Example:
        >>> image_basis().size
        100
    """
    check_integer("side", side, 1)
    variance = number("variance", variance)
    check_positive(torch.tensor(variance, device="cpu"), "variance")
    return ProductBasis(gaussian_grid(side, math.sqrt(variance)))


def paper_image_basis() -> ProductBasis:
    """Return the paper's basis for images: :func:`image_basis` with variance 0.001.

    (Martins et al. 2020, sec. 4.) The functions are too narrow for their spacing, so they can't represent a constant.

    Returns:
        A basis of 100 functions in the plane.

    Example:
        >>> paper_image_basis().width
        0.0316228
    """
    return image_basis(variance=0.001)
