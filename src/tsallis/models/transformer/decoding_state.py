"""Define the decoding state of the Transformer: projected sources, and keys and values of each row's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tsallis.functional.attention import KeyStore
from tsallis.ops.dtypes import autocast_enabled
from tsallis.ops.transforms import writable

ROOM = 8  # smallest number of tokens by which buffers grow


def _room(steps: int) -> int:
    """Return the buffer size for `steps` tokens; spare room (an eighth for long rows) makes copies rare."""
    return (steps // ROOM + 1) * ROOM + steps // 64 * ROOM


@dataclass(frozen=True)
class Sources:
    """Keys and values of the sources for each decoder layer, shared by all rows."""

    keys: tuple[Tensor, ...]  # one [sources, heads, src, head size] per layer
    values: tuple[Tensor, ...]
    lengths: Tensor  # [sources]
    copies: Tensor | None = None  # [sources, src], see `Memory`

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, index: Tensor) -> Sources:
        keys, values = (tuple(x.index_select(0, index) for x in xs) for xs in (self.keys, self.values))
        copies = None if self.copies is None else self.copies[index]
        return Sources(keys, values, self.lengths[index.to(self.lengths.device)], copies)


class KVBuffers:
    """Keys and values of the tokens that rows have read, with room for more.

    States share the memory. Entries never change once written: the first state that needs a free entry writes it, and
    any other state copies the buffers.
    """

    def __init__(self, buffers: tuple[Tensor, ...], used: int, scanned: dict[int, Any] | None = None) -> None:
        self.buffers = buffers  # keys and values of each layer in turn, [rows, heads, room, head size]
        self.used = used  # number of entries that are written or reserved
        self.scanned = scanned or {}  # keys in 8 bits, by the number of buffers up to their layer

    def reserve(self, steps: int) -> KVBuffers:
        """Reserve room for one token after `steps` tokens; return these buffers, or a copy if the room is taken."""
        first = self.buffers[0]
        if self.used == steps < first.shape[2] and writable(first):
            self.used += 1
            return self
        buffers = []
        for buffer in self.buffers:
            # Fill with zeros: shorter rows read unwritten entries with weight zero, and zero times NaN is NaN.
            room = buffer.new_zeros(*buffer.shape[:2], _room(steps), buffer.shape[3])
            room[:, :, :steps] = buffer[:, :, :steps]
            buffers.append(room)
        all_rows = torch.arange(len(buffers[0]), device=buffers[0].device)
        return KVBuffers(tuple(buffers), steps + 1, self._select_scanned(all_rows, steps))

    def counts(self, steps: int) -> Tensor:
        """Return `steps` for each row."""
        buffer = self.buffers[0]
        return torch.full((len(buffer),), steps, device=buffer.device)

    def select(self, index: Tensor, steps: int) -> KVBuffers:
        # Copy whole buffers: unused entries cost less than strided copies.
        spare = self.buffers[0].shape[2] > _room(steps)
        buffers = tuple((x[:, :, :steps] if spare else x).index_select(0, index) for x in self.buffers)
        return KVBuffers(buffers, steps, self._select_scanned(index, steps))

    def _select_scanned(self, index: Tensor, steps: int) -> dict[int, Any]:
        return {number: rows.select(index, steps) for number, rows in self.scanned.items()}


def selects_all(index: Tensor, rows: int) -> bool:
    """Return whether an index selects all rows in order, so that no copy is needed."""
    return len(index) == rows and index.equal(torch.arange(rows, device=index.device))


def select_counts(read: Tensor | None, steps: int, index: Tensor) -> tuple[Tensor | None, int]:
    """Return the number of tokens that each row of `index` has read (None if equal), and the maximum number."""
    if read is None or not len(index):
        return read, steps
    read = read[index]
    steps = int(read.max())
    return (None if bool((read == steps).all()) else read), steps


def join_buffers(parts: Sequence[tuple[KVBuffers, int, Tensor | None]]) -> tuple[KVBuffers, int, Tensor | None]:
    """Concatenate the rows of several states; each part has buffers, steps, and tokens read per row."""
    steps = max(part_steps for _, part_steps, _ in parts)
    counts = None
    if any(read is not None or part_steps < steps for _, part_steps, read in parts):
        counts = torch.cat([kv.counts(part_steps) if read is None else read for kv, part_steps, read in parts])
    buffers = tuple(
        torch.cat([F.pad(x[:, :, :part_steps], (0, 0, 0, steps - part_steps)) for x, part_steps in layer_parts])
        for layer_parts in zip(*([(x, part_steps) for x in kv.buffers] for kv, part_steps, _ in parts), strict=True)
    )
    return KVBuffers(buffers, steps), steps, counts


@dataclass(frozen=True)
class RowPacking:
    """Packing of rows: rows with the same source become queries of one batch element, which saves copies of sources.

    `slot` is each row's position among `sources * width` queries; None if the packing keeps all rows in place.
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
        row_index = torch.arange(rows, device=source.device)
        rank = torch.empty_like(source).index_copy_(0, order, row_index)
        slot = source * width + rank - (counts.cumsum(0) - counts)[source]
        return cls(sources, width, None if rows == sources * width and slot.equal(row_index) else slot)

    def gather(self, x: Tensor) -> Tensor:
        """Map [rows, 1, size] to [sources, width, size], with zeros in empty positions."""
        if self.slot is not None:
            x = x.new_zeros(self.sources * self.width, x.shape[2]).index_copy(0, self.slot, x.squeeze(1))
        return x.reshape(self.sources, self.width, -1)

    def scatter(self, x: Tensor) -> Tensor:
        """Map [sources, width, size] to [rows, 1, size]."""
        x = x.flatten(0, 1).unsqueeze(1)
        return x if self.slot is None else x.index_select(0, self.slot)


