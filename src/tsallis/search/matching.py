"""Bound the probability that an output matches a pattern, and prove that no output or every output matches."""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tsallis.errors import check_real, describe
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, unclear_rows
from tsallis.search.best_first import CHUNK, by_state, join_rows
from tsallis.search.certificate import ROUNDING, Hypothesis, Stop
from tsallis.search.checks import check_at_least_one, check_goal, check_sources
from tsallis.search.options import EXPANSIONS
from tsallis.search.patterns import Pattern, check_pattern, check_sums
from tsallis.search.step import Expansion, Prefix, checked_log_probs, make_limits
from tsallis.symbols import EOS

Verdict = Literal["never", "always", "possible", "unknown"]


@dataclass(frozen=True)
class Match:
    """Bounds on the probability that an output of a source matches a pattern, and what they prove.

    An output that never ends counts as a match if its beginning decides that it matches. Bounds are rounded outward.

    Args:
        lower, upper: Bounds on the probability of a match.
        open: Upper bound on the probability of undecided prefixes that the search did not expand.
        too_long: Upper bound on the probability of undecided prefixes longer than `max_length`. The upper bound
            includes both.
        verdict: What is proved about the outputs of probability `at_least` and more: "never" (none matches), "always"
            (all match), "possible" (the witness matches), or "unknown".
        absolute: Whether "never" or "always" holds for all outputs, however improbable.
        witness: Most probable matching output that was found, or None.
        expanded: Number of expanded prefixes.
        stopped_by: Why the search left prefixes open: "budget" or "time"; otherwise None.

    Example:
        >>> Match(0.0, 0.0, 0.0, 0.0, "never", True, None, 7).upper
        0.0
    """

    lower: float
    upper: float
    open: float
    too_long: float
    verdict: Verdict
    absolute: bool
    witness: Hypothesis | None
    expanded: int
    stopped_by: Stop | None = None


class _Entry(NamedTuple):
    """Prefix in the queue; queues compare only the first two fields."""

    cost: float
    number: int
    prefix: Prefix
    state: Any  # state before the prefix's last token is read
    row: int
    places: tuple[int, ...]  # state of each pattern


@dataclass
class _Sum:
    """Sum of probabilities, with the largest log-probability, which can't underflow."""

    terms: list[float] = field(default_factory=list)
    largest: float = -math.inf

    def add(self, log_prob: float) -> None:
        self.largest = max(self.largest, log_prob)
        self.terms.append(math.exp(log_prob))

    def add_where(self, log_probs: Tensor, mask: Tensor) -> None:
        """Add the log-probabilities where a mask is True."""
        if (chosen := log_probs[mask]).numel():
            self.largest = max(self.largest, float(chosen.max()))
            self.terms.append(float(chosen.exp().sum()))

    @property
    def lower(self) -> float:
        return math.fsum(self.terms) * (1 - ROUNDING)

    @property
    def upper(self) -> float:
        # Every term may have lost a number that is too small for a float.
        return min(1.0, math.fsum(self.terms) * (1 + ROUNDING) + len(self.terms) * sys.float_info.min)


