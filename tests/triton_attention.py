"""Helpers for tests of the GPU attention kernels: small inputs, and references in float64 with all weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_interpreter import DEVICE, close
from triton_interpreter import attention as gpu_attention
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.autograd.attention import Attention, dense_attention
from tsallis.ops.triton.attention import launch as launching

__all__ = [
    "arguments",
    "attend",
    "check",
    "close",
    "dense",
    "drop_factors",
    "gpu_attention",
    "in_place",
    "launching",
    "small_blocks",
    "tensors",
]

Tiling, Tilings = launching.Tiling, launching.Tilings

OUTPUT, GRADIENT = 1e-5, 1e-4  # largest errors, relative to the largest value or to 1
Compute = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def in_place() -> Iterator[None]:
    """Create tensors on the device of the kernels."""
    if DEVICE == "cpu":
        yield
        return
    with torch.device(DEVICE):
        yield


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small blocks, so that few queries and keys fill several; backward has smaller blocks of queries."""
    back = Tiling(16, 16, 4, 1)
    monkeypatch.setattr(launching, "tilings", lambda *_: Tilings(Tiling(32, 16, 4, 1), back, back))


def arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor = 1.5,
    mask: Tensor | None = None,
    slopes: Tensor | None = None,
    *,
    lengths: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    scale: float = 0.35,
    causal: bool = False,
    dropout: float = 0.0,
    offset: int = 0,
) -> AttentionArgs:
    alphas, number = (alpha, None) if isinstance(alpha, Tensor) else (None, alpha)
    limits = None if lengths is None else torch.as_tensor(lengths)
    tensors = query, key, value, alphas, mask, slopes, limits, torch.tensor(seed, device="cpu")
    return AttentionArgs(*tensors, None, number, scale, causal, dropout, offset)


def attend(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Compute attention with Triton's kernels, called as an operator calls them."""
    args = gpu_attention.resolve(arguments(*inputs, **options))
    output, counts = Attention.apply(*args, "triton")
    return output, counts


def dense(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Compute the output and all weights with PyTorch operations."""
    return dense_attention(arguments(*inputs, **options))


def drop_factors(query: Tensor, keys: int, **options: Any) -> Tensor:
    """Return dropout's factors of all weights, as Triton's kernels draw them."""
    key = query.new_empty(*query.shape[:2], keys, query.shape[-1])
    return gpu_attention.drop_factors(arguments(query, key, key, **options))


def tensors(*shape: int, size: int = 16, value_size: int = 16, key_heads: int | None = None) -> tuple[Tensor, ...]:
    """Return queries, keys and values for [batch, heads, queries, keys]; scores have a standard deviation near 2."""
    batch, heads, queries, keys = shape
    key_heads = heads if key_heads is None else key_heads
    shapes = ((heads, queries, size), (key_heads, keys, size), (key_heads, keys, value_size))
    query, key, value = (torch.randn(batch, *shape, device=DEVICE) for shape in shapes)
    return query * (6 / size**0.5), key, value


def check(
    inputs: tuple[Tensor, ...],
    alpha: float | Tensor,
    mask: Tensor | None = None,
    factors: Tensor | None = None,
    output: float = OUTPUT,
    gradient: float = GRADIENT,
    compute: Compute | None = None,
    slopes: Tensor | None = None,
    **options: Any,
) -> None:
    """Compare output and counts with float64, and gradients unless `compute` is given, which may not support them."""
    copies = [x.detach().to(DEVICE, copy=True) for x in (*inputs, alpha, mask, slopes) if isinstance(x, Tensor)]
    leaves = [x.requires_grad_(x.is_floating_point()) for x in copies]
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in leaves]
    actual, counts = (compute or attend)(*_leaves(leaves, alpha, mask, slopes), **options)
    expected, weights = dense(*_leaves(exact, alpha, mask, slopes), **{**options, "dropout": 0.0})
    if factors is not None:
        group = inputs[0].shape[1] // inputs[1].shape[1]
        expected = (weights * factors) @ exact[2].repeat_interleave(group, 1)
    close(actual, expected, output)
    sure = ((weights == 0) | (weights > 1e-7)).all(-1)  # rounding may change the other counts
    assert counts.dtype == torch.int32
    assert torch.equal(counts[sure], (weights > 0).sum(-1)[sure].int())
    if compute is not None:
        return
    direction = torch.randn(actual.shape, dtype=actual.dtype, device=DEVICE)
    target = [x for x in leaves if x.requires_grad]
    gradients = torch.autograd.grad(actual, target, direction)
    exactly = torch.autograd.grad(expected, [x for x in exact if x.requires_grad], direction.double())
    for x, grad, right in zip(target, gradients, exactly, strict=True):
        assert grad.dtype == x.dtype
        close(grad, right, gradient)


def _leaves(leaves: list[Tensor], *more: float | Tensor | None) -> list[Any]:
    """Return the arguments of attention with all tensors replaced by leaves; the first three are query, key, value."""
    rest = iter(leaves[3:])
    return [*leaves[:3], *(next(rest) if isinstance(x, Tensor) else x for x in more)]
