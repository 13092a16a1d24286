"""Compute densities of continuous attention from features, or from the weights of discrete attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.continuous import (
    BetaGaussian,
    Density,
    Elliptical,
    Gaussian,
    Laplace,
    Mixture,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
    match_moments,
)
from tsallis.continuous.moments import Matching
from tsallis.errors import check_integer
from tsallis.functional.rows import alpha_number, number
from tsallis.nn.alpha import PerHeadAlpha
from tsallis.ops.dtypes import upcast, without_autocast

KINDS: dict[int, dict[str, type[Elliptical]]] = {
    1: {"gaussian": Gaussian, "truncated_parabola": TruncatedParabola, "laplace": Laplace, "triangular": Triangular},
    2: {"gaussian": Gaussian, "truncated_paraboloid": TruncatedParaboloid},
}
GOLDEN = (math.sqrt(5) - 1) / 2
UNIFORM = math.sqrt(1 / 12)  # the standard deviation of the uniform density on [0, 1]


def linear(features: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a linear layer in at least float32, also under autocast, because densities need the precision."""
    with without_autocast(features.device.type):
        dtype = torch.promote_types(upcast(features).dtype, upcast(layer.weight).dtype)
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return F.linear(features.to(dtype), layer.weight.to(dtype), bias)


class DensityKind(nn.Module):
    """Kind of density that attention uses, with its alpha and matching.

    Args:
        density: Name of the density: "gaussian", "truncated_parabola", "laplace" or "triangular" on the line,
            "gaussian" or "truncated_paraboloid" in the plane. Alternatively a fixed alpha >= 1, "learned" for an alpha
            per head (:class:`tsallis.nn.PerHeadAlpha`), or a module whose `forward()` returns alphas [heads] or [1].
        dims: Number of dimensions, 1 or 2.
        heads: Number of heads of the attention.
        matching: Parameter of the density that a computed spread sets: "covariance", or "scale" (that of the paper's
            formula).
        floor: Constant added to variances.

    Raises:
        ValueError: If the density is unknown for `dims`, alpha is below 1, or the matching is unknown.
    """

    alpha: float | nn.Module | None

    def __init__(
        self, density: str | float | nn.Module, dims: int, heads: int, matching: Matching, floor: float
    ) -> None:
        super().__init__()
        if matching not in ("covariance", "scale"):
            raise ValueError(f"matching must be 'covariance' or 'scale', got {matching!r}")
        floor = number("floor", floor)
        if not (math.isfinite(floor) and floor > 0):
            raise ValueError(f"floor must be positive and finite, got {floor:g}")
        self.dims = dims
        self.matching = matching
        self.floor = floor
        self.kind: type[Elliptical] = BetaGaussian
        if isinstance(density, nn.Module):
            self.name, self.alpha = "learned", density
        elif density == "learned":
            self.name, self.alpha = "learned", PerHeadAlpha(heads)
        elif isinstance(density, str):
            if density not in KINDS[dims]:
                names = ", ".join([*KINDS[dims], "learned"])
                raise ValueError(f"density must be one of {names} or an alpha of at least 1, got {density!r}")
            self.name = density
            self.kind = KINDS[dims][density]
            self.alpha = None
        else:
            self.name, self.alpha = "beta_gaussian", alpha_number(density)

    def shape(self, components: int) -> dict[str, Any]:
        """Return arguments of the density such as alpha, broadcastable to [batch, heads, queries] or [..., components].

        The arguments turn validation off, so that a NaN affects only its row.
        """
        shape: dict[str, Any] = {"validate_args": False}
        if isinstance(self.alpha, nn.Module):
            alpha: Tensor = self.alpha()
            shape["alpha"] = upcast(alpha).reshape(-1, *[1] * (1 + (components > 1)))
        elif self.alpha is not None:
            shape["alpha"] = self.alpha
        if "dims" in self.kind.shape_names:
            shape["dims"] = self.dims
        return shape

    def matched(self, weights: Tensor, positions: Tensor, components: int = 1) -> Elliptical:
        """Return the density with the mean and spread that weights [..., length] have over positions."""
        shape = {name: value for name, value in self.shape(components).items() if name != "dims"}
        return match_moments(
            self.kind, weights, positions, matching=self.matching, floor=self.floor, dims=self.dims, **shape
        )

    def spread(self, mean: Tensor, root: Tensor, components: int) -> Elliptical:
        """Return the density with the given mean and spread: a standard deviation, or a lower triangular factor.

        The root belongs to the covariance, or with matching "scale" to the scale.
        """
        shape = self.shape(components)
        if self.matching == "scale" and self.dims == 1:
            return self.kind.from_scale(mean, root.square(), **shape)
        if self.matching == "scale":  # a product of the root and its transpose could lose the smaller spread
            family: Any = self.kind.from_factor(mean, root, **shape).family
            root = family.factor_of_root(root)
        return self.kind.from_factor(mean, root, **shape)

    def initial_root(self, heads: int, components: int) -> Tensor:
        """Return initial roots [heads, 1, components] for :meth:`spread`; a head's components divide the space."""
        std = torch.full((heads, 1, components), UNIFORM / components ** (1 / self.dims))
        if self.matching == "covariance":
            return std
        shape = self.shape(2)  # 2: always include a dimension for components
        if self.dims == 1:
            return self.kind.from_factor(torch.zeros_like(std), std, **shape).scale.detach().sqrt()
        factor = std[..., None, None] * torch.eye(2)
        scale = self.kind.from_factor(std.new_zeros(*std.shape, 2), factor, **shape).scale
        return scale.detach()[..., 0, 0].sqrt()

    def extra_repr(self) -> str:
        alpha = f", alpha={self.alpha:g}" if isinstance(self.alpha, float) else ""
        return f"{self.name}{alpha}, matching={self.matching}"


