"""Find all possible outputs of a model, most probable first, or the best outputs with a proof."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tsallis.errors import describe
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, join, unclear_rows
from tsallis.search.beam import beam_search
from tsallis.search.certificate import Hypothesis, Result, Stop, least_score
from tsallis.search.checks import check_at_least_one, check_goal, check_sources, is_sequence
from tsallis.search.options import EXPANSIONS
from tsallis.search.patterns import patterns_of, prefix_length
from tsallis.search.step import Expansion, Limits, Prefix, Search, checked_log_probs, make_limits
from tsallis.search.texts import Text, missing_probability

CHUNK = 16  # number of prefixes expanded together per source; it is fixed, so that results don't depend on the batch
WINDOW = 16  # number of sources searched together; it is small, because each source stores up to `budget` states
Entry = TypeVar("Entry", bound=Any)  # prefix with the state before its last token, and its row in this state


@dataclass(frozen=True)
class Goal:
    """Conditions that end the search of a source.

    Args:
        normalized: Whether continuations are at most as probable as their prefix.
        budget: Maximum number of prefixes to expand.
        time_limit: Seconds after which the search ends; None: no limit.
        mass: The search ends once the outputs that no open prefix can beat have this total probability; None means no
            limit.
        n_best: Number of outputs to prove; None: all.
        text: Function that spells outputs, for a search for texts; None: the search is for sequences.
    """

    normalized: bool
    budget: int
    time_limit: float | None
    mass: float | None
    n_best: int | None
    text: Text | None = None

    def __post_init__(self) -> None:
        check_at_least_one(budget=self.budget, n_best=self.n_best)
        check_goal(self.mass, self.normalized, time_limit=self.time_limit)


class _QueueEntry(NamedTuple):
    """Prefix in a queue, with its row in a decoder state. Queues compare only the first two fields."""

    cost: float
    number: int  # number in the order of discovery, which breaks ties
    prefix: Prefix
    state: Any  # state before the prefix's last token is read
    row: int


@dataclass(kw_only=True)
class _Queue(Search):
    """State of the search of one source."""

    source: int
    goal: Goal
    budget: int  # number of prefixes that may still be expanded
    heap: list[_QueueEntry]
    known: set[tuple[int, ...]]  # outputs that are known from another search
    mass: float  # total probability of finished outputs
    sums: dict[str, float] = field(default_factory=dict)  # probabilities of finished texts
    reason: Stop = "length"  # why promising prefixes were dropped most recently
    deadline: float = math.inf  # time of the monotonic clock at which the search ends

    def result(self, normalized: bool, n_best: int | None, text: Text | None = None) -> Result:
        expanded = self.goal.budget - self.budget
        if self.heap:
            self.give_up(-self.heap[0].cost)
        result = super().result(normalized, n_best, text)
        # If texts can't be proved, proving the sequences is enough.
        provable = result if text is None or self.proves_texts else super().result(normalized, n_best)
        proven = len(provable.proven) if n_best else 0
        is_complete = provable.certificate.kind == "complete" or (n_best is not None and proven == n_best)
        # If nothing can be proved, a search without open prefixes has finished.
        ended = is_complete or (self.unclear and not self.heap)
        return replace(result, stopped_by=None if ended else self.reason, expanded=expanded)

    @property
    def proves_texts(self) -> bool:
        """Return whether the search must prove texts, see `merge_texts`."""
        limited = self.lacks_spellings or self.limits.length_penalty > 0
        return self.goal.text is not None and self.goal.normalized and not limited

    def threshold(self) -> float:
        """Return the score that an output must exceed to be useful."""
        # To prove texts, every sequence is useful: improbable sequences also add to a text's probability.
        if not self.goal.n_best or not self.goal.normalized or self.proves_texts:
            return -math.inf
        return self.nth_score(self.goal.n_best)

    def stop(self) -> Stop | None:
        """Return the reason why the search must stop although the queue is not empty, or None."""
        if not self.budget:
            return "budget"
        if self.has_mass():
            return "mass"
        return "time" if time.monotonic() >= self.deadline else None

    def has_mass(self) -> bool:
        """Return whether the outputs that no open prefix can beat reach the required total probability."""
        if self.goal.mass is None or self.mass < self.goal.mass:
            return False
        if self.goal.text is not None:
            missing = missing_probability(self.mass)
            return math.fsum(prob for prob in self.sums.values() if prob >= missing) >= self.goal.mass
        min_score = least_score(min(self.limits.score_bound(-self.heap[0].cost), self.known_bound))
        certain_probs = [h.prob for h in self.finished if h.score(self.limits.length_penalty) >= min_score]
        return math.fsum(certain_probs) >= self.goal.mass

    def has_texts(self) -> bool:
        """Return whether the best texts are proved: each text leads the next one by the missing probability."""
        if self.goal.n_best is None or not self.sums or not self.proves_texts:
            return False
        missing = missing_probability(self.mass)
        best = [*heapq.nlargest(self.goal.n_best + 1, self.sums.values()), 0.0]
        leads = [prob - next_prob >= missing for prob, next_prob in itertools.pairwise(best)]
        return len(leads) >= self.goal.n_best and all(leads[: self.goal.n_best])

    def cut(self, log_prob: float) -> None:
        """Record that a prefix reached the length limit."""
        self.give_up(-math.inf if self.limits.length_penalty else log_prob)

    def pop(self) -> list[_QueueEntry]:
        """Remove and return the best prefixes to expand together; none if this search is over."""
        threshold = self.threshold()
        if not self.heap or self.limits.score_bound(-self.heap[0].cost) <= threshold or self.has_texts():
            return []
        if stop := self.stop():
            self.reason = stop
            return []
        chunk: list[_QueueEntry] = []
        while self.heap and self.budget and len(chunk) < CHUNK:
            if self.limits.score_bound(-self.heap[0].cost) <= threshold:
                break
            chunk.append(heapq.heappop(self.heap))
            self.budget -= 1
        return chunk

    def finish(self, hypothesis: Hypothesis) -> None:
        if hypothesis.tokens not in self.known:
            self.finished.append(hypothesis)
            self.mass += hypothesis.prob if self.goal.normalized else 0  # unnormalized values may overflow
            self.count(hypothesis)

    def count(self, hypothesis: Hypothesis) -> None:
        if self.goal.text is not None:
            text = self.goal.text(hypothesis.tokens)
            self.sums[text] = self.sums.get(text, 0.0) + hypothesis.prob

    def push(self, item: _QueueEntry) -> None:
        heapq.heappush(self.heap, item)
        if len(self.heap) > 2 * (self.budget + CHUNK):
            # Prefixes beyond the remaining budget are never expanded.
            self.heap.sort()
            self.give_up_for_budget(-self.heap[self.budget].cost)
            del self.heap[self.budget :]

    def give_up_for_budget(self, log_prob: float) -> None:
        self.give_up(log_prob)
        self.reason = "budget"


@torch.no_grad()
def exhaustive(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    budget: int = EXPANSIONS,
    time_limit: float | None = None,
    mass: float | None = None,
    n_best: int | None = None,
    known: Sequence[Result] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
    keep_attention: bool = False,
    text: Text | None = None,
) -> list[Result]:
    """Find every possible output, best first, by repeatedly expanding the most probable prefixes.

    The search ends when no prefix is left: the result is `complete`, and its probabilities sum to 1. It also ends when
    the `n_best` best outputs are proved, or when a source has reached its `budget`, `time_limit` or `mass`. Then
    `bound` limits the probability of a missing output, :attr:`Result.proven` contains the outputs whose rank is
    certain, and :attr:`Result.stopped_by` is the reason.

    Memory grows with the states of open (not yet expanded) prefixes, at most `budget` for each of 16 sources.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        budget: Maximum number of prefixes to expand per source.
        time_limit: Seconds per source, checked between expansions; sources are then searched one after the other.
        mass: Stop once the outputs with a certain rank (:attr:`Result.proven`) have this total probability, between 0
            and 1.
        n_best: Number of outputs returned per source; None: all.
        known: Results of another search with the same limits, whose outputs count as found. With `n_best`, prefixes
            that can't beat the best of these outputs are skipped. No bound exceeds the bound in `known`.
        prefixes, min_length, max_length, length_penalty, keep_attention, text: see :func:`beam_search`.

    Returns:
        One :class:`Result` per source. Its certificate is about the outputs that these options allow.

    Raises:
        ValueError: An option is out of range, `mass` is used with outputs that don't sum to 1, or probabilities are
            NaN.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="sparsemax", forbidden=(0, 1, 3))
        >>> with torch.no_grad():
        ...     model.output.bias[2] = 0.5  # makes the end likely
        >>> src, lengths = torch.randint(4, 20, (1, 5)), torch.tensor([5])
        >>> (result,) = exhaustive(model, src, lengths, n_best=3)
        >>> len(result.proven), result.certificate.proves_best
        (3, True)
    """
    goal = Goal(model.output.normalized, budget, time_limit, mass, n_best, text)
    lengths = check_sources(model, src, src_lengths)
    limits = make_limits(lengths, prefixes, min_length, max_length, length_penalty, prefix_length(model))
    queues = _search_windows(model, src, src_lengths, goal, limits, known, keep_attention)
    return [queue.result(goal.normalized, n_best, text) for queue in queues]


def _search_windows(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    goal: Goal,
    limits: Sequence[Limits],
    known: Sequence[Result] | None,
    keep: bool,
) -> list[_Queue]:
    """Search for the outputs of some sources at a time; with a time limit, of one source."""
    if known is not None and not is_sequence(known):
        raise TypeError(f"known must be a list of results of a search, got {describe(known)}")
    if known is not None and len(known) != len(limits):
        raise ValueError(f"known must have one result per source, got {len(known)} results for {len(limits)} sources")
    if wrong := [result for result in known or () if not isinstance(result, Result)]:
        raise TypeError(f"known must contain results of a search, got {describe(wrong[0])}")
    width = WINDOW if goal.time_limit is None else 1
    queues: list[_Queue] = []
    with eval_mode(model):
        for first in range(0, len(limits), width):
            window = slice(first, first + width)
            deadline = math.inf if goal.time_limit is None else time.monotonic() + goal.time_limit
            start = model.start(model.encode(src[window], src_lengths[window]))
            window_queues = [
                _open_queue(goal, first + i, n, limits[first + i], start, i, known[first + i] if known else None)
                for i, n in enumerate(src_lengths[window].tolist())
            ]
            for queue in window_queues:
                queue.patterns = patterns_of(model)
                queue.deadline = deadline
            _search(model, window_queues, keep, src.device)
            queues += window_queues
    return queues


def _open_queue(
    goal: Goal, source: int, src_length: int, limits: Limits, start: Any, row: int, known: Result | None
) -> _Queue:
    hypotheses = [s for h in known.hypotheses for s in h.segmentations or (h,)] if known else []
    queue = _Queue(
        source=source,
        src_length=src_length,
        limits=limits,
        goal=goal,
        budget=goal.budget,
        heap=[_QueueEntry(0.0, 0, Prefix(), start, row)],
        finished=hypotheses,
        known={hypothesis.tokens for hypothesis in hypotheses},
        known_bound=known.certificate.bound if known and goal.normalized else math.inf,
        mass=known.mass if known and goal.normalized else 0.0,
        unclear=known is not None and known.certificate.reason is not None,
    )
    for hypothesis in hypotheses:
        queue.count(hypothesis)
    return queue


def _search(model: Decoder, queues: list[_Queue], keep: bool, device: torch.device) -> None:
    """Expand the best prefixes of all sources together until every source is finished."""
    numbers = itertools.count(1)
    while True:
        chunks = [(queue, queue.pop()) for queue in queues]
        chunks = [(queue, by_state(chunk)) for queue, chunk in chunks if chunk]
        if not chunks:
            return
        rows = [item for _, chunk in chunks for item in chunk]
        state = join_rows(rows, device)
        tokens = torch.tensor([item.prefix.token for item in rows], device=device)
        sources = [queue.source for queue, chunk in chunks for _ in chunk]
        step = model.step(state, tokens)
        log_probs, state = checked_log_probs(model, step.scores, sources), step.state
        unclear = (unclear_rows(step) & (log_probs > -torch.inf).any(-1)).tolist()  # only rows with a possible symbol
        expansion = Expansion(step.attention, log_probs, keep)
        limits = [queue.limits for queue, chunk in chunks for _ in chunk]
        totals, ends = expansion.totals([item.prefix for item in rows], limits)
        first = 0
        for queue, chunk in chunks:
            prefixes = [item.prefix for item in chunk]
            queue.unclear |= any(unclear[first : first + len(chunk)])
            for row, prefix in enumerate(prefixes, start=first):
                if ends[row] > -math.inf:
                    queue.finish(expansion.finish(prefix, row, ends[row], queue.src_length))
            _push(queue, prefixes, totals[first : first + len(chunk)], expansion, first, state, numbers)
            first += len(chunk)


def _push(
    queue: _Queue,
    prefixes: list[Prefix],
    totals: Tensor,
    expansion: Expansion,
    first: int,
    state: Any,
    numbers: itertools.count[int],
) -> None:
    """Extend prefixes by one token and queue the results, whose log-probabilities are `totals` [prefixes, d_vocab]."""
    for parent, prefix in enumerate(prefixes):
        if prefix.length + 2 > queue.limits.steps and totals[parent].max() > -math.inf:
            queue.cut(float(totals[parent].max()))  # one more token would leave no room for the end
            totals[parent] = -torch.inf
    flat, width = totals.flatten(), totals.shape[-1]
    promising = queue.limits.score_bound(flat) > queue.threshold()
    dropped_log_prob = float(flat.masked_fill(promising, -torch.inf).max())
    if dropped_log_prob > -math.inf:
        queue.give_up(dropped_log_prob)
    index = promising.nonzero().squeeze(-1)
    if len(index) > queue.budget:  # keep only the best prefixes that the budget allows
        index = index[flat[index].sort(descending=True, stable=True).indices]
        queue.give_up_for_budget(float(flat[index[queue.budget]]))
        index = index[: queue.budget]
    children = list(zip(index.tolist(), flat[index].tolist(), strict=True))
    if not children:
        return
    parents = sorted({i // width for i, _ in children})
    state = state.select(torch.tensor([first + parent for parent in parents], device=totals.device))
    rows = {parent: row for row, parent in enumerate(parents)}
    for i, total in children:
        parent, token = divmod(i, width)
        child = expansion.extend(prefixes[parent], first + parent, token, total)
        queue.push(_QueueEntry(-total, next(numbers), child, state, rows[parent]))


def by_state(chunk: list[Entry]) -> list[Entry]:
    """Sort prefixes by their state."""
    groups: dict[int, list[Entry]] = {}
    for item in chunk:
        groups.setdefault(id(item.state), []).append(item)
    return [item for group in groups.values() for item in group]


def join_rows(rows: Sequence[Any], device: torch.device) -> Any:
    """Gather rows of several states into one state."""
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda item: id(item.state))]
    return join([group[0].state.select(torch.tensor([i.row for i in group], device=device)) for group in groups])


@torch.no_grad()
def exact_search(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    n_best: int = 1,
    beam_size: int = 5,
    budget: int = EXPANSIONS,
    time_limit: float | None = None,
    mass: float | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    text: Text | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
) -> list[Result]:
    r"""Find and prove the `n_best` most probable outputs of every source, also for softmax.

    A beam search runs first. If its certificate does not prove the outputs, a second search expands the prefixes that
    could beat them (Stahlberg and Byrne 2019), most probable first (Peters et al. 2019, sec. 4.1). With a normalized
    model, it ends when no prefix is more probable than the best output :math:`\hat y = \arg\max_y \, p(y \mid x)`.

    If the search ends early, it returns its best outputs, their bound, and the reason in :attr:`Result.stopped_by`.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        n_best: Number of outputs to prove and return.
        beam_size: Beam size of the beam search; smaller values than `n_best` are raised to it.
        budget, mass: Limits of the second search, see :func:`exhaustive`.
        time_limit: Seconds per source. It includes the beam search, which is not interrupted.
        prefixes, text, min_length, max_length, length_penalty: see :func:`beam_search`.

    Returns:
        One :class:`Result` per source.

    Raises:
        ValueError: See :func:`beam_search` and :func:`exhaustive`.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> [result.certificate.kind for result in exact_search(model, src, lengths, max_length=2)]
        ['optimal', 'optimal']
    """
    check_at_least_one(n_best=n_best, beam_size=beam_size, budget=budget)
    check_goal(mass, model.output.normalized, time_limit=time_limit)
    make_limits(check_sources(model, src, src_lengths), prefixes, min_length, max_length, length_penalty)
    options: Any = {"min_length": min_length, "max_length": max_length, "length_penalty": length_penalty, "text": text}
    results: list[Result] = []
    width = max(len(src), 1) if time_limit is None else 1  # with a time limit, search one source at a time
    for rows in (slice(first, first + width) for first in range(0, len(src), width)):
        start_time, sources = time.monotonic(), (src[rows], src_lengths[rows])
        row_prefixes = None if prefixes is None else prefixes[rows]
        beam_results = beam_search(model, *sources, beam_size=max(beam_size, n_best), prefixes=row_prefixes, **options)
        remaining_time = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start_time))
        goal = {**options, "budget": budget, "time_limit": remaining_time, "mass": mass}
        results += _prove(model, *sources, beam_results, row_prefixes, n_best, **goal)
    return [result.truncated(n_best) for result in results]


def _prove(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    results: list[Result],
    prefixes: Sequence[Sequence[int]] | None,
    n_best: int,
    **options: Any,
) -> list[Result]:
    """Replace results that don't prove `n_best` outputs by results of an exhaustive search."""
    unproved = [i for i, x in enumerate(results) if x.certificate.kind != "complete" and len(x.proven) < n_best]
    if unproved:
        index = torch.tensor(unproved, device=src.device)
        known = [results[i] for i in unproved]
        unproved_prefixes = None if prefixes is None else [prefixes[i] for i in unproved]
        exhaustive_results = exhaustive(
            model, src[index], src_lengths[index], n_best=n_best, known=known, prefixes=unproved_prefixes, **options
        )
        for i, result in zip(unproved, exhaustive_results, strict=True):
            results[i] = result
    return results
