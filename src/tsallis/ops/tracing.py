"""Pair a forward pass with its differentiable backward, and register it as an operator for tracers.

The kernels decide by looking at numbers (how many Newton steps, how many candidates), which no tracer can follow. Run
eagerly they sit in an :class:`Operation`, an `autograd.Function` whose backward is a few in-place passes. Where a
second derivative is needed or `torch.func` is at work, backward is made of differentiable operations on what was saved.
Under a dispatch mode the forward is one opaque operator (:func:`operator`); under `torch.compile` and `torch.export`
that operator alone is called, and its backward is traced and fused.

Functions are marked for torch.compile without importing its tracer, which alone takes a second and 75 MB.
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
    """Let a tracer call a function and take its result as known: `torch.compiler.assume_constant_result`.

    That decorator sets this mark too, and a test compares them; but it imports the tracer before anyone compiles.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Keep a function, and what it calls, out of a tracer's graphs: `torch.compiler.disable`, at the first trace."""

    hidden: list[Callable[P, T]] = []

    @constant
    def hide() -> None:
        if not hidden:
            hidden.append(torch.compiler.disable(function))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        hide()
        return hidden[0](*args, **kwargs)

    return call


class Operation(Function):
    """An autograd Function in the form that `torch.func` needs, called without the cost of that form.

    `Function.apply` binds the arguments by their signature for `torch.func`, which takes several times as long as a
    small row does; elsewhere they are in order.
    """

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*inputs)
        # What `Function.apply` does: a tensor that outlived a transformation is unwrapped.
        plain = [unwrap_if_dead(x) if isinstance(x, Tensor) else x for x in inputs]
        return super(Function, cls).apply(*plain)  # type: ignore[misc]


def save(ctx: Any, *values: Any) -> None:
    """Save tensors for backward and forward mode, and the numbers among them."""
    tensors = tuple(x if isinstance(x, Tensor) else None for x in values)
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.numbers = tuple(None if isinstance(x, Tensor) else x for x in values)
    ctx.set_materialize_grads(False)


def saved(ctx: Any) -> list[Any]:
    """Return what :func:`save` saved, in its order."""
    return [number if x is None else x for x, number in zip(ctx.saved_tensors, ctx.numbers, strict=True)]


def split_alpha(alpha: Alpha) -> tuple[float, Tensor | None]:
    """Return alpha as an operator takes it: a number that counts where there is no tensor."""
    return (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)


def join_alpha(number: float, numbers: Tensor | None) -> Alpha:
    """Return alpha from the two arguments of an operator."""
    return number if numbers is None else numbers


def merge_batch(x: Any, dim: int | None, batch: int) -> Any:
    """Return a tensor's vmapped dimension merged with its rows: [batch * rows, ...]; all else as it is."""
    if not isinstance(x, Tensor):
        return x
    x = x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.reshape(-1, *x.shape[2:])


def vmap_rows(compute: Callable[..., Any], info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> Any:
    """Compute batches of rows [batch, rows, ...] as one batch of rows: the rule of `vmap` for operations on rows."""
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
    """Register an opaque operator `tsallis::name`, as which tracers and dispatch modes meet what calls kernels.

    Args:
        name: of the operator.
        schema: its arguments and results, as `torch.library.custom_op` takes them; a tracer knows tensors and numbers.
        compute: what it does.
        fake: empty results of the same shapes and dtypes.
        setup: what backward needs is saved by it, as by `setup_context` of a Function.
        backward: the gradients of the arguments; not a Function's, which the compiler would trace and fails on the
            second time for dynamic shapes.
        rows: every tensor has rows first, and a batch of rows may be computed as more of them (`vmap`).
        waits: it reads a number from a GPU, which no CUDA graph can capture.
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