class DensityHead(nn.Module):
    r"""Linear heads that map features to densities with any spread and a mean in the unit interval or square.

    On the line :math:`\mu = \sigma(w_1^\top v)` and :math:`\sigma^2 = \mathrm{softplus}(w_2^\top v)` (Martins et al.
    2020, sec. 4); in the plane the spread is a Cholesky factor with softplus on its diagonal. Initially the means are
    distributed evenly over the space, and the components of each head together cover the space.

    Args:
        d_features: Size of the features.
        kind: Kind of the density.
        heads: Number of densities per feature vector.
        components: Number of components; above 1, densities are mixtures with softmax weights.
    """

    def __init__(self, d_features: int, kind: DensityKind, heads: int, components: int) -> None:
        super().__init__()
        self.heads, self.components = heads, components
        self.numbers = (2 if kind.dims == 1 else 5) + (components > 1)
        self.linear = nn.Linear(d_features, heads * components * self.numbers)
        self.reset_parameters(kind)

    @torch.no_grad()
    def reset_parameters(self, kind: DensityKind) -> None:
        """Initialise the parameters."""
        dims, heads, components = kind.dims, self.heads, self.components
        nn.init.xavier_uniform_(self.linear.weight, gain=0.5)
        nn.init.zeros_(self.linear.bias)
        bias = self.linear.bias.view(heads, components, self.numbers)
        index = torch.arange(components) * heads + torch.arange(heads).unsqueeze(1)  # [heads, components]
        bias[..., 0] = torch.logit((index + 0.5) / (heads * components))
        if dims == 2:
            # Steps of the golden ratio distribute any number of means evenly over the square.
            bias[..., 1] = torch.logit((0.5 + index * GOLDEN) % 1)
        start = kind.initial_root(heads, components).squeeze(1)
        start = start.square() - kind.floor if dims == 1 else start - math.sqrt(kind.floor)
        start = start.clamp(min=1e-4)  # a floor can be larger than the initial variance
        inverse = start + torch.log(-torch.expm1(-start))  # inverse of softplus
        bias[..., 1 if dims == 1 else 2] = inverse
        if dims == 2:
            bias[..., 3] = inverse

    def forward(self, features: Tensor, kind: DensityKind) -> Density:
        """Return densities of batch shape [batch, heads, queries] for features [batch, queries, d_features]."""
        numbers = linear(features, self.linear).unflatten(-1, (self.heads, self.components, self.numbers))
        numbers = numbers.transpose(1, 2)  # [batch, heads, queries, components, numbers]
        weights = numbers[..., -1].softmax(-1) if self.components > 1 else None
        if weights is None:
            numbers = numbers.squeeze(-2)
        if kind.dims == 1:
            density = kind.spread(
                torch.sigmoid(numbers[..., 0]), (F.softplus(numbers[..., 1]) + kind.floor).sqrt(), self.components
            )
        else:
            ends = F.softplus(numbers[..., 2:4]) + math.sqrt(kind.floor)
            zero = torch.zeros_like(ends[..., 0])
            rows = [torch.stack([ends[..., 0], zero], -1), torch.stack([numbers[..., 4], ends[..., 1]], -1)]
            density = kind.spread(torch.sigmoid(numbers[..., :2]), torch.stack(rows, -2), self.components)
        return density if weights is None else Mixture(weights, density, validate_args=False)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, components={self.components}"


class PooledFeatures(nn.Module):
    """Max-pooled convolution that returns one feature vector per sequence (Martins et al. 2020, sec. 4).

    Args:
        d_values: Size of the values.
        filters: Number of filters of the convolution.
        width: Width of a filter, odd.
    """

    def __init__(self, d_values: int, filters: int, width: int) -> None:
        super().__init__()
        if check_integer("filter_width", width, 1) % 2 == 0:
            raise ValueError(f"filter_width must be odd and at least 1, got {width}")
        self.convolution = nn.Conv1d(d_values, filters, width, padding=width // 2)

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return features [batch, filters] of values [batch, length, d_values]; masked values must be zero."""
        features = torch.relu(self.convolution(values.transpose(1, 2)))  # [batch, filters, length]
        if mask is not None:
            features = torch.where(mask.unsqueeze(1), features, 0)
        return features.amax(-1)
