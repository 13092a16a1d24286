"""The whole set of outputs a model holds possible, most probable first."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tsallis.data.vocabulary import BOS, EOS
from tsallis.models.decoder import Decoder, join
from tsallis.search.beam import Expansion, Prefix, evaluating, step_limit
from tsallis.search.hypothesis import Hypothesis, Result, conclude

CHUNK = 32  # prefixes expanded together


@dataclass(order=True)
class _Open:
    """A prefix in the queue, and where its state lies."""

    rank: tuple[float, int]
    prefix: Prefix = field(compare=False)
    state: Any = field(compare=False)
    row: int = field(compare=False)


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
    """Every output with a probability, best first, by expanding the most probable prefix again and again.

    It ends when no prefix is left (the result is `complete`, its probabilities sum to 1), when the `n_best` best are
    proved, or when `budget` prefixes of a source have been expanded: then `bound` says how probable anything missing
    could be.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.decoder`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        budget: prefixes expanded a source, at most.
        n_best: outputs wanted a source; None: all.
        max_length: of an output, without its end; None: twice the source's length and 20.
        keep_attention: whether hypotheses carry their attention weights.

    Raises:
        ValueError: a budget, length or number of outputs below 1.
    """
    for name, value in (("budget", budget), ("n_best", n_best), ("max_length", max_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    with evaluating(model):
        memory = model.encode(src, src_lengths)
        starts = model.start(memory)
        return [
            _search(
                model,
                starts.select(torch.tensor([i], device=src.device)),
                step_limit(int(src_lengths[i]), max_length),
                budget,
                n_best,
                keep_attention,
            ).truncated(n_best)
            for i in range(src.shape[0])
        ]


def _search(model: Decoder, start: Any, limit: int, budget: int, n_best: int | None, keep: bool) -> Result:
    counter = itertools.count()
    queue = [_Open((0.0, next(counter)), Prefix(), start, 0)]
    finished: list[Hypothesis] = []
    normalized = model.output.normalized
    bound, gave_up, expanded = -math.inf, False, 0
    while queue and expanded < budget and not _proved(finished, n_best, queue[0], normalized):
        chunk = [heapq.heappop(queue) for _ in range(min(CHUNK, budget - expanded, len(queue)))]
        expanded += len(chunk)
        state = join([state.select(torch.tensor(rows)) for state, rows in _by_state(chunk)])
        chunk = [item for _, items in _grouped(chunk) for item in items]
        tokens = torch.tensor([item.prefix.tokens[-1] if item.prefix.tokens else BOS for item in chunk])
        step = model.step(state, tokens)
        log_probs = model.output.log_probs(step.scores)  # [rows, d_vocab]
        sizes = Expansion(step.attention, log_probs, keep)
        for row, token in (log_probs > -torch.inf).nonzero().tolist():
            prefix = chunk[row].prefix
            total = prefix.log_prob + float(log_probs[row, token])
            if token == EOS:
                finished.append(sizes.finish(prefix, row, total))
            elif len(prefix.tokens) + 2 > limit:
                bound, gave_up = max(bound, total), True
            else:
                longer = sizes.extend(prefix, row, token, total)
                heapq.heappush(queue, _Open((-total, next(counter)), longer, step.state, row))
    if queue:
        bound, gave_up = max(bound, queue[0].prefix.log_prob), True
    return conclude(finished, bound, gave_up, normalized)


def _proved(finished: list[Hypothesis], n_best: int | None, best: _Open, normalized: bool) -> bool:
    if n_best is None or len(finished) < n_best or not normalized:
        return False
    return sorted((h.log_prob for h in finished), reverse=True)[n_best - 1] >= best.prefix.log_prob


def _grouped(chunk: list[_Open]) -> list[tuple[Any, list[_Open]]]:
    groups: dict[int, tuple[Any, list[_Open]]] = {}
    for item in chunk:
        groups.setdefault(id(item.state), (item.state, []))[1].append(item)
    return list(groups.values())


def _by_state(chunk: list[_Open]) -> list[tuple[Any, list[int]]]:
    return [(state, [item.row for item in items]) for state, items in _grouped(chunk)]
