"""The densities of continuous attention: from features, or from the weights of discrete attention."""

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
from tsallis.functional.rows import alpha_number
from tsallis.nn.alpha import PerHeadAlpha
from tsallis.ops.dtypes import upcast

KINDS: dict[int, dict[str, type[Elliptical]]] = {
    1: {"gaussian": Gaussian, "truncated_parabola": TruncatedParabola, "laplace": Laplace, "triangular": Triangular},
    2: {"gaussian": Gaussian, "truncated_paraboloid": TruncatedParaboloid},
}
GOLDEN = (math.sqrt(5) - 1) / 2
UNIFORM = math.sqrt(1 / 12)  # the standard deviation of the uniform density on [0, 1]


def linear(features: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a linear layer in float32 at least, also under autocast: centres and widths need its digits."""
    with torch.autocast(features.device.type, enabled=False):
        dtype = torch.promote_types(upcast(features).dtype, upcast(layer.weight).dtype)
        bias = None if layer.bias is None else layer.bias.to(dtype)
        return F.linear(features.to(dtype), layer.weight.to(dtype), bias)


class DensityKind(nn.Module):
    """A kind of density with what shapes it: which one attention has.

    Args:
        density: "gaussian", "truncated_parabola", "laplace" or "triangular" on the line, "gaussian" or
            "truncated_paraboloid" in the plane; an alpha from 1; or "learned": an alpha for each head (a
            :class:`tsallis.nn.PerHeadAlpha`, which may also be given, as may any module whose `forward()` gives [heads]
            or [1]).
        dims: 1 or 2.
        heads: of the attention.
        matching: whether what densities are made of is their "covariance", or their "scale" as the paper writes it.
        floor: added to variances.

    Raises:
        ValueError: a density that is unknown in so many dimensions, an alpha below 1, an unknown matching.
    """

    alpha: float | nn.Module | None

    def __init__(
        self, density: str | float | nn.Module, dims: int, heads: int, matching: Matching, floor: float
    ) -> None:
        super().__init__()
        if matching not in ("covariance", "scale"):
            raise ValueError(f"matching must be 'covariance' or 'scale', got {matching!r}")
        if not (math.isfinite(floor) and floor > 0):
            raise ValueError(f"floor must be positive and finite, got {floor:g}")
        self.dims = dims
        self.matching = matching
        self.floor = float(floor)
        self.kind: type[Elliptical] = BetaGaussian
        if isinstance(density, nn.Module):
            self.name, self.alpha = "learned", density
        elif density == "learned":
            self.name, self.alpha = "learned", PerHeadAlpha(heads)
        elif isinstance(density, str):
            if density not in KINDS[dims]:
                names = ", ".join([*KINDS[dims], "learned"])
                raise ValueError(f"density must be one of {names} or an alpha from 1, got {density!r}")
            self.name = density
            self.kind = KINDS[dims][density]
            self.alpha = None
        else:
            self.name, self.alpha = "beta_gaussian", alpha_number(density)

    def shape(self, components: int) -> dict[str, Any]:
        """Return the density's shape arguments, for a batch shape [batch, heads, queries] and maybe [..., components].

        Densities check nothing then: a NaN stays in its row.
        """
        shape: dict[str, Any] = {"validate_args": False}
        if isinstance(self.alpha, nn.Module):
            alpha: Tensor = self.alpha()
            shape["alpha"] = upcast(alpha).reshape(-1, *[1] * (1 + (components > 1)))
        elif self.alpha is not None:
            shape["alpha"] = self.alpha
        if self.kind.any_dims:
            shape["dims"] = self.dims
        return shape

    def matched(self, weights: Tensor, positions: Tensor, components: int = 1) -> Elliptical:
        """Return the density with the moments of weights [..., length] over positions that broadcast to them."""
        shape = {name: value for name, value in self.shape(components).items() if name != "dims"}
        return match_moments(
            self.kind, weights, positions, matching=self.matching, floor=self.floor, dims=self.dims, **shape
        )

    def spread(self, mean: Tensor, root: Tensor, components: int) -> Elliptical:
        """Return the density of a mean and a positive standard deviation or lower triangular factor; of the scale's,
        where that is matched."""
        shape = self.shape(components)
        if self.matching == "covariance":
            return self.kind.from_factor(mean, root, **shape)
        return self.kind.from_scale(mean, root.square() if self.dims == 1 else root @ root.mT, **shape)

    def initial_root(self, heads: int, components: int) -> Tensor:
        """Return :meth:`spread`'s argument [heads, 1, components] for densities that share the space among them."""
        std = torch.full((heads, 1, components), UNIFORM / components ** (1 / self.dims))
        if self.matching == "covariance":
            return std
        shape = self.shape(2)  # with a dimension for components, whether there are any or not
        if self.dims == 1:
            return self.kind.from_factor(torch.zeros_like(std), std, **shape).scale.detach().sqrt()
        factor = std[..., None, None] * torch.eye(2)
        scale = self.kind.from_factor(std.new_zeros(*std.shape, 2), factor, **shape).scale
        return scale.detach()[..., 0, 0].sqrt()

    def extra_repr(self) -> str:
        alpha = f", alpha={self.alpha:g}" if isinstance(self.alpha, float) else ""
        return f"{self.name}{alpha}, matching={self.matching}"


class DensityHead(nn.Module):
    r"""Linear heads that make densities of features: a mean in the unit interval (square) and a spread of any size.

    On the line :math:`\mu = \sigma(w_1^\top v)` and :math:`\sigma^2 = \mathrm{softplus}(w_2^\top v)` (Martins et al.
    2020, sec. 4); in the plane the spread is a Cholesky factor, softplus on its diagonal. At first the means are spread
    out evenly, and each density about covers the whole.

    Args:
        d_features: size of the features.
        kind: of the density.
        heads: densities for each feature vector.
        components: more than 1 make mixtures, their weights by softmax.
    """

    def __init__(self, d_features: int, kind: DensityKind, heads: int, components: int) -> None:
        super().__init__()
        self.heads, self.components = heads, components
        self.numbers = (2 if kind.dims == 1 else 5) + (components > 1)
        self.linear = nn.Linear(d_features, heads * components * self.numbers)
        self.reset_parameters(kind)

    @torch.no_grad()
    def reset_parameters(self, kind: DensityKind) -> None:
        """Reinitialise the parameters."""
        dims, heads, components = kind.dims, self.heads, self.components
        nn.init.xavier_uniform_(self.linear.weight, gain=0.5)
        nn.init.zeros_(self.linear.bias)
        bias = self.linear.bias.view(heads, components, self.numbers)
        index = torch.arange(components) * heads + torch.arange(heads).unsqueeze(1)  # [heads, components]
        bias[..., 0] = torch.logit((index + 0.5) / (heads * components))
        if dims == 2:
            bias[..., 1] = torch.logit((0.5 + index * GOLDEN) % 1)  # evenly over the square, whatever their number
        start = kind.initial_root(heads, components).squeeze(1)
        start = start.square() - kind.floor if dims == 1 else start - math.sqrt(kind.floor)
        inverse = start + torch.log(-torch.expm1(-start))  # of softplus
        bias[..., 1 if dims == 1 else 2] = inverse
        if dims == 2:
            bias[..., 3] = inverse

    def forward(self, features: Tensor, kind: DensityKind) -> Density:
        """Turn [batch, queries, d_features] into densities of batch shape [batch, heads, queries]."""
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
    """One feature vector of a sequence: a convolution and the largest value of each filter (Martins et al. 2020, sec.
    4).

    Args:
        d_values: size of the values.
        filters: of the convolution.
        width: of a filter; odd.
    """

    def __init__(self, d_values: int, filters: int, width: int) -> None:
        super().__init__()
        if width < 1 or width % 2 == 0:
            raise ValueError(f"a filter's width must be odd, got {width}")
        self.convolution = nn.Conv1d(d_values, filters, width, padding=width // 2)

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Turn [batch, length, d_values], zero where `mask` [batch, length] is False, into [batch, filters]."""
        features = torch.relu(self.convolution(values.transpose(1, 2)))  # [batch, filters, length]
        if mask is not None:
            features = torch.where(mask.unsqueeze(1), features, 0)
        return features.amax(-1)
