"""Compute attention with sparse weights without storing the whole weight matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.functional.rows import (
    alpha_number,
    check_dense,
    check_flag,
    check_floating,
    check_integers,
    check_real,
    finite_number,
    integer,
    number,
)
from tsallis.ops.alphas import Alpha, bounds
from tsallis.ops.arguments import AttentionArgs
from tsallis.ops.autograd import attention
from tsallis.ops.choice import choose_attention
from tsallis.ops.dtypes import autocast_enabled, compute_dtype, upcast, without_autocast
from tsallis.ops.registry import capabilities, load_file
from tsallis.ops.transforms import (
    as_input,
    check_wrapped_alpha,
    forward_mode,
    traced,
    tracing_active,
    transforms_active,
    varies,
    without_numbers,
)

_AUTOCAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class AttentionOutput(NamedTuple):
    """Output of attention, the weights if requested, and a record for :func:`count_support`."""

    output: Tensor
    weights: Tensor | None
    support: Tensor  # number of attended keys per query [batch, heads, queries], or instead all weights


class KeyStore:
    """Base class of caches that :func:`entmax_attention` accepts in place of a key and a value."""

    dtype: torch.dtype | None = None  # dtype of the queries
    _rows: Any = None

    @property
    def rows(self) -> Any:
        """Return the keys in 8 bits, which are encoded when they are first scanned; None before."""
        return self._rows

    @rows.setter
    def rows(self, rows: Any) -> None:
        self._rows = rows

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values [batch, heads, length, size], in the dtype of the computation."""
        raise NotImplementedError


