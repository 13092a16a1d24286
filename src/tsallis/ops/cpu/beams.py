"""The bookkeeping of a beam search in compiled code: a call a step, or one for the steps of a whole search."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tsallis.ops.arguments import BeamLimits, BeamOptions, BeamOutcome, BestSymbols
from tsallis.ops.cpu import call_beam, point_to
from tsallis.ops.cpu.structs import BEAM_HAND, BEAM_PAST, BEAM_SOURCE, BEAM_VALUES, Beam

STEPS_AT_ONCE = 16  # of full beams: memory for so many is allocated together


class Beams:
    """The prefixes of all sources, see :class:`tsallis.ops.eager.beams.Beams`, in memory that kernels read and write.

    Args:
        limits: of each source.
        options: of all.
        token: the first of all prefixes.
    """

    def __init__(self, limits: Sequence[BeamLimits], options: BeamOptions, token: int) -> None:
        sources, longest = len(limits), max(len(own.prefix) for own in limits)
        self.size, self.steps = options.size, max(own.steps for own in limits)
        self.capacity = sources * options.size  # of prefixes at hand
        self._sources = torch.tensor(
            [[own.steps, own.free_from, 1, 0, 0, *own.prefix, *[-1] * (longest - len(own.prefix))] for own in limits]
        )
        self._scores = torch.full((sources, 1 + max(options.wanted, options.noted)), -math.inf, dtype=torch.float64)
        # Most of a large beam is never written.
        self._hand = torch.empty(len(BEAM_HAND), self.capacity, dtype=torch.int64)
        self._hand[:, :sources] = torch.tensor([[token] * sources, [-1] * sources, [*range(sources)]])
        self._log_probs = torch.empty(self.capacity, dtype=torch.float64)
        self._log_probs[:sources] = 0
        self._past: list[tuple[Tensor, Tensor]] = []  # rows of earlier steps, by columns
        self._used: list[int] = []  # how many there were of each of these when the next was allocated
        self._first = 0  # the number of the first row of the step before
        self.call = Beam(
            sources=sources,
            **options._asdict(),
            source=self._sources.data_ptr(),
            source_row=self._sources.shape[1],
            score=self._scores.data_ptr(),
            rows=sources,
            capacity=self.capacity,
            hand=self._hand.data_ptr(),
            log_prob=self._log_probs.data_ptr(),
            nan_source=-1,
        )

    def tokens(self) -> Tensor:
        """Return the last token of each prefix [rows]."""
        return self._hand[0, : self.call.rows].clone()  # a model may hold it

    def parents(self) -> Tensor:
        """Return the rows of the step before that the prefixes continue [rows]."""
        return self._hand[1, : self.call.rows] - self._first

    def forced(self) -> Tensor | None:
        """Return the symbol that must follow each prefix [rows], -1 where any may; None where any may everywhere."""
        column = len(BEAM_SOURCE) + self.call.length
        if column >= self.call.source_row:
            return None
        return self._sources[self._hand[2, : self.call.rows], column]

    def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
        """Choose the next prefixes by the results of a step, and tell whether the search goes on."""
        if self.call.used + self.call.rows > self.call.room:
            self.add_room()
        self._first = self.call.base + self.call.used
        best = BestSymbols(*(x.contiguous() for x in best))
        attended = num_attended.to(torch.int64).contiguous()
        point_to(self.call.rank, best, -1, None)
        self.call.attended = attended.data_ptr()
        call_beam(self.call)
        return self.call.rows > 0 and self.nan_source is None

    @property
    def nan_source(self) -> int | None:
        """The source whose probabilities are NaN, if there is one."""
        return None if self.call.nan_source < 0 else int(self.call.nan_source)

    def add_room(self, most: int | None = None) -> int:
        """Allocate memory for the rows of the next steps, of `most` rows if these hold one step; return its room."""
        call = self.call
        rows = int(call.rows)
        room = min(rows * self.size, self.capacity) * STEPS_AT_ONCE
        room = max(rows, room if most is None else min(room, most))
        past = torch.empty(len(BEAM_PAST), room, dtype=torch.int64)
        values = torch.empty(len(BEAM_VALUES), room, dtype=torch.float64)
        self._used.append(call.used)
        self._past.append((past, values))
        call.base, call.used, call.room = call.base + call.used, 0, room
        call.past, call.past_value = past.data_ptr(), values.data_ptr()
        return room

    def outcome(self) -> BeamOutcome:
        """Return what the search has found so far."""
        used = [*self._used[1:], self.call.used]
        past = torch.cat([x[:, :n] for (x, _), n in zip(self._past, used, strict=True)], 1)
        totals = torch.cat([x[1, :n] for (_, x), n in zip(self._past, used, strict=True)]).tolist()
        tokens, parents, owners, support, attended = past.tolist()
        ends: list[list[tuple[float, int]]] = [[] for _ in range(self.call.sources)]
        for row, (total, owner) in enumerate(zip(totals, owners, strict=True)):
            if total > -math.inf:
                ends[owner].append((total, row))
        gave_up = [bool(flag) for flag in self._sources[:, BEAM_SOURCE.index("gave_up")].tolist()]
        return BeamOutcome(tokens, parents, support, attended, ends, self._scores[:, 0].tolist(), gave_up)
