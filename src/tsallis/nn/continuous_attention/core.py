"""Common base of continuous attention on the line and in the plane."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tsallis import functional
from tsallis.continuous import (
    Basis,
    Density,
    Mixture,
    Signal,
    ValueFunction,
    image_basis,
    paper_image_basis,
    text_basis,
    translation_basis,
)
from tsallis.continuous.densities.base import broadcast_batch, check_points
from tsallis.continuous.densities.elliptical import Points
from tsallis.continuous.moments import Matching
from tsallis.errors import check_integer, check_one_of
from tsallis.functional.rows import alpha_number, check_dense, check_floating, check_real
from tsallis.nn.continuous_attention.density_head import DensityHead, DensityKind, PooledFeatures, linear
from tsallis.nn.output import transform_alpha
from tsallis.ops.dtypes import upcast
from tsallis.ops.tracing import untraced

# Bases by number of dimensions and name. Martins et al. 2020, sec. 4 use "text-...", "translation" and "image-paper".
BASES: dict[int, dict[str, Callable[[], Basis]]] = {
    1: {
        "text-32": lambda: text_basis(32),
        "text-64": lambda: text_basis(64),
        "text-128": lambda: text_basis(128),
        "translation": translation_basis,
    },
    2: {"image": image_basis, "image-paper": paper_image_basis},
}
MOMENTS = ("query", "discrete", "scores", "pooled")


class ContinuousContext(NamedTuple):
    """Result of continuous attention."""

    context: Tensor  # [batch, queries, d_model], or [batch, d_model]
    density: Density  # batch shape [batch, heads, queries]
    weights: Tensor | None  # [batch, heads, queries, length]; None without discrete attention


class Observations(NamedTuple):
    """Mask and positions of the observations."""

    mask: Tensor | None  # boolean [batch, length]
    positions: Tensor  # [length] or [batch, length]; in the plane [..., 2]
    fit: dict[str, Any]  # arguments for fitting a value function to the observations


def map_alpha(transform: str | float) -> float:
    """Return the alpha of "softmax", "sparsemax" or "entmax" (1.5); return a number as it is."""
    if not isinstance(transform, str):
        return alpha_number(transform)
    if transform == "alpha_relu":
        raise ValueError("transform must be softmax, sparsemax or entmax, whose weights sum to 1, got 'alpha_relu'")
    return transform_alpha(transform, 1.5)


def check_sizes(**sizes: int | None) -> None:
    """Raise unless sizes are integers of at least 1, or None."""
    for name, size in sizes.items():
        if size is not None:
            check_integer(name, size, 1)


def basis_of(basis: str | int | Basis, dims: int) -> Basis:
    """Return `basis` itself, or create one from a name, a size (:func:`text_basis`) or a side (:func:`image_basis`)."""
    if isinstance(basis, str):
        if basis not in BASES[dims]:
            raise ValueError(f"basis must be one of {', '.join(BASES[dims])}, a size or a Basis, got {basis!r}")
        return BASES[dims][basis]()
    if isinstance(basis, int):
        return text_basis(basis) if dims == 1 else image_basis(basis)
    if not isinstance(basis, Basis):
        raise TypeError(f"basis must be a name, a size or a Basis, got {basis!r}")
    if basis.dims != dims:
        raise ValueError(f"basis must have {dims} dimensions, got {basis.dims}")
    return basis


@untraced
def _expect(signal: Signal, density: Density) -> Tensor:
    """Compute the context outside the traced graph, because the number of quadrature points depends on values."""
    return signal.expect(density)


class Defaults(NamedTuple):
    """Default options of attention on the line or in the plane."""

    density: str
    basis: str
    filter_width: int


class ContinuousAttention(nn.Module):
    """Common base class of attention on the line and in the plane."""

    dims: int
    defaults: ClassVar[Defaults]

    def __init__(
        self,
        d_model: int,
        num_heads: int = 1,
        *,
        d_query: int | None = None,
        d_values: int | None = None,
        moments: str = "query",
        density: str | float | nn.Module | None = None,
        components: int = 1,
        transform: str | float = "softmax",
        combine: bool = False,
        matching: Matching = "covariance",
        basis: str | int | Basis | None = None,
        ridge: float = 0.1,
        project: bool = True,
        filters: int | None = None,
        filter_width: int | None = None,
        floor: float = 1e-6,
        points: Points = None,
    ) -> None:
        super().__init__()
        density = self.defaults.density if density is None else density
        basis = self.defaults.basis if basis is None else basis
        filter_width = self.defaults.filter_width if filter_width is None else filter_width
        d_query, d_values = (d_model if size is None else size for size in (d_query, d_values))
        check_sizes(d_model=d_model, num_heads=num_heads, components=components, d_query=d_query, d_values=d_values)
        if d_model % num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads, got {d_model} and {num_heads}")
        check_one_of("moments", moments, MOMENTS)
        if moments == "scores" and components > 1:
            raise ValueError(f"components must be 1 with moments='scores', got {components}")
        if combine and moments not in ("discrete", "scores"):
            raise ValueError(f"moments must be 'discrete' or 'scores' with combine=True, got {moments!r}")
        check_sizes(filters=filters)
        check_points(points, self.dims)
        if not project and d_values != d_model:
            raise ValueError(f"d_values must be equal to d_model, {d_model}, with project=False, got {d_values}")
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.d_query, self.d_values = d_query, d_values
        self.moments = moments
        self.components = components
        self.combine = combine
        self.alpha = map_alpha(transform)  # alpha of the discrete attention
        self.kind = DensityKind(density, self.dims, num_heads, matching, floor)
        self.points = points
        self.fit = ValueFunction(basis_of(basis, self.dims), ridge)
        if moments in ("query", "pooled"):
            d_pooled = filters or d_model
            self.pool = PooledFeatures(d_values, d_pooled, filter_width) if moments == "pooled" else None
            self.head = DensityHead(d_query if self.pool is None else d_pooled, self.kind, num_heads, components)
        elif moments == "discrete":
            self.query_proj = nn.Linear(d_query, components * d_model)
            self.key_proj = nn.Linear(d_values, d_model)
            self.mix = nn.Linear(d_query, num_heads * components) if components > 1 else None
        self.value_proj = nn.Linear(d_values, d_model) if project else None
        self.out_proj = nn.Linear(d_model, d_model) if project else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for name in ("query_proj", "key_proj", "value_proj", "out_proj"):
            layer = getattr(self, name, None)
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def _observations(self, values: Tensor, mask: Tensor | None) -> Observations:
        """Return the mask and positions of values; further arguments are those of `forward`."""
        raise NotImplementedError

    def attend(
        self, query: Tensor | None, values: Tensor, mask: Tensor | None = None, *location: Any, **options: Any
    ) -> ContinuousContext:
        """Return the context, density and discrete weights; arguments are those of `forward`."""
        self._check(values, mask)
        if query is not None:
            check_dense(query, "query")
        single = query is None or query.dim() == 2
        mask, positions, fit = self._observations(values, mask, *location, **options)
        check_real(positions, "positions")
        broadcast_batch(values=values.shape[:1], positions=positions.shape[: -self.dims])
        if mask is not None:  # masked values may be NaN
            values = torch.where(mask.unsqueeze(-1), values, 0)
        v = values if self.value_proj is None else self.value_proj(values)  # [batch, length, d_model]
        density, weights = self._density(query, values, mask, positions)
        signal = self.fit(v, **fit).heads(self.num_heads)
        # [batch, heads, queries, head_dim]
        context = _expect(signal, density) if self.points is None else signal.expect(density, self.points)
        if self.combine:
            assert weights is not None
            averaged = self._mix(weights, density)
            context = context + averaged.to(v.dtype) @ v.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        if mask is not None and "lengths" in fit:
            # The regression needs at least one observation, so set the context of empty rows to zero.
            context = torch.where(mask.any(-1)[:, None, None, None], context, 0)
        context = context.transpose(1, 2).flatten(2)  # [batch, queries, d_model]
        context = context if self.out_proj is None else self.out_proj(context)
        if self.components > 1 and weights is not None:
            weights = self._mix(weights, density)
        return ContinuousContext(context.squeeze(1) if single else context, density, weights)

    def _mix(self, weights: Tensor, density: Density) -> Tensor:
        """Average weights over the components of a mixture; return [batch, heads, queries, length]."""
        return (density.weights.unsqueeze(-1) * weights).sum(-2) if isinstance(density, Mixture) else weights

    def _density(
        self, query: Tensor | None, values: Tensor, mask: Tensor | None, positions: Tensor
    ) -> tuple[Density, Tensor | None]:
        if self.moments == "pooled":
            if query is not None:
                raise ValueError("query must be None with moments='pooled', got a tensor")
            assert self.pool is not None
            return self.head(self.pool(values, mask).unsqueeze(1), self.kind), None
        if query is None:
            raise ValueError(f"query must be a tensor with moments={self.moments!r}, got None")
        if self.moments == "scores":
            scores = self._expand_scores(query, values)
        else:
            check_floating(query, "query")
            if query.dim() not in (2, 3) or query.shape[-1] != self.d_query or query.shape[0] != values.shape[0]:
                raise ValueError(
                    f"query must have shape [{values.shape[0]}, {self.d_query}] or "
                    f"[{values.shape[0]}, queries, {self.d_query}], got {tuple(query.shape)}"
                )
            query = query.unsqueeze(1) if query.dim() == 2 else query  # [batch, queries, d_query]
            if self.moments == "query":
                return self.head(query, self.kind), None
            scores = self._scores(query, values)
        row_mask = None if mask is None else mask.reshape(mask.shape[0], *[1] * (scores.dim() - 2), mask.shape[1])
        weights = functional.entmax(upcast(scores), self.alpha, mask=row_mask)
        if positions.dim() > self.dims:
            positions = positions.reshape(positions.shape[0], *[1] * (scores.dim() - 2), *positions.shape[1:])
        parts = self.kind.matched(weights, positions, self.components)
        if self.components == 1:
            return parts, weights
        mix = linear(query, self._mixing_layer()).unflatten(-1, (self.num_heads, self.components)).transpose(1, 2)
        return Mixture(mix.softmax(-1), parts, validate_args=False), weights

    def _mixing_layer(self) -> nn.Linear:
        assert self.mix is not None
        return self.mix

    def _expand_scores(self, scores: Tensor, values: Tensor) -> Tensor:
        """Expand scores [batch, length] or [batch, queries, length] to [batch, heads, queries, length]."""
        check_floating(scores, "scores")
        shape = (values.shape[0], values.shape[1])
        heads = scores.shape[1] if scores.dim() == 4 else 1
        fits = scores.dim() in (2, 3, 4) and (scores.shape[0], scores.shape[-1]) == shape
        if not fits or heads not in (1, self.num_heads):
            raise ValueError(
                f"scores must have shape [{shape[0]}, {shape[1]}], [{shape[0]}, queries, {shape[1]}] or "
                f"[{shape[0]}, {self.num_heads} or 1, queries, {shape[1]}], got {tuple(scores.shape)}"
            )
        scores = scores.unsqueeze(1) if scores.dim() == 2 else scores
        scores = scores.unsqueeze(1) if scores.dim() == 3 else scores
        return scores.expand(-1, self.num_heads, -1, -1)

    def _scores(self, query: Tensor, values: Tensor) -> Tensor:
        """Return scores [batch, heads, queries, length]; for mixtures [batch, heads, queries, components, length]."""
        sizes = (self.num_heads, self.components, self.head_dim)
        q = self.query_proj(query).unflatten(-1, sizes).transpose(1, 2).flatten(2, 3)  # [batch, heads, q * parts, size]
        k = self.key_proj(values).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        scores: Tensor = (q @ k.mT) / math.sqrt(self.head_dim)  # [batch, heads, queries * components, length]
        return scores if self.components == 1 else scores.unflatten(2, (-1, self.components))

    def _check(self, values: Tensor, mask: Tensor | None) -> None:
        check_floating(values, "values")
        if values.dim() != 3 or values.shape[-1] != self.d_values:
            raise ValueError(f"values must have shape [batch, length, {self.d_values}], got {tuple(values.shape)}")
        if mask is not None:
            check_dense(mask, "mask")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != values.shape[:2]):
            raise ValueError(
                f"mask must be boolean of shape {list(values.shape[:2])}, got {mask.dtype} of shape {list(mask.shape)}"
            )

    def extra_repr(self) -> str:
        alpha = f", alpha={self.alpha:g}" if self.moments in ("discrete", "scores") else ""
        parts = f", components={self.components}" if self.components > 1 else ""
        combine = ", combine=True" if self.combine else ""
        return f"{self.d_model}, heads={self.num_heads}, moments={self.moments}{alpha}{parts}{combine}"


def cell_edges(mask: Tensor) -> Tensor:
    """Divide [0, 1] into one equal cell per unmasked position and an empty cell per masked position; return the edges.

    Args:
        mask: Boolean mask [..., length], True for positions to use.

    Returns:
        Edges [..., length + 1] in float64.

    Example:
        >>> cell_edges(torch.tensor([True, False, True]))
        tensor([0.0000, 0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    count = mask.cumsum(-1).double()  # [..., length]
    start = torch.zeros_like(count[..., :1])
    return torch.cat([start, count / count[..., -1:].clamp(min=1)], -1)
