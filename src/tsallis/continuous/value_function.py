"""Define value functions, which turn sequences and images into continuous signals by ridge regression."""

from __future__ import annotations

import math
import operator
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsallis.continuous.bases import Basis
from tsallis.continuous.densities.base import broadcast_batch
from tsallis.continuous.densities.elliptical import Density, Points
from tsallis.continuous.quadrature import ridge_regression
from tsallis.errors import check_integer
from tsallis.functional.rows import check_dense, check_floating, check_real, number, result_dtype
from tsallis.ops.dtypes import product, upcast
from tsallis.ops.transforms import traced, without_numbers

CACHE_SIZE = 128  # largest number of regressions that a value function caches
NEGLIGIBLE = 1e-3  # share of a basis function's maximum


def cell_centres(length: int) -> Tensor:
    r"""Return the centres of equal cells of [0, 1], :math:`(l + \tfrac12) / L`.

    Args:
        length: Number of cells L.

    Returns:
        Centres [length] in float64.

    Raises:
        ValueError: If `length` is below 1.

    Example:
        >>> cell_centres(4)
        tensor([0.1250, 0.3750, 0.6250, 0.8750], dtype=torch.float64)
    """
    check_integer("length", length, 1)
    return (torch.arange(length, dtype=torch.float64, device="cpu") + 0.5) / length


def grid_centres(height: int, width: int) -> Tensor:
    """Return the centres of the cells of an image in the unit square, row by row.

    Args:
        height: Number of rows.
        width: Number of columns.

    Returns:
        Centres (x, y) [height * width, 2] in float64; x points right, y down.

    Raises:
        ValueError: If `height` or `width` is below 1.

    Example:
        >>> grid_centres(1, 2)
        tensor([[0.2500, 0.5000],
                [0.7500, 0.5000]], dtype=torch.float64)
    """
    check_integer("height", height, 1)
    check_integer("width", width, 1)
    y, x = torch.meshgrid(cell_centres(height), cell_centres(width), indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def grid_sizes(grid: Any, cells: int) -> tuple[int, int]:
    """Return the height and width of a grid; raise unless it has this number of cells."""
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid, grid)
    for size in sizes:
        check_integer("grid", size, 1)
    if len(sizes) != 2:
        raise ValueError(f"grid must be one number or (height, width), got {grid}")
    height, width = sizes
    if height * width != cells:
        raise ValueError(f"grid must have one cell per value, {cells}, got {height} x {width}")
    return height, width


def box_centres(boxes: Tensor, image_size: Tensor | Sequence[float]) -> Tensor:
    """Return the centres of bounding boxes, scaled to the unit square.

    Args:
        boxes: Boxes [..., 4], as (x1, y1, x2, y2) in pixels.
        image_size: (width, height) in pixels: one pair, a tensor [images..., 2] for boxes [images..., boxes, 4], or a
            tensor [..., 2] that broadcasts to the boxes.

    Returns:
        Centres [..., 2], as (x, y).

    Raises:
        ValueError: If the boxes are not [..., 4], the shape of the size doesn't fit, or a centre on the CPU is above 1.
        TypeError: If the boxes are not floating point.

    Example:
        >>> box_centres(torch.tensor([[0.0, 0.0, 50.0, 100.0]]), (100, 200))
        tensor([[0.2500, 0.2500]])
    """
    check_floating(boxes, "boxes")
    if boxes.dim() == 0 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes must have shape [..., 4], got {tuple(boxes.shape)}")
    size = torch.as_tensor(image_size, dtype=boxes.dtype, device=boxes.device)
    if size.shape[-1:] != (2,):
        raise ValueError(f"image_size must have shape [..., 2], got {tuple(size.shape)}")
    if size.dim() == boxes.dim() - 1 > 1:
        size = size.unsqueeze(-2)
    broadcast_batch(boxes=boxes.shape[:-1], image_size=size.shape[:-1])
    centres: Tensor = boxes.unflatten(-1, (2, 2)).mean(-2) / size
    # Negative coordinates are accepted, because they can mark padding.
    if not (traced() or without_numbers(centres) or centres.is_cuda) and bool((centres > 1).any()):
        raise ValueError(
            f"centres of boxes must be inside the image, got {centres.max().item():g} times its size: "
            "image_size must be (width, height), not (height, width)"
        )
    return centres


