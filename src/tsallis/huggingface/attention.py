"""Define and register the attention function that Transformers calls in sparsified models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.utils import output_capturing

from tsallis.functional.attention import attend
from tsallis.huggingface.alphas import ALPHA
from tsallis.ops.transforms import traced

NAME = "tsallis"
STORE = "tsallis_store"  # attribute of keys: weak references to their store and to their values, see `ScreenedCache`
COLLECTED = "tsallis_collected"  # attribute of attentions: whether the last pass collected weights
FULL_MASKS = "tsallis_full_masks"  # name of the implementation that gets explicit masks, as eager attention does
# Options of Transformers that change the scores in ways that entmax_attention does not support.
UNSUPPORTED = {
    "softcap": "a soft cap of the scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "indices": "an indexer's choice of keys",
    "block_indices": "an indexer's choice of blocks of keys",
    "cache": "a paged cache (continuous batching)",
}


def register() -> None:
    """Register the attention function and its masks with Transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionInterface.register(FULL_MASKS, full_mask_forward)
    AttentionMaskInterface.register(FULL_MASKS, eager_mask)


def full_mask_forward(*inputs: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Compute attention with an explicit mask, like eager attention; without a mask all keys are visible.

    Args:
        inputs, kwargs: as in :func:`attention_forward`; `is_causal` makes no difference.

    Returns:
        The results of :func:`attention_forward`.
    """
    return attention_forward(*inputs, **{**kwargs, "is_causal": False})


def _check_packed(boundaries: Tensor | None, mask: Tensor | None) -> None:
    if mask is None and boundaries is not None and len(boundaries) > 2:
        raise ValueError("packed sequences need a mask: set model.config.use_cache = False, which creates it")


def _read_alphas(alpha_module: nn.Module, query: Tensor) -> tuple[Tensor, float | Tensor]:
    """Return the scaled queries and their alphas."""
    query, alpha = alpha_module(query)
    heads = query.shape[1]
    if isinstance(alpha, Tensor) and alpha.dim() and alpha.shape[0] not in (1, heads):
        raise ValueError(
            f"this process computes {heads} of {alpha.shape[0]} heads (tensor parallelism): use one alpha for all heads"
        )
    return query, alpha


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the alphas of a module, or with softmax if the module has no alphas.

    Args:
        module: Calling attention module; its attribute `tsallis_alpha` returns the alphas.
        query: Queries [batch, heads, queries, size].
        key, value: Keys and values [batch, key heads, keys, size], not repeated for grouped queries.
        attention_mask: Mask [batch, 1 or heads, queries, keys]: boolean (True: visible), or numbers that are added to
            the scores. The lowest number of the dtype hides a key, as -inf does. Without a mask, a causal module with
            several queries hides later keys.
        dropout: Dropout probability of weights, 0 outside training.
        scaling: Factor of the scores.
        is_causal: Overrides `module.is_causal`.
        position_bias: Bias added to the scores [1 or batch, heads, queries, keys] (T5).
        kwargs: Other arguments of the model; `output_attentions` requests the weights.

    Returns:
        Output [batch, queries, heads, size], and the weights [batch, heads, queries, keys] or None.

    Raises:
        NotImplementedError: The model changes the scores in an unsupported way.
    """
    for name, what in UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} uses {what}, which entmax attention does not support")
    _check_packed(kwargs.get("cu_seq_lens_q"), attention_mask)
    alpha_module = getattr(module, ALPHA, None)
    meters, receive = getattr(alpha_module, "meters", ()), getattr(alpha_module, "receive", None)
    need_weights = bool(kwargs.get("output_attentions")) or receive is not None or _weights_requested(module)
    if alpha_module is None and not need_weights and position_bias is None:
        inputs = module, query, key, value, attention_mask
        dense: tuple[Tensor, None] = sdpa_attention_forward(*inputs, dropout, scaling, is_causal, **kwargs)
        return dense
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(query.shape[2] > 1 and attention_mask is None and causal)
    mask = _add_bias(_hide_lowest(attention_mask), position_bias)
    if not query.dtype == key.dtype == value.dtype:  # under autocast, norms of queries and keys return float32
        query, key = query.to(value.dtype), key.to(value.dtype)
    query, alpha = (query, 1.0) if alpha_module is None else _read_alphas(alpha_module, query)
    options: dict[str, Any] = {"scale": scaling, "dropout_p": dropout, "need_weights": need_weights}
    store, values = (None, None) if torch.is_grad_enabled() else [x() for x in getattr(key, STORE, ())] or (None, None)
    # Some models change the values after the update of the cache.
    keys: tuple[Any, Any] = (key, value) if store is None or values is not value else (store, None)
    result = attend(query, *keys, alpha, attn_mask=mask, is_causal=causal, enable_gqa=True, **options)
    for meter in () if traced() else meters:
        meter.add(result.support.detach(), mask, causal, query.shape[2], key.shape[2])
    if receive is not None:
        receive(result.weights)
    return result.output.transpose(1, 2).contiguous(), result.weights


def _hide_lowest(mask: Tensor | None) -> Tensor | None:
    """Replace the lowest number of the dtype by -inf, because Transformers uses this number to hide keys."""
    if mask is None or not mask.is_floating_point():
        return mask
    return mask.masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf)


def _add_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return the sum of a mask and a bias, either of which may be None."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else mask + bias


def _weights_requested(module: nn.Module) -> bool:
    """Return whether the current forward pass collects weights.

    Some models, such as GPT-2, do not pass `output_attentions` to their attention. Gradient checkpointing repeats the
    pass in the backward pass, without the collector: the answer is then that of the module's last pass.
    """
    if not traced() and torch._C._current_graph_task_id() != -1:
        return getattr(module, COLLECTED, False)
    outputs = output_capturing._active_collector.get()  # a private name, because there is no public function
    requested = outputs is not None and any(name.endswith("attentions") for name in outputs)
    if module.training and not traced() and requested != getattr(module, COLLECTED, False):
        setattr(module, COLLECTED, requested)
    return requested
