"""The decoding state of the Transformer: projected sources, and keys and values of the tokens each row has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROOM = 8  # places by which the memory of a row's tokens grows at least


def _room(steps: int) -> int:
    """Return the places for some tokens and more to come: an eighth more of many, so that they are seldom copied."""
    return (steps // ROOM + 1) * ROOM + steps // 64 * ROOM


@dataclass(frozen=True)
class Sources:
    """Sources as the decoder's layers read them: projected once, whatever rows there will be."""

    keys: tuple[Tensor, ...]  # one [sources, heads, src, head size] a layer
    values: tuple[Tensor, ...]
    lengths: Tensor  # [sources]

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, index: Tensor) -> Sources:
        keys, values = (tuple(x.index_select(0, index) for x in xs) for xs in (self.keys, self.values))
        return Sources(keys, values, self.lengths[index.to(self.lengths.device)])


class KVBuffers:
    """Keys and values of the tokens that rows have read, with room for more.

    States share the memory: entries are never changed, and the first state that needs a place writes it. Any other one
    copies.
    """

    def __init__(self, buffers: tuple[Tensor, ...], used: int) -> None:
        self.buffers = buffers  # keys and values of each layer in turn, [rows, heads, room, head size]
        self.used = used  # places that are written, or about to be

    def reserve(self, steps: int) -> KVBuffers:
        """Return these buffers with room to write one token behind `steps` tokens."""
        if self.used == steps < self.buffers[0].shape[2]:
            self.used += 1
            return self
        buffers = []
        for have in self.buffers:
            # Zeros: rows that have read less look at places that nobody has written, with a weight of zero.
            room = have.new_zeros(*have.shape[:2], _room(steps), have.shape[3])
            room[:, :, :steps] = have[:, :, :steps]
            buffers.append(room)
        return KVBuffers(tuple(buffers), steps + 1)

    def counts(self, steps: int) -> Tensor:
        """Return `steps` for each row."""
        buffer = self.buffers[0]
        return torch.full((len(buffer),), steps, device=buffer.device)

    def select(self, index: Tensor, steps: int) -> KVBuffers:
        # Copy whole buffers: unused entries cost less than strided copies.
        spare = self.buffers[0].shape[2] > _room(steps)
        return KVBuffers(tuple((x[:, :, :steps] if spare else x).index_select(0, index) for x in self.buffers), steps)


def selects_all(index: Tensor, rows: int) -> bool:
    """Tell whether an index selects all rows in their order, so that nothing needs to be copied."""
    return len(index) == rows and index.equal(torch.arange(rows, device=index.device))


def select_counts(read: Tensor | None, steps: int, index: Tensor) -> tuple[Tensor | None, int]:
    """Return how many tokens the rows `index` have read, None where all have read as many, and the most."""
    if read is None or not len(index):
        return read, steps
    read = read[index]
    steps = int(read.max())
    return (None if bool((read == steps).all()) else read), steps


def join_buffers(parts: Sequence[tuple[KVBuffers, int, Tensor | None]]) -> tuple[KVBuffers, int, Tensor | None]:
    """Concatenate the rows of what states have read, each with its steps and its rows' where these differ."""
    steps = max(own for _, own, _ in parts)
    counts = None
    if any(read is not None or own < steps for _, own, read in parts):
        counts = torch.cat([kv.counts(own) if read is None else read for kv, own, read in parts])
    buffers = tuple(
        torch.cat([F.pad(x[:, :, :own], (0, 0, 0, steps - own)) for x, own in of_states])
        for of_states in zip(*([(x, own) for x in kv.buffers] for kv, own, _ in parts), strict=True)
    )
    return KVBuffers(buffers, steps), steps, counts


@dataclass(frozen=True)
class RowPacking:
    """Rows of one source as several queries of one batch element, so that no source is copied for its rows.

    `slot` says where each row stands among `sources * width` of them; None, where rows and places are the same.
    """

    sources: int
    width: int
    slot: Tensor | None  # [rows]

    @classmethod
    def of(cls, source: Tensor, sources: int) -> RowPacking:
        rows = len(source)
        counts = torch.bincount(source, minlength=sources)  # [sources]
        width = int(counts.max()) if rows else 1
        order = source.argsort(stable=True)
        everywhere = torch.arange(rows, device=source.device)
        rank = torch.empty_like(source).index_copy_(0, order, everywhere)
        slot = source * width + rank - (counts.cumsum(0) - counts)[source]
        return cls(sources, width, None if rows == sources * width and slot.equal(everywhere) else slot)

    def gather(self, x: Tensor) -> Tensor:
        """Map [rows, 1, size] to [sources, width, size], zeros where no row is."""
        if self.slot is not None:
            x = x.new_zeros(self.sources * self.width, x.shape[2]).index_copy(0, self.slot, x.squeeze(1))
        return x.reshape(self.sources, self.width, -1)

    def scatter(self, x: Tensor) -> Tensor:
        """Map [sources, width, size] to [rows, 1, size]."""
        x = x.flatten(0, 1).unsqueeze(1)
        return x if self.slot is None else x.index_select(0, self.slot)