class Signal:
    r"""Value function: a linear combination of basis functions, :math:`V(t) = B\,\psi(t)`.

    Call the signal to get its values at points. :meth:`expect` returns the context of attention
    (Martins et al. 2020, sec. 3.1).

    Args:
        basis: Basis functions :math:`\psi`.
        coefficients: Coefficients :math:`B^\top` [batch..., functions, d].

    Raises:
        ValueError: If the coefficients don't fit the basis.
        TypeError: If the coefficients are not floating point.

    Example:
        >>> from tsallis.continuous import TruncatedParabola, gaussian_grid
        >>> signal = Signal(gaussian_grid(2, 0.5), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> signal(torch.tensor([0.0, 0.5]))
        tensor([[0.7979, 0.2160],
                [0.4839, 0.9679]])
        >>> signal.expect(TruncatedParabola(torch.tensor(0.5), torch.tensor(0.01)))
        tensor([0.4838, 0.9676])
    """

    def __init__(self, basis: Basis, coefficients: Tensor) -> None:
        check_floating(coefficients, "coefficients")
        if coefficients.dim() < 2 or coefficients.shape[-2] != basis.size:
            raise ValueError(
                f"coefficients must have shape [..., {basis.size}, d] for this basis, got {tuple(coefficients.shape)}"
            )
        self.basis, self._coefficients = basis, coefficients

    @property
    def coefficients(self) -> Tensor:
        """Return the coefficients [batch..., functions, d]."""
        return self._coefficients

    def heads(self, count: int) -> Signal:
        """Split the values among `count` heads: coefficients [batch..., count, functions, d / count]."""
        return Signal(self.basis, _split_heads(self.coefficients, count))

    def __call__(self, t: Tensor) -> Tensor:
        """Return values [batch..., points, d] at points [batch..., points] ([batch..., points, 2] in the plane)."""
        values: Tensor = (self.basis(upcast(t)).to(self.coefficients.dtype)) @ self.coefficients
        return values

    def expect(self, density: Density, points: Points = None) -> Tensor:
        r"""Return the context :math:`c = E_p[V(t)] = B\, E_p[\psi(t)]` (Martins et al. 2020, sec. 3.1).

        Args:
            density: Density with batch shape [batch..., any...], such as [batch, heads, queries].
            points: Size of the quadrature rule, see the density's `expect`.

        Returns:
            Context [batch..., any..., d].

        Raises:
            ValueError: If batch shapes don't fit.
        """
        expectations = density.expect(self.basis, points)  # [batch..., *any, functions]
        batch = self._batch_shape()
        inner = density.batch_shape[len(batch) :]
        if len(density.batch_shape) < len(batch):
            raise ValueError(
                f"the batch shape of density must begin with {tuple(batch)}, the batch shape of the signal, "
                f"got {tuple(density.batch_shape)}"
            )
        broadcast_batch(signal=batch, density=density.batch_shape[: len(batch)])
        flat = expectations.flatten(len(batch), -2) if inner else expectations.unsqueeze(-2)
        context = self._combine(flat)  # [batch..., any, d]
        return context.reshape(*context.shape[:-2], *inner, context.shape[-1])

    def _batch_shape(self) -> torch.Size:
        return self.coefficients.shape[:-2]

    def _combine(self, expectations: Tensor) -> Tensor:
        """Return the context [batch..., any, d] for expectations [batch..., any, functions]."""
        context: Tensor = expectations.to(self.coefficients.dtype) @ self.coefficients
        return context


