"""Characteristic functions of beta-Gaussians on the line and in the plane, from tables of Bessel functions."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.continuous.quadrature import gauss_jacobi

PANEL, PANEL_POINTS = 4.0, 26  # Chebyshev interpolation is exact to rounding on panels of this length
LINES_PER_UNIT = 256  # for linear interpolation in float32; its error is at most 5e-7
CELLS_PER_UNIT, DEGREE = 8, 7  # for polynomials of this degree in float64


class Table(NamedTuple):
    """Piecewise polynomial approximation of a function of z >= 0, on cells of equal length."""

    coefficients: tuple[Tensor, ...]  # each [cells]; by rising power of the position in a cell, from 0 to 1
    per_unit: int

    def __call__(self, z: Tensor) -> Tensor:
        """Evaluate the function at z [...], which must not be NaN; z beyond the table's end counts as the end."""
        last = len(self.coefficients[0]) * (1 - torch.finfo(z.dtype).eps)
        offset = (z.reshape(-1) * self.per_unit).clamp_(max=last)
        cell = offset.int()
        offset.frac_()
        value = self.coefficients[-1].index_select(0, cell)
        for coefficient in self.coefficients[-2::-1]:
            value = value.mul_(offset).add_(coefficient.index_select(0, cell))
        return value.view(z.shape)


def _nodes(points: int, degree: int) -> tuple[Tensor, Tensor]:
    """Return `points` Chebyshev nodes on [0, 1], and `degree + 1` nodes that include both ends."""
    inner = torch.cos((torch.arange(points, dtype=torch.float64, device="cpu") + 0.5) * (math.pi / points))
    ends = torch.arange(degree + 1, dtype=torch.float64, device="cpu") / max(degree, 1)
    return (1 - inner) / 2, (1 - torch.cos(ends * math.pi)) / 2


def _interpolation(at: Tensor, nodes: Tensor) -> Tensor:
    """Return the interpolation matrix [at, nodes] from Chebyshev nodes to other points of [0, 1]."""
    degree = torch.arange(len(nodes), dtype=torch.float64, device="cpu")

    def polynomials(x: Tensor) -> Tensor:
        return torch.cos(torch.acos((2 * x - 1).clamp(-1, 1)).unsqueeze(-1) * degree)

    matrix: Tensor = torch.linalg.solve(polynomials(nodes).mT, polynomials(at).mT).mT
    return matrix


@lru_cache(maxsize=64)
def table(order: float, end: float, dtype: torch.dtype, device: torch.device) -> Table:
    r"""Return the table of :math:`{}_0F_1(; b; -z^2/4)`, `order` b above 1, for z up to `end`."""
    with torch.inference_mode(False), torch.no_grad():
        per_unit, degree = (CELLS_PER_UNIT, DEGREE) if dtype == torch.float64 else (LINES_PER_UNIT, 1)
        panels, cells = math.ceil(end / PANEL), int(PANEL) * per_unit
        nodes, places = _nodes(PANEL_POINTS, degree)
        z = (torch.arange(panels, dtype=torch.float64, device="cpu").unsqueeze(-1) + nodes) * PANEL
        # The expectation of cos(z t) under the density of t, proportional to (1 - t²)^(b - 3/2).
        # With n points the error is about the Bessel function of order 2n at z: 1e-16 if 2n = z + 12 z^(1/3).
        t, w = gauss_jacobi(math.ceil(end / 2 + 6 * end ** (1 / 3)) + 8, order - 1.5, order - 1.5)
        values = torch.cos(z.unsqueeze(-1) * t) @ w  # [panels, nodes]
        at = (torch.arange(cells, dtype=torch.float64, device="cpu").unsqueeze(-1) + places) / cells
        fine = (values @ _interpolation(at.flatten(), nodes).mT).view(-1, degree + 1)  # [cells of all panels, places]
        power = places.unsqueeze(-1) ** torch.arange(degree + 1, device="cpu")
        coefficients = torch.linalg.solve(power, fine.mT).to(device=device, dtype=dtype)
        return Table(tuple(row.contiguous() for row in coefficients), per_unit)


def characteristic(squared: Tensor, order: float, end: float) -> Tensor:
    r"""Compute the characteristic function of a beta-Gaussian, :math:`{}_0F_1(; b; -x/4)`.

    The density is :math:`\propto (1 - |u|^2)_+^{b-1-n/2}` in n dimensions, and :math:`x = |k|^2` for a frequency k.
    Differentiable to any order.

    Args:
        squared: x [...], not negative and not NaN.
        order: Parameter b, above 1; 3 at alpha 2.
        end: End of the table; no square root of x may be larger.

    Example:
        >>> value = characteristic(torch.tensor([0.0, 1.0], dtype=torch.float64), 2.0, 4.0)
        >>> [round(v, 6) for v in value.tolist()]  # 2 J1(1) = 0.880101
        [1.0, 0.880101]
    """
    return cast(Tensor, _Characteristic.apply(squared, order, end))


def table_end(z: float) -> float:
    """Round the end of a table up to one of a few values, so that few tables are computed."""
    return float(2 ** (math.ceil(math.log2(max(z, 8)) * 2) / 2))


class _Characteristic(Function):
    @staticmethod
    def forward(ctx: Any, squared: Tensor, order: float, end: float) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.order, ctx.end = order, end
        return table(order, end, squared.dtype, squared.device)(squared.sqrt())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (squared,) = ctx.saved_tensors
        return grads[0] * characteristic(squared, ctx.order + 1, ctx.end) * (-0.25 / ctx.order), None, None
