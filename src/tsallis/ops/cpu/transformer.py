"""Pack a Transformer for compiled code. One call encodes; `tsallis.ops.cpu.decoding` decodes.

The state of a decoder row has the addresses of the keys and values of every token that the row has read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tsallis.ops.arguments import AttentionWeights, LayerWeights, OutputWeights, StackWeights
from tsallis.ops.cpu import call_kernel, pointers, rank_fields
from tsallis.ops.cpu.decoding import VECTOR, DecoderSteps, PackedWeights, pack, pack_output
from tsallis.ops.cpu.structs import FIRST_ADDRESS, Decoder, Encoder, Project


def computes(weights: StackWeights) -> bool:
    """Return whether the kernels support layers of these sizes and alphas."""
    attentions = [part for layer in weights.layers for part in (layer.self_attention, layer.cross) if part is not None]
    alphas = torch.cat([part.alphas for part in attentions])
    sizes_fit = weights.embedding.shape[1] % (weights.heads * VECTOR) == 0
    return sizes_fit and bool(((alphas >= 1) & (alphas <= 2)).all())


class _Stack(PackedWeights):
    """Packed weights of a stack of layers, and the arguments that all calls share."""

    def __init__(self, weights: StackWeights, output: OutputWeights | None) -> None:
        self.d = weights.embedding.shape[1]
        layers = [x for layer in weights.layers for x in _layer_tensors(layer)]
        norm_and_output = [*(weights.norm or (None, None)), *((None, None) if output is None else pack_output(output))]
        super().__init__(weights.embedding, layers, norm_and_output)
        self._fields = {
            "layers": len(weights.layers),
            "d": self.d,
            "hidden": weights.layers[0].expand[0].shape[0],
            "heads": weights.heads,
            "pre_norm": weights.norm is not None,
            "embedding_scale": math.sqrt(self.d),
            "epsilon": weights.epsilon,
            "weights": self.pointers.data_ptr(),
        }


class CompiledEncoder(_Stack):
    """Compiled encoder with packed weights.

    Args:
        weights: Weights that :func:`computes` accepts; all but the embedding are copied.
    """

    def __init__(self, weights: StackWeights) -> None:
        super().__init__(weights, None)
        self._template = Encoder(**self._fields, symbols=len(self.embedding))

    def encode(self, token: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
        """Return the states of sources [batch, width, d]; states after a source's last symbol are zero.

        Args:
            token: Tokens [batch, width].
            lengths: Number of symbols per source [batch].
            positions: Position embeddings [width or more, d].
        """
        token, lengths = token.contiguous(), lengths.to(torch.int64).contiguous()
        states = torch.empty(*token.shape, self.d, dtype=torch.float32, device="cpu")
        call = Encoder.from_buffer_copy(self._template)
        call.batch, call.width = token.shape
        call.positions, call.token, call.lengths = positions.data_ptr(), token.data_ptr(), lengths.data_ptr()
        call.states = states.data_ptr()
        call_kernel("encoder", call)
        if call.unknown_token >= 0:
            self.check_tokens(token)
        return states


class CompiledDecoder(_Stack, DecoderSteps):
    """Compiled decoder with packed weights, including the output layer.

    Args:
        weights: Weights that :func:`computes` accepts; all but the embedding are copied.
        output: Output layer with an alpha of at most 2.
    """

    def __init__(self, weights: StackWeights, output: OutputWeights) -> None:
        super().__init__(weights, output)
        self.symbols, self.output = len(output.projection[0]), output
        projections = [layer.cross.projection for layer in weights.layers if layer.cross is not None]
        weight = torch.cat([weight[self.d :] for weight, _ in projections])  # [layers * 2 d, d]
        self._source_weights = pack((weight, torch.cat([bias[self.d :] for _, bias in projections])))
        self._source_columns = len(weight)
        rank = rank_fields(self.symbols, output.alpha, output.tau)
        self.template = Decoder(**self._fields, rank=rank, growth=1, cache_row=len(weights.layers) * 2 * self.d)

    def project(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return a decoder state per source [sources, FIRST_ADDRESS], and the memory that the states point to.

        Args:
            states: Encoder states [sources, width, d].
            lengths: Number of symbols per source [sources].
        """
        states, lengths = states.contiguous(), lengths.to(torch.int64).contiguous()
        sources, width, _ = states.shape
        memory = torch.empty(sources * width, self._source_columns, dtype=torch.float32, device="cpu")
        rows = torch.empty(sources, FIRST_ADDRESS, dtype=torch.int64, device="cpu")
        weights, bias = self._source_weights
        tensors = pointers(weights, bias, states, lengths, memory, rows)
        call = Project(sources, width, self.d, self._source_columns, *tensors)
        call_kernel("project", call)
        return rows, memory


def _layer_tensors(layer: LayerWeights) -> list[Tensor | None]:
    """Return the tensors of a layer in the order of `LayerWeights` in `transformer_rows.h`."""
    self_attention, cross_attention = layer.self_attention, layer.cross
    no_tensors: list[Tensor | None] = [None] * 4
    tensors: list[Tensor | None] = [
        *self_attention.norm,
        *((None, None) if cross_attention is None else cross_attention.norm),
        *layer.norm,
    ]
    tensors += [*_pack_query(self_attention), *_pack_key_value(self_attention), *pack(self_attention.out)]
    tensors += no_tensors if cross_attention is None else [*_pack_query(cross_attention), *pack(cross_attention.out)]
    tensors += [*pack(layer.expand), *pack(layer.shrink)]
    return [*tensors, self_attention.alphas, None if cross_attention is None else cross_attention.alphas]


def _pack_query(attention: AttentionWeights) -> tuple[Tensor, Tensor]:
    (weight, bias), d = attention.projection, len(attention.out[0])
    return pack((weight[:d], bias[:d]))


def _pack_key_value(attention: AttentionWeights) -> tuple[Tensor, Tensor]:
    (weight, bias), d = attention.projection, len(attention.out[0])
    return pack((weight[d:], bias[d:]))