@dataclass(frozen=True)
class TransformerState:
    """Rows of a decoder state; rows with the same source share its keys and values."""

    sources: Sources
    source: Tensor  # [rows], index of each row's source
    kv: KVBuffers
    steps: int  # tokens that the longest row has read
    read: Tensor | None = None  # [rows]: number of tokens that each row has read; None if all are equal
    active: tuple[Sources, Tensor] | None = None  # subset of sources with all sources in use, and its indices

    def select(self, index: Tensor) -> TransformerState:
        if selects_all(index, len(self.source)):
            return self
        counts, steps = select_counts(self.read, self.steps, index)
        kv = self.kv.select(index, steps)
        return TransformerState(self.sources, self.source[index], kv, steps, counts, self.active)

    @staticmethod
    def join(states: Sequence[TransformerState]) -> TransformerState:
        """Concatenate the rows of several states, which may have read different numbers of tokens."""
        kv, steps, counts = join_buffers([(state.kv, state.steps, state.read) for state in states])
        sources, source = _merge_sources(states)
        return TransformerState(sources, source, kv, steps, counts)

    def attended_sources(self) -> tuple[Sources, Tensor]:
        """Return a subset of the sources that includes all sources in use, and the subset's sorted indices."""
        sources, indices = self.active or (self.sources, torch.arange(len(self.sources), device=self.source.device))
        index = self.source.unique()
        return (self.sources.select(index), index) if 2 * len(index) <= len(sources) else (sources, indices)


def _merge_sources(states: Sequence[TransformerState]) -> tuple[Sources, Tensor]:
    """Return the sources of all states, without duplicates, and the index of each row's source."""
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
    copies = [x.copies for x in distinct if x.copies is not None]
    return Sources(
        keys, values, torch.cat([x.lengths for x in distinct]), torch.cat(copies) if copies else None
    ), source


class StepCache:
    """Key-value cache of one step; each layer appends the keys and values of one token per row."""

    def __init__(self, kv: KVBuffers, steps: int, read: Tensor | None) -> None:
        self.steps, self.count = steps, read
        self.in_place = not torch.is_grad_enabled()  # gradients need the earlier buffers unchanged
        self.kv = kv.reserve(steps) if self.in_place else kv
        self.buffers: list[Tensor] = []

    @property
    def position(self) -> int | Tensor:
        """Return the position of this step's token, or positions [rows] if rows differ."""
        return self.steps if self.count is None else self.count

    @property
    def key_norms(self) -> Tensor | None:
        return None

    @property
    def lengths(self) -> Tensor | None:
        """Return the number of tokens that each row can attend to, or None if all are equal."""
        return None if self.count is None else self.count + 1

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the last layer that was appended."""
        k, v = (x[:, :, : self.steps + 1] for x in self.buffers[-2:])
        return k, v

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the next layer's keys and values [rows, heads, 1, head size]; return all of this layer's."""
        begin = len(self.buffers)
        for buffer, new in zip(self.kv.buffers[begin : begin + 2], (keys, values), strict=True):
            self.buffers.append(self._append(buffer, new))
        return self.read()

    def next_buffers(self) -> KVBuffers:
        """Return the keys and values after the step; call this after all layers have appended theirs."""
        return self.kv if self.in_place else KVBuffers(tuple(self.buffers), self.steps + 1)

    def following(self, state: TransformerState, active: tuple[Sources, Tensor] | None) -> TransformerState:
        """Return the state after the step; call this after all layers have appended keys and values."""
        return TransformerState(state.sources, state.source, self.next_buffers(), self.steps + 1, self.lengths, active)

    def _append(self, buffer: Tensor, new: Tensor) -> Tensor:
        if self.in_place and self.count is None:
            buffer[:, :, self.steps] = new.squeeze(2)
            return buffer
        if self.in_place:
            buffer[torch.arange(len(buffer), device=buffer.device), :, self.count] = new.squeeze(2)
            return buffer
        buffer = buffer[:, :, : self.steps]
        if self.count is None:
            return torch.cat([buffer, new], 2)
        mask = torch.arange(self.steps + 1, device=buffer.device) == self.count.unsqueeze(1)  # [rows, steps + 1]
        return torch.where(mask[:, None, :, None], new, F.pad(buffer, (0, 0, 0, 1)))


class ScannedStepCache(StepCache, KeyStore):
    """Cache of one step of rows that have read equally many tokens. Attention scans long keys in 8 bits."""

    dtype = torch.float32

    @property
    def rows(self) -> Any:
        """Return the keys of the last layer that was appended in 8 bits, or None if they are not encoded yet."""
        return self.kv.scanned.get(len(self.buffers))

    @rows.setter
    def rows(self, rows: Any) -> None:
        self.kv.scanned[len(self.buffers)] = rows


def step_cache(kv: KVBuffers, steps: int, read: Tensor | None) -> StepCache:
    """Return the cache of one step. Attention can scan its keys if they are float32 and all rows are equally long."""
    keys = kv.buffers[0]
    scans = keys.dtype == torch.float32 and read is None
    scans = scans and not torch.is_grad_enabled() and not autocast_enabled(keys.device.type)
    return (ScannedStepCache if scans else StepCache)(kv, steps, read)
