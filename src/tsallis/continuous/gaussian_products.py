"""Compute weighted sums of products of Gaussians in x and in y over the nodes of a quadrature rule."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.ops.transforms import differentiable

# Number of elements of an intermediate result that fits in a core's cache.
CHUNK = 1 << 17
# Clamp exponents: exp(-40) is below the rounding of float64, and exponentials that underflow in float32 are many times
# slower.
DEEPEST = 40.0


class Bells(NamedTuple):
    """Unnormalised Gaussians on the line, exp(-(t precision - shift)²)."""

    shift: Tensor  # [functions]
    precision: Tensor  # [functions]

    def z(self, t: Tensor) -> Tensor:
        """Return the arguments `t precision - shift` [..., functions]."""
        return torch.addcmul(-self.shift, t.unsqueeze(-1), self.precision)


def bells(centres: Tensor, variance: Tensor) -> Bells:
    precision = (2 * variance).rsqrt()
    return Bells(centres * precision, precision)


def peaks(variance: Tensor) -> Tensor:
    """Return the maximum values of normal densities."""
    return (2 * math.pi * variance).rsqrt()


def plane_sum(weights: Tensor, x: Tensor, y: Tensor, first: Bells, second: Bells) -> Tensor:
    """Return weighted sums of products of Gaussians in x and y, differentiable to any order in the points only.

    Args:
        weights: Weights [points], without a gradient.
        x: First coordinates [rows, points].
        y: Second coordinates [rows, points].
        first: Gaussians in x, without gradients.
        second: Gaussians in y, without gradients.

    Returns:
        Sums [rows, first, second].

    Raises:
        NotImplementedError: If weights or Gaussians require a gradient.

    Example:
        >>> one = bells(torch.zeros(1), torch.tensor([0.5]))
        >>> plane_sum(torch.ones(1), torch.zeros(1, 1), torch.ones(1, 1), one, one)
        tensor([[[0.3679]]])
    """
    return cast(Tensor, _PlaneSum.apply(weights, x, y, *first, *second))


class _PlaneSum(Function):
    """Autograd function that saves only the points, because recomputing exponentials is faster than storing them."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, y: Tensor, *bell_parameters: Tensor) -> Tensor:
        if ctx.needs_input_grad[0] or any(ctx.needs_input_grad[3:]):
            raise NotImplementedError(
                "plane_sum computes gradients only for points, but the weights or Gaussians require gradients"
            )
        ctx.save_for_backward(weights, x, y, *bell_parameters)
        first, second = Bells(*bell_parameters[:2]), Bells(*bell_parameters[2:])
        sums = x.new_empty(len(x), len(first.shift), len(second.shift))
        for rows in _chunks(x, first, second):
            left = _bell(_bell_arguments(first, x[rows])).mul_(weights)  # [rows, first, points]
            torch.bmm(left, _bell(_bell_arguments(second, y[rows])).mT, out=sums[rows])
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, x, y, *bell_parameters = ctx.saved_tensors
        first, second = Bells(*bell_parameters[:2]), Bells(*bell_parameters[2:])
        (grad,) = grads
        if differentiable(grad):
            x_grad, y_grad = _pullback(grad, weights, x, y, first, second)
        else:
            x_grad, y_grad = torch.empty_like(x), torch.empty_like(y)
            for rows in _chunks(x, first, second):
                x_grad[rows], y_grad[rows] = _pullback(grad[rows], weights, x[rows], y[rows], first, second)
        return None, x_grad, y_grad, *[None] * len(bell_parameters)


def _chunks(x: Tensor, first: Bells, second: Bells) -> list[slice]:
    rows = max(1, CHUNK // max(1, x.shape[1] * max(len(first.shift), len(second.shift))))
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def _bell_arguments(gaussians: Bells, t: Tensor) -> Tensor:
    """Return the arguments `t precision - shift` of the Gaussians [rows, functions, points]."""
    return torch.addcmul(-gaussians.shift.unsqueeze(-1), t.unsqueeze(1), gaussians.precision.unsqueeze(-1))


def _bell(z: Tensor) -> Tensor:
    return z.square().clamp_(max=DEEPEST).neg_().exp_()


def _pullback(
    grad: Tensor, weights: Tensor, x: Tensor, y: Tensor, first: Bells, second: Bells
) -> tuple[Tensor, Tensor]:
    """Return the gradients in x and y [rows, points], computed by differentiable operations."""
    zx, zy = _bell_arguments(first, x), _bell_arguments(second, y)  # [rows, functions, points]
    left, right = _bell(zx), _bell(zy)
    x_grad = (grad @ right * left * zx * first.precision.unsqueeze(-1)).sum(1)
    y_grad = (grad.mT @ left * right * zy * second.precision.unsqueeze(-1)).sum(1)
    return x_grad * weights * -2, y_grad * weights * -2