@dataclass
class _Tally:
    """What a search has found about one pattern."""

    pattern: Pattern
    at_least: float  # log-probability
    matched: _Sum = field(default_factory=_Sum)
    missed: _Sum = field(default_factory=_Sum)
    open: _Sum = field(default_factory=_Sum)
    too_long: _Sum = field(default_factory=_Sum)
    witness: Hypothesis | None = None
    unfinished_match: float = -math.inf  # largest log-probability of a matching prefix without a known end

    @property
    def best(self) -> float:
        return -math.inf if self.witness is None else self.witness.log_prob

    @property
    def needs_witness(self) -> bool:
        """Return whether the search must follow prefixes that match whatever follows, to find an end."""
        return self.witness is None or self.best < self.at_least

    @cached_property
    def settled(self) -> Tensor:
        """Return the states after which nothing remains to be decided."""
        return self.pattern.full | self.pattern.dead | self.pattern.unsure

    def needs(self, log_prob: float, place: int) -> bool:
        """Return whether a prefix must be expanded."""
        if self.pattern.full[place]:
            return self.needs_witness and log_prob > self.best
        return not self.settled[place]

    def drop(self, log_probs: Tensor, places: Tensor) -> None:
        """Record that prefixes are not expanded."""
        full = self.pattern.full[places]
        self.unfinished_match = max([self.unfinished_match, *log_probs[full].tolist()])
        self.open.add_where(log_probs, ~self.settled[places])

    def end(self, log_prob: float, place: int, finish: Any) -> None:
        """Record an output; `finish` returns its hypothesis."""
        if self.pattern.accepts[place]:
            if not self.pattern.full[place]:
                self.matched.add(log_prob)
            if log_prob > self.best:
                self.witness = finish()
        elif not self.settled[place]:
            self.missed.add(log_prob)

    def follow(self, places: Tensor, totals: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """Record the children of prefixes; return their states and which of them must be expanded [rows, d_vocab].

        Args:
            places: States of the prefixes [rows].
            totals: Log-probabilities of the children [rows, d_vocab].
            room: Whether the children's length is allowed [rows, 1].
        """
        pattern, settled = self.pattern, self.settled
        next_states = pattern.after(places, totals.shape[1])
        new = (totals > -torch.inf) & ~settled[places].unsqueeze(1)
        full = pattern.full[next_states]
        self.matched.add_where(totals, new & full)
        self.missed.add_where(totals, new & pattern.dead[next_states])
        self.open.add_where(totals, new & pattern.unsure[next_states])
        undecided = new & ~settled[next_states]
        self.too_long.add_where(totals, undecided & ~room)
        witness_candidates = full & (totals > self.best) if self.needs_witness else torch.zeros_like(full)
        self.unfinished_match = max(
            self.unfinished_match, float(totals.masked_fill(~witness_candidates | room, -torch.inf).max())
        )
        return next_states, (undecided | witness_candidates) & room

    def verdict(self) -> tuple[Verdict, bool]:
        """Return the verdict, and whether it holds however improbable an output is."""
        undecided, undecided_mass = max(self.open.largest, self.too_long.largest), self.open.upper + self.too_long.upper
        # A witness is at least as probable as all ends of matching prefixes except those of `unfinished_match`.
        best_match = self.matched.largest if self.witness is None else self.best
        match, miss = max(undecided, self.unfinished_match, best_match), max(undecided, self.missed.largest)
        if self._negligible(match, self.matched.upper + undecided_mass):
            return "never", match == -math.inf
        if self._negligible(miss, self.missed.upper + undecided_mass):
            return "always", miss == -math.inf
        return ("unknown" if self.needs_witness else "possible"), False

    def _negligible(self, largest: float, mass: float) -> bool:
        """Return whether no text has the probability `at_least`. A text may have several spellings."""
        if largest == -math.inf:
            return True
        if self.pattern.unique:
            return largest < self.at_least - ROUNDING
        return mass < math.exp(self.at_least) * (1 - ROUNDING)

    def result(self, expanded: int, stop: Stop | None, unclear: bool) -> Match:
        if unclear:
            return Match(0.0, 1.0, 1.0, self.too_long.upper, "unknown", False, self.witness, expanded, stop)
        upper = _Sum([*self.matched.terms, *self.open.terms, *self.too_long.terms]).upper
        verdict = self.verdict()
        stopped_by = stop if self.open.terms or self.unfinished_match > -math.inf else None
        bounds = self.matched.lower, upper, self.open.upper, self.too_long.upper
        return Match(*bounds, *verdict, self.witness, expanded, stopped_by)


@torch.no_grad()
def match(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    patterns: Sequence[Pattern],
    *,
    budget: int = EXPANSIONS,
    time_limit: float | None = None,
    at_least: float = 1e-6,
    max_length: int | None = None,
    stop_early: bool = False,
) -> list[list[Match]]:
    """Bound the probability that an output matches each pattern, and prove that no output or every output matches.

    A best-first search expands prefixes until each pattern is decided for each prefix: all its continuations match, or
    none does. All patterns share one search. With exact zeros, the search often ends, and then the bounds are equal up
    to rounding.

    Verdicts depend on whether any prefix of positive probability is undecided, not on sums that may underflow.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`. The probabilities of each step must
            sum to 1, so it can't be a restricted model.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        patterns: Patterns for the vocabulary of the model.
        budget: Maximum number of prefixes to expand per source.
        time_limit: Seconds per source, checked between expansions.
        at_least: Probability, from 0 to 1, below which verdicts ignore an output.
        max_length: Maximum length of an output, without its end; None: twice the source's length, plus 20.
        stop_early: Whether to stop as soon as each pattern has a witness or is "never". Bounds may then be wide.

    Returns:
        One list per source, with one :class:`Match` per pattern.

    Raises:
        ValueError: An option is out of range, the outputs of the model don't sum to 1, or probabilities are NaN or
            infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="sparsemax", forbidden=(0, 1, 3))
        >>> patterns = [Pattern(text, ["", "", "", "", "a", "b"]) for text in (".*[0-9].*", "[ab]*")]
        >>> (found,) = match(model, torch.tensor([[4, 5]]), torch.tensor([2]), patterns)
        >>> [(bounds.verdict, bounds.absolute) for bounds in found]
        [('never', True), ('always', True)]
    """
    check_at_least_one(budget=budget)
    check_goal(None, model.output.normalized, time_limit=time_limit)
    check_real("at_least", at_least, 0, 1)
    if not isinstance(patterns, Sequence):
        raise TypeError(f"patterns must be a list of tsallis.search.Pattern objects, got {describe(patterns)}")
    for pattern in patterns:
        check_pattern("each of patterns", pattern)
    check_sums("match", model)
    limits, results = make_limits(check_sources(model, src, src_lengths), max_length=max_length), []
    log_threshold = math.log(at_least) if at_least else -math.inf
    with eval_mode(model):
        for row, source_limits in enumerate(limits):
            deadline = math.inf if time_limit is None else time.monotonic() + time_limit
            tallies = [_Tally(pattern, log_threshold) for pattern in patterns]
            source = src[row : row + 1], src_lengths[row : row + 1]
            search = _Search(model, tallies, src.device, row, source_limits.steps - 1, budget, deadline, stop_early)
            stop = search.run(model.start(model.encode(*source)))
            results.append([tally.result(search.expanded, stop, search.unclear) for tally in tallies])
    return results


@dataclass
class _Search:
    """Search of one source."""

    model: Decoder
    tallies: list[_Tally]
    device: torch.device
    source: int
    max_length: int
    budget: int
    deadline: float
    stop_early: bool
    heap: list[_Entry] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    expanded: int = 0
    unclear: bool = False

    def run(self, state: Any) -> Stop | None:
        """Expand prefixes from the first state; return why prefixes may be left."""
        for tally in self.tallies:
            if tally.pattern.full[tally.pattern.start]:
                tally.matched.add(0.0)
            elif tally.pattern.dead[tally.pattern.start]:
                tally.missed.add(0.0)
        places = tuple(tally.pattern.start for tally in self.tallies)
        self.heap.append(_Entry(0.0, next(self.numbers), Prefix(), state, 0, places))
        stop: Stop | None = None
        while stop is None and not self._decided() and (chunk := self._pop()):
            self._expand(by_state(chunk))
            stop = "budget" if self.expanded >= self.budget else "time" if time.monotonic() >= self.deadline else None
        self._drop(self.heap)
        return stop

    def _decided(self) -> bool:
        """Return whether the search may stop before the bounds are equal."""
        if not self.stop_early:
            return False
        top = -self.heap[0].cost if self.heap else -math.inf
        return all(not t.needs_witness or (t.pattern.unique and top < t.at_least - ROUNDING) for t in self.tallies)

    def _drop(self, entries: list[_Entry]) -> None:
        log_probs = torch.tensor([-entry.cost for entry in entries], dtype=torch.float64)
        for number, tally in enumerate(self.tallies):
            tally.drop(log_probs, torch.tensor([entry.places[number] for entry in entries], dtype=torch.long))

    def _pop(self) -> list[_Entry]:
        chunk: list[_Entry] = []
        while self.heap and len(chunk) < min(CHUNK, self.budget - self.expanded):
            entry = heapq.heappop(self.heap)
            if any(t.needs(-entry.cost, place) for t, place in zip(self.tallies, entry.places, strict=True)):
                chunk.append(entry)
        return chunk

    def _expand(self, chunk: list[_Entry]) -> None:
        device = self.device
        tokens = torch.tensor([entry.prefix.token for entry in chunk], device=device)
        step = self.model.step(join_rows(chunk, device), tokens)
        log_probs = checked_log_probs(self.model, step.scores, [self.source] * len(chunk))
        self.expanded += len(chunk)
        self.unclear |= bool(unclear_rows(step).any())
        expansion = Expansion(step.attention, log_probs, keep=False)
        prefix_log_probs = torch.tensor([[-entry.cost] for entry in chunk], dtype=torch.float64)
        totals = log_probs.cpu() + prefix_log_probs
        ends = totals[:, EOS].tolist()
        totals[:, EOS] = -torch.inf
        room = torch.tensor([[entry.prefix.length < self.max_length] for entry in chunk])
        pushed, next_states = torch.zeros_like(totals, dtype=torch.bool), []
        for number, tally in enumerate(self.tallies):
            places = torch.tensor([entry.places[number] for entry in chunk])
            reached, needed = tally.follow(places, totals, room)
            next_states.append(reached)
            pushed |= needed
            for row, entry in enumerate(chunk):
                if ends[row] > -math.inf:
                    finish = partial(expansion.finish, entry.prefix, row, ends[row])
                    tally.end(ends[row], entry.places[number], finish)
        self._push(chunk, totals, pushed, torch.stack(next_states, -1), expansion, step.state)

    def _push(
        self, chunk: list[_Entry], totals: Tensor, pushed: Tensor, next_states: Tensor, expansion: Expansion, state: Any
    ) -> None:
        """Add children to the queue; drop those beyond the remaining budget."""
        index = pushed.flatten().nonzero().squeeze(1)
        values, remaining_budget = totals.flatten()[index], self.budget - self.expanded
        if len(index) > remaining_budget:
            values, order = values.sort(descending=True, stable=True)
            index = index[order]
            places = next_states.flatten(0, 1)[index[remaining_budget:]]
            for number, tally in enumerate(self.tallies):
                tally.drop(values[remaining_budget:], places[:, number])
            index, values = index[:remaining_budget], values[:remaining_budget]
        width = totals.shape[1]
        for i, total, places in zip(
            index.tolist(), values.tolist(), next_states.flatten(0, 1)[index].tolist(), strict=True
        ):
            row, token = divmod(i, width)
            prefix = expansion.extend(chunk[row].prefix, row, token, total)
            heapq.heappush(self.heap, _Entry(-total, next(self.numbers), prefix, state, row, tuple(places)))
        if len(self.heap) > 2 * (remaining_budget + CHUNK):
            self.heap.sort()
            self._drop(self.heap[remaining_budget:])
            del self.heap[remaining_budget:]
