"""Define PyTorch's Transformer layers with sparse attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.nn.dropout import Dropout
from tsallis.nn.kv_cache import KeyValueCache
from tsallis.nn.length_scale import LengthScale, LengthScaleKind
from tsallis.nn.multihead_attention import Alpha, MultiheadAttention
from tsallis.nn.positions import AttentionPositions

Activation = str | Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} or a function, got {activation!r}")
    return ACTIVATIONS[activation]


class _Layer(nn.Module):
    """Base class of encoder and decoder layers, with numbered norms and dropouts and a feed-forward network."""

    norm_first: bool
    norm1: nn.LayerNorm
    norm2: nn.LayerNorm
    norm3: nn.LayerNorm
    dropout1: nn.Dropout
    dropout2: nn.Dropout
    dropout3: nn.Dropout

    def _build(
        self,
        parts: int,
        d_model: int,
        hidden: int,
        dropout: float,
        activation: Activation,
        eps: float,
        norm_first: bool,
        bias: bool,
        factory_kwargs: dict[str, Any],
    ) -> None:
        """Create all parts except the attentions, with PyTorch's names and order."""
        self.linear1 = nn.Linear(d_model, hidden, bias=bias, **factory_kwargs)
        self.dropout = Dropout(dropout)
        self.linear2 = nn.Linear(hidden, d_model, bias=bias, **factory_kwargs)
        self.norm_first = norm_first
        for number in range(1, parts + 1):
            setattr(self, f"norm{number}", nn.LayerNorm(d_model, eps=eps, bias=bias, **factory_kwargs))
        for number in range(1, parts + 1):
            setattr(self, f"dropout{number}", Dropout(dropout))
        self._last_dropout = f"dropout{parts}"
        self.activation = _activation(activation)

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))
        output: Tensor = getattr(self, self._last_dropout)(self.linear2(hidden))
        return output


class TransformerEncoderLayer(_Layer):
    r"""`torch.nn.TransformerEncoderLayer` with sparse self-attention and fixed or learned alphas.

    .. math:: y = x + \mathrm{MultiHead}_\alpha(x), \qquad \mathrm{out} = y + \mathrm{FFN}(y)

    with PyTorch's dropout and layer norms (Correia et al. 2019, sec. 3 learn the alphas). Arguments, parameter names
    and masks are those of PyTorch, and its state dicts can be loaded unless `alpha` is a tensor. In a
    `torch.nn.TransformerEncoder` use `enable_nested_tensor=False`; padding is skipped anyway.

    Args:
        d_model, nhead, dim_feedforward, dropout, activation: as in `torch.nn.TransformerEncoderLayer`.
        layer_norm_eps, batch_first, norm_first, bias, device, dtype: as in PyTorch.
        alpha: as in :class:`MultiheadAttention`.
        attention_dropout: dropout of attention weights; default: `dropout`.
        positions, length_scale, num_kv_heads: options of the self-attention, as in :class:`MultiheadAttention`.

    Raises:
        ValueError: sizes that don't match, a bad alpha, an unknown activation.

    Example:
        >>> import torch
        >>> layer = TransformerEncoderLayer(16, 4, dim_feedforward=32, batch_first=True, alpha="learned")
        >>> encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        >>> encoder(torch.randn(3, 5, 16)).shape
        torch.Size([3, 5, 16])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        alpha: Alpha | nn.Module = 1.5,
        attention_dropout: float | None = None,
        positions: AttentionPositions = "none",
        length_scale: LengthScaleKind | LengthScale | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        dropout_p = dropout if attention_dropout is None else attention_dropout
        shared: dict[str, Any] = {"dropout": dropout_p, "bias": bias, "batch_first": batch_first, **factory_kwargs}
        options: dict[str, Any] = {"positions": positions, "length_scale": length_scale, "num_kv_heads": num_kv_heads}
        self.self_attn = MultiheadAttention(d_model, nhead, alpha=alpha, **options, **shared)
        self._build(2, d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, factory_kwargs)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        src_key_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the layer's output, of the shape of `src`; masks and lengths as in :class:`MultiheadAttention`."""

        masks = {"key_padding_mask": src_key_padding_mask, "attn_mask": src_mask, "key_lengths": src_key_lengths}

        def attend(x: Tensor) -> Tensor:
            context, _ = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)
            output: Tensor = self.dropout1(context)
            return output

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(src + attend(src))
        out: Tensor = self.norm2(x + self._feed_forward(x))
        return out


