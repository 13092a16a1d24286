"""Attention with sparse weights, without ever holding all of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.functional.rows import alpha_number, autocast_enabled, check_floating, number
from tsallis.ops import backend, cpu, tracing
from tsallis.ops.alphas import Alpha, check_alpha, extremes
from tsallis.ops.autograd import attention, attention_traced
from tsallis.ops.autograd.attention import Problem
from tsallis.ops.transforms import (
    compiling,
    forward_mode,
    operators_only,
    traced,
    transforms_active,
    widen,
    without_numbers,
)


class Attended(NamedTuple):
    """The result of attention: the output, all weights if requested, and a tensor that its sparsity can be read from.

    `seen` is how many keys each query attends to [batch, heads, queries] where the weights were never held, else the
    weights themselves.
    """

    output: Tensor
    weights: Tensor | None
    seen: Tensor


def entmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Alpha = 1.5,
    *,
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Compute attention whose weights are exactly zero for most keys, with an alpha for each head that can be learned.

    .. math:: O_i = \sum_j p_{ij} V_j, \qquad
              p_i = \mathrm{entmax}_{\alpha_h}\big(\mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    with :math:`\alpha_h` of head :math:`h` (Correia et al. 2019, eq. 8). Shapes and meaning are those of
    `torch.nn.functional.scaled_dot_product_attention`, which it equals at `alpha = 1`. Memory grows with the number of
    queries and keys, not with their product, unless the weights are asked for; gradients of second order hold them too.

    Args:
        query: [..., heads, queries, size], any floating dtype; half precision is computed in float32.
        key: [..., key heads, keys, size].
        value: [..., key heads, keys, value size].
        alpha: at least 1: a number, or a tensor [heads] or [..., heads]; it gets a gradient.
        attn_mask: broadcastable to [..., heads, queries, keys]: boolean (True takes part), or numbers that are added to
            the scores and get a gradient.
        key_lengths: for each batch element [...], how many of its first keys take part; the others are skipped. In a
            tensor on a GPU they are not checked: one out of range counts as the nearest that is not.
        is_causal: query i attends to the keys 0 to i only; a mask, if there is one, holds too.
        scale: the factor of the scores; the default is 1 / sqrt(size).
        dropout_p: share of the weights that is set to zero, the others scaled up; unlike a module's, always active.
        enable_gqa: fewer key heads than heads, each shared by as many neighbouring heads.
        return_weights: return the weights too, before dropout.

    Returns:
        Output [..., heads, queries, value size]; with `return_weights` also the weights [..., heads, queries, keys]. A
        query without a key to attend to gives zeros.

    Raises:
        ValueError: shapes that don't fit together, an alpha below 1 or not finite, a length or a dropout out of range.
        TypeError: tensors of other dtypes, a mask of integers.

    Example:
        >>> q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
        >>> entmax_attention(q, k, v, alpha=torch.tensor([1.0, 1.3, 1.5, 2.0])).shape
        torch.Size([2, 4, 5, 8])
        >>> out, weights = entmax_attention(q, k, v, is_causal=True, return_weights=True)
        >>> weights[0, 0, 0].tolist()
        [1.0, 0.0, 0.0, 0.0, 0.0]
    """
    result = attend(
        query,
        key,
        value,
        alpha,
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        is_causal=is_causal,
        scale=scale,
        dropout_p=dropout_p,
        enable_gqa=enable_gqa,
        need_weights=return_weights,
    )
    return (result.output, result.weights) if result.weights is not None else result.output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: Alpha,
    *,
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    need_weights: bool = False,
) -> Attended:
    """Compute :func:`entmax_attention`; return with it a tensor that its sparsity can be read from."""
    _check(query, key, value, enable_gqa)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p must be between 0 and 1, got {dropout_p}")
    outer, queries, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    heads = outer[-1] if outer else 1
    batch = math.prod(outer[:-1])
    q, k, v = (x.resolve_neg() for x in (query, key, value))
    if len(outer) != 2:
        q, k, v = (x.reshape(batch, *(x.shape[-3:] if outer else (1, *x.shape))) for x in (q, k, v))
    on_gpu = not need_weights and _for_gpu(q, k, v)
    alpha = _alphas(alpha, q, outer)
    powers = None
    if on_gpu and (isinstance(alpha, float) or not traced()):
        powers = _gpu().powers_of(alpha)
        on_gpu = powers is not None
    if not on_gpu:
        q, k, v = (widen(x) for x in (q, k, v))
    mask = _mask(attn_mask, q, (*outer, queries, keys), on_gpu)
    kernels = not on_gpu and _compiled(q, k, v, alpha)
    if not (on_gpu or kernels or traced() or without_numbers(q)):
        check_alpha(alpha)
    problem = Problem(
        scale=1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else number("scale", scale),
        causal=is_causal,
        lengths=_lengths(key_lengths, outer[:-1], keys, query.device, on_gpu),
        threads=1 if traced() else torch.get_num_threads(),
        dropout=dropout_p,
        seed=int(torch.randint(1 << 62, ())) if dropout_p and not traced() else 0,
        kernels=kernels,
        powers=powers,
    )
    if q.numel() and k.numel() and v.numel():
        with _no_autocast(query.device.type):  # in the precision that was chosen here
            if on_gpu:
                weights, (output, support) = None, _compute_on_gpu(q, k, v, alpha, mask, problem)
            else:
                output, weights, support = _compute(q, k, v, alpha, mask, problem, need_weights)
    else:
        inputs = [x for x in (q, k, v, mask, alpha) if isinstance(x, Tensor) and x.is_floating_point()]
        nothing = sum(x.reshape(-1)[:0].sum() for x in inputs)  # whose gradients are zeros
        output = q.new_zeros(batch, heads, queries, value.shape[-1]) + nothing
        weights, support = q.new_zeros(batch, heads, queries, keys), q.new_zeros(batch, heads, queries)

    def as_given(x: Tensor) -> Tensor:
        return (x if len(outer) == 2 else x.reshape(*outer, *x.shape[-2:])).to(query.dtype)

    return Attended(as_given(output), None if not need_weights or weights is None else as_given(weights), support)


