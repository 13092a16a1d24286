"""Continuous attention: a density over a line or a plane replaces weights over discrete positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tsallis.continuous import Basis, Density, cell_centres, cell_masses, grid_centres
from tsallis.continuous.densities.elliptical import Points
from tsallis.continuous.moments import Matching
from tsallis.continuous.value_function import grid_sizes
from tsallis.functional.rows import check_dense, check_integers
from tsallis.nn.continuous_attention.core import (
    ContinuousAttention,
    Defaults,
    Observations,
    cell_edges,
)
from tsallis.nn.global_attention import ScoredAttention
from tsallis.ops.dtypes import upcast
from tsallis.ops.transforms import traced, without_numbers


class ContinuousAttention1d(ContinuousAttention):
    r"""Multi-head attention to intervals of a line: the context is the expectation of a signal under a density.

    .. math:: c = E_p[V(t)] = B\, E_p[\psi(t)], \qquad
              p = \mathrm{argmax}_p\; E_p\big[-\tfrac{(t-\mu)^2}{2\sigma^2}\big] + H_\alpha(p)

    Ridge regression fits the value function V to the values (Martins et al. 2020, sec. 3). A text of any length is the
    interval [0, 1], with its values at the centres of equal cells. Other positions can be given, such as time stamps
    that are scaled to [0, 1]. A value has no effect if all basis functions are near zero at its position.

    Args:
        d_model: Size of the context of all heads together.
        num_heads: Number of heads, with one density each per query.
        d_query: Size of the queries (default: `d_model`).
        d_values: Size of the values (default: `d_model`).
        moments: Source of a density's mean and spread. "query": linear heads of the query,
            :math:`\mu = \sigma(\cdot)` and :math:`\sigma^2 = \mathrm{softplus}(\cdot)`. "discrete": the moments of the
            weights of discrete attention. "scores": the same, but pass scores in place of the query. "pooled":
            linear heads of the max-pooled values after a convolution; there is no query.
        density: Kind of density: "gaussian" (continuous softmax), "truncated_parabola" (continuous sparsemax),
            "laplace", "triangular", an alpha >= 1, "learned" (an alpha per head), or a module that returns alphas
            [heads].
        components: Number of densities in a mixture; 1 for no mixtures.
        transform: Activation of the discrete attention: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        combine: Whether to add the discrete attention's context (the paper's combined attention).
        matching: Parameter of the density that a computed spread sets: "covariance", or "scale", :math:`\sigma^2` in
            the score, as in the paper's text experiments. It applies to all `moments`.
        basis: One of the paper's bases "text-32", "text-64", "text-128" or "translation"; a size, for
            :func:`text_basis`; or a :class:`~tsallis.continuous.Basis`.
        ridge: Penalty of the ridge regression, above 0.
        project: Whether to apply linear layers to the values, and to the context of all heads. Otherwise each head
            attends to its part of the values.
        filters: Number of filters of the convolution for "pooled" (default: `d_model`).
        filter_width: Width of the convolution, odd.
        floor: Constant added to variances, so that weights on a single position also give a density.
        points: Size of the quadrature rule. The default depends on the values of each call. Reading these values
            synchronizes with the GPU, and causes a graph break.

    Raises:
        ValueError: If sizes don't fit, or settings are unknown or incompatible.

    Example:
        >>> attention = ContinuousAttention1d(8, num_heads=2)
        >>> values, lengths = torch.randn(3, 5, 8), torch.tensor([5, 3, 1])
        >>> context, density = attention(torch.randn(3, 4, 8), values, lengths=lengths, need_density=True)
        >>> context.shape, density.batch_shape, density.support.length.shape
        (torch.Size([3, 4, 8]), torch.Size([3, 2, 4]), torch.Size([3, 2, 4]))
        >>> paper = ContinuousAttention1d(8, moments="pooled", matching="scale", basis="text-32", project=False)
        >>> paper(None, values, lengths=lengths)[0].shape
        torch.Size([3, 8])
    """

    dims = 1
    defaults: ClassVar[Defaults] = Defaults("truncated_parabola", "text-64", 3)

    def forward(
        self,
        query: Tensor | None,
        values: Tensor,
        mask: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        positions: Tensor | None = None,
        need_density: bool = False,
    ) -> tuple[Tensor, Density | Tensor | None]:
        """Return the context, and the density or the discrete weights.

        Args:
            query: Queries [batch, queries, d_query] or [batch, d_query]. With moments="scores", scores
                [batch, queries, length], [batch, heads, queries, length] or [batch, length]. None with
                moments="pooled".
            values: Values [batch, length, d_values]; masked values may be NaN.
            mask: Boolean mask [batch, length], True for values to use. A completely masked row gets a context of
                zeros, before the bias of the output projection.
            lengths: Number of values to use per row [batch], at least 1, in place of a mask.
            positions: Positions [length] or [batch, length], in any dtype (default: the centres of equal cells of
                [0, 1], one per value to use).
            need_density: Whether to return the density in place of the weights.

        Returns:
            The context [batch, queries, d_model], or [batch, d_model] for a single query or none. Then the density,
            with batch shape [batch, heads, queries], or the weights of the discrete attention
            [batch, heads, queries, length] (None without discrete attention).
        """
        result = self.attend(query, values, mask, lengths, positions)
        return result.context, result.density if need_density else result.weights

    def _observations(
        self,
        values: Tensor,
        mask: Tensor | None,
        lengths: Tensor | Sequence[int] | None = None,
        positions: Tensor | None = None,
    ) -> Observations:
        size, like = values.shape[1], upcast(values)
        if mask is not None and lengths is not None:
            raise ValueError("use either lengths or mask, not both")
        if lengths is not None:
            lengths = torch.as_tensor(lengths, device=values.device)
            check_integers(lengths, "lengths")
            lengths = lengths.long()
            if lengths.shape != values.shape[:1]:
                raise ValueError(f"lengths must have shape [{values.shape[0]}], got {tuple(lengths.shape)}")
            mask = torch.arange(size, device=values.device) < lengths.unsqueeze(1)
            fit: dict[str, Any] = {"lengths": lengths}
        elif mask is None:
            locations = cell_centres(size).to(like) if positions is None else positions
            return Observations(None, locations, {} if positions is None else {"positions": positions})
        else:
            fit = {"mask": mask}
            readable = not (traced() or without_numbers(mask))
            if positions is None and readable and bool((mask[:, 1:] <= mask[:, :-1]).all()):
                # Convert a prefix mask to a length, because regressions are cached by length.
                fit = {"lengths": mask.sum(1).clamp(min=1)}
        if positions is None:
            ends = cell_edges(mask).to(like)
            centres = (ends[:, 1:] + ends[:, :-1]) / 2
            return Observations(mask, centres, fit if "lengths" in fit else {**fit, "positions": centres})
        return Observations(mask, positions, {**fit, "positions": positions})


class ContinuousAttention2d(ContinuousAttention):
    r"""Multi-head attention to regions of a plane: the expectation of image features under a density.

    .. math:: c = E_p[V(t)] = B\, E_p[\psi(t)], \qquad
              p = \mathrm{argmax}_p\; E_p\big[-\tfrac12 (t-\mu)^\top \Sigma^{-1} (t-\mu)\big] + H_\alpha(p)

    (Martins et al. 2020, eq. 15 and sec. 4.) :class:`ContinuousAttention1d` is the same on the line. An image is the
    unit square. Its values are at the centres of a grid's cells, or at any positions, such as the centres of boxes.

    Args:
        d_model, num_heads, d_query, d_values, moments: See :class:`ContinuousAttention1d`.
        density: Kind of density: "gaussian" (continuous softmax), "truncated_paraboloid" (continuous sparsemax), an
            alpha >= 1, "learned" (an alpha per head), or a module that returns alphas [heads].
        components, transform, combine, matching: See :class:`ContinuousAttention1d`.
        basis: "image" or "image-paper"; the side of an :func:`image_basis`; or a :class:`~tsallis.continuous.Basis`.
        ridge, project, filters, floor: See :class:`ContinuousAttention1d`.
        filter_width: Width of the convolution over the sequence of values for "pooled"; 1 ignores their order.
        points: See :class:`ContinuousAttention1d`; a number or (radial, angular).

    Raises:
        ValueError: If sizes don't fit, or settings are unknown or incompatible.

    Example:
        >>> attention = ContinuousAttention2d(8, moments="discrete", basis=4)
        >>> features = torch.randn(3, 6, 8)
        >>> context, density = attention(torch.randn(3, 8), features, grid=(2, 3), need_density=True)
        >>> context.shape, density.mean.shape, density.support.boundary().shape
        (torch.Size([3, 8]), torch.Size([3, 1, 1, 2]), torch.Size([3, 1, 1, 64, 2]))
    """

    dims = 2
    defaults: ClassVar[Defaults] = Defaults("truncated_paraboloid", "image", 1)

    def forward(
        self,
        query: Tensor | None,
        values: Tensor,
        mask: Tensor | None = None,
        grid: int | tuple[int, int] | None = None,
        positions: Tensor | None = None,
        need_density: bool = False,
    ) -> tuple[Tensor, Density | Tensor | None]:
        """Return the context, and the density or the discrete weights.

        Args:
            query: Queries or scores, see :meth:`ContinuousAttention1d.forward`.
            values: Values [batch, length, d_values]; masked values may be NaN.
            mask: Boolean mask [batch, length], True for values to use.
            grid: Height and width of the image; one number is both. Values are in row-major order.
            positions: Positions (x, y) in the unit square in place of a grid, [length, 2] or [batch, length, 2]; x
                points right, y down.
            need_density: Whether to return the density in place of the weights.

        Returns:
            The results of :meth:`ContinuousAttention1d.forward`.
        """
        result = self.attend(query, values, mask, grid, positions)
        return result.context, result.density if need_density else result.weights

    def _observations(
        self,
        values: Tensor,
        mask: Tensor | None,
        grid: int | tuple[int, int] | None = None,
        positions: Tensor | None = None,
    ) -> Observations:
        if (grid is None) == (positions is None):
            raise ValueError(f"use either grid or positions, got {'none' if grid is None else 'both'} of them")
        fit: dict[str, Any] = {"grid": grid} if positions is None else {"positions": positions}
        if mask is not None:
            fit["mask"] = mask
        if grid is not None:
            positions = grid_centres(*grid_sizes(grid, values.shape[1])).to(upcast(values))
        assert positions is not None
        return Observations(mask, positions, fit)


class ContinuousGlobalAttention(ScoredAttention):
    r"""Drop-in replacement for :class:`tsallis.nn.GlobalAttention` with continuous attention.

    .. math:: c = E_p[V(t)] + \sum_j w_j h_j, \qquad
              w = \mathrm{entmax}_\alpha\big(s^\top W h_1, \dots, s^\top W h_n\big)

    The memory is a signal on [0, 1]. The moments of the discrete attention (bilinear or additive) define a density over
    the signal. The layer adds the context of the density to the discrete context: this is the combined attention of
    Martins et al. 2020, sec. 4, without further parameters. The returned weights are the masses of the density in each
    position's cell. They are exactly zero outside the support, and sum to 1 minus the mass outside [0, 1].

    Args:
        d_query: Size of the state.
        d_memory: Size of the memory.
        transform: Activation of the discrete attention: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        density: Kind of density, see :class:`ContinuousAttention1d`. "learned" has one alpha, because there is one
            head.
        combine: Whether to add the discrete context.
        matching, basis, ridge, floor, points: See :class:`ContinuousAttention1d`.
        scorer: Score function, "bilinear" or "additive", see :class:`tsallis.nn.GlobalAttention`.

    Raises:
        ValueError: If a setting is unknown.

    Example:
        >>> attention = ContinuousGlobalAttention(4, 6)
        >>> mask = torch.tensor([[True, True, False]])
        >>> context, weights = attention(torch.randn(1, 4), torch.randn(1, 3, 6), mask)
        >>> context.shape, weights[0, 2].item()
        (torch.Size([1, 6]), 0.0)
    """

    def __init__(
        self,
        d_query: int,
        d_memory: int,
        transform: str | float = "softmax",
        density: str | float | nn.Module = "truncated_parabola",
        combine: bool = True,
        matching: Matching = "covariance",
        basis: str | int | Basis = "translation",
        ridge: float = 0.1,
        floor: float = 1e-6,
        points: Points = None,
        scorer: str = "bilinear",
    ) -> None:
        super().__init__(d_query, d_memory, scorer)
        self.attention = ContinuousAttention1d(
            d_memory,
            moments="scores",
            density=density,
            transform=transform,
            combine=combine,
            matching=matching,
            basis=basis,
            ridge=ridge,
            project=False,
            floor=floor,
            points=points,
        )

    def attend(self, scores: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context [batch, tgt, d_memory] and masses [batch, tgt, src] for scores [batch, tgt, src]."""
        check_dense(mask, "mask")
        if not memory.shape[1]:  # the regression needs at least one observation
            return scores @ memory, scores
        result = self.attention.attend(scores, memory, mask)
        edges = cell_edges(mask).to(upcast(memory))[:, None, None]  # [batch, 1, 1, src + 1]
        return result.context, cell_masses(result.density, edges).squeeze(1)

    def density(self, query: Tensor, memory: Tensor, mask: Tensor, keys: Tensor | None = None) -> Density:
        """Return the density, with batch shape [batch, 1, tgt], for queries [batch, tgt, d_query]."""
        keys = self.keys(memory) if keys is None else keys
        return self.attention.attend(self.scores(query, keys), memory, mask).density