class TransformerDecoderLayer(_Layer):
    r"""`torch.nn.TransformerDecoderLayer` with sparse self-attention and sparse attention to the memory.

    .. math:: y = x + \mathrm{MultiHead}_\alpha(x), \qquad u = y + \mathrm{MultiHead}_{\alpha'}(y, \mathrm{memory}),
              \qquad \mathrm{out} = u + \mathrm{FFN}(u)

    with PyTorch's dropout and layer norms (Correia et al. 2019, sec. 3 learn the alphas). Arguments, parameter names
    and masks are those of PyTorch, and its state dicts can be loaded unless `alpha` is a tensor.

    Args:
        d_model, nhead, dim_feedforward, dropout, activation: as in `torch.nn.TransformerDecoderLayer`.
        layer_norm_eps, batch_first, norm_first, bias, device, dtype: as in PyTorch.
        alpha: alpha of the self-attention, as in :class:`MultiheadAttention`.
        cross_attention_alpha: alpha of the attention to the memory; default: `alpha`. "learned" has its own parameters.
        attention_dropout: dropout of attention weights; default: `dropout`.
        positions, length_scale, num_kv_heads: options of the self-attention, as in :class:`MultiheadAttention`.

    Raises:
        ValueError: sizes that don't match, a bad alpha, an unknown activation.

    Example:
        >>> import torch
        >>> layer = TransformerDecoderLayer(16, 4, dim_feedforward=32, batch_first=True, alpha="learned")
        >>> layer(torch.randn(3, 4, 16), torch.randn(3, 5, 16), tgt_is_causal=True).shape
        torch.Size([3, 4, 16])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        alpha: Alpha | nn.Module = 1.5,
        cross_attention_alpha: Alpha | nn.Module | None = None,
        attention_dropout: float | None = None,
        positions: AttentionPositions = "none",
        length_scale: LengthScaleKind | LengthScale | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        factory_kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        dropout_p = dropout if attention_dropout is None else attention_dropout
        shared: dict[str, Any] = {"dropout": dropout_p, "bias": bias, "batch_first": batch_first, **factory_kwargs}
        cross_attention_alpha = alpha if cross_attention_alpha is None else cross_attention_alpha
        options: dict[str, Any] = {"positions": positions, "length_scale": length_scale, "num_kv_heads": num_kv_heads}
        self.self_attn = MultiheadAttention(d_model, nhead, alpha=alpha, **options, **shared)
        self.multihead_attn = MultiheadAttention(d_model, nhead, alpha=cross_attention_alpha, **shared)
        self._build(3, d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias, factory_kwargs)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        caches: tuple[KeyValueCache, KeyValueCache] | None = None,
        memory_key_lengths: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the layer's output, of the shape of `tgt`; masks and lengths as in :class:`MultiheadAttention`.

        `caches` are the caches of the self-attention and of the attention to the memory. With caches, `tgt` contains
        only the new steps, and the memory is projected only in the first call. With `need_weights`, the result is a
        pair: the output, and the weights of the attention to the memory, averaged over the heads.
        """
        self_cache, memory_cache = caches if caches is not None else (None, None)
        # None: the cache holds the projected memory
        key = None if memory_cache is not None and len(memory_cache) > 0 else memory
        weights: list[Tensor] = []
        masks = {"key_padding_mask": tgt_key_padding_mask, "attn_mask": tgt_mask, "is_causal": tgt_is_causal}
        memory_masks = {
            "key_padding_mask": memory_key_padding_mask,
            "attn_mask": memory_mask,
            "is_causal": memory_is_causal,
            "key_lengths": memory_key_lengths,
        }

        def attend(x: Tensor) -> Tensor:
            context: Tensor
            context, _ = self.self_attn(x, x, x, need_weights=False, cache=self_cache, **masks)
            return context

        def attend_memory(x: Tensor) -> Tensor:
            context: Tensor
            options = {"need_weights": need_weights, "cache": memory_cache, **memory_masks}
            context, memory_weights = self.multihead_attn(x, key, key, **options)
            if memory_weights is not None:
                weights.append(memory_weights)
            return context

        out = self.compose(tgt, attend, attend_memory)
        return (out, weights[0]) if need_weights else out

    def compose(
        self, x: Tensor, attend: Callable[[Tensor], Tensor], attend_memory: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Apply the layer's norms, dropouts, sums and feed-forward network around two attentions."""
        if self.norm_first:
            x = x + self.dropout1(attend(self.norm1(x)))
            x = x + self.dropout2(attend_memory(self.norm2(x)))
            return x + self._feed_forward(self.norm3(x))
        x = self.norm1(x + self.dropout1(attend(x)))
        x = self.norm2(x + self.dropout2(attend_memory(x)))
        out: Tensor = self.norm3(x + self._feed_forward(x))
        return out
