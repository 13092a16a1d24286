"""Pack a Transformer for a backend's compiled kernels, see `tsallis.models.compiled`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.models.compiled import (
    CompiledState,
    PackedModel,
    embeds_outputs,
    is_plain,
    linear_weights,
    output_weights,
    packed_model,
    supported,
    weight_and_bias,
)
from tsallis.models.protocol import Memory, source_mask
from tsallis.nn import MultiheadAttention, PerHeadAlpha, TransformerDecoderLayer, TransformerEncoderLayer
from tsallis.ops.arguments import AttentionWeights, LayerWeights, StackWeights
from tsallis.ops.choice import choose_transformer

ROOM = 64  # initial number of position encodings


class Positions:
    """Table of a model's position encodings, which grows on demand."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._table = torch.empty(0, dtype=torch.float32, device="cpu")

    def first(self, count: int) -> Tensor:
        """Return at least `count` encodings [at least count, d_model]."""
        if len(self._table) < count:
            self._table = self._module(self._table, 0, max(ROOM, 2 * count))
        return self._table


class _Parts(NamedTuple):
    """Packed weights of a Transformer."""

    encoder: Any  # None if the kernels don't support the encoder
    decoder: Any
    positions: Positions


class CompiledMemory(Memory):
    """Encoder states from the kernels, stored with the packed weights that decoding needs.

    The mask is computed on first access.
    """

    lengths: Tensor  # [batch]
    packed: PackedModel

    def __init__(self, states: Tensor, lengths: Tensor, packed: PackedModel) -> None:
        self.__dict__.update(states=states, lengths=lengths, packed=packed, summary=())

    @cached_property
    def mask(self) -> Tensor:
        return source_mask(self.lengths, self.states)


def encode_compiled(model: Any, src: Tensor, lengths: Tensor) -> CompiledMemory | None:
    """Return the states of sources [batch, src], or None if no kernels support the model and the call."""
    packed = _pack(model, src)
    if packed is None or packed.parts.encoder is None or src.dtype != torch.int64:
        return None
    positions = packed.parts.positions.first(src.shape[1])
    return CompiledMemory(packed.parts.encoder.encode(src, lengths, positions), lengths, packed)


def start_compiled(model: Any, memory: Memory) -> CompiledState | None:
    """Return the state before the first token, or None if no kernels support the model and the call."""
    compiled_memory = memory if isinstance(memory, CompiledMemory) else None
    packed = (
        None
        if memory.copies is not None
        else _pack(model, memory.states, None if compiled_memory is None else compiled_memory.packed)
    )
    if packed is None or packed.parts.decoder is None or memory.states.dtype != torch.float32:
        return None
    rows, source = packed.parts.decoder.project(
        memory.states, memory.mask.sum(1) if compiled_memory is None else compiled_memory.lengths
    )
    width = memory.states.shape[1]
    return CompiledState(packed.parts.decoder, packed.parts.positions, rows, 0, width, (source,), ())


def _pack(model: Any, like: Tensor, known: PackedModel | None = None) -> PackedModel | None:
    return None if model.positions is None else packed_model(model, like, choose_transformer, _pack_parts, known)


def _pack_parts(model: Any, kernels: Any) -> _Parts:
    encoder, decoder, output = _encoder_weights(model), _decoder_weights(model), output_weights(model.output)
    return _Parts(
        None if encoder is None or not kernels.computes(encoder) else kernels.CompiledEncoder(encoder),
        None
        if decoder is None or output is None or not (kernels.computes(decoder) and embeds_outputs(decoder, output))
        else kernels.CompiledDecoder(decoder, output),
        Positions(model.positions),
    )


def _encoder_weights(model: Any) -> StackWeights | None:
    layers = [
        _layer_weights(layer, (layer.self_attn, layer.norm1), None, layer.norm2)
        if type(layer) is TransformerEncoderLayer
        else None
        for layer in model.encoder.layers
    ]
    return _stack_weights(model, model.src_embedding, layers, model.encoder.norm)


def _decoder_weights(model: Any) -> StackWeights | None:
    layers = [
        _layer_weights(layer, (layer.self_attn, layer.norm1), (layer.multihead_attn, layer.norm2), layer.norm3)
        if type(layer) is TransformerDecoderLayer
        else None
        for layer in model.decoder.layers
    ]
    return _stack_weights(model, model.tgt_embedding, layers, model.decoder.norm)


def _stack_weights(model: Any, embedding: Any, layers: Sequence[LayerWeights | None], norm: Any) -> StackWeights | None:
    """Return the weights of an encoder or a decoder, or None if a part is not supported by the kernels."""
    stack = model.encoder if embedding is model.src_embedding else model.decoder
    norms = [part for part in stack.modules() if isinstance(part, nn.LayerNorm)]
    supported_layers = [layer for layer in layers if layer is not None]
    if len(supported_layers) < len(layers) or len({part.eps for part in norms}) != 1 or model.dropout.training:
        return None
    final_norm = None if norm is None else _norm(norm)
    if (
        not is_plain(embedding, nn.Embedding)
        or not supported(embedding.weight)
        or (norm is not None and final_norm is None)
    ):
        return None
    hidden = {len(layer.expand[0]) for layer in supported_layers}
    attentions = [part for layer in supported_layers for part in (layer.self_attention, layer.cross) if part]
    if len(hidden) != 1 or {len(part.alphas) for part in attentions} != {model.heads}:
        return None  # layers of different sizes
    return StackWeights(embedding.weight, tuple(supported_layers), final_norm, model.heads, norms[0].eps)


def _layer_weights(
    layer: Any, self_attention: tuple[Any, Any], cross_attention: tuple[Any, Any] | None, norm: Any
) -> LayerWeights | None:
    """Return the weights of a layer: attentions with their norms, and the feed-forward network with its norm."""
    if not is_plain(layer, type(layer)) or layer.activation is not F.relu:
        return None
    attentions = [_attention(*part) for part in (self_attention, cross_attention) if part is not None]
    feed_forward = [_norm(norm), linear_weights(layer.linear1), linear_weights(layer.linear2)]
    if any(part is None for part in (*attentions, *feed_forward)):
        return None
    return LayerWeights(attentions[0], None if cross_attention is None else attentions[1], *feed_forward)  # type: ignore[arg-type]


def _attention(attention: Any, norm: Any) -> AttentionWeights | None:
    if not is_plain(attention, MultiheadAttention) or attention.bias_k is not None or attention.add_zero_attn:
        return None
    if attention.positions != "none" or attention.length_scale is not None:
        return None
    if attention.num_kv_heads != attention.num_heads:
        return None
    if not isinstance(attention.alpha, float | Tensor) and not is_plain(attention.alpha, PerHeadAlpha):
        return None
    weight, bias, norm_weights = attention.in_proj_weight, attention.in_proj_bias, _norm(norm)
    out = linear_weights(attention.out_proj)
    if (
        weight is None
        or bias is None
        or norm_weights is None
        or out is None
        or not (supported(weight) and supported(bias))
    ):
        return None
    return AttentionWeights(norm_weights, (weight, bias), out, attention.alphas().float())


def _norm(module: Any) -> tuple[Tensor, Tensor] | None:
    return weight_and_bias(module) if is_plain(module, nn.LayerNorm) else None
