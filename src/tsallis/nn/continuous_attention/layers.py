"""Continuous attention: a density over a line or a plane looks at a signal instead of weights at its observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tsallis.continuous import Basis, Density, cell_centres, cell_masses, grid_centres
from tsallis.continuous.densities.elliptical import Points
from tsallis.continuous.moments import Matching
from tsallis.nn.continuous_attention.core import (
    ContinuousAttention,
    ContinuousContext,
    Defaults,
    Observations,
    cell_edges,
)
from tsallis.nn.global_attention import ScoredAttention
from tsallis.ops.dtypes import upcast
from tsallis.ops.transforms import traced


class ContinuousAttention1d(ContinuousAttention):
    r"""Multi-head attention to stretches of a line: the density's expectation of a signal.

    .. math:: c = E_p[V(t)] = B\, E_p[\psi(t)], \qquad
              p = \mathrm{argmax}_p\; E_p\big[-\tfrac{(t-\mu)^2}{2\sigma^2}\big] + H_\alpha(p)

    with a value function V fitted to the values by ridge regression (Martins et al. 2020, sec. 3). A text of any length
    is the interval [0, 1], its values at the centres of equal cells; other positions can be given, such as time stamps.

    Args:
        d_model: size of the context; of the heads together.
        num_heads: densities a query.
        d_query: size of the queries; by default `d_model`.
        d_values: size of the values; by default `d_model`.
        moments: the source of a density's mean and spread. "query": linear heads of the query,
            :math:`\mu = \sigma(\cdot)` and :math:`\sigma^2 = \mathrm{softplus}(\cdot)`. "discrete": the moments of the
            weights of discrete attention. "scores": the same, with scores in place of the query. "pooled": linear
            heads of the max-pooled values after a convolution; there is no query.
        density: "gaussian" (continuous softmax), "truncated_parabola" (continuous sparsemax), "laplace", "triangular",
            an alpha from 1, "learned" (an alpha for each head), or a module that gives alphas [heads].
        components: densities in a mixture; 1 for no mixtures.
        transform: the map of the discrete attention: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        combine: add the discrete attention's context (the paper's combined attention).
        matching: "covariance", or "scale": the moments are those of :math:`\sigma^2` in the score, as in the paper's
            text experiments. It says what the spread of other `moments` is, too.
        basis: "text-32", "text-64", "text-128" or "translation", the paper's; a size, for :func:`text_basis`; or a
            :class:`~tsallis.continuous.Basis`.
        ridge: the penalty of the ridge regression, above 0.
        project: apply linear layers to the values before, and to the context of all heads after; without them each
            head attends to its part of the values.
        filters: the number of filters of the convolution for "pooled"; by default `d_model`.
        filter_width: of the convolution; odd.
        floor: added to variances, so that weights on one position alone give a density too.
        points: the size of the quadrature rule. The default depends on the numbers of each call: to read them waits
            for a GPU, and leaves the graph of a compiler.

    Raises:
        ValueError: sizes that don't fit, settings that are unknown or don't go together.

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
            query: [batch, queries, d_query], or [batch, d_query] for one; with moments of scores [batch, queries,
                length], [batch, heads, queries, length] or [batch, length]; None with pooled moments.
            values: [batch, length, d_values]; what doesn't count may be anything.
            mask: boolean [batch, length]; True takes part. A row without any gives a context of zeros (the bias of the
                output projection).
            lengths: [batch] in place of a mask: how many of the first values count, at least one each.
            positions: [length] or [batch, length] in the dtype they are known in; by default the centres of equal
                cells of [0, 1], one for each value that counts.
            need_density: return the density in place of the weights.

        Returns:
            Context [batch, queries, d_model], or [batch, d_model] of a single query or without one; and the density, of
            batch shape [batch, heads, queries], or the weights of the discrete attention [batch, heads, queries,
            length], None where there is none.
        """
        result = self.attend(query, values, mask, lengths, positions)
        return result.context, result.density if need_density else result.weights

    def attend(
        self,
        query: Tensor | None,
        values: Tensor,
        mask: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        positions: Tensor | None = None,
    ) -> ContinuousContext:
        """Return context, density and discrete weights; arguments as of :meth:`forward`."""
        self._check(values)
        return self._attend(query, values, self._observations(values, mask, lengths, positions))

    def _observations(
        self,
        values: Tensor,
        mask: Tensor | None,
        lengths: Tensor | Sequence[int] | None,
        positions: Tensor | None,
    ) -> Observations:
        size, like = values.shape[1], upcast(values)
        if mask is not None and lengths is not None:
            raise ValueError("give lengths or a mask, not both")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != values.shape[:2]):
            raise ValueError(f"mask must be boolean {list(values.shape[:2])}, got {mask.dtype} {list(mask.shape)}")
        if lengths is not None:
            lengths = torch.as_tensor(lengths, device=values.device)
            if lengths.shape != values.shape[:1]:
                raise ValueError(f"lengths must be [{values.shape[0]}], got shape {tuple(lengths.shape)}")
            mask = torch.arange(size, device=values.device) < lengths.unsqueeze(1)
            fit: dict[str, Any] = {"lengths": lengths}
        elif mask is None:
            locations = cell_centres(size).to(like) if positions is None else positions
            return Observations(None, locations, {} if positions is None else {"positions": positions})
        else:
            fit = {"mask": mask}
            if positions is None and not traced() and bool((mask[:, 1:] <= mask[:, :-1]).all()):
                fit = {"lengths": mask.sum(1).clamp(min=1)}  # the first ones: regressions are remembered
        if positions is None:
            ends = cell_edges(mask).to(like)
            centres = (ends[:, 1:] + ends[:, :-1]) / 2
            return Observations(mask, centres, fit if "lengths" in fit else {**fit, "positions": centres})
        return Observations(mask, positions, {**fit, "positions": positions})


class ContinuousAttention2d(ContinuousAttention):
    r"""Multi-head attention to regions of a plane: the density's expectation of an image's features.

    .. math:: c = E_p[V(t)] = B\, E_p[\psi(t)], \qquad
              p = \mathrm{argmax}_p\; E_p\big[-\tfrac12 (t-\mu)^\top \Sigma^{-1} (t-\mu)\big] + H_\alpha(p)

    (Martins et al. 2020, eq. 15 and sec. 4.) It is to the plane what :class:`ContinuousAttention1d` is to the line. An
    image is the unit square, its values at the centres of the cells of a grid, or at any positions, such as the centres
    of boxes.

    Args:
        d_model, num_heads, d_query, d_values, moments: as of :class:`ContinuousAttention1d`.
        density: "gaussian" (continuous softmax), "truncated_paraboloid" (continuous sparsemax), an alpha from 1,
            "learned" (an alpha for each head), or a module that gives alphas [heads].
        components, transform, combine, matching: as of :class:`ContinuousAttention1d`.
        basis: "image", "image-paper"; the side of an :func:`image_basis`; or a :class:`~tsallis.continuous.Basis`.
        ridge, project, filters, floor: as of :class:`ContinuousAttention1d`.
        filter_width: of the convolution for "pooled", over the values in their order; 1 knows no order.
        points: as of :class:`ContinuousAttention1d`, or (radial, angular).

    Raises:
        ValueError: sizes that don't fit, settings that are unknown or don't go together.

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
        grid: tuple[int, int] | None = None,
        positions: Tensor | None = None,
        need_density: bool = False,
    ) -> tuple[Tensor, Density | Tensor | None]:
        """Return the context, and the density or the discrete weights.

        Args:
            query: as of :meth:`ContinuousAttention1d.forward`.
            values: [batch, length, d_values]; what doesn't count may be anything.
            mask: boolean [batch, length]; True takes part.
            grid: height and width of the image, whose values stand row by row.
            positions: [length, 2] or [batch, length, 2] in place of a grid, as (x, y), x to the right and y down.
            need_density: return the density in place of the weights.

        Returns:
            As :meth:`ContinuousAttention1d.forward`.
        """
        result = self.attend(query, values, mask, grid, positions)
        return result.context, result.density if need_density else result.weights

    def attend(
        self,
        query: Tensor | None,
        values: Tensor,
        mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        positions: Tensor | None = None,
    ) -> ContinuousContext:
        """Return context, density and discrete weights; arguments as of :meth:`forward`."""
        self._check(values)
        if (grid is None) == (positions is None):
            raise ValueError("in the plane give a grid of height and width, or positions")
        fit: dict[str, Any] = {"grid": grid} if positions is None else {"positions": positions}
        if mask is not None:
            if mask.dtype != torch.bool or mask.shape != values.shape[:2]:
                raise ValueError(f"mask must be boolean {list(values.shape[:2])}, got {mask.dtype} {list(mask.shape)}")
            fit["mask"] = mask
        if grid is not None:
            if grid[0] * grid[1] != values.shape[1]:
                raise ValueError(f"a grid of {grid[0]} times {grid[1]} doesn't hold {values.shape[1]} values")
            positions = grid_centres(*grid).to(upcast(values))
        assert positions is not None
        return self._attend(query, values, Observations(mask, positions, fit))