def _no_autocast(device: str) -> contextlib.AbstractContextManager[None]:
    # Of a small attention every step counts: one that changes nothing is left out.
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else contextlib.nullcontext()


def _compute(
    q: Tensor, k: Tensor, v: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem, need_weights: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    if problem.kernels and _as_operator(q) and not need_weights:
        learns = _learns(q, k, v, alpha, mask)
        output, support = attention_traced.traced_attention(q, k, v, alpha, mask, problem, learns)
        return output, None, support
    # What fits into one tile is faster kept than computed again.
    small = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= attention.TILE and not problem.kernels
    if need_weights or traced() or without_numbers(q) or small or forward_mode():
        output, weights = attention.materialised(q, k, v, alpha, mask, problem)
        return output, weights, weights.detach()
    function = attention.Compiled if problem.kernels else attention.Attention
    output, support = function.apply(q, k, v, alpha, mask, problem)
    return output, None, support


def _compiled(q: Tensor, k: Tensor, v: Tensor, alpha: Alpha) -> bool:
    """Tell whether the compiled kernels compute the whole call."""
    if transforms_active():
        return False
    if _as_operator(q):
        if isinstance(alpha, float):
            small = alpha <= 2
        else:  # one that can't be looked at now is checked when its numbers are known
            small = traced() or without_numbers(alpha) or extremes(alpha)[1] <= 2
        return small and not forward_mode() and q.device.type == "cpu" and q.numel() > 0 and _cpu_asked_for()
    return backend.compiled(alpha, q, k, v)


def _as_operator(q: Tensor) -> bool:
    """Tell whether kernels are called as operators, which tracers and dispatch modes can follow."""
    return compiling() or operators_only(q)


def _compute_on_gpu(
    q: Tensor, k: Tensor, v: Tensor, alpha: Alpha, mask: Tensor | None, problem: Problem
) -> tuple[Tensor, Tensor]:
    """By Triton's kernels, whatever the size; half precision as it is. Output, and how many keys a query attends to."""
    learns = _learns(q, k, v, alpha, mask)
    gpu = _gpu()
    output: Tensor
    if _as_operator(q):
        output, support = gpu.traced_attention(q, k, v, alpha, mask, problem, learns)
    elif not learns and gpu.decodes(q, k, problem):
        output, support = gpu.decode(q, k, v, alpha, mask, problem)
    else:
        output, support = gpu.TritonAttention.apply(q, k, v, alpha, mask, problem)
    return output, support


def _learns(*inputs: Tensor | Alpha | None) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


def _for_gpu(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Tell whether Triton's kernels compute tensors like these."""
    if transforms_active() or forward_mode() or not (q.numel() and k.numel() and v.numel()):
        return False
    return _gpu_asked_for(q.device.type) and bool(_gpu().computes(q, k, v))


def _gpu() -> ModuleType:
    """Triton's kernels, imported when they are first needed."""
    from tsallis.ops.triton.attention import operators

    return operators


@tracing.constant
def _gpu_asked_for(device: str) -> bool:
    name = backend.wanted()
    if device == "cpu" and name != "triton":
        return False
    there = torch.cuda.is_available()
    # Tensors on the CPU are computed by the interpreter, where there is no GPU.
    if device != ("cuda" if there else "cpu") or (name != "triton" and (name != "auto" or not there)):
        return False
    return backend.triton_status()[0] and _gpu() is not None  # a tracer finds the operators from now on


@tracing.constant
def _cpu_asked_for() -> bool:
    return backend.wanted() in ("auto", "cpu") and cpu.status().available


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_floating(x, name)
        if x.dim() < 2 or x.dim() != query.dim():
            raise ValueError(f"{name} must be [..., heads, length, size] like the query, got shape {tuple(x.shape)}")
        if x.dtype != query.dtype or x.device != query.device:
            raise TypeError(
                f"{name} must have the query's dtype and device, {query.dtype} on {query.device}, "
                f"got {x.dtype} on {x.device}"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key must have the query's size {query.shape[-1]}, got {key.shape[-1]}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"value must be [..., key heads, keys, size] like the key, got {tuple(value.shape)}")
    if key.shape[:-3] != query.shape[:-3]:
        raise ValueError(f"query and key must have the same batch, got {tuple(query.shape)} and {tuple(key.shape)}")
    if query.dim() > 2 and key.shape[-3] != query.shape[-3]:
        heads, of_keys = query.shape[-3], key.shape[-3]
        if not enable_gqa:
            raise ValueError(f"query has {heads} heads and key {of_keys}: for grouped queries set enable_gqa=True")
        if of_keys == 0 or heads % of_keys:
            raise ValueError(f"the {heads} heads of the query must be a multiple of the key's {of_keys}")


def _lengths(
    lengths: Tensor | Sequence[int] | None, batch: Sequence[int], keys: int, device: torch.device, on_gpu: bool
) -> tuple[int, ...] | Tensor | None:
    """Checked numbers; a tensor where nobody can look at them, or on a GPU where looking means to wait for it."""
    if lengths is None:
        return None
    tensor = torch.as_tensor(lengths)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise TypeError(f"key_lengths must be integers, got {tensor.dtype}")
    if list(tensor.shape) != list(batch):
        raise ValueError(f"key_lengths must have the batch's shape {tuple(batch)}, got {tuple(tensor.shape)}")
    if traced() or without_numbers(tensor) or (on_gpu and tensor.is_cuda):
        return tensor.to(device).flatten()
    numbers: list[int] = tensor.flatten().tolist()
    out_of_range = [n for n in numbers if not 0 <= n <= keys]
    if out_of_range:
        raise ValueError(f"key_lengths must lie between 0 and the {keys} keys, got {out_of_range[0]}")
    return None if all(n == keys for n in numbers) else tuple(numbers)


def _mask(mask: Tensor | None, q: Tensor, full: Sequence[int], on_gpu: bool) -> Tensor | None:
    """A mask as [1 or batch, 1 or heads, 1 or queries, 1 or keys]; in the scores' dtype, or any for a GPU's kernels."""
    if mask is None:
        return None
    if on_gpu and mask.device != q.device:
        raise TypeError(f"attn_mask must be on the query's device {q.device}, got {mask.device}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attn_mask must be boolean (True takes part) or floating point (added), got {mask.dtype}")
    sizes = list(mask.shape)
    if len(sizes) > len(full) or any(m not in (1, n) for m, n in zip(sizes[::-1], full[::-1], strict=False)):
        raise ValueError(f"attn_mask of shape {tuple(mask.shape)} can't be broadcast to {tuple(full)}")
    mask = mask.resolve_neg().reshape(*(1,) * (len(full) - len(sizes)), *sizes)
    leading = mask.shape[:-3]
    if any(n != 1 for n in leading):  # some of the batch's dimensions
        mask = mask.expand(*full[:-3], *mask.shape[-3:])
        mask = mask.reshape(q.shape[0], *mask.shape[-3:])
    else:
        mask = mask.reshape(1, *(mask.shape[-3:] if len(full) > 2 else (1, *mask.shape)))
    return mask if on_gpu or mask.dtype == torch.bool else mask.to(q.dtype)


def _alphas(alpha: Alpha, q: Tensor, outer: Sequence[int]) -> Alpha:
    """A checked number, or [1 or batch, heads] in the dtype of the computation, not yet looked at."""
    if not isinstance(alpha, Tensor):
        return alpha_number(alpha)
    batch, heads = q.shape[:2]
    shape = tuple(alpha.shape)
    if alpha.dtype == torch.bool:
        raise TypeError("alpha must be floating point, got torch.bool; did you mean attn_mask=?")
    check_floating(alpha, "alpha")
    if alpha.numel() == 1 and alpha.dim() <= 1:
        alpha = alpha.reshape(1, 1).expand(1, heads)
    elif shape == (heads,):
        alpha = alpha.reshape(1, heads)
    elif shape == tuple(outer):
        alpha = alpha.reshape(batch, heads)
    else:
        hint = "; did you mean attn_mask=?" if alpha.dim() >= 2 else ""
        raise ValueError(f"alpha must have shape ({heads},) or {tuple(outer)}: one for each head, got {shape}{hint}")
    return alpha.resolve_neg().to(device=q.device, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
