"""Define mixtures of densities, for attention with more than one mode."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tsallis.continuous.densities.base import broadcast_batch
from tsallis.continuous.densities.elliptical import Density, Function, Points
from tsallis.continuous.supports import Union
from tsallis.functional.rows import check_floating, result_dtype
from tsallis.ops.dtypes import compute_dtype, upcast
from tsallis.ops.transforms import outside_tracers, physical


class Mixture(Density):
    r"""Weighted sum of densities, which may have different families.

    .. math:: p(t) = \sum_{k=1}^K \pi_k\, p_k(t)

    (Martins et al. 2020, sec. 6, mention attention with several modes as future work.)

    Args:
        weights: Mixture weights :math:`\pi` [..., K], such as the output of softmax or sparsemax.
        components: One density with batch shape [..., K], or K densities with batch shape [...].
        validate_args: Whether to check the arguments, as in `torch.distributions`.

    Raises:
        ValueError: If weights and components don't fit, or the weights are not probabilities.
        TypeError: If the weights are not floating point, or a component is not a density of this package.

    Example:
        >>> from tsallis.continuous import TruncatedParabola
        >>> pair = TruncatedParabola(torch.tensor([0.2, 0.8]), torch.tensor(0.001))
        >>> mixture = Mixture(torch.tensor([0.25, 0.75]), pair)
        >>> mixture.mean, mixture.support.check(torch.tensor([0.2, 0.5]))
        (tensor(0.6500), tensor([ True, False]))
    """

    has_rsample = False

    def __init__(
        self, weights: Tensor, components: Density | Sequence[Density], validate_args: bool | None = None
    ) -> None:
        check_floating(weights, "weights")
        self.stacked = isinstance(components, Density)
        self.parts: list[Density] = list(components) if isinstance(components, Iterable) else [components]
        if foreign := [type(part).__name__ for part in self.parts if not isinstance(part, Density)]:
            raise TypeError(f"components must be a Density or a sequence of them, got {foreign[0]}")
        if weights.dim() == 0 or not self.parts:
            raise ValueError(
                "a mixture must have weights of shape [..., components] and at least one component, "
                f"got shape {tuple(weights.shape)} and {len(self.parts)} components"
            )
        first = self.parts[0]
        self.dims, event = first.dims, first.event_shape
        if any(part.event_shape != event for part in self.parts):
            raise ValueError(
                f"components must have the same number of dimensions, got {[part.dims for part in self.parts]}"
            )
        batch = broadcast_batch(**{f"component {k}": part.batch_shape for k, part in enumerate(self.parts)})
        count = weights.shape[-1]
        if (self.stacked and batch[-1:] != (count,)) or (not self.stacked and len(self.parts) != count):
            expected = f"components of batch shape {tuple(batch)}" if self.stacked else f"{len(self.parts)} components"
            raise ValueError(
                f"weights must have one weight per component, got shape {tuple(weights.shape)} for {expected}"
            )
        batch = broadcast_batch(weights=weights.shape[:-1], components=batch[:-1] if self.stacked else batch)
        self.weights = upcast(weights).expand(*batch, count)
        self.dtype = functools.reduce(torch.promote_types, (part.dtype for part in self.parts), result_dtype(weights))
        self.parts = [_upcast(part.expand((*batch, count) if self.stacked else batch)) for part in self.parts]
        if torch.compiler.is_compiling():
            validate_args = False
        super().__init__(batch, event, validate_args=validate_args)
        if self._validate_args:
            _check_weights(self.weights, torch.finfo(weights.dtype).eps)

    def _gather(self, values: Sequence[Tensor], trailing: int) -> Tensor:
        """Stack values of the parts to [..., K, *trailing], with `trailing` dimensions after the component."""
        return values[0] if self.stacked else torch.stack(list(values), values[0].dim() - trailing)

    def _mix(self, values: Sequence[Tensor], trailing: int) -> Tensor:
        """Return the weighted mean of values of the parts, which have `trailing` dimensions after the component."""
        stacked = self._gather(values, trailing)
        weights = self.weights.reshape(self.weights.shape + (1,) * trailing)
        return (weights * stacked).sum(-1 - trailing)

    def _add_component_dim(self, t: Tensor) -> Tensor:
        """If the components are stacked, add a dimension for them to the points."""
        return t.unsqueeze(-1 - len(self.event_shape)) if self.stacked else t

    @property
    def mean(self) -> Tensor:
        return self._mix([part.mean for part in self.parts], len(self.event_shape))

    @property
    def covariance(self) -> Tensor:
        """Return the mean of the components' covariances plus the covariance of their means."""
        event = len(self.event_shape)
        mean_covariance = self._mix([part.covariance for part in self.parts], 2 * event)
        means = self._gather([part.mean for part in self.parts], event)
        difference = means - self.mean.unsqueeze(-1 - event)
        outer = difference.square() if not event else difference.unsqueeze(-1) * difference.unsqueeze(-2)
        return mean_covariance + self._mix([outer] if self.stacked else outer.unbind(-1 - 2 * event), 2 * event)

    @property
    def variance(self) -> Tensor:
        """Return the variance [...], or the diagonal of the covariance [..., n]."""
        return self.covariance if self.dims == 1 else self.covariance.diagonal(dim1=-2, dim2=-1)

    @property
    def support(self) -> Union:
        """Return the union of all components' supports, including components of weight zero."""
        return Union([part.support for part in self.parts], self.stacked)  # type: ignore[misc]

    def pdf(self, t: Tensor) -> Tensor:
        self._check_points(t)
        points = self._add_component_dim(t)
        return self._mix([part.pdf(points) for part in self.parts], 0).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density; -inf, with gradient zero, outside the support."""
        self._check_points(value)
        points = self._add_component_dim(value)
        logs = self._gather([part.log_prob(points) for part in self.parts], 0)
        weights, positive = self.weights, self.weights > 0
        weighted = logs + torch.where(positive, torch.where(positive, weights, 1).log(), -torch.inf)
        inside = weighted.amax(-1) != -torch.inf  # NaN counts as inside and stays NaN
        value = torch.where(inside.unsqueeze(-1), weighted, 0).logsumexp(-1)
        # A weight of 0 adds nothing to the value, but its gradient is not 0.
        ratio = (logs - value.unsqueeze(-1)).clamp(max=math.log(torch.finfo(logs.dtype).max) / 2).exp()
        value = value + (torch.where(positive, 0, weights) * ratio).sum(-1).log1p()
        return torch.where(inside, value, -torch.inf).to(self.dtype)

    def expect(self, function: Function, points: Points = None) -> Tensor:
        """Return expectations; each component uses its own quadrature rule."""
        values = [part.expect(function, points) for part in self.parts]
        batch = len(self.batch_shape) + self.stacked
        return self._mix(values, values[0].dim() - batch).to(self.dtype)

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        shape, event = torch.Size(sample_shape), len(self.event_shape)
        samples = self._gather([part.sample(shape) for part in self.parts], event)  # [*shape, ..., K, *event]
        if not samples.numel():
            return samples.new_empty(shape + self.batch_shape + self.event_shape, dtype=self.dtype)
        flat = self.weights.reshape(-1, self.weights.shape[-1])
        component = torch.multinomial(flat, shape.numel(), replacement=True).T.reshape(shape + self.batch_shape)
        index = component.reshape(component.shape + (1,) * (1 + event)).expand(*component.shape, 1, *self.event_shape)
        return samples.gather(-1 - event, index).squeeze(-1 - event).to(self.dtype)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Mixture:
        new: Mixture = self._get_checked_instance(Mixture, _instance)
        shape = torch.Size(batch_shape)
        new.__dict__.update(self.__dict__)
        count = self.weights.shape[-1]
        new.weights = self.weights.expand(*shape, count)
        new.parts = [part.expand((*shape, count) if self.stacked else shape) for part in self.parts]
        Distribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return f"Mixture(batch_shape={tuple(self.batch_shape)}, components={self.weights.shape[-1]}, dims={self.dims})"


@outside_tracers()
def _check_weights(weights: Tensor, rounding: float) -> None:
    """Raise if weights [..., K] are not probabilities, up to rounding."""
    weights = physical(weights)
    error = (weights.sum(-1) - 1).abs()
    if bool((weights < 0).any()) or not bool((error < 1e-3 + weights.shape[-1] * rounding).all()):
        raise ValueError(
            f"weights must be non-negative and sum to 1, got {weights.reshape(-1, weights.shape[-1])[0].tolist()}"
        )


def _upcast(density: Density) -> Density:
    """Return the density with results in the compute dtype, so that only the mixture's results are rounded."""
    if density.dtype != compute_dtype(density.dtype):
        density = copy.copy(density)
        density.dtype = compute_dtype(density.dtype)
    return density