class _RegressionSignal(Signal):
    r"""Signal fitted to observations H; the coefficients :math:`G^\top H` are computed only if that saves work.

    For few queries it is cheaper to compute the context as :math:`(E_p[\psi]\, G^\top) H`.
    """

    def __init__(self, basis: Basis, solver: Tensor, observations: Tensor, dtype: torch.dtype) -> None:
        self.basis, self.dtype = basis, dtype
        self.solver = solver  # [..., length, functions]
        self.observations = observations  # [batch..., length, d]
        self._cached_coefficients: Tensor | None = None

    @property
    def coefficients(self) -> Tensor:
        if self._cached_coefficients is not None:  # the compiler doesn't support `cached_property`
            return self._cached_coefficients
        coefficients = product(self.solver.mT, self.observations).to(self.dtype)
        with_gradients = self.solver.requires_grad or self.observations.requires_grad
        reusable = torch.compiler.is_compiling() or not coefficients.is_inference() or self.observations.is_inference()
        if reusable and (torch.is_grad_enabled() or not with_gradients):
            self._cached_coefficients = coefficients
        return coefficients

    def heads(self, count: int) -> Signal:
        solver = self.solver.unsqueeze(-3) if self.solver.dim() > 2 else self.solver
        return _RegressionSignal(self.basis, solver, _split_heads(self.observations, count), self.dtype)

    def _batch_shape(self) -> torch.Size:
        return torch.Size(torch.broadcast_shapes(self.observations.shape[:-2], self.solver.shape[:-2]))

    def _combine(self, expectations: Tensor) -> Tensor:
        rows, (length, functions), d = expectations.shape[-2], self.solver.shape[-2:], self.observations.shape[-1]
        is_cheaper = rows * length * (functions + d) < functions * d * (length + rows)
        if not is_cheaper or self._cached_coefficients is not None:
            return super()._combine(expectations)
        weights = product(expectations.to(self.solver.dtype), self.solver.mT)  # [batch..., any, length]
        return product(weights, self.observations).to(self.dtype)


class _BasisState(NamedTuple):
    """State of a basis, used to detect that the basis was replaced or changed."""

    objects: list[object]  # modules and tensors; keeping them alive prevents reuse of their ids
    values: list[object]

    def is_same(self, other: _BasisState) -> bool:
        """Return whether the objects are identical and the values equal."""
        same_objects = len(self.objects) == len(other.objects) and all(map(operator.is_, self.objects, other.objects))
        return same_objects and self.values == other.values


def _basis_state(basis: Basis) -> _BasisState | None:
    """Return the state of a basis, or None if changes can't be detected or a cache would lose gradients."""
    objects: list[object] = []
    values: list[object] = []
    for module in basis.modules():
        objects.append(module)
        values.append(module.extra_repr())
        for name, x in {**module._parameters, **module._buffers, **vars(module)}.items():
            if isinstance(x, Tensor):
                if x.is_inference() or x.requires_grad:
                    return None
                objects.append(x)
                values += [name, x.data_ptr(), x._version]
            elif isinstance(x, (int, float, str)) and name != "training":
                values += [name, x]
    return _BasisState(objects, values)


def _expand(name: str, x: Tensor, shape: torch.Size) -> Tensor:
    try:
        return x.expand(shape)
    except RuntimeError as error:
        raise ValueError(f"{name} must be broadcastable to shape {tuple(shape)}, got {tuple(x.shape)}") from error