@dataclass(frozen=True)
class TransformerState:
    """Rows of a decoder state; rows of one source look at the same memory."""

    sources: Sources
    source: Tensor  # [rows]: the source that each row translates
    kv: KVBuffers
    steps: int  # tokens read, by the row that has read most
    read: Tensor | None = None  # [rows], where not all have read as many
    active: tuple[Sources, Tensor] | None = None  # some sources, among them all that rows attend to; their indices

    def select(self, index: Tensor) -> TransformerState:
        if selects_all(index, len(self.source)):
            return self
        counts, steps = select_counts(self.read, self.steps, index)
        kv = self.kv.select(index, steps)
        return TransformerState(self.sources, self.source[index], kv, steps, counts, self.active)

    @staticmethod
    def join(states: Sequence[TransformerState]) -> TransformerState:
        """Concatenate the rows of several states, which may have read differently many tokens."""
        kv, steps, counts = join_buffers([(state.kv, state.steps, state.read) for state in states])
        sources, source = _merge_sources(states)
        return TransformerState(sources, source, kv, steps, counts)

    def attended_sources(self) -> tuple[Sources, Tensor]:
        """Return the sources to compute, at most twice as many as rows look at, and which of all they are, in order."""
        sources, which = self.active or (self.sources, torch.arange(len(self.sources), device=self.source.device))
        index = self.source.unique()
        return (self.sources.select(index), index) if 2 * len(index) <= len(sources) else (sources, which)


def _merge_sources(states: Sequence[TransformerState]) -> tuple[Sources, Tensor]:
    """Return the sources of all states, those that states share once, and each row's among them."""
    distinct = list({id(state.sources): state.sources for state in states}.values())
    starts, total = {}, 0
    for sources in distinct:
        starts[id(sources)] = total
        total += len(sources)
    source = torch.cat([state.source + starts[id(state.sources)] for state in states])
    if len(distinct) == 1:
        return distinct[0], source
    keys = tuple(torch.cat(xs) for xs in zip(*(x.keys for x in distinct), strict=True))
    values = tuple(torch.cat(xs) for xs in zip(*(x.values for x in distinct), strict=True))
    return Sources(keys, values, torch.cat([x.lengths for x in distinct])), source


class StepCache:
    """Key-value cache of one step, to which each layer adds the keys and values of one token per row."""

    def __init__(self, kv: KVBuffers, steps: int, read: Tensor | None) -> None:
        self.steps, self.count = steps, read
        self.in_place = not torch.is_grad_enabled()  # gradients need what went before as it was
        self.kv = kv.reserve(steps) if self.in_place else kv
        self.buffers: list[Tensor] = []

    @property
    def position(self) -> int | Tensor:
        """The position of this step's token; [rows] where rows differ."""
        return self.steps if self.count is None else self.count

    @property
    def key_norms(self) -> Tensor | None:
        return None

    @property
    def lengths(self) -> Tensor | None:
        """Tokens that each row can look at, where they differ."""
        return None if self.count is None else self.count + 1

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the layer that was the last to add."""
        k, v = (x[:, :, : self.steps + 1] for x in self.buffers[-2:])
        return k, v

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next layer's keys and values of this token [rows, heads, 1, head size]; return all that it has."""
        begin = len(self.buffers)
        for have, new in zip(self.kv.buffers[begin : begin + 2], (keys, values), strict=True):
            self.buffers.append(self._append(have, new))
        return self.read()

    def next_buffers(self) -> KVBuffers:
        """Return keys and values after the step, when all layers have added."""
        return self.kv if self.in_place else KVBuffers(tuple(self.buffers), self.steps + 1)

    def following(self, state: TransformerState, active: tuple[Sources, Tensor] | None) -> TransformerState:
        """Return the state after the step, when all layers have added."""
        return TransformerState(state.sources, state.source, self.next_buffers(), self.steps + 1, self.lengths, active)

    def _append(self, have: Tensor, new: Tensor) -> Tensor:
        if self.in_place and self.count is None:
            have[:, :, self.steps] = new.squeeze(2)
            return have
        if self.in_place:
            have[torch.arange(len(have), device=have.device), :, self.count] = new.squeeze(2)
            return have
        have = have[:, :, : self.steps]
        if self.count is None:
            return torch.cat([have, new], 2)
        mask = torch.arange(self.steps + 1, device=have.device) == self.count.unsqueeze(1)  # [rows, steps + 1]
        return torch.where(mask[:, None, :, None], new, F.pad(have, (0, 0, 0, 1)))
