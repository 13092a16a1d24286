"""Classifiers of irregular time series, which attend to resampled steps or to continuous signals without a grid."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tsallis
from tsallis.continuous import (
    Basis,
    BetaGaussian,
    Elliptical,
    Gaussian,
    Interval,
    Laplace,
    Triangular,
    TruncatedParabola,
    ValueFunction,
)
from tsallis.nn import PerHeadAlpha

BATCH_ROWS = 256  # number of rows with similar lengths to fit in one batch
DENSITIES: dict[str, type[Elliptical]] = {
    "gaussian": Gaussian,
    "truncated_parabola": TruncatedParabola,
    "laplace": Laplace,
    "triangular": Triangular,
    "learned": BetaGaussian,
}
ALPHAS = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}
FLOOR = 1e-4  # added to variances
VARIANCE = 1 / 12  # initial variance: that of the uniform density on [0, 1]


class Reach(NamedTuple):
    """Mean, standard deviation and support of the density of each head and channel, in the signal's coordinates."""

    mean: Tensor  # [heads, channels]
    std: Tensor  # [heads, channels]
    lower: Tensor  # [heads, channels] lower end of the support; -inf if it is unbounded
    upper: Tensor  # [heads, channels] upper end of the support; inf if it is unbounded


@torch.no_grad()
def fitted(fit: ValueFunction, values: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    r"""Fit the coefficients of many signals with very different numbers of observations.

    .. math:: \min_B \lVert B F - H \rVert_F^2 + \lambda \lVert B \rVert_F^2

    Equivalent to `fit(values, positions=positions, mask=mask).coefficients`, but faster: rows of similar length are
    fitted together. A signal without observations is 0 everywhere.

    Args:
        fit: The value function.
        values: Observed values [rows, length, d].
        positions: Observation times [rows, length].
        mask: Boolean [rows, length]; True marks the observations, which come first in each row.

    Returns:
        Coefficients [rows, functions, d].

    Raises:
        ValueError: If the True entries of a row of the mask don't come first.

    Example:
        >>> from tsallis.continuous import gaussian_grid
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> fitted(ValueFunction(gaussian_grid(4, 0.3)), torch.ones(2, 3, 1), torch.rand(2, 3), mask)[1, :, 0]
        tensor([0., 0., 0., 0.])
    """
    if mask.shape != values.shape[:-1] or mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean {list(values.shape[:-1])}, got {mask.dtype} {list(mask.shape)}")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("mask must be True for the first observations of each row and False for the others")
    coefficients = values.new_zeros(len(values), fit.basis.size, values.shape[-1])
    counts = mask.sum(1)
    for rows in counts.argsort().split(BATCH_ROWS):
        length = int(counts[rows].max())
        if length:
            signal = fit(values[rows, :length], positions=positions[rows, :length], mask=mask[rows, :length])
            coefficients[rows] = signal.coefficients
    return coefficients


class SignalClassifier(nn.Module):
    r"""A classifier of series whose channels are continuous signals, with several attention densities per channel.

    .. math:: c_{jh} = E_{p_{jh}}[V_j(t)] = B_j\, E_{p_{jh}}[\psi(t)]

    for channel j and head h (Martins et al. 2020, sec. 3). Mean and variance are functions of a learned vector of the
    channel, :math:`\mu = \sigma(w_h^\top v_j)` and :math:`\sigma^2 = \mathrm{softplus}(u_h^\top v_j)`. Series are not
    resampled: the signal of each channel is fitted to its observations at their exact times, once before training. The
    densities don't depend on the series, so they are integrated once per batch. An optional hidden layer of ReLU units
    and a linear layer compute the score.

    Args:
        basis: Basis functions of the signals, in one dimension.
        channels: Number of channels of the series.
        d_values: Number of values of a channel's signal at each time.
        d_static: Number of static descriptors of a series.
        heads: Number of densities per channel.
        hidden: Number of ReLU units; 0 means no hidden layer.
        dropout: Dropout rate of the score's inputs and of the ReLU units.
        density: "gaussian" (continuous softmax), "truncated_parabola" (continuous sparsemax), "laplace", "triangular",
            an alpha of at least 1, or "learned" (one learned alpha per head).
        d_query: Size of a channel's learned vector.

    Raises:
        ValueError: If a size is too small, or the density is unknown.

    Example:
        >>> from tsallis.continuous import gaussian_grid
        >>> model = SignalClassifier(gaussian_grid(4, 0.3), channels=3, d_values=2, d_static=5)
        >>> model(torch.randn(7, 3, 4, 2), torch.randn(7, 5)).shape, model.reach().lower.shape
        (torch.Size([7]), torch.Size([3, 3]))
    """

    def __init__(
        self,
        basis: Basis,
        channels: int,
        d_values: int,
        d_static: int = 0,
        heads: int = 3,
        hidden: int = 24,
        dropout: float = 0.3,
        density: str | float = "truncated_parabola",
        d_query: int = 4,
    ) -> None:
        super().__init__()
        _positive(channels=channels, d_values=d_values, heads=heads, d_query=d_query)
        if basis.dims != 1:
            raise ValueError(f"the basis must be on the line, got one with {basis.dims} dimensions")
        self.sizes = (channels, basis.size, d_values)
        self.basis = basis
        if isinstance(density, str) and density not in DENSITIES:
            raise ValueError(f"density must be one of {', '.join(DENSITIES)} or an alpha from 1, got {density!r}")
        self.kind = DENSITIES[density] if isinstance(density, str) else BetaGaussian
        self.alpha = PerHeadAlpha(heads) if density == "learned" else None
        self.shape = {} if isinstance(density, str) else {"alpha": density}
        self.queries = nn.Parameter(torch.randn(channels, d_query) / math.sqrt(d_query))
        self.head = nn.Linear(d_query, 2 * heads)
        nn.init.xavier_uniform_(self.head.weight, gain=0.5)
        means = torch.logit((torch.arange(heads) + 0.5) / heads)  # evenly spread at the start
        variances = torch.full((heads,), VARIANCE - FLOOR).expm1().log()  # the inverse of softplus
        self.head.bias.data.copy_(torch.stack([means, variances], -1).flatten())
        self.output = _Output(channels * heads * d_values + d_static, hidden, dropout)

    def density(self) -> Elliptical:
        """Return the densities, with batch shape [1, heads, channels]."""
        numbers = self.head(self.queries).unflatten(-1, (-1, 2)).transpose(0, 1).unsqueeze(0)
        mean, std = torch.sigmoid(numbers[..., 0]), (F.softplus(numbers[..., 1]) + FLOOR).sqrt()
        shape = self.shape if self.alpha is None else {"alpha": self.alpha().unsqueeze(-1)}
        return self.kind.from_factor(mean, std, **shape)

    def forward(self, coefficients: Tensor, static: Tensor) -> Tensor:
        """Return scores [batch] of the class 1 against the class 0.

        Args:
            coefficients: [batch, channels, functions, d_values], computed by :func:`fitted` for each channel.
            static: Static descriptors [batch, d_static].

        Raises:
            ValueError: If the coefficients have another shape.
        """
        return self.output(torch.cat([self.read(coefficients).flatten(1), static], 1))

    def read(self, coefficients: Tensor) -> Tensor:
        """Compute the expectations of the signals [batch, channels, heads, d_values]."""
        if coefficients.shape[1:] != self.sizes:
            raise ValueError(
                f"coefficients must be [batch, {', '.join(map(str, self.sizes))}], got {list(coefficients.shape)}"
            )
        expectations = self.density().expect(self.basis).squeeze(0).transpose(0, 1)  # [channels, heads, functions]
        return expectations.to(coefficients.dtype) @ coefficients

    @torch.no_grad()
    def reach(self) -> Reach:
        """Return mean, standard deviation and support of the density of each head and channel."""
        density = self.density()
        mean, std = density.mean.squeeze(0), density.factor.squeeze(0)
        support = density.support
        if isinstance(support, Interval):
            return Reach(mean, std, support.lower.squeeze(0), support.upper.squeeze(0))
        return Reach(mean, std, torch.full_like(mean, -math.inf), torch.full_like(mean, math.inf))


class GridClassifier(nn.Module):
    r"""A classifier of series on a regular grid, made of a GRU and discrete attention to its states.

    The score of a state is :math:`v^\top \tanh(W h_l)`. The attention-weighted mean of all states goes through the same
    kind of output layers as in :class:`SignalClassifier`.

    Args:
        d_input: Number of inputs per step.
        d_static: Number of static descriptors of a series.
        d_model: Size of the states.
        transform: Function that turns scores into weights: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        hidden: Number of ReLU units; 0 means no hidden layer.
        dropout: Dropout rate of the inputs, of the context and of the ReLU units.

    Raises:
        ValueError: If a size is too small, or the transform is unknown.

    Example:
        >>> model = GridClassifier(6, d_static=5, transform="sparsemax")
        >>> model(torch.randn(7, 48, 6), torch.randn(7, 5)).shape
        torch.Size([7])
    """

    def __init__(
        self,
        d_input: int,
        d_static: int = 0,
        d_model: int = 48,
        transform: str | float = "softmax",
        hidden: int = 0,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        _positive(d_input=d_input, d_model=d_model)
        if isinstance(transform, str) and transform not in ALPHAS:
            raise ValueError(f"transform must be one of {', '.join(ALPHAS)} or an alpha, got {transform!r}")
        self.alpha = ALPHAS[transform] if isinstance(transform, str) else transform
        self.encoder = nn.GRU(d_input, d_model, batch_first=True)
        self.keys, self.score = nn.Linear(d_model, d_model), nn.Linear(d_model, 1, bias=False)
        self.output = _Output(d_model + d_static, hidden, dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, static: Tensor) -> Tensor:
        """Return scores [batch] of class 1 against class 0 for [batch, steps, d_input] and [batch, d_static]."""
        return self.output(torch.cat([self.read(x)[0], static], 1))

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context [batch, d_model] and the weights of the steps [batch, steps]."""
        states, _ = self.encoder(self.drop(x))  # [batch, steps, d_model]
        scores = self.score(torch.tanh(self.keys(states))).squeeze(-1)  # [batch, steps]
        weights = tsallis.entmax(scores, self.alpha)
        return (weights.unsqueeze(1) @ states).squeeze(1), weights


class _Output(nn.Module):
    """The output layers: dropout, an optional hidden layer of ReLU units, and a linear score."""

    def __init__(self, size: int, hidden: int, dropout: float) -> None:
        super().__init__()
        if hidden < 0:
            raise ValueError(f"hidden must be 0 or more, got {hidden}")
        self.drop = nn.Dropout(dropout)
        self.hidden = nn.Linear(size, hidden) if hidden else None
        self.score = nn.Linear(hidden or size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, size] to scores [batch]."""
        x = self.drop(x)
        if self.hidden is not None:
            x = self.drop(torch.relu(self.hidden(x)))
        score: Tensor = self.score(x).squeeze(-1)
        return score


def _positive(**sizes: Any) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
