"""Manage the beams of a search in compiled code, with one call per step or per search."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.ops.arguments import BeamLimits, BeamOptions, BeamOutcome, BestSymbols
from tsallis.ops.cpu import call_kernel, point_to
from tsallis.ops.cpu.structs import BEAM_SOURCE, HISTORY_COLUMNS, HISTORY_VALUES, NUMBER, PREFIX_COLUMNS, Beam

STEPS_AT_ONCE = 16  # memory for this many steps of full beams is allocated together


class Beams:
    """Prefixes of all sources in the kernels' memory, like :class:`tsallis.ops.eager.beams.Beams`.

    Args:
        limits: Limits per source.
        options: Options for all sources.
        token: First token of every prefix.
    """

    def __init__(self, limits: Sequence[BeamLimits], options: BeamOptions, token: int) -> None:
        sources, longest = len(limits), max(len(source_limits.prefix) for source_limits in limits)
        self.size, self.steps = options.size, max(source_limits.steps for source_limits in limits)
        self.capacity = sources * options.size  # maximum number of current prefixes
        self._source_row = len(BEAM_SOURCE) + longest
        self._sources = array("q")
        for source_limits in limits:
            self._sources.extend((source_limits.steps, source_limits.free_from, 0, 0, 0, 0, *source_limits.prefix))
            self._sources.extend([-1] * (longest - len(source_limits.prefix)))
        self._score_row = 1 + max(options.n_best, options.num_recorded)
        # The memory holds prefixes, log-probabilities and scores. It is uninitialized, because a large beam rarely uses
        # all of it.
        columns = len(PREFIX_COLUMNS) + 1
        self._memory = torch.empty(columns * self.capacity + sources * self._score_row, dtype=torch.int64, device="cpu")
        prefixes = self._memory.data_ptr()
        self._history: list[tuple[Tensor, int]] = []  # blocks of earlier steps, and the capacity of each block in rows
        self._used: list[int] = []  # per block of `_history`: number of rows used in the previous block
        self._first = 0  # number of the previous step's first row
        self.call = Beam(
            sources=sources,
            **options._asdict(),
            source=self._sources.buffer_info()[0],
            source_row=self._source_row,
            score=prefixes + columns * self.capacity * NUMBER,
            capacity=self.capacity,
            prefixes=prefixes,
            log_prob=prefixes + len(PREFIX_COLUMNS) * self.capacity * NUMBER,
        )
        call_kernel("begin", self.call, token)

    def tokens(self) -> Tensor:
        """Return the last token of each prefix [rows]."""
        return self._prefix_column("token").clone()  # copied because the model may keep the tensor

    def parents(self) -> Tensor:
        """Return the row of the previous step that each prefix continues [rows]."""
        return self._prefix_column("parent") - self._first

    def _prefix_column(self, column: str) -> Tensor:
        first = PREFIX_COLUMNS.index(column) * self.capacity
        return self._memory[first : first + self.call.rows]

    def forced(self) -> Tensor | None:
        """Return the required next symbol of each prefix [rows], or -1; return None if no prefix requires one."""
        column = len(BEAM_SOURCE) + self.call.length
        if column >= self._source_row:
            return None
        symbols = torch.tensor(self._sources[column :: self._source_row], device="cpu")  # [sources]
        return symbols[self._prefix_column("owner")]

    def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
        """Choose the next prefixes from the results of a step; return whether the search continues."""
        if self.call.used + self.call.rows > self.call.room:
            self.add_room()
        self._first = self.call.base + self.call.used
        best = BestSymbols(*(x.contiguous() for x in best))
        attended = num_attended.to(torch.int64).contiguous()
        point_to(self.call.rank, best, -1, None)
        self.call.attended = attended.data_ptr()
        call_kernel("beam", self.call, 1)
        return self.call.rows > 0 and self.nan_source is None

    @property
    def nan_source(self) -> int | None:
        """Return the source with a NaN probability, or None."""
        return None if self.call.nan_source < 0 else int(self.call.nan_source)

    def add_room(self, max_rows: int | None = None) -> int:
        """Allocate a block for the next steps; return its size, at most `max_rows` rows unless a step needs more."""
        call = self.call
        rows = int(call.rows)
        room = min(rows * self.size, self.capacity) * STEPS_AT_ONCE
        room = max(rows, room if max_rows is None else min(room, max_rows))
        history = torch.empty((len(HISTORY_COLUMNS) + len(HISTORY_VALUES)) * room, dtype=torch.int64, device="cpu")
        self._used.append(call.used)
        self._history.append((history, room))
        call.base, call.used, call.room = call.base + call.used, 0, room
        call.history, call.history_value = history.data_ptr(), history.data_ptr() + len(HISTORY_COLUMNS) * room * NUMBER
        return room

    def outcome(self) -> BeamOutcome:
        """Return the result of the search so far."""
        call = self.call
        rows: list[list[Any]] = [[] for _ in (*HISTORY_COLUMNS, *HISTORY_VALUES)]
        for (history, room), used in zip(self._history, (*self._used[1:], call.used), strict=True):
            for number, column in enumerate(rows):
                kind = "q" if number < len(HISTORY_COLUMNS) else "d"
                column += _read(history.data_ptr() + number * room * NUMBER, used, kind)
        tokens, parents, owners, support, attended, _, totals = rows
        ends: list[list[tuple[float, int]]] = [[] for _ in range(call.sources)]
        for row, (total, owner) in enumerate(zip(totals, owners, strict=True)):
            if total > -math.inf:
                ends[owner].append((total, row))
        bounds = _read(call.score, call.sources * self._score_row, "d")[:: self._score_row]
        gave_up, unclear = (
            [flag != 0 for flag in self._sources[BEAM_SOURCE.index(name) :: self._source_row]]
            for name in ("gave_up", "unclear")
        )
        return BeamOutcome(tokens, parents, support, attended, ends, bounds, gave_up, unclear)


def _read(address: int, count: int, kind: str) -> list[Any]:
    """Read numbers from memory with `array`, which is faster than a tensor for few numbers."""
    return array(kind, ctypes.string_at(address, count * NUMBER)).tolist()
