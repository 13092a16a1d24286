"""A Transformer's decoder in compiled code: one call a step, from tokens to what a search reads of the scores.

Weights are packed once. A row's state is a list of addresses: of its source's keys and values, and of those of every
token that it has read. What a step writes stays where it is, so that rows are reordered, repeated and dropped by index.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.arguments import DecoderLayerWeights, DecoderResult, DecoderWeights
from tsallis.ops.cpu import allocate_best, call_decoder, rank_fields
from tsallis.ops.cpu.structs import PANEL_COLUMNS, Decoder

VECTOR = 16  # numbers in the widest vector: the size of a head must be a multiple of it


def computes(weights: DecoderWeights) -> bool:
    """Tell whether the kernels know a decoder of these sizes and alphas."""
    alphas = torch.cat([x for layer in weights.layers for x in (layer.own_alphas, layer.cross_alphas)])
    return (
        weights.embedding.shape[1] % (weights.heads * VECTOR) == 0
        and 1 <= weights.alpha <= 2
        and bool(((alphas >= 1) & (alphas <= 2)).all())
    )


class CompiledDecoder:
    """Packed weights, and steps with them.

    Args:
        weights: of a decoder that :func:`computes` knows; later changes to them are not seen.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self.embedding = weights.embedding
        self.symbols, self.d = weights.output[0].shape
        self.alpha, self.tau = weights.alpha, weights.tau
        self._memory: list[Tensor] = []  # what the pointers name
        pointers = [self._pointer(x) for layer in weights.layers for x in _layer_tensors(layer)]
        pointers += [self._pointer(x) for x in _model_tensors(weights)]
        self._pointers = torch.tensor(pointers, dtype=torch.int64)
        projections = [layer.cross_projection for layer in weights.layers]
        self._source_weight = torch.cat([weight[self.d :] for weight, _ in projections])  # [layers * 2 d, d]
        self._source_bias = torch.cat([bias[self.d :] for _, bias in projections])
        self._template = Decoder(
            layers=len(weights.layers),
            d=self.d,
            hidden=weights.layers[0].expand[0].shape[0],
            heads=weights.heads,
            pre_norm=weights.norm is not None,
            embedding_scale=math.sqrt(self.d),
            epsilon=weights.epsilon,
            weights=self._pointers.data_ptr(),
        )

    def _pointer(self, x: Tensor) -> int:
        x = x.detach().contiguous()
        self._memory.append(x)
        return x.data_ptr()

    def project(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return a row's state for each source [sources, PAST], and the memory that it names.

        Args:
            states: [symbols, d], those of each source behind those of the one before.
            lengths: [sources]: how many each has.
        """
        memory = F.linear(states, self._source_weight, self._source_bias)
        starts = lengths.cumsum(0) - lengths
        addresses = memory.data_ptr() + starts * memory.shape[1] * memory.element_size()
        return torch.stack([addresses, lengths, torch.zeros_like(lengths)], 1), memory

    def step(
        self,
        state: Tensor,
        token: Tensor,
        positions: Tensor,
        *,
        count: int = 0,
        end: int = -1,
        only: Tensor | None = None,
        scores: bool = False,
        attention: int = 0,
    ) -> DecoderResult:
        """Read a token [rows] and return what is asked for.

        Args:
            state: [rows, columns]
            token: [rows]
            positions: [at least one more than the symbols that rows have read, d]
            count, end, only: of the best symbols; 0: none.
            scores: whether all of them are returned.
            attention: source positions whose weights are returned; 0: none.
        """
        rows, columns = state.shape
        _check_tokens(token, len(self.embedding))
        state, token = state.contiguous(), token.contiguous()
        call = Decoder.from_buffer_copy(self._template)
        best = allocate_best(rows, min(count, self.symbols))
        call.rank = rank_fields(best, self.symbols, self.alpha, self.tau, end, only)
        following = torch.empty(rows, columns + 1, dtype=torch.int64)
        cache = torch.empty(rows, call.layers * 2 * self.d)
        attended = torch.empty(rows, dtype=torch.int64)
        weights = torch.empty(rows, attention) if attention else None
        all_scores = torch.empty(rows, self.symbols) if scores else None
        call.rows, call.state_row, call.attention_row = rows, columns, attention
        call.positions, call.token = positions.data_ptr(), token.data_ptr()
        call.state, call.next_state = state.data_ptr(), following.data_ptr()
        call.cache, call.attended = cache.data_ptr(), attended.data_ptr()
        call.attention = None if weights is None else weights.data_ptr()
        call.scores = None if all_scores is None else all_scores.data_ptr()
        call_decoder(call)
        return DecoderResult(following, cache, best, attended, weights, all_scores)


def _check_tokens(token: Tensor, symbols: int) -> None:
    """Refuse tokens that the embedding does not hold: the kernels would read other memory."""
    if len(token):
        least, most = (int(x) for x in token.aminmax())
        if least < 0 or most >= symbols:
            raise IndexError(f"tokens must lie between 0 and {symbols - 1}, got {least if least < 0 else most}")


def _layer_tensors(layer: DecoderLayerWeights) -> list[Tensor]:
    """Return the tensors of a layer in the order of `LayerWeights` in `decoder_step.h`."""
    d = layer.own_out[0].shape[0]
    own, cross = layer.own_projection, layer.cross_projection
    products = [
        (own[0][:d], own[1][:d]),
        (own[0][d:], own[1][d:]),
        layer.own_out,
        (cross[0][:d], cross[1][:d]),
        layer.cross_out,
        layer.expand,
        layer.shrink,
    ]
    tensors = [x for norm in layer.norms for x in norm]
    tensors += [x for weight, bias in products for x in (pack(weight), pad(bias, 0.0))]
    return [*tensors, layer.own_alphas, layer.cross_alphas]


def _model_tensors(weights: DecoderWeights) -> list[Tensor]:
    """Return the tensors of the model in the order of `ModelWeights` in `decoder_step.h`."""
    norm = weights.norm or (weights.embedding[:0], weights.embedding[:0])
    return [weights.embedding, *norm, pack(weights.output[0]), pad(weights.output[1], -math.inf)]


def pad(bias: Tensor, value: float) -> Tensor:
    """Pad a bias to whole panels."""
    return F.pad(bias, (0, -len(bias) % PANEL_COLUMNS), value=value)


def pack(weight: Tensor) -> Tensor:
    """Return a matrix [outputs, inputs] in panels [panel, inputs, PANEL_COLUMNS], with zeros behind the last output."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % PANEL_COLUMNS))
    return padded.view(-1, PANEL_COLUMNS, inputs).transpose(1, 2).contiguous()
