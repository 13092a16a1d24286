"""Classifiers of irregular time series: attention to a grid they were resampled to, or to signals without a grid."""

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

AT_ONCE = 256  # rows of about as many observations each that are fitted together
DENSITIES: dict[str, type[Elliptical]] = {
    "gaussian": Gaussian,
    "truncated_parabola": TruncatedParabola,
    "laplace": Laplace,
    "triangular": Triangular,
    "learned": BetaGaussian,
}
ALPHAS = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}
FLOOR = 1e-4  # added to variances
VARIANCE = 1 / 12  # of the uniform density on [0, 1], with which densities start


class Reach(NamedTuple):
    """Mean, spread and support of each head and channel's density, on the line of its signal."""

    mean: Tensor  # [heads, channels]
    std: Tensor  # [heads, channels]
    lower: Tensor  # [heads, channels] where the support begins, -inf where it has no end
    upper: Tensor  # [heads, channels]


@torch.no_grad()
def fitted(fit: ValueFunction, values: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    r"""Fit the coefficients of many signals with numbers of observations that differ much.

    .. math:: \min_B \lVert B F - H \rVert_F^2 + \lambda \lVert B \rVert_F^2

    What `fit(values, positions=positions, mask=mask).coefficients` is, from rows of like lengths together. A signal of
    no observation is 0 everywhere.

    Args:
        fit: the value function.
        values: [rows, length, d].
        positions: [rows, length].
        mask: boolean [rows, length], the first ones of each row; True is an observation.

    Returns:
        [rows, functions, d]

    Raises:
        ValueError: a mask whose True does not come first.

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
    for rows in counts.argsort().split(AT_ONCE):
        length = int(counts[rows].max())
        if length:
            signal = fit(values[rows, :length], positions=positions[rows, :length], mask=mask[rows, :length])
            coefficients[rows] = signal.coefficients
    return coefficients


class SignalClassifier(nn.Module):
    r"""Scores of series whose channels are signals, which densities read, several for each channel.

    .. math:: c_{jh} = E_{p_{jh}}[V_j(t)] = B_j\, E_{p_{jh}}[\psi(t)]

    for channel j and head h (Martins et al. 2020, sec. 3), with mean and variance made of a vector for each channel,
    :math:`\mu = \sigma(w_h^\top v_j)` and :math:`\sigma^2 = \mathrm{softplus}(u_h^\top v_j)`. Series are not resampled:
    each channel's signal is fitted to its observations at their own times, once for all of the training. What the
    densities are does not depend on the series, so they are integrated once a batch. A layer of rectified units, if it
    has any, and a linear one make the score.

    Args:
        basis: of the signals, on the line.
        channels: of the series.
        d_values: numbers a channel's signal gives at each time.
        d_static: numbers that describe a series as a whole.
        heads: densities a channel.
        hidden: rectified units; 0 is none.
        dropout: on what the densities read, and on the rectified units.
        density: "gaussian" (continuous softmax), "truncated_parabola" (continuous sparsemax), "laplace", "triangular",
            an alpha from 1, or "learned", an alpha for each head.
        d_query: size of a channel's vector.

    Raises:
        ValueError: sizes that are too small, a density that is unknown.

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
        """Return the densities, of batch shape [1, heads, channels]."""
        numbers = self.head(self.queries).unflatten(-1, (-1, 2)).transpose(0, 1).unsqueeze(0)
        mean, std = torch.sigmoid(numbers[..., 0]), (F.softplus(numbers[..., 1]) + FLOOR).sqrt()
        shape = self.shape if self.alpha is None else {"alpha": self.alpha().unsqueeze(-1)}
        return self.kind.from_factor(mean, std, **shape)

    def forward(self, coefficients: Tensor, static: Tensor) -> Tensor:
        """Return scores [batch] of the class 1 against the class 0.

        Args:
            coefficients: [batch, channels, functions, d_values], such as :func:`fitted` gives for each channel.
            static: [batch, d_static].

        Raises:
            ValueError: coefficients of another shape.
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
        """Return mean, spread and support of each head's density in each channel."""
        density = self.density()
        mean, std = density.mean.squeeze(0), density.factor.squeeze(0)
        support = density.support
        if isinstance(support, Interval):
            return Reach(mean, std, support.lower.squeeze(0), support.upper.squeeze(0))
        return Reach(mean, std, torch.full_like(mean, -math.inf), torch.full_like(mean, math.inf))


class GridClassifier(nn.Module):
    r"""Scores of series on a regular grid, by a GRU and discrete attention to its states.

    A state is scored by :math:`v^\top \tanh(W h_l)`, and the mean of all states weighted by the map of their scores
    goes to the same output as that of :class:`SignalClassifier`.

    Args:
        d_input: numbers at each step.
        d_static: numbers that describe a series as a whole.
        d_model: size of the states.
        transform: the map of the scores: "softmax", "sparsemax", "entmax" (1.5) or an alpha.
        hidden: rectified units; 0 is none.
        dropout: on the input, on the context and on the rectified units.

    Raises:
        ValueError: sizes that are too small, a map that is unknown.

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
    """Dropout, rectified units if there are any, and one score."""

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
