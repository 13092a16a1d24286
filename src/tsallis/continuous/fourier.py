r"""Compute expectations of Gaussian functions under beta-Gaussians in the plane by Fourier transforms.

.. math:: E_p[\psi_j] = \frac{1}{4\pi^2} \int \varphi(B^\top k)\, e^{-\frac12 k^\top \Sigma_j k}\,
          e^{i k \cdot (\mu - c_j)} \, dk

Here :math:`\varphi` is the characteristic function of the density on the unit disk, and B maps the disk to the support.
The functions are smooth, so high frequencies contribute nothing and the integral can be truncated. A sum over a lattice
of frequencies then replaces the integral. Its only error is that it adds images of the density one period away. The
period is so long that the functions vanish at the images. All densities share the lattice, so one matrix represents the
functions, and a density needs no exponential per function.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd import Function

from tsallis.continuous.bases import Basis
from tsallis.continuous.quadrature import gauss_jacobi
from tsallis.ops.transforms import differentiable

# Number of elements of an intermediate result: the first number fits in a core's cache, the second fills a GPU.
CHUNK, DEVICE_CHUNK = 1 << 17, 1 << 24
LARGEST = 1 << 23  # largest number of elements of a matrix of frequencies and functions
CACHE_NUMBERS = 1 << 25  # largest number of elements of all cached matrices of a basis
GROUPS, GROUP = 4, 64  # densities of similar size form groups: maximum number of groups, minimum size of a group
STEPS = 16  # periods are rounded up to this many steps per octave, so that few matrices are computed
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}


class FourierGrid(NamedTuple):
    """Lattice of frequencies and Fourier coefficients of the functions; only one of k and -k is stored."""

    k: Tensor  # [2, frequencies]
    functions: Tensor  # [2 frequencies, functions], cosines and sines around the origin
    centres: Tensor  # [functions, 2]
    origin: Tensor  # [2]
    half: float  # half the period
    order: float  # parameter b of the characteristic function
    end: float  # largest argument of the characteristic function


class Extent(NamedTuple):
    """Extent of all ellipses of a batch."""

    half: float  # half the side of the largest bounding square
    longest: float  # longest semi-axis
    shortest: float


def largest(factor: Tensor) -> Tensor:
    """Return the larger eigenvalue of `factor @ factor.mT` for lower triangular factors [..., 2, 2].

    >>> largest(torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
    tensor(9.)
    """
    if factor.shape[-1] != 2:
        raise NotImplementedError(f"quadrature supports 1 or 2 dimensions, got {factor.shape[-1]}")
    a, b, c = factor[..., 0, 0].square(), factor[..., 1, 0].square(), factor[..., 1, 1].square()
    return (a + b + c + ((a - b - c).square() + 4 * a * b).sqrt()) / 2


def extent(factor: Tensor) -> Extent:
    """Return the extent of the ellipses `factor @ u`, |u| <= 1; `shortest` ignores ellipses of size 0."""
    f = factor.detach()
    longest = largest(f).sqrt()
    shortest = torch.where(longest > 0, (f[..., 0, 0] * f[..., 1, 1]).abs() / longest, math.inf)
    return Extent(*torch.stack([_half_side(f).amax(), longest.amax(), shortest.amin()]).tolist())


def _half_side(factor: Tensor) -> Tensor:
    """Return half the side of the bounding square of each ellipse [...]."""
    return factor.square().sum(-1).amax(-1).sqrt()


class _BasisCache:
    """Centres and covariances of a basis, and matrices computed from them; valid until the basis changes."""

    def __init__(self, basis: Basis, versions: list[tuple[Tensor, int]], like: Tensor) -> None:
        self.versions = versions
        with torch.inference_mode(False), torch.no_grad():
            gaussians = basis.gaussians(torch.zeros((), dtype=torch.float64, device=like.device))
            self.centres, self.covs = cast(tuple[Tensor, Tensor], gaussians)
            deviations = torch.linalg.eigvalsh(self.covs).clamp(min=0).sqrt()
            self.narrowest, self.widest = torch.stack([deviations.amin(), deviations.amax()]).tolist()
        self.matrices: dict[tuple[object, ...], FourierGrid] = {}

    def grid(self, max_frequency: float, spacing: float, order: float, end: float, dtype: torch.dtype) -> FourierGrid:
        """Return the cached lattice with the given spacing, up to the frequency `max_frequency`."""
        key = (max_frequency, spacing, order, end, dtype)
        if key not in self.matrices:
            with torch.inference_mode(False), torch.no_grad():
                self.matrices[key] = self._make_grid(max_frequency, spacing, order, end, dtype)
            while sum(grid.functions.numel() for grid in self.matrices.values()) > CACHE_NUMBERS:
                del self.matrices[next(iter(self.matrices))]
        return self.matrices[key]

    def _make_grid(
        self, max_frequency: float, spacing: float, order: float, end: float, dtype: torch.dtype
    ) -> FourierGrid:
        k = _lattice(max_frequency / spacing).to(self.centres) * spacing  # [2, frequencies]
        origin = (self.centres.amin(0) + self.centres.amax(0)) / 2
        phase = (self.centres - origin) @ k  # [functions, frequencies]
        damping = torch.einsum("fij,ik,jk->fk", self.covs, k, k) / 2
        half_at_zero = (k == 0).all(0).to(k) / 2  # 1/2 at frequency 0, which has no opposite; else 0
        weight = (1 - half_at_zero) * (2 * (spacing / (2 * math.pi)) ** 2) * torch.exp(-damping)
        functions = torch.cat([weight * phase.cos(), weight * phase.sin()], -1).mT
        half = math.pi / spacing
        return FourierGrid(
            k.to(dtype), functions.to(dtype).contiguous(), self.centres.to(dtype), origin.to(dtype), half, order, end
        )


def _lattice(radius: float) -> Tensor:
    """Return the integer points in a circle [2, points], but only one of each pair of opposite points."""
    n = math.floor(radius)
    x, y = torch.meshgrid(torch.arange(n + 1), torch.arange(-n, n + 1), indexing="ij")
    keep = (x * x + y * y <= radius * radius) & ((x > 0) | (y >= 0))
    return torch.stack([x[keep], y[keep]])


_caches: WeakKeyDictionary[Basis, _BasisCache] = WeakKeyDictionary()


def _cached_basis(basis: Basis, like: Tensor) -> _BasisCache:
    buffers = [*basis.parameters(), *basis.buffers()]
    if any(b.is_inference() for b in buffers):  # changes of inference tensors can't be detected
        return _BasisCache(basis, [], like)
    versions = [(b, b._version) for b in buffers]
    entry = _caches.get(basis)
    comparable = entry is not None and entry.centres.device == like.device and len(versions) == len(entry.versions)
    if (
        entry is None
        or not comparable
        or any(a is not b or v != w for (a, v), (b, w) in zip(versions, entry.versions, strict=True))
    ):
        entry = _caches[basis] = _BasisCache(basis, versions, like)
    return entry


def _cutoff(order: float, width_ratio: float, dtype: torch.dtype) -> float:
    """Return the cutoff, in standard deviations, beyond which a Gaussian's transform is negligible.

    The decay of the characteristic function allows a lower cutoff if `width_ratio`, the standard deviation of the
    functions divided by the shortest semi-axis, is small.
    """
    bound = math.lgamma(order) - math.log(math.pi) / 2
    for step in range(24, 80):
        q = step / 8
        envelope = bound + (order - 0.5) * math.log(2 * width_ratio / q) if width_ratio > 0 else -math.inf
        if -q * q / 2 + min(0.0, envelope) <= math.log(TOLERANCE[dtype]):
            break
    return q


def _grid_for(entry: _BasisCache, factor: Tensor, order: float) -> FourierGrid | None:
    """Return the lattice for densities on ellipses `factor @ u`, |u| <= 1, or None if it would be too large."""
    half, longest, shortest = extent(factor)
    if not 0 < shortest < math.inf:
        return None
    q = _cutoff(order, entry.widest / shortest, factor.dtype)
    max_frequency = q / entry.narrowest
    period = 2 * (half + q * entry.widest)
    spacing = 2 * math.pi / 2 ** (math.ceil(math.log2(period) * STEPS) / STEPS)
    if math.pi * (max_frequency / spacing) ** 2 * len(entry.centres) > LARGEST:
        return None
    return entry.grid(max_frequency, spacing, order, table_end(max_frequency * longest), factor.dtype)


def wave_expectation(basis: Basis, mean: Tensor, factor: Tensor, order: float) -> Tensor | None:
    r"""Return expectations of Gaussian functions at :math:`\mu + B u` for u with density :math:`(1 - |u|^2)_+^{b-2}`.

    Ellipses of similar size share a lattice.

    Args:
        basis: Basis in the plane whose centres and covariances require no gradient.
        mean: Means :math:`\mu` [..., 2].
        factor: Factors B [..., 2, 2], lower triangular.
        order: Parameter b, above 2; 3 for alpha 2.

    Returns:
        Expectations [..., functions], or None if functions are so narrow that the lattice would be too large.

    Example:
        >>> from tsallis.continuous.bases import image_basis
        >>> value = wave_expectation(image_basis(), torch.tensor([0.5, 0.5]), 0.4 * torch.eye(2), 3.0)
        >>> round(float(value.sum()) / 81, 3)  # of 100 densities, 81 to the unit square
        0.999
    """
    entry = _cached_basis(basis, factor)
    finite = factor.detach().isfinite().all(-1).all(-1)
    # Move NaN and infinity from the factor to the mean: the table can't be read at NaN.
    means = torch.where(finite.unsqueeze(-1), mean, math.nan).reshape(-1, 2)
    factors = torch.where(finite[..., None, None], factor, 0).reshape(-1, 2, 2)
    groups = max(1, min(GROUPS, len(means) // GROUP))
    by_size = _half_side(factors.detach()).argsort()
    values = []
    for rows in by_size.tensor_split(groups):
        grid = _grid_for(entry, factors.detach()[rows], order)
        if grid is None:
            return None
        centre = means.index_select(0, rows)
        expectations = cast(Tensor, _Expectation.apply(centre - grid.origin, factors.index_select(0, rows), grid))
        # Set expectations of far functions to 0: an image of the density would reach these functions.
        is_far = ((centre.detach().unsqueeze(-2) - grid.centres).abs() > grid.half).any(-1)
        values.append(expectations * (~is_far).to(expectations))
    result = torch.cat(values).index_select(0, by_size.argsort())
    return result.view(*mean.shape[:-1], -1)


class _Expectation(Function):
    """Autograd function that saves only the mean and the factor of each density."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, factor: Tensor, grid: FourierGrid) -> Tensor:
        ctx.save_for_backward(mean, factor)
        ctx.grid = grid
        values = mean.new_empty(len(mean), grid.functions.shape[1])
        for rows in _chunks(mean, grid):
            profile = characteristic(_transform_frequencies(factor[rows], grid)[-1], grid.order, grid.end)
            phase = mean[rows] @ grid.k
            waves = mean.new_empty(len(phase), 2, phase.shape[1])
            torch.cos(phase, out=waves[:, 0])
            torch.sin(phase, out=waves[:, 1])
            torch.mm(waves.mul_(profile.unsqueeze(1)).flatten(1), grid.functions, out=values[rows])
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, factor = ctx.saved_tensors
        (grad,) = grads
        if differentiable(grad):
            return (*_pullback(grad, mean, factor, ctx.grid), None)
        mean_grad, factor_grad = torch.empty_like(mean), torch.empty_like(factor)
        for rows in _chunks(mean, ctx.grid):
            mean_grad[rows], factor_grad[rows] = _pullback(grad[rows], mean[rows], factor[rows], ctx.grid)
        return mean_grad, factor_grad, None


def _chunks(mean: Tensor, grid: FourierGrid) -> list[slice]:
    rows = max(1, (CHUNK if mean.device.type == "cpu" else DEVICE_CHUNK) // grid.k.shape[1])
    return [slice(start, start + rows) for start in range(0, len(mean), rows)]


def _transform_frequencies(factor: Tensor, grid: FourierGrid) -> tuple[Tensor, Tensor, Tensor]:
    """Return both coordinates of `factor.mT @ k` and its squared length, each [rows, frequencies]."""
    first = factor[:, :, 0] @ grid.k
    second = factor[:, 1, 1:] * grid.k[1]
    return first, second, torch.addcmul(first.square(), second, second)


def _pullback(grad: Tensor, mean: Tensor, factor: Tensor, grid: FourierGrid) -> tuple[Tensor, Tensor]:
    """Return the gradients in mean and factor, computed by differentiable operations."""
    phase = mean @ grid.k
    cosine, sine = phase.cos(), phase.sin()
    first, second, squared = _transform_frequencies(factor, grid)
    profile = characteristic(squared, grid.order, grid.end)
    cosine_grad, sine_grad = (grad @ grid.functions.mT).chunk(2, -1)  # [rows, frequencies]
    mean_grad = (profile * (cosine * sine_grad - sine * cosine_grad)) @ grid.k.mT
    slope = characteristic(squared, grid.order + 1, grid.end) * (cosine * cosine_grad + sine * sine_grad)
    first_grad = (slope * first) @ grid.k.mT  # [rows, 2]
    second_grad = (slope * second) @ grid.k[1]  # [rows]
    zero = torch.zeros_like(second_grad)
    rows = [torch.stack([first_grad[:, 0], zero], -1), torch.stack([first_grad[:, 1], second_grad], -1)]
    # The factor is the derivative -1 / (4 order), times 2 from the square.
    return mean_grad, torch.stack(rows, -2) * (-0.5 / grid.order)


PANEL, PANEL_POINTS = 4.0, 26  # Chebyshev interpolation is exact to rounding on panels of this length
LINES_PER_UNIT = 256  # for linear interpolation in float32; its error is at most 5e-7
CELLS_PER_UNIT, DEGREE = 8, 7  # for float64, whose polynomials have this degree


class Table(NamedTuple):
    """Piecewise polynomial approximation of a function of z >= 0, on cells of equal length."""

    coefficients: tuple[Tensor, ...]  # one tensor [cells] per power of the position in a cell (0 to 1), lowest first
    per_unit: int

    def __call__(self, z: Tensor) -> Tensor:
        """Evaluate the function at z [...], which must not be NaN; z beyond the table's end counts as the end."""
        max_offset = len(self.coefficients[0]) * (1 - torch.finfo(z.dtype).eps)
        offset = (z.reshape(-1) * self.per_unit).clamp_(max=max_offset)
        cell = offset.int()
        offset.frac_()
        value = self.coefficients[-1].index_select(0, cell)
        for coefficient in self.coefficients[-2::-1]:
            value = value.mul_(offset).add_(coefficient.index_select(0, cell))
        return value.view(z.shape)


def _chebyshev_nodes(points: int, degree: int) -> tuple[Tensor, Tensor]:
    """Return `points` Chebyshev nodes on [0, 1], and `degree + 1` nodes that include both ends."""
    inner = torch.cos((torch.arange(points, dtype=torch.float64, device="cpu") + 0.5) * (math.pi / points))
    ends = torch.arange(degree + 1, dtype=torch.float64, device="cpu") / max(degree, 1)
    return (1 - inner) / 2, (1 - torch.cos(ends * math.pi)) / 2


def _interpolation(points: Tensor, nodes: Tensor) -> Tensor:
    """Return the interpolation matrix [points, nodes] from Chebyshev nodes to other points of [0, 1]."""
    degree = torch.arange(len(nodes), dtype=torch.float64, device="cpu")

    def polynomials(x: Tensor) -> Tensor:
        return torch.cos(torch.acos((2 * x - 1).clamp(-1, 1)).unsqueeze(-1) * degree)

    matrix: Tensor = torch.linalg.solve(polynomials(nodes).mT, polynomials(points).mT).mT
    return matrix


@lru_cache(maxsize=64)
def table(order: float, end: float, dtype: torch.dtype, device: torch.device) -> Table:
    r"""Return the table of :math:`{}_0F_1(; b; -z^2/4)`, `order` b above 1, for z up to `end`."""
    with torch.inference_mode(False), torch.no_grad():
        per_unit, degree = (CELLS_PER_UNIT, DEGREE) if dtype == torch.float64 else (LINES_PER_UNIT, 1)
        panels, cells = math.ceil(end / PANEL), int(PANEL) * per_unit
        nodes, cell_nodes = _chebyshev_nodes(PANEL_POINTS, degree)
        z = (torch.arange(panels, dtype=torch.float64, device="cpu").unsqueeze(-1) + nodes) * PANEL
        # Compute the expectation of cos(z t), where the density of t is proportional to (1 - t²)^(b - 3/2).
        # With n points the error is about the Bessel function of order 2n at z: 1e-16 if 2n = z + 12 z^(1/3).
        t, w = gauss_jacobi(math.ceil(end / 2 + 6 * end ** (1 / 3)) + 8, order - 1.5, order - 1.5)
        values = torch.cos(z.unsqueeze(-1) * t) @ w  # [panels, nodes]
        points = (torch.arange(cells, dtype=torch.float64, device="cpu").unsqueeze(-1) + cell_nodes) / cells
        samples = (values @ _interpolation(points.flatten(), nodes).mT).view(-1, degree + 1)  # [all cells, cell nodes]
        power = cell_nodes.unsqueeze(-1) ** torch.arange(degree + 1, device="cpu")
        coefficients = torch.linalg.solve(power, samples.mT).to(device=device, dtype=dtype)
        return Table(tuple(row.contiguous() for row in coefficients), per_unit)


def characteristic(squared: Tensor, order: float, end: float) -> Tensor:
    r"""Compute the characteristic function of a beta-Gaussian, :math:`{}_0F_1(; b; -x/4)`.

    The density is :math:`\propto (1 - |u|^2)_+^{b-1-n/2}` in n dimensions, and :math:`x = |k|^2` for a frequency k.
    The result is differentiable to any order.

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
