"""Manage the beams of a beam search in Python: the reference and the fallback of `csrc/beams.h`."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import torch
from torch import Tensor

from tsallis.ops.arguments import BeamLimits, BeamOptions, BeamOutcome, BestSymbols

Candidate = tuple[float, int, int]  # negative log-probability, index of the parent in the beam, token


class Beams:
    """Prefixes of all sources, with the rows of the next step and the record of earlier steps.

    Args:
        limits: Limits per source.
        options: Options for all sources.
        token: First token of every prefix.
    """

    def __init__(self, limits: Sequence[BeamLimits], options: BeamOptions, token: int) -> None:
        self.size = options.size
        self.nan_source: int | None = None  # first source with a NaN probability
        self._beams = [_Beam(source_limits, options) for source_limits in limits]
        self._active = list(enumerate(self._beams))
        self._tokens, self._parents = [token] * len(limits), [-1] * len(limits)  # one per current row
        self._parent_rows: list[int] = list(range(len(limits)))  # the parent's row in the previous step
        self._length = 0  # length of the current prefixes
        self._outcome = BeamOutcome([], [], [], [], [beam.ends for beam in self._beams], [], [], [])

    def tokens(self) -> Tensor:
        """Return the last token of each prefix [rows]."""
        return torch.tensor(self._tokens, device="cpu")

    def parents(self) -> Tensor:
        """Return the row of the previous step that each prefix continues [rows]."""
        return torch.tensor(self._parent_rows, device="cpu")

    def forced(self) -> Tensor | None:
        """Return the required next symbol of each prefix [rows], or -1; return None if no prefix requires one."""
        length = self._length
        prefixes = [beam.limits.prefix for _, beam in self._active for _ in beam.log_probs]
        if all(length >= len(prefix) for prefix in prefixes):
            return None
        symbols = [prefix[length] if length < len(prefix) else -1 for prefix in prefixes]
        return torch.tensor(symbols, device="cpu")

    def follow(self, best: BestSymbols, num_attended: Tensor) -> bool:
        """Choose the next prefixes from the results of a step; if a probability is NaN, only record its source.

        Returns:
            Whether the search continues.
        """
        owners = [source for source, beam in self._active for _ in beam.log_probs]
        nan_sources = [source for source, mass in zip(owners, best.mass.tolist(), strict=True) if mass != mass]
        if nan_sources:
            self.nan_source = min(nan_sources)
            return False
        for source, mass in zip(owners, best.mass.tolist(), strict=True):
            self._beams[source].unclear |= mass == math.inf
        first = len(self._outcome.tokens)
        self._record(best, num_attended)
        log_probs, symbols, ends = best.log_probs.tolist(), best.symbols.tolist(), best.ends.tolist()
        self._tokens = []
        self._parents = []
        self._parent_rows = []
        row = 0
        for _, beam in self._active:
            end_row = row + len(beam.log_probs)
            candidates = beam.continuations(log_probs[row:end_row], symbols[row:end_row])
            beam.finish(ends[row:end_row], candidates, self._length, first + row)
            for _, parent, token in beam.choose(candidates, self._length):
                self._tokens.append(token)
                self._parents.append(first + row + parent)
                self._parent_rows.append(row + parent)
            row = end_row
        self._active = [(source, beam) for source, beam in self._active if beam.log_probs]
        self._length += 1
        return bool(self._active)

    def _record(self, best: BestSymbols, num_attended: Tensor) -> None:
        outcome = self._outcome
        outcome.tokens.extend(self._tokens)
        outcome.parents.extend(self._parents)
        outcome.support.extend(best.support.tolist())
        outcome.num_attended.extend(num_attended.tolist())

    def outcome(self) -> BeamOutcome:
        """Return the result of the search so far."""
        bounds, gave_up = [beam.bound for beam in self._beams], [beam.gave_up for beam in self._beams]
        unclear = [beam.unclear for beam in self._beams]
        return self._outcome._replace(bounds=bounds, gave_up=gave_up, unclear=unclear)


class _Beam:
    """State of one source's beam."""

    def __init__(self, limits: BeamLimits, options: BeamOptions) -> None:
        self.limits, self.options = limits, options
        self.log_probs = [0.0]  # log-probabilities of the prefixes, best first
        self.ends: list[tuple[float, int]] = []
        self.costs: list[float] = []  # negative scores of the best outputs, sorted
        self.bound = -math.inf
        self.gave_up = False
        self.unclear = False

    def give_up(self, log_prob: float) -> None:
        """Record that a prefix was dropped."""
        self.bound = max(self.bound, log_prob)
        self.gave_up = True

    def finish(self, log_probs: list[float], candidates: list[Candidate], length: int, row: int) -> None:
        """Record the outputs that end after the current prefixes."""
        if length < self.limits.free_from:
            return
        penalty = self.options.length_penalty
        totals = [
            prefix_log_prob + log_prob for prefix_log_prob, log_prob in zip(self.log_probs, log_probs, strict=True)
        ]
        if self.options.competing_ends and not self._at_limit(length):
            totals = self._compete(totals, candidates)
        for i, total in enumerate(totals):
            if total > -math.inf:
                score = total / (length + 1) ** penalty if penalty else total
                if self._add_cost(-score) or not self.options.num_recorded:
                    self.ends.append((total, row + i))

    def _compete(self, totals: list[float], candidates: list[Candidate]) -> list[float]:
        """Drop endings that are not among the best continuations of the step."""
        costs, ends = [cost for cost, _, _ in candidates], sorted(-total for total in totals)
        remaining = []
        for total in totals:
            rank = bisect_left(costs, -total) + bisect_left(ends, -total)
            if total > -math.inf and rank >= self.options.size:
                self.give_up(total)
                total = -math.inf
            remaining.append(total)
        return remaining

    def _at_limit(self, length: int) -> bool:
        """Return whether a prefix with one more token would have no room for the end symbol."""
        return length + 2 > self.limits.steps

    def _add_cost(self, cost: float) -> bool:
        """Add a score if it is among the best; return whether it is, ties included."""
        costs, capacity = self.costs, max(self.options.n_best, self.options.num_recorded)
        if len(costs) == capacity and cost >= costs[-1]:
            return cost == costs[-1]
        insort(costs, cost)
        del costs[capacity:]
        return True

    def continuations(self, best: list[list[float]], symbols: list[list[int]]) -> list[Candidate]:
        """Return the best continuations of all prefixes, sorted; at most one more than the beam size."""
        candidates: list[Candidate] = []
        size = self.options.size
        max_cost = math.inf  # more than `size` candidates cost at most this much
        for parent, prefix_log_prob in enumerate(self.log_probs):
            costs = [-(prefix_log_prob + log_prob) for log_prob in best[parent]]
            number = bisect_right(costs, max_cost)
            candidates += [
                (cost, parent, token)
                for cost, token in zip(costs[:number], symbols[parent], strict=False)
                if cost < math.inf
            ]
            if len(costs) > size:
                max_cost = min(max_cost, costs[size])
        return sorted(candidates)

    def choose(self, candidates: list[Candidate], length: int) -> list[Candidate]:
        """Set the beam to the best continuations, drop the others, and return the beam."""
        selection = [] if self._at_limit(length) else candidates[: self.options.size]
        if len(candidates) > len(selection):
            self.give_up(-candidates[len(selection)][0])
        if self.gave_up:
            selection = self._shrink(selection)
        self.log_probs = [-cost for cost, _, _ in selection]
        return selection

    def _shrink(self, selection: list[Candidate]) -> list[Candidate]:
        """Drop candidates that can't change the best outputs or the certificate of a normalized model."""
        if len(self.costs) < self.options.n_best:
            return selection
        worst, max_penalty = -self.costs[self.options.n_best - 1], self.limits.steps**self.options.length_penalty
        survivors = [candidate for candidate in selection if -candidate[0] / max_penalty > worst]
        if len(survivors) < len(selection):
            self.give_up(-selection[len(survivors)][0])
        return survivors
