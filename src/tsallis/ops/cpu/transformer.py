"""Run a Transformer in compiled code: one call encodes, and one call per step decodes.

Weights are packed once. The state of a decoder row is a list of addresses. They point to the keys and values of the
row's source and of every token that the row has read. Keys and values are never moved, so rows are reordered, repeated
and dropped by index.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.arguments import AttentionWeights, DecoderResult, LayerWeights, OutputWeights, StackWeights
from tsallis.ops.cpu import allocate_best, call_kernel, point_to, pointers, rank_fields
from tsallis.ops.cpu.beams import Beams
from tsallis.ops.cpu.huge_pages import gather
from tsallis.ops.cpu.structs import FIRST_ADDRESS, NUMBER, PANEL_COLUMNS, Decoder, Encoder, Project, Search

CACHE_NUMBERS = 1 << 23  # numbers per block of keys and values, unless a step needs more
BEST_NUMBERS = 1 << 22  # maximum number of best symbols per step, for a search in one call
MOST_STEPS = 1 << 12  # maximum number of steps, for a search in one call
VECTOR = 16  # numbers per vector; head sizes must be multiples of this number


def computes(weights: StackWeights) -> bool:
    """Return whether the kernels support layers of these sizes and alphas."""
    attentions = [part for layer in weights.layers for part in (layer.own, layer.cross) if part is not None]
    alphas = torch.cat([part.alphas for part in attentions])
    sizes = weights.embedding.shape[1] % (weights.heads * VECTOR) == 0
    return sizes and bool(((alphas >= 1) & (alphas <= 2)).all())


class _Stack:
    """Packed weights of a stack of layers, and the arguments that all calls share."""

    def __init__(self, weights: StackWeights, output: tuple[Tensor, Tensor] | None) -> None:
        self.embedding = weights.embedding.detach().contiguous()
        self.d = weights.embedding.shape[1]
        layers = [x for layer in weights.layers for x in _layer_tensors(layer)]
        rest = [*(weights.norm or (None, None)), *((None, None) if output is None else _pack(output, -math.inf))]
        copies = iter(gather([x.detach() for x in [*layers, *rest] if x is not None]))
        layers, rest = ([None if x is None else next(copies) for x in part] for part in (layers, rest))
        self._memory = [*layers, self.embedding, *rest]  # keeps the tensors behind the pointers alive
        pointers = [0 if x is None else x.data_ptr() for x in self._memory]
        self._pointers = torch.tensor(pointers, dtype=torch.int64, device="cpu")
        self._fields = {
            "layers": len(weights.layers),
            "d": self.d,
            "hidden": weights.layers[0].expand[0].shape[0],
            "heads": weights.heads,
            "pre_norm": weights.norm is not None,
            "embedding_scale": math.sqrt(self.d),
            "epsilon": weights.epsilon,
            "weights": self._pointers.data_ptr(),
        }

    def check_tokens(self, token: Tensor) -> None:
        """Raise if a token is not in the embedding, because the kernels would read memory beyond the embedding."""
        if token.numel():
            least, most = (int(x) for x in token.aminmax())
            if least < 0 or most >= len(self.embedding):
                wrong = least if least < 0 else most
                raise IndexError(f"tokens must be from 0 to {len(self.embedding) - 1}, got {wrong}")


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


class CompiledDecoder(_Stack):
    """Compiled decoder with packed weights, including the output layer.

    Args:
        weights: Weights that :func:`computes` accepts; all but the embedding are copied.
        output: Output layer with an alpha of at most 2.
    """

    def __init__(self, weights: StackWeights, output: OutputWeights) -> None:
        super().__init__(weights, output.projection)
        self.symbols = len(output.projection[0])
        projections = [layer.cross.projection for layer in weights.layers if layer.cross is not None]
        weight = torch.cat([weight[self.d :] for weight, _ in projections])  # [layers * 2 d, d]
        self._source_weights = _pack((weight, torch.cat([bias[self.d :] for _, bias in projections])))
        self._source_columns = len(weight)
        self._template = Decoder(**self._fields, rank=rank_fields(self.symbols, output.alpha, output.tau))

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
        """Read one token per row, and return the requested results.

        Args:
            state: Decoder states [rows, columns].
            token: Tokens [rows], checked by :meth:`check_tokens` or returned by an earlier step.
            positions: Position embeddings [more than the number of symbols read, d].
            count, end, only: Options of the best symbols; count 0: none.
            scores: Whether to return all scores.
            attention: Number of source positions whose weights are returned; 0: none.
        """
        rows, columns = state.shape
        state, token = state.contiguous(), token.contiguous()
        call = Decoder.from_buffer_copy(self._template)
        best = allocate_best(rows, min(count, self.symbols))
        point_to(call.rank, best, end, only)
        following = torch.empty(rows, columns + 1, dtype=torch.int64, device="cpu")
        cache = torch.empty(rows, call.layers * 2 * self.d, dtype=torch.float32, device="cpu")
        attended = torch.empty(rows, dtype=torch.int64, device="cpu")
        weights = torch.empty(rows, attention, dtype=torch.float32, device="cpu") if attention else None
        all_scores = torch.empty(rows, self.symbols, dtype=torch.float32, device="cpu") if scores else None
        call.rows, call.state_row, call.attention_row = rows, columns, attention
        call.positions, call.token = positions.data_ptr(), token.data_ptr()
        call.state, call.next_state = state.data_ptr(), following.data_ptr()
        call.cache, call.attended = cache.data_ptr(), attended.data_ptr()
        call.attention = None if weights is None else weights.data_ptr()
        call.scores = None if all_scores is None else all_scores.data_ptr()
        call_kernel("decoder", call)
        return DecoderResult(following, cache, best, attended, weights, all_scores)

    def runs(self, beams: Any) -> bool:
        """Return whether the beams are small enough for :meth:`search`, which allocates the memory of all steps."""
        if not isinstance(beams, Beams) or beams.steps > MOST_STEPS:
            return False
        return beams.capacity * min(beams.size + 1, self.symbols) <= BEST_NUMBERS

    def search(
        self, beams: Beams, state: Tensor, positions: Tensor, end: int, attention: int = 0
    ) -> tuple[list[Tensor], int | None]:
        """Run all steps of a beam search, or stop at the first error.

        Args:
            beams: New beams with one prefix per row.
            state: Decoder states [rows, columns].
            positions: Position embeddings [more than the number of symbols read at the end, d].
            end: End symbol.
            attention: Number of source positions whose weights are returned; 0: none.

        Returns:
            Two values: the attention weights [rows, positions] of all rows of the search, in parts; and None, or a
                required symbol that is not in the vocabulary.
        """
        columns, most = state.shape[1], beams.capacity
        state = state.contiguous()
        call = Search(decoder=self._template, beam=beams.call, unknown_symbol=-1)
        beams.call = call.beam  # from here, the beams and the search share one structure
        decoder, rank = call.decoder, call.decoder.rank
        rank.count, rank.end = min(beams.size + 1, self.symbols), end
        # Numbers per row: states, states after a step, best log-probabilities, best symbols, and five single numbers.
        row = (*[columns + beams.steps] * 2, rank.count, rank.count, *[1] * 5)
        memory = torch.empty(most * sum(row), dtype=torch.int64, device="cpu")
        starts = [memory.data_ptr() + most * NUMBER * sum(row[:i]) for i in range(len(row))]
        decoder.next_state, call.states, rank.best, rank.symbols = starts[:4]
        rank.ends, rank.mass, rank.support, decoder.attended, call.only = starts[4:]
        decoder.positions, decoder.state = positions.data_ptr(), state.data_ptr()
        decoder.state_row, decoder.attention_row = columns, attention
        caches: list[Tensor] = []
        weights: list[Tensor] = []
        while call.beam.rows and beams.nan_source is None and call.unknown_symbol < 0:
            width = decoder.layers * 2 * self.d
            room = beams.add_room(CACHE_NUMBERS // width)
            caches.append(torch.empty(room, width, dtype=torch.float32, device="cpu"))
            decoder.cache = caches[-1].data_ptr()
            if attention:
                weights.append(torch.empty(room, attention, dtype=torch.float32, device="cpu"))
                decoder.attention = weights[-1].data_ptr()
            call_kernel("search", call)
            weights[-1:] = [part[: call.beam.used] for part in weights[-1:]]
        return weights, None if call.unknown_symbol < 0 else int(call.unknown_symbol)


def _layer_tensors(layer: LayerWeights) -> list[Tensor | None]:
    """Return the tensors of a layer in the order of `LayerWeights` in `transformer_rows.h`."""
    own, cross = layer.own, layer.cross
    none: list[Tensor | None] = [None] * 4
    tensors: list[Tensor | None] = [*own.norm, *((None, None) if cross is None else cross.norm), *layer.norm]
    tensors += [*_query(own), *_key_value(own), *_pack(own.out)]
    tensors += none if cross is None else [*_query(cross), *_pack(cross.out)]
    tensors += [*_pack(layer.expand), *_pack(layer.shrink)]
    return [*tensors, own.alphas, None if cross is None else cross.alphas]


def _query(attention: AttentionWeights) -> tuple[Tensor, Tensor]:
    (weight, bias), d = attention.projection, len(attention.out[0])
    return _pack((weight[:d], bias[:d]))


def _key_value(attention: AttentionWeights) -> tuple[Tensor, Tensor]:
    (weight, bias), d = attention.projection, len(attention.out[0])
    return _pack((weight[d:], bias[d:]))


def _pack(linear: tuple[Tensor, Tensor], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Pack a matrix [outputs, inputs] into panels [panel, inputs, PANEL_COLUMNS]; pad its bias with `fill`."""
    weight, bias = linear
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % PANEL_COLUMNS)).view(-1, PANEL_COLUMNS, inputs)
    return padded.transpose(1, 2).contiguous(), F.pad(bias, (0, -outputs % PANEL_COLUMNS), value=fill)
