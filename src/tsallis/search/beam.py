"""One beam search for every model: it holds no impossible hypothesis, may shrink, and knows what it gave up."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tsallis.data.vocabulary import BOS, EOS
from tsallis.models.decoder import Decoder
from tsallis.search.hypothesis import Hypothesis, Result, conclude

SORTED = 4096  # of more candidates only the largest are found: ties among vocabularies of words do not matter


@dataclass(frozen=True)
class Prefix:
    """An unfinished hypothesis."""

    tokens: tuple[int, ...] = ()
    log_prob: float = 0.0
    support: tuple[int, ...] = ()
    attended: tuple[int, ...] = ()
    attention: tuple[Tensor, ...] = ()


@dataclass
class _Beam:
    """The search of one source."""

    limit: int  # steps, the end's step included
    prefixes: list[Prefix] = field(default_factory=lambda: [Prefix()])
    finished: list[Hypothesis] = field(default_factory=list)
    bound: float = -math.inf
    gave_up: bool = False

    def give_up(self, log_prob: float) -> None:
        self.bound = max(self.bound, log_prob)
        self.gave_up = True


@torch.no_grad()
def beam_search(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    beam_size: int = 5,
    n_best: int | None = None,
    max_length: int | None = None,
    keep_attention: bool = False,
) -> list[Result]:
    r"""The most probable outputs of every source, and a certificate of what is proved about them.

    A beam holds the `beam_size` most probable unfinished prefixes of each source; every output it finishes is kept.
    `bound` is the best log-probability of any prefix that had to be dropped. As a prefix is never less probable than
    what it grows into, an output at least as probable as `bound` is the exact argmax; and where no prefix was dropped,
    the list is the whole distribution (Peters et al. 2019, sec. 4.1). A source is done when no prefix is left, or when
    completeness is lost and the `n_best` (or `beam_size`) best outputs can't be beaten any more.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.decoder`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        beam_size: prefixes kept a source.
        n_best: outputs returned a source; None: all that were finished. A list that was cut is not complete.
        max_length: of an output, without its end; None: twice the source's length and 20.
        keep_attention: whether hypotheses carry their attention weights.

    Returns:
        One :class:`Result` a source.

    Raises:
        ValueError: sizes below 1.
    """
    for name, value in (("beam_size", beam_size), ("n_best", n_best), ("max_length", max_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    with evaluating(model):
        state = model.start(model.encode(src, src_lengths))
        beams = [_Beam(step_limit(int(n), max_length)) for n in src_lengths]
        owners = list(range(len(beams)))  # of the rows of the state
        tokens = torch.full((len(beams),), BOS, device=src.device)
        while owners:
            step = model.step(state, tokens)
            log_probs = model.output.log_probs(step.scores)  # [rows, d_vocab]
            sizes = Expansion(step.attention, log_probs, keep_attention)
            parents: list[int] = []
            new_owners: list[int] = []
            next_tokens: list[int] = []
            for owner, (first, last) in _runs(owners):
                rows = list(range(first, last))
                for parent, token in _advance(beams[owner], log_probs[first:last], sizes, rows, beam_size):
                    parents.append(parent)
                    next_tokens.append(token)
                    new_owners.append(owner)
                if _done(beams[owner], n_best or beam_size, model.output.normalized):
                    while new_owners and new_owners[-1] == owner:
                        for kept in (parents, next_tokens, new_owners):
                            kept.pop()
            owners = new_owners
            if owners:
                state = step.state.select(torch.tensor(parents, device=src.device))
                tokens = torch.tensor(next_tokens, device=src.device)
    normalized = model.output.normalized
    return [conclude(b.finished, b.bound, b.gave_up, normalized).truncated(n_best) for b in beams]


class Expansion:
    """Counts of support and attention of the rows of a step, and the attention itself if it is kept."""

    def __init__(self, attention: Tensor, log_probs: Tensor, keep: bool) -> None:
        self.support = (log_probs > -torch.inf).sum(-1).tolist()
        self.attended = (attention > 0).sum(-1).tolist()
        self.attention = attention if keep else None

    def extend(self, prefix: Prefix, row: int, token: int, log_prob: float) -> Prefix:
        kept = () if self.attention is None else (*prefix.attention, self.attention[row])
        return Prefix(
            (*prefix.tokens, token),
            log_prob,
            (*prefix.support, self.support[row]),
            (*prefix.attended, self.attended[row]),
            kept,
        )

    def finish(self, prefix: Prefix, row: int, log_prob: float) -> Hypothesis:
        whole = self.extend(prefix, row, EOS, log_prob)
        attention = torch.stack(whole.attention) if whole.attention else None
        return Hypothesis(prefix.tokens, log_prob, whole.support, whole.attended, attention)


def step_limit(src_length: int, max_length: int | None) -> int:
    """Steps of the longest output allowed, its end included."""
    return (2 * src_length + 20 if max_length is None else max_length) + 1


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The model without dropout, and afterwards as it was."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _runs(owners: list[int]) -> list[tuple[int, tuple[int, int]]]:
    """Each owner and its stretch of rows."""
    runs: list[tuple[int, tuple[int, int]]] = []
    start = 0
    for i in range(1, len(owners) + 1):
        if i == len(owners) or owners[i] != owners[start]:
            runs.append((owners[start], (start, i)))
            start = i
    return runs


def _advance(
    beam: _Beam, log_probs: Tensor, sizes: Expansion, rows: list[int], beam_size: int
) -> list[tuple[int, int]]:
    """Finish what can end here, keep the best of the rest: (row, token) of each prefix kept, and the beam updated."""
    before = torch.tensor([p.log_prob for p in beam.prefixes], dtype=torch.float64, device=log_probs.device)
    totals = before.unsqueeze(-1) + log_probs  # [prefixes, d_vocab]
    for prefix, row, total in zip(beam.prefixes, rows, totals[:, EOS].tolist(), strict=True):
        if total > -math.inf:
            beam.finished.append(sizes.finish(prefix, row, total))
    totals[:, EOS] = -torch.inf
    best, order = _top(totals.flatten(), beam_size + 1)
    candidates = [(v, i) for v, i in zip(best.tolist(), order.tolist(), strict=True) if v > -math.inf]
    at_limit = len(beam.prefixes[0].tokens) + 2 > beam.limit  # the next step could only end
    kept = [] if at_limit else candidates[:beam_size]
    for value, _ in candidates[len(kept) : len(kept) + 1]:  # the best of those given up
        beam.give_up(value)
    width = totals.shape[1]
    parents = [(i // width, i % width, value) for value, i in kept]
    beam.prefixes = [sizes.extend(beam.prefixes[p], rows[p], token, value) for p, token, value in parents]
    return [(rows[p], token) for p, token, _ in parents]


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values and where they stand; of equal ones the first, in every run."""
    if values.numel() > SORTED:
        best, order = values.topk(min(count, values.numel()))
    else:
        best, order = (x[:count] for x in values.sort(descending=True, stable=True))
    return best, order


def _done(beam: _Beam, wanted: int, normalized: bool) -> bool:
    """Whether going on can't change the best outputs, nor prove completeness; what is open then is given up."""
    if not beam.prefixes:
        return True
    if not beam.gave_up or len(beam.finished) < wanted:
        return False
    worst = sorted((h.log_prob for h in beam.finished), reverse=True)[wanted - 1]
    best_open = beam.prefixes[0].log_prob
    if worst < best_open:
        return False
    beam.give_up(best_open)
    beam.prefixes = []
    return True