def _split_heads(x: Tensor, count: int) -> Tensor:
    """Split [..., rows, d] among heads: return [..., count, rows, d / count]."""
    if count < 1 or x.shape[-1] % count:
        raise ValueError(
            f"the last size of values must be a multiple of the number of heads, {count}, got {x.shape[-1]}"
        )
    parts: Tensor = x.unflatten(-1, (count, x.shape[-1] // count))
    return parts.transpose(-2, -3)


class ValueFunction(nn.Module):
    r"""Ridge regression from observations to continuous signals :math:`V(t) = B\,\psi(t)`.

    .. math:: \min_B \lVert B F - H \rVert_F^2 + \lambda \lVert B \rVert_F^2

    (Martins et al. 2020, eq. 16.) The regression is solved in float64. Its matrix depends only on the positions, so
    the matrix is cached for each length until the basis changes. There is no cache for a basis that requires gradients,
    because they must flow through the matrix. There is none for a basis made in inference mode either, because changes
    can't be detected.

    Args:
        basis: Basis of the signals.
        ridge: Penalty :math:`\lambda`, above 0.

    Raises:
        ValueError: If the penalty is not positive and finite.
        TypeError: If `basis` is not a Basis, or the penalty is not a number.

    Example:
        >>> from tsallis.continuous import TruncatedParabola, text_basis
        >>> fit = ValueFunction(text_basis(32))
        >>> signal = fit(torch.ones(2, 7, 5), lengths=torch.tensor([7, 4]))
        >>> density = TruncatedParabola(torch.full((2, 3), 0.5), torch.tensor(0.01))  # 3 queries each
        >>> signal.expect(density).shape
        torch.Size([2, 3, 5])
    """

    _has_warned = False

    def __init__(self, basis: Basis, ridge: float = 0.1) -> None:
        super().__init__()
        if not isinstance(basis, Basis):
            raise TypeError(f"basis must be a Basis, got {type(basis).__name__}")
        ridge = number("ridge", ridge)
        if not (math.isfinite(ridge) and ridge > 0):
            raise ValueError(f"ridge must be positive and finite, got {ridge:g}")
        self.basis, self.ridge = basis, ridge
        self._solvers: OrderedDict[object, Tensor] = OrderedDict()
        self._solved_for = _BasisState([], [])

    def forward(
        self,
        values: Tensor,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        grid: int | tuple[int, int] | None = None,
    ) -> Signal:
        """Return the signals of a batch of observations.

        Args:
            values: Observations [..., length, d]. Masked observations, and those beyond a length, have no effect, even
                if NaN.
            lengths: Number of observations to use per sequence (default: all). Their positions are the centres of
                equal cells of [0, 1].
            mask: Boolean mask [..., length] with positions, in place of lengths; True for observations to use.
            positions: Irregular positions, such as time stamps or the centres of boxes: [length] or [..., length], in
                the plane with an additional last dimension of size 2.
            grid: Height and width of an image in the plane; their product is the length. One number is both.

        Returns:
            A signal with coefficients [..., functions, d] in the dtype of the values.

        Raises:
            ValueError: If shapes don't fit, a length is out of range, or required positions are missing.

        Warns:
            UserWarning: Once, if positions are so far outside [0, 1] that their values have almost no effect.
        """
        check_floating(values, "values")
        if values.dim() < 2:
            raise ValueError(f"values must have shape [..., length, d], got {tuple(values.shape)}")
        if grid is not None and (positions is not None or self.basis.dims == 1):
            raise ValueError(f"grid must be None with positions or with a basis on the line, got {grid}")
        keep = self._mask(values, lengths, mask, positions)
        solver = self._solver(values, lengths, keep, positions, grid)  # [..., length, functions]
        h = upcast(values)
        if keep is not None:
            h = torch.where(keep.unsqueeze(-1), h, 0)
        return _RegressionSignal(self.basis, solver.to(h.dtype), h, result_dtype(values))

    def _mask(
        self, values: Tensor, lengths: Tensor | Sequence[int] | None, mask: Tensor | None, positions: Tensor | None
    ) -> Tensor | None:
        """Return a boolean mask [..., length], or None if all observations are used."""
        if lengths is not None and mask is not None:
            raise ValueError("use either lengths or mask, not both")
        if mask is not None:
            check_dense(mask, "mask")
            if mask.dtype != torch.bool:
                raise TypeError(f"mask must be boolean (True keeps a value), got {mask.dtype}")
            if positions is None and self.basis.dims == 1:
                raise ValueError("mask needs positions: pass positions, or pass lengths instead of mask")
            return _expand("mask", mask, values.shape[:-1])
        if lengths is None:
            return None
        size = values.shape[-2]
        lengths = torch.as_tensor(lengths, device=values.device)
        if not (traced() or without_numbers(lengths)) and bool(((lengths < 1) | (lengths > size)).any()):
            length = lengths[(lengths < 1) | (lengths > size)][0].item()
            raise ValueError(f"lengths must be from 1 to {size}, got {length}")
        return torch.arange(size, device=values.device) < _expand("lengths", lengths, values.shape[:-2]).unsqueeze(-1)

    def _solver(
        self,
        values: Tensor,
        lengths: Tensor | Sequence[int] | None,
        keep: Tensor | None,
        positions: Tensor | None,
        grid: int | tuple[int, int] | None,
    ) -> Tensor:
        size, dims = values.shape[-2], self.basis.dims
        if positions is not None:
            return self._solve_positions(values, positions, keep)
        use_cache = not traced() and self._can_cache()
        if dims == 2:
            if grid is None or lengths is not None:
                raise ValueError(
                    f"in 2 dimensions, pass positions, or pass a grid (height, width) of {size} cells without lengths, "
                    f"got {'lengths and ' * (lengths is not None)}grid {grid}"
                )
            sizes = grid_sizes(grid, size)
            solver = self._cell_solver(("grid", *sizes), values, use_cache)
            return solver if keep is None else self._solve_positions(values, grid_centres(*sizes), keep)
        if lengths is None:
            return self._cell_solver(("line", size), values, use_cache)
        row_lengths = torch.as_tensor(lengths)
        if traced() or without_numbers(row_lengths) or not row_lengths.numel():
            return self._solve_lengths(row_lengths.to(values.device), size, keep)
        distinct, index = row_lengths.unique(return_inverse=True)
        solvers = (self._cell_solver(("line", length), values, use_cache) for length in distinct.tolist())
        padded = [nn.functional.pad(solver, (0, 0, 0, size - len(solver))) for solver in solvers]
        return torch.stack(padded)[index.to(values.device)]

    def _can_cache(self) -> bool:
        """Return whether results can be cached; clear the cache if the basis has changed."""
        state = _basis_state(self.basis)
        if state is None:
            return False
        if not self._solved_for.is_same(state):
            self._solvers.clear()
            self._solved_for = state
        return True

    def _cell_solver(self, layout: tuple[object, ...], like: Tensor, use_cache: bool) -> Tensor:
        """Return the solver [length, functions] for equal cells, cached until the basis changes.

        Under a tracer, the system is solved within the graph, because a tracer can't detect changes of the basis.
        """
        dtype = upcast(like).dtype
        if not use_cache:
            return self._solve(layout, like.device).to(dtype)
        key = (layout, like.device, dtype, self.ridge)
        if key in self._solvers:
            self._solvers.move_to_end(key)
            return self._solvers[key]
        with torch.inference_mode(False), torch.no_grad():
            solver = self._solve(layout, like.device).to(dtype)
        self._solvers[key] = solver
        while len(self._solvers) > CACHE_SIZE:
            self._solvers.popitem(last=False)
        return solver

    def _solve(self, layout: tuple[object, ...], device: torch.device) -> Tensor:
        """Return the solver [length, functions] for the centres of equal cells, in float64."""
        kind, *numbers = layout
        t = cell_centres(*numbers) if kind == "line" else grid_centres(*numbers)  # type: ignore[arg-type]
        return ridge_regression(self.basis(t.to(device)), self.ridge)

    def _solve_lengths(self, lengths: Tensor, size: int, keep: Tensor | None) -> Tensor:
        """Return the solvers [..., size, functions] for all lengths [...] at once, in float64, without the cache."""
        t = (torch.arange(size, dtype=torch.float64, device=lengths.device) + 0.5) / lengths.unsqueeze(-1)
        assert keep is not None
        return ridge_regression(self.basis(torch.where(keep, t, 0)), self.ridge, keep)

    def _solve_positions(self, values: Tensor, positions: Tensor, keep: Tensor | None) -> Tensor:
        check_real(positions, "positions")
        dims = self.basis.dims
        event = (2,) if dims == 2 else ()
        length = positions.shape[: -1 if event else None][-1:]
        if positions.shape[positions.dim() - len(event) :] != event or length != values.shape[-2:-1]:
            expected_shape = f"[..., {values.shape[-2]}{', 2' if event else ''}]"
            raise ValueError(f"positions must have shape {expected_shape}, got {tuple(positions.shape)}")
        broadcast_batch(values=values.shape[:-2], positions=positions.shape[: positions.dim() - 1 - len(event)])
        t = positions.to(values.device).double()
        if keep is not None:  # unused positions can have any finite value, but not NaN
            active = keep.unsqueeze(-1) if event else keep
            t = torch.where(active, t, 0)
        if not (traced() or without_numbers(t) or bool(((t >= 0) & (t <= 1)).all())):
            self._check_outside(t)
        return ridge_regression(self.basis(t), self.ridge, keep)

    @torch.no_grad()
    def _check_outside(self, t: Tensor) -> None:
        """Raise if positions are not finite; warn once if all functions are almost zero at some outside [0, 1]."""
        if not bool(t.isfinite().all()):
            raise ValueError(f"positions must be finite, got {t[~t.isfinite()][0].item():g}")
        if self._has_warned:
            return
        outside, centres = (t < 0) | (t > 1), cell_centres(64)
        if self.basis.dims == 2:
            outside, centres = outside.any(-1), grid_centres(32, 32)
        peaks = self.basis(centres.to(t.device)).abs().amax(0)
        far = outside & (self.basis(t).abs() <= NEGLIGIBLE * peaks).all(-1)
        if count := int(far.sum()):
            self._has_warned = True
            warnings.warn(
                f"{count} values have almost no effect, because all basis functions are almost zero at their "
                f"positions; positions must be about 0 to 1, got {t.min().item():g} to {t.max().item():g}",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        return f"ridge={self.ridge:g}"