class ContinuousGlobalAttention(ScoredAttention):
    r"""Continuous attention with the methods of :class:`tsallis.nn.GlobalAttention`, which it can replace.

    .. math:: c = E_p[V(t)] + \sum_j w_j h_j, \qquad
              w = \mathrm{entmax}_\alpha\big(s^\top W h_1, \dots, s^\top W h_n\big)

    The moments of the discrete attention, bilinear or additive, give a density over the memory as a signal on [0, 1],
    and its context is added to the discrete one (Martins et al. 2020, sec. 4: combined attention, without further
    parameters). The weights it returns are the masses of the density in each position's cell: exactly zero outside the
    support, and their sum is 1 but for the mass before the start and after the end.

    Args:
        d_query: size of the state.
        d_memory: size of the memory.
        transform: the map of the discrete attention: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        density: as of :class:`ContinuousAttention1d`, with one head.
        combine: add the discrete context.
        matching, basis, ridge, floor, points: as of :class:`ContinuousAttention1d`.
        scorer: "bilinear" or "additive", see :class:`tsallis.nn.GlobalAttention`.

    Raises:
        ValueError: settings that are unknown.

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
        """Return the context [batch, tgt, d_memory] and masses [batch, tgt, src] of scores [batch, tgt, src]."""
        result = self.attention.attend(scores, memory, mask)
        edges = cell_edges(mask).to(upcast(memory))[:, None, None]  # [batch, 1, 1, src + 1]
        return result.context, cell_masses(result.density, edges).squeeze(1)

    def density(self, query: Tensor, memory: Tensor, mask: Tensor, keys: Tensor | None = None) -> Density:
        """Return the density of batch shape [batch, 1, tgt] that queries [batch, tgt, d_query] attend with."""
        keys = self.keys(memory) if keys is None else keys
        return self.attention.attend(self.scores(query, keys), memory, mask).density
