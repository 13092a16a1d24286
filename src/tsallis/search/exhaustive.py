"""The whole set of outputs a model holds possible, most probable first."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder, join
from tsallis.search.certificate import Result
from tsallis.search.step import Expansion, Prefix, Search, advance, at_least_one, evaluating, nth_best, step_limit

CHUNK = 16  # prefixes of a source expanded together; whatever the batch, so that results don't depend on it
WINDOW = 16  # sources searched together: each may have to hold the states of `budget` prefixes


class _Open(NamedTuple):
    """A prefix in a queue, and its row in a decoder state. Queues compare the first two fields alone."""

    cost: float
    number: int  # of equal prefixes the one found first comes first
    prefix: Prefix
    state: Any  # after all but the prefix's last token
    row: int


@dataclass(kw_only=True)
class _Queue(Search):
    """The search of one source."""

    source: int
    budget: int  # expansions left
    heap: list[_Open]

    def result(self, normalized: bool, n_best: int | None) -> Result:
        if self.heap:
            self.give_up(-self.heap[0].cost)
        return super().result(normalized, n_best)

    def pop(self, n_best: int | None, normalized: bool) -> list[_Open]:
        """Remove and return the best prefixes, as many as are expanded at once; none if this search is over."""
        threshold = nth_best(self.finished, n_best) if n_best and normalized else -math.inf
        chunk: list[_Open] = []
        while self.heap and self.budget and len(chunk) < CHUNK and -self.heap[0].cost > threshold:
            chunk.append(heapq.heappop(self.heap))
            self.budget -= 1
        return chunk

    def push(self, item: _Open) -> None:
        heapq.heappush(self.heap, item)
        if len(self.heap) > 2 * (self.budget + CHUNK):
            # Those behind more others than can be expanded never will be.
            self.heap.sort()
            self.give_up(-self.heap[self.budget].cost)
            del self.heap[self.budget :]


@torch.no_grad()
def exhaustive(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    budget: int = 10_000,
    n_best: int | None = None,
    max_length: int | None = None,
    keep_attention: bool = False,
) -> list[Result]:
    """Find every output with a probability, best first, by expanding the most probable prefixes again and again.

    It ends when no prefix is left (the result is `complete`, its probabilities sum to 1), when the `n_best` best are
    proved, or when `budget` prefixes of a source have been expanded: then `bound` says how probable a missing output
    could be, and :attr:`Result.proven` holds the outputs whose rank is certain all the same.

    Memory grows with the states of the prefixes that are open, at most `budget` of each of 16 sources.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.protocol`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        budget: prefixes expanded a source, at most.
        n_best: outputs returned a source; None: all.
        max_length: of an output, without its end; None: twice the source's length and 20.
        keep_attention: whether hypotheses carry their attention weights.

    Returns:
        One :class:`Result` a source.

    Raises:
        ValueError: a budget, length or number of outputs below 1; a model whose probabilities are NaN.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 6, d_model=8, output="sparsemax", forbidden=(0, 1, 3))
        >>> with torch.no_grad():
        ...     model.output.bias[2] = 0.5  # the end is likely
        >>> src, lengths = torch.randint(4, 20, (1, 5)), torch.tensor([5])
        >>> (result,) = exhaustive(model, src, lengths, n_best=3)
        >>> len(result.proven), result.certificate.proves_best
        (3, True)
    """
    at_least_one(budget=budget, n_best=n_best, max_length=max_length)
    with evaluating(model):
        queues: list[_Queue] = []
        for first in range(0, src.shape[0], WINDOW):
            window = slice(first, first + WINDOW)
            start = model.start(model.encode(src[window], src_lengths[window]))
            opened = [
                _Queue(
                    source=first + i,
                    src_length=n,
                    limit=step_limit(n, max_length),
                    budget=budget,
                    heap=[_Open(0.0, 0, Prefix(), start, i)],
                )
                for i, n in enumerate(src_lengths[window].tolist())
            ]
            _search(model, opened, n_best, keep_attention, src.device)
            queues += opened
    return [queue.result(model.output.normalized, n_best) for queue in queues]


def _search(model: Decoder, queues: list[_Queue], n_best: int | None, keep: bool, device: torch.device) -> None:
    """Expand the best prefixes of all sources together until every source is done."""
    numbers = itertools.count(1)
    while True:
        chunks = [(queue, queue.pop(n_best, model.output.normalized)) for queue in queues]
        chunks = [(queue, _by_state(chunk)) for queue, chunk in chunks if chunk]
        if not chunks:
            return
        rows = [item for _, chunk in chunks for item in chunk]
        state = _states(rows, device)
        tokens = torch.tensor([item.prefix.token for item in rows], device=device)
        sources = [queue.source for queue, chunk in chunks for _ in chunk]
        log_probs, attention, state = advance(model, state, tokens, sources)
        expansion = Expansion(attention, log_probs, keep)
        totals, ends = expansion.totals([item.prefix for item in rows])
        first = 0
        for queue, chunk in chunks:
            prefixes = [item.prefix for item in chunk]
            for row, prefix in enumerate(prefixes, start=first):
                if ends[row] > -math.inf:
                    queue.finished.append(expansion.finish(prefix, row, ends[row], queue.src_length))
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
    """Queue the prefixes of one token more, with totals [prefixes, d_vocab] from row `first` of the expansion on."""
    for parent, prefix in enumerate(prefixes):
        if prefix.length + 2 > queue.limit and totals[parent].max() > -math.inf:
            queue.give_up(float(totals[parent].max()))  # one token longer it could not even end
            totals[parent] = -torch.inf
    flat, width = totals.flatten(), totals.shape[-1]
    index = (flat > -torch.inf).nonzero().squeeze(-1)
    if len(index) > queue.budget:  # more than can ever be expanded
        index = index[flat[index].sort(descending=True, stable=True).indices]
        queue.give_up(float(flat[index[queue.budget]]))
        index = index[: queue.budget]
    children = list(zip(index.tolist(), flat[index].tolist(), strict=True))
    if not children:
        return
    parents = sorted({i // width for i, _ in children})
    state = state.select(torch.tensor([first + parent for parent in parents], device=totals.device))
    rows = {parent: row for row, parent in enumerate(parents)}
    for i, total in children:
        parent, token = divmod(i, width)
        longer = expansion.extend(prefixes[parent], first + parent, token, total)
        queue.push(_Open(-total, next(numbers), longer, state, rows[parent]))


def _by_state(chunk: list[_Open]) -> list[_Open]:
    """Sort prefixes so that those of one state stand next to each other."""
    groups: dict[int, list[_Open]] = {}
    for item in chunk:
        groups.setdefault(id(item.state), []).append(item)
    return [item for group in groups.values() for item in group]


def _states(rows: list[_Open], device: torch.device) -> Any:
    """Gather rows that lie in several states into one state."""
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda item: id(item.state))]
    return join([group[0].state.select(torch.tensor([i.row for i in group], device=device)) for group in groups])
