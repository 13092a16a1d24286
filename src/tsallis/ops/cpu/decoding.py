"""Run decoders in compiled code, with one call per step, or with one call for all steps of a beam search.

Weights are packed once. The state of a decoder row is a list of addresses. They point to the row's source and to what
earlier steps have written into their caches, which is never moved. So rows are reordered, repeated and dropped by
index.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.ops.arguments import DecoderResult, OutputWeights
from tsallis.ops.cpu import allocate_best, call_kernel, point_to, pointers
from tsallis.ops.cpu.beams import Beams
from tsallis.ops.cpu.huge_pages import gather
from tsallis.ops.cpu.screening import ScreenedRows
from tsallis.ops.cpu.structs import NUMBER, PANEL_COLUMNS, Decoder, Screen, Search, SearchModel

CACHE_NUMBERS = 1 << 23  # numbers per block of keys and values, unless a step needs more
BEST_NUMBERS = 1 << 22  # maximum number of best symbols per step, for a search in one call
SCANNED_ROWS = 2  # more rows are faster as a product
MIN_SCANNED = 1 << 21  # number of weights from which a scan is faster than a product
MAX_STEPS = 1 << 12  # maximum number of steps, for a search in one call
VECTOR = 16  # numbers per vector; keys and values are multiples of this number


class PackedWeights:
    """Packed weights of a model in consecutive memory, and a table of their addresses.

    Args:
        embedding: Embedding [symbols, size], which is not copied.
        layers: Tensors of the layers, before the embedding in the table.
        final_tensors: Tensors after the embedding.
    """

    def __init__(
        self, embedding: Tensor, layers: Sequence[Tensor | None], final_tensors: Sequence[Tensor | None]
    ) -> None:
        self.embedding = embedding.detach().contiguous()
        copies = iter(gather([x.detach() for x in [*layers, *final_tensors] if x is not None]))
        layer_tensors, other_tensors = (
            [None if x is None else next(copies) for x in part] for part in (layers, final_tensors)
        )
        self._memory = [*layer_tensors, self.embedding, *other_tensors]  # keeps the tensors behind the pointers alive
        addresses = [0 if x is None else x.data_ptr() for x in self._memory]
        self.pointers = torch.tensor(addresses, dtype=torch.int64, device="cpu")

    def check_tokens(self, token: Tensor, rows: int | None = None) -> Tensor:
        """Return tokens, one per row, as the kernels read them.

        Raises:
            TypeError: The tokens are not integers.
            ValueError: There is not one token per row.
            IndexError: A token is not in the embedding.
        """
        if token.is_floating_point() or token.is_complex() or token.dtype == torch.bool:
            raise TypeError(f"token must contain integers, got {token.dtype}")
        if rows is not None and token.shape != (rows,):
            raise ValueError(f"token must have the shape ({rows},), one per row, got {tuple(token.shape)}")
        if token.numel():
            smallest, largest = (int(x) for x in token.aminmax())
            if smallest < 0 or largest >= len(self.embedding):
                invalid = smallest if smallest < 0 else largest
                raise IndexError(f"tokens must be from 0 to {len(self.embedding) - 1}, got {invalid}")
        return token.long().contiguous()


# A decoder, its states [rows, columns], and the position embeddings of all steps [steps or more, d], or None.
Start = tuple["DecoderSteps", Tensor, Tensor | None]


class DecoderSteps:
    """Steps of a decoder; subclasses set the attributes."""

    template: Decoder  # arguments that all steps share
    symbols: int  # number of target symbols
    output: OutputWeights
    screened: tuple[ScreenedRows, Screen] | None = None  # the output layer in 8 bits, encoded when it is needed

    def screen(self, rows: int) -> int | None:
        """Return the address of the scan of the output layer, or None if a product is faster for this many rows."""
        (weight, bias), alpha, tau = self.output
        if rows > SCANNED_ROWS or weight.numel() < MIN_SCANNED or tau is not None or not 1 < alpha <= 2:
            return None
        if self.screened is None:
            encoded = ScreenedRows()
            self.screened = encoded, encoded.layer(weight.detach().contiguous(), bias.detach().contiguous(), alpha)
        return ctypes.addressof(self.screened[1])

    @property
    def grows(self) -> bool:
        """Return whether states point to the caches of all earlier steps, not only to the last one."""
        return bool(self.template.growth)

    def step(
        self,
        state: Tensor,
        token: Tensor,
        positions: Tensor | None,
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
            positions: Position embeddings [more than the number of symbols read, d] of a Transformer.
            count, end, only: Options of the best symbols; count 0: none.
            scores: Whether to return all scores.
            attention: Number of source positions whose weights are returned; 0: none.
        """
        rows, columns = state.shape
        state, token = state.contiguous(), token.contiguous()
        call = Decoder.from_buffer_copy(self.template)
        best = allocate_best(rows, min(count, self.symbols))
        point_to(call.rank, best, end, only)
        next_state = torch.empty(rows, columns + call.growth, dtype=torch.int64, device="cpu")
        cache = torch.empty(rows, call.cache_row, dtype=torch.float32, device="cpu")
        attended = torch.empty(rows, dtype=torch.int64, device="cpu")
        weights = torch.empty(rows, attention, dtype=torch.float32, device="cpu") if attention else None
        all_scores = torch.empty(rows, self.symbols, dtype=torch.float32, device="cpu") if scores else None
        call.rows, call.state_row, call.attention_row = rows, columns, attention
        call.positions, call.token = pointers(positions, token)
        call.state, call.next_state = state.data_ptr(), next_state.data_ptr()
        call.cache, call.attended, call.screen = cache.data_ptr(), attended.data_ptr(), self.screen(rows)
        call.attention, call.scores = pointers(weights, all_scores)
        call_kernel("decoder", call)
        return DecoderResult(next_state, cache, best, attended, weights, all_scores)

    def runs(self, beams: Any, num_models: int) -> bool:
        """Return whether the beams are small enough for :meth:`search`, which allocates the memory of all steps."""
        if not isinstance(beams, Beams) or beams.steps > MAX_STEPS:
            return False
        numbers = min(beams.size + 1, self.symbols) if num_models == 1 else self.symbols
        return beams.capacity * numbers <= BEST_NUMBERS

    @staticmethod
    def search(beams: Beams, starts: Sequence[Start], end: int, attention: int = 0) -> tuple[list[Tensor], int | None]:
        """Run all steps of a beam search, or stop at the first error.

        Args:
            beams: New beams with one prefix per row.
            starts: Decoders with the same number of rows and symbols. The search averages their probabilities.
            end: End symbol.
            attention: Number of source positions whose weights are returned; 0: none.

        Returns:
            Two values: the attention weights [rows, positions] of all rows of the search, in parts; and None, or a
                required symbol that is not in the vocabulary.
        """
        models = (SearchModel * len(starts))()
        averaged = len(starts) > 1
        memory = [
            x
            for model, start in zip(models, starts, strict=True)
            for x in _prepare_search(model, start, beams, averaged)
        ]
        only = torch.empty(beams.capacity, dtype=torch.int64, device="cpu")
        call = Search(models=ctypes.addressof(models), num_models=len(models), beam=beams.call, only=only.data_ptr())
        call.unknown_symbol = -1
        beams.call = call.beam  # from here, the beams and the search share one structure
        for model in models:
            model.decoder.rank.end, model.decoder.attention_row = end, attention
        growing_decoders = [model.decoder for model in models if model.decoder.growth]
        width = max([1, *(decoder.cache_row for decoder in growing_decoders)])
        weights: list[Tensor] = []
        while call.beam.rows and beams.nan_source is None and call.unknown_symbol < 0:
            room = beams.add_room(CACHE_NUMBERS // width)
            for decoder in growing_decoders:
                memory.append(torch.empty(room, decoder.cache_row, dtype=torch.float32, device="cpu"))
                decoder.cache = memory[-1].data_ptr()
            if attention:
                parts = torch.empty(len(models), room, attention, dtype=torch.float32, device="cpu")
                for model, part in zip(models, parts, strict=True):
                    model.decoder.attention = part.data_ptr()
                weights.append(parts[0])
            call_kernel("search", call)
            weights[-1:] = [part[: call.beam.used] for part in weights[-1:]]
        return weights, None if call.unknown_symbol < 0 else int(call.unknown_symbol)


def _prepare_search(model: SearchModel, start: Start, beams: Beams, averaged: bool) -> list[Tensor]:
    """Set the pointers of a decoder for a search; return the memory behind them."""
    steps, state, positions = start
    state = state.contiguous()
    model.decoder = steps.template
    decoder, rank, capacity = model.decoder, model.decoder.rank, beams.capacity
    rank.count, decoder.state_row = min(beams.size + 1, steps.symbols), state.shape[1]
    decoder.screen = steps.screen(capacity)
    longest = decoder.state_row + beams.steps * decoder.growth
    # Numbers per row: states, states after a step, best log-probabilities, best symbols, four single numbers, and all
    # log-probabilities if they are averaged.
    row = (longest, longest, rank.count, rank.count, *[1] * 4, steps.symbols * averaged)
    memory = torch.empty(capacity * sum(row), dtype=torch.int64, device="cpu")
    starts = [memory.data_ptr() + capacity * NUMBER * sum(row[:i]) for i in range(len(row))]
    decoder.next_state, model.states, rank.best, rank.symbols = starts[:4]
    rank.ends, rank.mass, rank.support, decoder.attended = starts[4:8]
    rank.log_probs = starts[8] if averaged else None
    decoder.positions, decoder.state = pointers(positions, state)
    cache = torch.empty(0 if decoder.growth else 2 * capacity, decoder.cache_row, dtype=torch.float32, device="cpu")
    decoder.cache = cache.data_ptr()
    return [memory, state, cache]


def pack(linear: tuple[Tensor, Tensor], fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Pack a matrix [outputs, inputs] into panels [panel, inputs, PANEL_COLUMNS]; pad its bias with `fill`."""
    weight, bias = linear
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % PANEL_COLUMNS)).view(-1, PANEL_COLUMNS, inputs)
    return padded.transpose(1, 2).contiguous(), F.pad(bias, (0, -outputs % PANEL_COLUMNS), value=fill)


def pack_output(output: OutputWeights) -> tuple[Tensor, Tensor]:
    """Pack an output layer; symbols of its padding are impossible."""
    return pack(output.projection, -math.inf)
