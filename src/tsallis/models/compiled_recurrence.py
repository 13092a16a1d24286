"""Pack the decoder of an LSTM or a GRU for a backend's compiled kernels, see `tsallis.models.compiled`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tsallis.models.compiled import (
    CompiledState,
    embeds_outputs,
    is_plain,
    linear_weights,
    output_weights,
    packed_model,
    supported,
)
from tsallis.models.protocol import Memory, source_mask
from tsallis.models.recurrence import CELLS, PARAMETERS
from tsallis.nn import GlobalAttention
from tsallis.ops.arguments import RecurrentWeights
from tsallis.ops.choice import choose_recurrent


def start_compiled(model: Any, memory: Memory) -> CompiledState | None:
    """Return the state before the first token, or None if no kernels support the model and the call."""
    tensors = memory.states, *memory.summary
    if memory.copies is not None or memory.features is not None or any(x.dtype != torch.float32 for x in tensors):
        return None
    packed = packed_model(model, memory.states, choose_recurrent, _pack)
    lengths = memory.mask.sum(1)
    if packed is None or packed.parts is None or not memory.mask.equal(source_mask(lengths, memory.states)):
        return None
    decoder, keys = packed.parts, model.attention.keys(memory.states)
    rows, (source, cache) = decoder.start(keys, memory.states, lengths, memory.summary)
    return CompiledState(decoder, None, rows, 0, memory.states.shape[1], (source,), (cache,))


def _pack(model: Any, kernels: Any) -> Any:
    """Return a compiled decoder, or None if the kernels don't support it."""
    weights, output = _decoder_weights(model), output_weights(model.output)
    if weights is None or output is None or not (kernels.computes(weights) and embeds_outputs(weights, output)):
        return None
    return kernels.CompiledDecoder(weights, output)


def _decoder_weights(model: Any) -> RecurrentWeights | None:
    """Return the weights of a decoder, or None if a part is not supported by the kernels."""
    decoder, attention, embedding = model.decoder, model.attention, model.tgt_embedding
    cell = next((name for name, kind in CELLS.items() if is_plain(decoder, kind)), None)
    modules_are_plain = (
        is_plain(attention, GlobalAttention)
        and is_plain(embedding, nn.Embedding)
        and is_plain(model.combine, nn.Linear)
    )
    if cell is None or model.training or model.features is not None or not modules_are_plain:
        return None
    layers = tuple(tuple(getattr(decoder, f"{name}_l{i}") for name in PARAMETERS) for i in range(decoder.num_layers))
    query = None
    if attention.scorer == "additive":
        by_query = linear_weights(attention.by_query)
        if by_query is None or not is_plain(attention.score, nn.Linear):
            return None
        query = *by_query, attention.score.weight.squeeze(0)
    tensors = [x for layer in layers for x in layer], [embedding.weight, model.combine.weight], query or ()
    if not all(supported(x) for part in tensors for x in part):
        return None
    return RecurrentWeights(cell, embedding.weight, layers, query, model.combine.weight, attention.alpha)
