"""Define operations with differentiable gradients, and register them as operators for tracers.

Kernels read numbers to make decisions, such as the number of Newton steps. No tracer can record such decisions. In
eager mode, an :class:`Operation` calls the kernels: an `autograd.Function` whose backward is a few in-place passes. For
second derivatives and `torch.func`, backward uses differentiable operations on the saved tensors. Under a dispatch
mode, forward is one opaque operator (:func:`operator`). Under `torch.compile` and `torch.export`, only that operator is
called, and its backward is traced and fused.

Functions are marked for torch.compile without importing its tracer, because the import takes a second and 75 MB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd import Function

from tsallis.ops.alphas import Alpha

P = ParamSpec("P")
T = TypeVar("T")


def constant(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function whose result tracers treat as a constant.

    `torch.compiler.assume_constant_result` sets the same mark, but imports the tracer.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Exclude a function from traced graphs, by `torch.compiler.disable` at the first trace."""

    disabled: list[Callable[P, T]] = []

    @constant
    def disable() -> None:
        if not disabled:
            disabled.append(torch.compiler.disable(function))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        disable()
        return disabled[0](*args, **kwargs)

    return call


class Operation(Function):
    """Base class of autograd Functions that support `torch.func` and stay fast without it.

    For `torch.func`, `Function.apply` binds the arguments to the signature. The binding takes several times as long as
    computing a small row, so it is skipped outside `torch.func`.
    """

    @classmethod
    @untraced  # after a graph break, torch.compile would trace this method and fail at `super()`
    def apply(cls, *inputs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*inputs)
        # Unwrap tensors of finished transforms, as `Function.apply` does.
        unwrapped = [unwrap_if_dead(x) if isinstance(x, Tensor) else x for x in inputs]
        return super(Function, cls).apply(*unwrapped)  # type: ignore[misc]


def save(ctx: Any, *values: Any) -> None:
    """Save tensors and numbers for backward and forward mode."""
    tensors = tuple(x if isinstance(x, Tensor) else None for x in values)
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.numbers = tuple(None if isinstance(x, Tensor) else x for x in values)
    ctx.set_materialize_grads(False)


def saved(ctx: Any) -> list[Any]:
    """Return the saved values in the order of :func:`save`."""
    return [number if x is None else x for x, number in zip(ctx.saved_tensors, ctx.numbers, strict=True)]


def split_alpha(alpha: Alpha) -> tuple[float, Tensor | None]:
    """Return alpha as two operator arguments: a number, and a tensor that replaces the number (or None)."""
    return (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)


def join_alpha(number: float, numbers: Tensor | None) -> Alpha:
    """Return alpha from the two arguments of an operator."""
    return number if numbers is None else numbers


def merge_batch(x: Any, dim: int | None, batch: int) -> Any:
    """Merge a tensor's vmapped dimension with its rows [batch * rows, ...]; return other values unchanged."""
    if not isinstance(x, Tensor):
        return x
    x = x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.reshape(-1, *x.shape[2:])


def vmap_rows(compute: Callable[..., Any], info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> Any:
    """Compute a vmapped operation on rows [batch, rows, ...] as one operation on all rows."""
    merged = [merge_batch(x, dim, info.batch_size) for x, dim in zip(inputs, in_dims, strict=True)]
    results = compute(*merged)
    if isinstance(results, Tensor):
        return results.unflatten(0, (info.batch_size, -1)), 0
    return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)


def operator(
    name: str,
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None] | None = None,
    backward: Callable[..., Any] | None = None,
    rows: bool = False,
    waits: bool = False,
) -> Callable[..., Any]:
    """Register an opaque operator `tsallis::name` that calls kernels, for tracers and dispatch modes.

    Args:
        name: Name of the operator.
        schema: Arguments and results, in the form of `torch.library.custom_op`.
        compute: Function that computes the operator.
        fake: Function that returns empty results of the same shapes and dtypes.
        setup: Function that saves data for backward, like `setup_context` of a Function.
        backward: Function that returns the gradients of the arguments. It must not use an `autograd.Function`, which
            the compiler fails to trace a second time with dynamic shapes.
        rows: Whether the first dimension of every tensor is the rows. Then `vmap` merges batches of rows.
        waits: Whether the operator reads a number from a GPU. Then CUDA graphs can't capture it.
    """
    tags = (torch.Tag.cudagraph_unsafe,) if waits else ()
    registered = torch.library.custom_op(f"tsallis::{name}", compute, mutates_args=(), schema=schema, tags=tags)
    registered.register_fake(fake)
    if backward is not None:
        registered.register_autograd(backward, setup_context=setup)
    if rows:

        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return vmap_rows(registered, info, in_dims, inputs)

        registered.register_vmap(vmap)
    return cast(Callable[..., Any], registered)
