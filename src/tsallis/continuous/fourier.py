r"""Beta-Gaussians and Gaussian functions in the plane, by their Fourier transforms.

.. math:: E_p[\psi_j] = \frac{1}{4\pi^2} \int \varphi(B^\top k)\, e^{-\frac12 k^\top \Sigma_j k}\,
          e^{i k \cdot (\mu - c_j)} \, dk

with :math:`\varphi` the characteristic function of the density on the unit disk, stretched by B. The functions are
smooth, so the integral ends where they do, and a sum over a lattice is exact but for images of the density one period
away, where the functions see nothing of it. The lattice is the same for all densities: what depends on the functions
is one matrix, and a density costs no exponential a function.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.continuous.bases import Basis
from tsallis.continuous.characteristic_function import characteristic, table_end
from tsallis.ops.transforms import differentiable

# Numbers that one intermediate result may have: as many as stay in a core's cache, and as fill a GPU.
CHUNK, DEVICE_CHUNK = 1 << 17, 1 << 24
LARGEST = 1 << 23  # numbers of a matrix of frequencies and functions
CACHE_NUMBERS = 1 << 25  # numbers of all matrices of a basis that are remembered
GROUPS, GROUP = 4, 64  # densities are sorted by size into so many groups, of so many at least
STEPS = 16  # periods come in so many steps an octave, that few matrices are ever made
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}


class FourierGrid(NamedTuple):
    """A lattice of frequencies, one of each pair of opposite ones, and what the functions have of them."""

    k: Tensor  # [2, frequencies]
    functions: Tensor  # [2 frequencies, functions], cosines and sines around the origin
    centres: Tensor  # [functions, 2]
    origin: Tensor  # [2]
    half: float  # the period's half
    order: float  # of the characteristic function
    end: float  # of its argument


class Extent(NamedTuple):
    """The extent of all ellipses of a batch."""

    half: float  # the largest half side of a bounding square
    longest: float  # semi-axis
    shortest: float


def largest(factor: Tensor) -> Tensor:
    """Return the larger eigenvalue of `factor @ factor.mT` for lower triangular factors [..., 2, 2] alone.

    >>> largest(torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor(9.)
    """
    if factor.shape[-1] != 2:
        raise NotImplementedError(f"quadrature is for the line and the plane, got {factor.shape[-1]} dimensions")
    a, b, c = factor[..., 0, 0].square(), factor[..., 1, 0].square(), factor[..., 1, 1].square()
    return (a + b + c + ((a - b - c).square() + 4 * a * b).sqrt()) / 2


def extent(factor: Tensor) -> Extent:
    """Return the extent of the ellipses `factor @ u`, |u| <= 1; those that are points have no shortest axis."""
    f = factor.detach()
    longest = largest(f).sqrt()
    shortest = torch.where(longest > 0, (f[..., 0, 0] * f[..., 1, 1]).abs() / longest, math.inf)
    return Extent(*torch.stack([_half(f).amax(), longest.amax(), shortest.amin()]).tolist())


def _half(factor: Tensor) -> Tensor:
    """Return half the side of a square around the ellipse [...]."""
    return factor.square().sum(-1).amax(-1).sqrt()


class _BasisCache:
    """Centres and covariances of a basis, and matrices made of them, as long as its tensors are what they were."""

    def __init__(self, basis: Basis, versions: list[tuple[Tensor, int]], like: Tensor) -> None:
        self.versions = versions
        with torch.inference_mode(False), torch.no_grad():
            gaussians = basis.gaussians(torch.zeros((), dtype=torch.float64, device=like.device))
            self.centres, self.covs = cast(tuple[Tensor, Tensor], gaussians)
            spread = torch.linalg.eigvalsh(self.covs).clamp(min=0).sqrt()
            self.narrowest, self.widest = torch.stack([spread.amin(), spread.amax()]).tolist()
        self.matrices: dict[tuple[object, ...], FourierGrid] = {}

    def grid(self, reach: float, spacing: float, order: float, end: float, dtype: torch.dtype) -> FourierGrid:
        """Return the lattice of this spacing up to this frequency."""
        key = (reach, spacing, order, end, dtype)
        if key not in self.matrices:
            with torch.inference_mode(False), torch.no_grad():
                self.matrices[key] = self._make_grid(reach, spacing, order, end, dtype)
            while sum(grid.functions.numel() for grid in self.matrices.values()) > CACHE_NUMBERS:
                del self.matrices[next(iter(self.matrices))]
        return self.matrices[key]

    def _make_grid(self, reach: float, spacing: float, order: float, end: float, dtype: torch.dtype) -> FourierGrid:
        k = _lattice(reach / spacing).to(self.centres) * spacing  # [2, frequencies]
        origin = (self.centres.amin(0) + self.centres.amax(0)) / 2
        phase = (self.centres - origin) @ k  # [functions, frequencies]
        damping = torch.einsum("fij,ik,jk->fk", self.covs, k, k) / 2
        alone = (k == 0).all(0).to(k) / 2  # of the frequency that is its own opposite, half
        weight = (1 - alone) * (2 * (spacing / (2 * math.pi)) ** 2) * torch.exp(-damping)
        functions = torch.cat([weight * phase.cos(), weight * phase.sin()], -1).mT
        half = math.pi / spacing
        return FourierGrid(
            k.to(dtype), functions.to(dtype).contiguous(), self.centres.to(dtype), origin.to(dtype), half, order, end
        )


def _lattice(radius: float) -> Tensor:
    """Return points with whole coordinates within a circle, one of each opposite pair [2, points]."""
    n = math.floor(radius)
    x, y = torch.meshgrid(torch.arange(n + 1), torch.arange(-n, n + 1), indexing="ij")
    keep = (x * x + y * y <= radius * radius) & ((x > 0) | (y >= 0))
    return torch.stack([x[keep], y[keep]])


_caches: WeakKeyDictionary[Basis, _BasisCache] = WeakKeyDictionary()


def _knowledge(basis: Basis, like: Tensor) -> _BasisCache:
    buffers = [*basis.parameters(), *basis.buffers()]
    if any(b.is_inference() for b in buffers):  # whether those change can't be seen
        return _BasisCache(basis, [], like)
    versions = [(b, b._version) for b in buffers]
    entry = _caches.get(basis)
    same = entry is not None and entry.centres.device == like.device and len(versions) == len(entry.versions)
    if (
        entry is None
        or not same
        or any(a is not b or v != w for (a, v), (b, w) in zip(versions, entry.versions, strict=True))
    ):
        entry = _caches[basis] = _BasisCache(basis, versions, like)
    return entry


def _cutoff(order: float, narrow: float, dtype: torch.dtype) -> float:
    """Return the standard deviations after which a Gaussian is nothing of which the ellipses blur what lies beyond.

    The characteristic function falls with the frequency, all the sooner where the functions, of this standard deviation
    by the shortest semi-axis, are narrow.
    """
    bound = math.lgamma(order) - math.log(math.pi) / 2
    for step in range(24, 80):
        q = step / 8
        envelope = bound + (order - 0.5) * math.log(2 * narrow / q) if narrow > 0 else -math.inf
        if -q * q / 2 + min(0.0, envelope) <= math.log(TOLERANCE[dtype]):
            break
    return q


def _grid_for(entry: _BasisCache, factor: Tensor, order: float) -> FourierGrid | None:
    """Return the lattice for these densities on ellipses `factor @ u`, |u| <= 1, unless it were too large."""
    half, longest, shortest = extent(factor)
    if not 0 < shortest < math.inf:
        return None
    q = _cutoff(order, entry.widest / shortest, factor.dtype)
    reach = q / entry.narrowest
    period = 2 * (half + q * entry.widest)
    spacing = 2 * math.pi / 2 ** (math.ceil(math.log2(period) * STEPS) / STEPS)
    if math.pi * (reach / spacing) ** 2 * len(entry.centres) > LARGEST:
        return None
    return entry.grid(reach, spacing, order, table_end(reach * longest), factor.dtype)


def wave_expectation(basis: Basis, mean: Tensor, factor: Tensor, order: float) -> Tensor | None:
    r"""Return expectations of Gaussian functions of :math:`\mu + B u` under :math:`\propto (1 - |u|^2)_+^{b-2}`.

    Ellipses of like size share a lattice.

    Args:
        basis: in the plane, with centres and covariances that get no gradient.
        mean: [..., 2].
        factor: B [..., 2, 2], lower triangular.
        order: b, above 2; 3 is alpha 2.

    Returns:
        [..., functions]; nothing where functions are so narrow that the lattice would be too large.

    Example:
        >>> from tsallis.continuous.bases import image_basis
        >>> value = wave_expectation(image_basis(), torch.tensor([0.5, 0.5]), 0.4 * torch.eye(2), 3.0)
        >>> round(float(value.sum()) / 81, 3)  # of 100 densities, 81 to the unit square
        0.999
    """
    entry = _knowledge(basis, factor)
    finite = factor.detach().isfinite().all(-1).all(-1)
    apart = torch.where(finite.unsqueeze(-1), mean, math.nan).reshape(-1, 2)  # the table can't be asked at a NaN
    spread = torch.where(finite[..., None, None], factor, 0).reshape(-1, 2, 2)
    groups = max(1, min(GROUPS, len(apart) // GROUP))
    by_size = _half(spread.detach()).argsort()
    values = []
    for some in by_size.tensor_split(groups):
        grid = _grid_for(entry, spread.detach()[some], order)
        if grid is None:
            return None
        centre = apart.index_select(0, some)
        expectations = cast(Tensor, _Expectation.apply(centre - grid.origin, spread.index_select(0, some), grid))
        elsewhere = ((centre.detach().unsqueeze(-2) - grid.centres).abs() > grid.half).any(-1)  # there images are
        values.append(expectations * (~elsewhere).to(expectations))
    whole = torch.cat(values).index_select(0, by_size.argsort())
    return whole.view(*mean.shape[:-1], -1)


class _Expectation(Function):
    """Keeps mean and factor alone, of each density eight numbers."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, factor: Tensor, grid: FourierGrid) -> Tensor:
        ctx.save_for_backward(mean, factor)
        ctx.grid = grid
        values = mean.new_empty(len(mean), grid.functions.shape[1])
        for rows in _chunks(mean, grid):
            profile = characteristic(_stretch(factor[rows], grid)[-1], grid.order, grid.end)
            phase = mean[rows] @ grid.k
            both = mean.new_empty(len(phase), 2, phase.shape[1])
            torch.cos(phase, out=both[:, 0])
            torch.sin(phase, out=both[:, 1])
            torch.mm(both.mul_(profile.unsqueeze(1)).flatten(1), grid.functions, out=values[rows])
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, factor = ctx.saved_tensors
        (grad,) = grads
        if differentiable(grad):
            return (*_pullback(grad, mean, factor, ctx.grid), None)
        to_mean, to_factor = torch.empty_like(mean), torch.empty_like(factor)
        for rows in _chunks(mean, ctx.grid):
            to_mean[rows], to_factor[rows] = _pullback(grad[rows], mean[rows], factor[rows], ctx.grid)
        return to_mean, to_factor, None


def _chunks(mean: Tensor, grid: FourierGrid) -> list[slice]:
    rows = max(1, (CHUNK if mean.device.type == "cpu" else DEVICE_CHUNK) // grid.k.shape[1])
    return [slice(start, start + rows) for start in range(0, len(mean), rows)]


def _stretch(factor: Tensor, grid: FourierGrid) -> tuple[Tensor, Tensor, Tensor]:
    """Return the frequencies as the factor stretches them, and their square, each [rows, frequencies]."""
    first = factor[:, :, 0] @ grid.k
    second = factor[:, 1, 1:] * grid.k[1]
    return first, second, torch.addcmul(first.square(), second, second)


def _pullback(grad: Tensor, mean: Tensor, factor: Tensor, grid: FourierGrid) -> tuple[Tensor, Tensor]:
    """Return gradients in mean and factor; of differentiable operations."""
    phase = mean @ grid.k
    cosine, sine = phase.cos(), phase.sin()
    first, second, squared = _stretch(factor, grid)
    profile = characteristic(squared, grid.order, grid.end)
    to_cosine, to_sine = (grad @ grid.functions.mT).chunk(2, -1)  # [rows, frequencies]
    to_mean = (profile * (cosine * to_sine - sine * to_cosine)) @ grid.k.mT
    slope = characteristic(squared, grid.order + 1, grid.end) * (cosine * to_cosine + sine * to_sine)
    to_first = (slope * first) @ grid.k.mT  # [rows, 2]
    to_second = (slope * second) @ grid.k[1]  # [rows]
    zero = torch.zeros_like(to_second)
    rows = [torch.stack([to_first[:, 0], zero], -1), torch.stack([to_first[:, 1], to_second], -1)]
    return to_mean, torch.stack(rows, -2) * (-0.5 / grid.order)  # twice the derivative -1 / (4 order)