def entmax_attention(
    query: Tensor,
    key: Tensor | KeyStore,
    value: Tensor | None = None,
    alpha: Alpha = 1.5,
    *,
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    return_weights: bool = False,
    return_support: bool = False,
    slopes: Tensor | None = None,
    query_offset: int = 0,
    key_norms: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:
    r"""Compute attention with weights that can be exactly zero, and with a learnable alpha per head.

    .. math:: O_i = \sum_j p_{ij} V_j, \qquad
              p_i = \mathrm{entmax}_{\alpha_h}\big(\mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i - m_h |i - j|\big)

    where head :math:`h` has the alpha :math:`\alpha_h` (Correia et al. 2019, eq. 8) and the optional slope :math:`m_h`
    (Press et al. 2022). At `alpha = 1` the result equals `torch.nn.functional.scaled_dot_product_attention`. Memory
    grows linearly with the length, unless weights are returned or second derivatives are computed.

    Args:
        query: [..., heads, queries, size], any floating dtype; half precision is computed in float32.
        key: [..., key heads, keys, size]; or a :class:`tsallis.nn.ScreenedKeys`, which contains keys and values.
        value: [..., key heads, keys, value size]; None if `key` contains the values.
        alpha: at least 1: a number, or a tensor [heads] or [..., heads]; it gets a gradient.
        attn_mask: broadcastable to [..., heads, queries, keys]: boolean (False hides a key), or numbers that are
            added to the scores and get a gradient.
        key_lengths: number of valid keys per batch element [...]; later keys may have any value. Keys and values that
            `attn_mask` or `is_causal` hides must be finite. Lengths on a GPU are clamped instead of checked.
        is_causal: query i attends only to the keys 0 to i + `query_offset`; it can be combined with a mask.
        scale: factor of the scores; default: 1 / sqrt(size).
        dropout_p: probability of setting a weight to zero; the other weights are scaled up. Dropout is always applied.
        enable_gqa: allow fewer key heads than heads; neighbouring heads share a key head.
        return_weights: also return the weights before dropout.
        return_support: also return the number of keys that each query attends to, without storing the weights.
        slopes: amount subtracted from a score per position between query and key: a tensor [heads] or [..., heads],
            which gets a gradient. With alpha above 1, the compiled kernels skip keys that are too far to get a weight.
        query_offset: position of the first query among the keys, used by `slopes` and `is_causal`. In decoding, pass
            the number of earlier keys.
        key_norms: upper bound of the norms of the keys per key head [..., key heads]. If there are few queries and many
            keys, `key_norms` and `slopes` together let each query read only keys that are near enough to get a weight.

    Returns:
        Output [..., heads, queries, value size]; with `return_weights` also the weights [..., heads, queries, keys],
        and with `return_support` also the sizes of the supports [..., heads, queries], integers. A query without a
        valid key returns zeros.

    Raises:
        ValueError: shapes that don't fit together, an alpha below 1 or not finite, a length, a scale or a dropout out
            of range, gradients with a :class:`tsallis.nn.ScreenedKeys`.
        TypeError: query, key and value of different dtypes (autocast converts half precision and float32 to its own
            dtype), a mask of integers, lengths that are not integers, a value together with a
            :class:`tsallis.nn.ScreenedKeys`.

    Example:
        >>> q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
        >>> entmax_attention(q, k, v, alpha=torch.tensor([1.0, 1.3, 1.5, 2.0])).shape
        torch.Size([2, 4, 5, 8])
        >>> out, weights = entmax_attention(q, k, v, is_causal=True, return_weights=True)
        >>> weights[0, 0, 0].tolist()
        [1.0, 0.0, 0.0, 0.0, 0.0]
        >>> out, support = entmax_attention(q, k, v, is_causal=True, return_support=True)
        >>> support.shape, support[0, 0, 0].item()
        (torch.Size([2, 4, 5]), 1)
    """
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
    options: Any = (attn_mask, key_lengths, is_causal, scale, dropout_p, enable_gqa, return_weights)
    positions: Any = {"slopes": slopes, "query_offset": query_offset, "key_norms": key_norms}
    result = attend(query, key, value, alpha, *options, **positions)
    extra_outputs: tuple[Tensor, ...] = () if result.weights is None else (result.weights,)
    if return_support:
        extra_outputs += (count_support(result.support).long().reshape(query.shape[:-1]),)
    return (result.output, *extra_outputs) if extra_outputs else result.output


def count_support(record: Tensor) -> Tensor:
    """Return the numbers of attended keys [batch, heads, queries]; `record` holds these numbers or all weights."""
    return (record != 0).sum(-1) if record.dim() == 4 else record


def attend(
    query: Tensor,
    key: Tensor | KeyStore,
    value: Tensor | None,
    alpha: Alpha,
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    need_weights: bool = False,
    slopes: Tensor | None = None,
    query_offset: int = 0,
    key_norms: Tensor | None = None,
) -> AttentionOutput:
    """Compute :func:`entmax_attention`; also return the record that :func:`count_support` reads."""
    store, dtype = (key, query.dtype) if isinstance(key, KeyStore) else (None, None)
    if store is None:
        query, key, value = _one_dtype(query, key, value)  # type: ignore[arg-type]
    else:
        query, key, value = _read_store(store, query, value, alpha, attn_mask, slopes)
    _check(query, key, value, enable_gqa)
    dropout_p, query_offset = _check_numbers(dropout_p, query_offset)
    outer, queries, keys = query.shape[:-2], query.shape[-2], key.shape[-2]
    q, k, v = (_four_dimensions(x.resolve_neg()) for x in (query, key, value))
    alpha = _alphas(alpha, q, outer)
    limits = None if isinstance(alpha, Tensor) and (traced() or without_numbers(q)) else bounds(alpha)
    if limits is None and transforms_active():
        check_wrapped_alpha(alpha)
    backend = choose_attention(q, k, v, limits)
    only_dense = transforms_active() or forward_mode() or not (q.shape[-1] and v.shape[-1])  # kernels need numbers
    can, dense = capabilities(backend), need_weights or only_dense
    if dense or q.dtype not in can.attention_dtypes:
        q, k, v = (upcast(x) for x in (q, k, v))
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else finite_number("scale", scale)
    if varies(scale):
        q, scale = q * scale, 1.0
    args = AttentionArgs(
        query=q,
        key=k,
        value=v,
        alphas=alpha if isinstance(alpha, Tensor) else None,
        mask=_mask(attn_mask, q, (*outer, queries, keys)),
        slopes=None if slopes is None else _per_head("slopes", slopes, q, outer),
        lengths=_lengths(key_lengths, outer[:-1], keys, query.device, can.asynchronous and not dense),
        seed=_seed(dense) if dropout_p else None,
        key_norms=None if key_norms is None else _norms(key_norms, k, (*outer[:-1], key.shape[-3] if outer else 1)),
        alpha_value=limits[0] if limits is not None and limits[0] == limits[1] else None,
        scale=scale,
        causal=is_causal,
        dropout=dropout_p,
        offset=query_offset,
        threads=0 if traced() else torch.get_num_threads(),
    )
    rows = None if store is None or only_dense else _screened_rows(store, args, backend, limits)
    output, weights, support = _compute(args, backend, dense, rows, need_weights)
    returned_weights = _restore(weights, query) if need_weights and weights is not None else None
    output = _restore(output, query)
    return AttentionOutput(_convert(output, dtype), returned_weights, support)


def _read_store(store: KeyStore, query: Tensor, value: Tensor | None, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query in the dtype of the computation, and the keys and values of a store."""
    if value is not None:
        raise TypeError(f"value must be None if key is a ScreenedKeys with values, got {type(value).__name__}")
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (query, *inputs)):
        raise ValueError("attention to ScreenedKeys computes no gradients: call it inside torch.no_grad()")
    keys_and_values = store.read()
    if query.dtype != store.dtype:
        raise TypeError(f"query must have the dtype of the stored keys, {store.dtype}, got {query.dtype}")
    return upcast(query), *keys_and_values


def _screened_rows(store: KeyStore, args: AttentionArgs, backend: str, limits: tuple[float, float] | None) -> Any:
    """Return the keys of a store in 8 bits if a scan of them may be faster than the dense kernel; otherwise None."""
    if limits is None or limits[1] <= 1 or args.dropout or tracing_active():
        return None
    kernels = load_file(backend, "screening")
    if kernels is None or not kernels.screens(args) or without_numbers(args.query):
        return None
    if store.rows is None:
        store.rows = kernels.ScreenedRows()
    return store.rows


def _compute(
    args: AttentionArgs, backend: str, dense: bool, rows: Any, need_weights: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the output, the weights or None, and a record for :func:`count_support`."""
    if rows is not None:
        weights = rows.weights(args) if need_weights else None
        if weights is not None or not need_weights:
            output, support = rows.attend(args)
            return output, weights, support
    if not (math.prod(args.query.shape[:-1]) and args.key.shape[2]):
        return _empty_outputs(args)
    with without_autocast(args.query.device.type):  # autocast must not change the dtypes of `args`
        return attention.compute(args, backend, dense)


def _seed(dense: bool) -> Tensor | None:
    """Draw a new seed for dropout in each call, also in recorded graphs.

    Return None if a tracer is active and all weights are stored: PyTorch's dropout is then used without a seed.
    """
    return None if traced() and dense else torch.randint(1 << 62, (), device="cpu")


def _empty_outputs(args: AttentionArgs) -> tuple[Tensor, Tensor, Tensor]:
    """Return zeros for empty inputs; all inputs get zero gradients."""
    inputs = [x for x in args.differentiable if isinstance(x, Tensor) and x.is_floating_point()]
    zero = sum(x.reshape(-1)[:0].sum() for x in inputs)
    query, key, value = args[:3]
    output = query.new_zeros(*query.shape[:-1], value.shape[-1]) + zero
    return output, query.new_zeros(*query.shape[:-1], key.shape[2]), query.new_zeros(query.shape[:-1])


def _one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors of different dtypes to the dtype of autocast, as `scaled_dot_product_attention` does."""
    inputs = (query, key, value)
    if not all(isinstance(x, Tensor) for x in inputs) or query.dtype is key.dtype is value.dtype:
        return inputs
    if not autocast_enabled(query.device.type):
        return inputs
    dtype = torch.get_autocast_dtype(query.device.type)
    return tuple(x.to(dtype) if x.dtype in _AUTOCAST_DTYPES else x for x in inputs)


def _four_dimensions(x: Tensor) -> Tensor:
    """Return [..., heads, length, size] as [batch, heads, length, size]."""
    if x.dim() == 4:
        return x
    return x.reshape(math.prod(x.shape[:-3]), *(x.shape[-3:] if x.dim() > 2 else (1, *x.shape)))


def _restore(x: Tensor, query: Tensor) -> Tensor:
    """Convert a tensor [batch, heads, ...] to the leading dimensions and the dtype of the query."""
    return _convert(x if query.dim() == 4 else x.reshape(*query.shape[:-2], *x.shape[-2:]), query.dtype)


def _convert(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    # Compare first: calls of `to` are measurable on small tensors.
    return x if dtype is None or x.dtype == dtype else x.to(dtype)


def _check_numbers(dropout_p: float, query_offset: int) -> tuple[float, int]:
    dropout_p = number("dropout_p", dropout_p)
    query_offset = integer("query_offset", query_offset)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p must be between 0 and 1, got {dropout_p}")
    if query_offset < 0:
        raise ValueError(f"query_offset must be at least 0, got {query_offset}")
    return dropout_p, query_offset


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_floating(x, name)
        if x.dim() < 2 or x.dim() != query.dim():
            raise ValueError(f"{name} must have shape [..., heads, length, size] like the query, got {tuple(x.shape)}")
        if x.dtype != query.dtype or x.device != query.device:
            raise TypeError(
                f"{name} must be {query.dtype} on {query.device}, like the query, got {x.dtype} on {x.device}"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key must have last size {query.shape[-1]}, like the query, got {key.shape[-1]}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"value must have the shape of the key, {tuple(key.shape)}, apart from the last size, "
            f"got {tuple(value.shape)}"
        )
    if key.shape[:-3] != query.shape[:-3]:
        raise ValueError(
            f"query and key must have the same batch shape, got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if query.dim() > 2 and key.shape[-3] != query.shape[-3]:
        heads, key_heads = query.shape[-3], key.shape[-3]
        if not enable_gqa:
            raise ValueError(
                f"query and key must have the same number of heads unless enable_gqa=True, got {heads} and {key_heads}"
            )
        if key_heads == 0 or heads % key_heads:
            raise ValueError(
                f"the number of query heads must be a multiple of the number of key heads, got {heads} and {key_heads}"
            )


def _lengths(
    lengths: Tensor | Sequence[int] | None, batch: Sequence[int], keys: int, device: torch.device, asynchronous: bool
) -> Tensor | None:
    """Return lengths [batch], or None if all keys are valid.

    The range is not checked if a tracer hides the lengths, or if reading them would wait for a GPU.
    """
    if lengths is None:
        return None
    tensor = lengths if isinstance(lengths, Tensor) else _integers(lengths)
    check_integers(tensor, "key_lengths")
    if list(tensor.shape) != list(batch):
        raise ValueError(f"key_lengths must have the batch shape {tuple(batch)}, got {tuple(tensor.shape)}")
    if traced() or without_numbers(tensor) or (asynchronous and tensor.is_cuda):
        return tensor.to(device).flatten()
    numbers: list[int] = tensor.flatten().tolist()
    out_of_range = [n for n in numbers if not 0 <= n <= keys]
    if out_of_range:
        raise ValueError(f"key_lengths must be from 0 to the number of keys, {keys}, got {out_of_range[0]}")
    return None if all(n == keys for n in numbers) else torch.tensor(numbers, device="cpu")


def _integers(numbers: Sequence[int]) -> Tensor:
    """Return a list as an integer tensor on the CPU, regardless of the default device."""
    tensor = torch.as_tensor(numbers, device="cpu")
    return tensor if tensor.numel() else tensor.long()


def _mask(mask: Tensor | None, q: Tensor, full_shape: Sequence[int]) -> Tensor | None:
    """Return a mask of four dimensions: boolean, or numbers in the queries' dtype or the compute dtype."""
    if mask is None:
        return None
    check_dense(mask, "attn_mask")
    if mask.device != q.device:
        raise TypeError(f"attn_mask must be on the query's device {q.device}, got {mask.device}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"attn_mask must be boolean (True keeps a key) or floating point (added to the scores), got {mask.dtype}"
        )
    sizes = list(mask.shape)
    missing = len(full_shape) - len(sizes)
    if missing < 0 or any(sizes[i] not in (full_shape[missing + i], 1) for i in range(len(sizes))):
        raise ValueError(f"attn_mask of shape {tuple(mask.shape)} can't be broadcast to {tuple(full_shape)}")
    mask = mask.resolve_neg().reshape(*(1,) * missing, *sizes)
    leading = mask.shape[:-3]
    if len(leading) == 1:
        pass  # keep the size: a tracer with batch 1 would fix it
    elif any(n != 1 for n in leading):  # the mask differs between batch elements
        mask = mask.expand(*full_shape[:-3], *mask.shape[-3:])
        mask = mask.reshape(q.shape[0], *mask.shape[-3:])
    else:
        mask = mask.reshape(1, *(mask.shape[-3:] if len(full_shape) > 2 else (1, *mask.shape)))
    return mask if mask.dtype in (torch.bool, q.dtype, compute_dtype(q.dtype)) else mask.to(compute_dtype(q.dtype))


def _alphas(alpha: Alpha, q: Tensor, outer: Sequence[int]) -> Alpha:
    """Return alpha as a checked number, or as an unchecked tensor [1 or batch, heads] in the compute dtype."""
    if not isinstance(alpha, Tensor):
        if alpha is None:
            raise TypeError("alpha must be a number or a tensor, got None; did you mean attn_mask=None?")
        alpha = alpha_number(alpha)
        if not varies(alpha):
            return alpha
        alpha = as_input(alpha, q)
    if alpha.dtype == torch.bool:
        raise TypeError("alpha must contain numbers, got torch.bool; did you mean attn_mask=?")
    return _per_head(
        "alpha", alpha, q, outer, "; did you mean attn_mask=?" if alpha.dim() >= 2 and alpha.numel() > 1 else ""
    )


def _per_head(name: str, x: Tensor, q: Tensor, outer: Sequence[int], hint: str = "") -> Tensor:
    """Convert values per head to a tensor [1 or batch, heads] in the compute dtype."""
    batch, heads = q.shape[:2]
    check_real(x, name)
    shape = tuple(x.shape)
    if x.numel() == 1 and x.dim() <= 1:
        x = x.reshape(1, 1).expand(1, heads)
    elif shape == (heads,):
        x = x.reshape(1, heads)
    elif shape == tuple(outer):
        x = x.reshape(batch, heads)
    else:
        expected = f"({heads},) or {tuple(outer)}, one per head, or (1,)"
        raise ValueError(f"{name} must have shape {expected}, got {shape}{hint}")
    return x.resolve_neg().to(device=q.device, dtype=compute_dtype(q.dtype))


def _norms(norms: Tensor, k: Tensor, shape: Sequence[int]) -> Tensor:
    """Convert bounds of key norms to a tensor [batch, key heads] in the compute dtype."""
    check_floating(norms, "key_norms")
    if tuple(norms.shape) != tuple(shape):
        raise ValueError(f"key_norms must have shape {tuple(shape)}, got {tuple(norms.shape)}")
    norms = norms.detach().resolve_neg().to(device=k.device, dtype=compute_dtype(k.dtype))
    return norms.reshape(k.shape[:2]).contiguous()
