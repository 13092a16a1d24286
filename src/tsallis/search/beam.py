"""Beam search for every model: the beam holds no impossible hypothesis, may shrink, and bounds what it dropped."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.models.protocol import BestStep, Decoder
from tsallis.search.certificate import Hypothesis, Result
from tsallis.search.step import Search, advance_best, at_least_one, evaluating, make_limits
from tsallis.special_symbols import BOS


@torch.no_grad()
def beam_search(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    *,
    beam_size: int = 5,
    n_best: int | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
    keep_attention: bool = False,
) -> list[Result]:
    r"""Find the most probable outputs of every source, with a certificate of what is proved about them.

    A beam holds the `beam_size` most probable unfinished prefixes of each source; every output it finishes is kept.
    `bound` is the best log-probability of any prefix that had to be dropped. As a prefix is never less probable than
    what it grows into, an output at least as probable as `bound` is the exact argmax; and where no prefix was dropped,
    the list is the whole distribution (Peters et al. 2019, sec. 4.1).

    As long as nothing was dropped, the search goes on until no prefix is left, for that proves completeness. Once
    something was, prefixes that can't beat the `n_best` (or `beam_size`) best outputs leave the beam. Values that are
    not normalised (alpha-ReLU) may grow with length: none of their prefixes leaves before the length limit.

    Args:
        model: anything with the decoder protocol of :mod:`tsallis.models.protocol`.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        beam_size: prefixes kept a source.
        n_best: outputs returned a source; None: all that were finished.
        prefixes: the tokens that all outputs of a source begin with.
        min_length: of an output, without its end.
        max_length: of an output, without its end; None: twice the source's length and 20 after its prefix.
        length_penalty: outputs are ranked by their log-probabilities over this power of their lengths, the end counted
            (Wu et al. 2016, eq. 14, in its simplest form); 0: by their probabilities, 1: by the mean of a symbol's.
        keep_attention: whether hypotheses carry their attention weights.

    Returns:
        One :class:`Result` a source, whose certificate speaks of the outputs that begin so and are as long.

    Raises:
        ValueError: sizes below 1, limits that no output keeps; a model whose probabilities are NaN.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> results = beam_search(model, src, lengths, beam_size=2, max_length=4)
        >>> [len(result.hypotheses) > 0 for result in results]
        [True, True]
        >>> results[0].certificate.kind in ("optimal", "bounded")  # softmax leaves no output impossible
        True
    """
    at_least_one(beam_size=beam_size, n_best=n_best)
    lengths = src_lengths.tolist()
    limits = make_limits(lengths, prefixes, min_length, max_length, length_penalty)
    if src.shape[0] == 0:
        return []
    normalized = model.output.normalized
    beams = [
        _Beam(source=i, src_length=n, limits=own, size=beam_size, wanted=n_best or beam_size, normalized=normalized)
        for i, (n, own) in enumerate(zip(lengths, limits, strict=True))
    ]
    with evaluating(model):
        history = _search(model, model.start(model.encode(src, src_lengths)), beams, keep_attention, src.device)
    return [beam.conclude(history, n_best) for beam in beams]


class _Rows(NamedTuple):
    """The rows of one step: prefixes of one length, those of one source together."""

    tokens: list[int]  # the last of each
    parents: list[int]  # the rows of the step before that they come from
    support: list[int]  # what the step found
    num_attended: list[int]
    attention: Tensor | None  # [rows, src]


class _End(NamedTuple):
    """An output that was finished: its last row's step and number are enough to read it back."""

    log_prob: float
    step: int
    row: int


def _search(
    model: Decoder, state: object, beams: list[_Beam], keep_attention: bool, device: torch.device
) -> list[_Rows]:
    """Make steps until no beam has a prefix; return the rows of all of them."""
    history: list[_Rows] = []
    active, count = beams, max(beam.size for beam in beams) + 1  # one more than fits: the bound on what is dropped
    tokens, parents = [BOS] * len(beams), list(range(len(beams)))
    while active:
        owners = [beam.source for beam in active for _ in beam.log_probs]
        only = _forced(active, len(history), device)
        step = advance_best(model, state, torch.tensor(tokens, device=device), owners, count, only, keep_attention)
        history.append(_record(step, tokens, parents, keep_attention))
        tokens, parents = _follow(active, step, len(history) - 1)
        active = [beam for beam in active if beam.log_probs]
        if active:
            state = step.state.select(torch.tensor(parents, device=device))
    return history


def _forced(beams: list[_Beam], length: int, device: torch.device) -> Tensor | None:
    """Return the symbol that must follow each prefix of a length, -1 where any may; None where any may everywhere."""
    if all(length >= len(beam.limits.prefix) for beam in beams):
        return None
    symbols = [
        beam.limits.prefix[length] if length < len(beam.limits.prefix) else -1 for beam in beams for _ in beam.log_probs
    ]
    return torch.tensor(symbols, device=device)


def _record(step: BestStep, tokens: list[int], parents: list[int], keep_attention: bool) -> _Rows:
    support, attended = step.best.support.tolist(), step.num_attended.tolist()
    return _Rows(tokens, parents, support, attended, step.attention if keep_attention else None)


def _follow(beams: list[_Beam], step: BestStep, length: int) -> tuple[list[int], list[int]]:
    """Finish what can end and let every beam choose its next prefixes; return their tokens and their parents."""
    best, symbols, ends = step.best.log_probs.tolist(), step.best.symbols.tolist(), step.best.ends.tolist()
    tokens: list[int] = []
    parents: list[int] = []
    row = 0
    for beam in beams:
        after = row + len(beam.log_probs)
        beam.finish(ends[row:after], length, row)
        selection = beam.choose(best[row:after], symbols[row:after], length)
        tokens += [token for _, _, token in selection]
        parents += [row + parent for _, parent, _ in selection]
        row = after
    return tokens, parents


Candidate = tuple[float, int, int]  # its log-probability's negative, its parent's place in the beam, its token


@dataclass(kw_only=True)
class _Beam(Search):
    """The search of one source, in numbers: its prefixes are rows, its outputs too until the search is over."""

    source: int
    size: int
    wanted: int  # outputs
    normalized: bool
    log_probs: list[float] = field(default_factory=lambda: [0.0])  # of the prefixes, best first
    ends: list[_End] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)  # the negative scores of the wanted best outputs, in order

    def finish(self, log_probs: list[float], length: int, row: int) -> None:
        """Note the outputs that the prefixes of a length are, from their ends' log-probabilities."""
        if length < self.limits.free_from:
            return
        costs, wanted = self.costs, self.wanted
        for i, log_prob in enumerate(log_probs):
            if log_prob > -math.inf:
                end = _End(self.log_probs[i] + log_prob, length, row + i)
                self.ends.append(end)
                cost = -self.score(end)
                if len(costs) < wanted or cost < costs[-1]:
                    insort(costs, cost)
                    del costs[wanted:]

    def score(self, end: _End) -> float:
        """Return the score of an output, as :meth:`Hypothesis.score` does."""
        penalty = self.limits.length_penalty
        return end.log_prob / (end.step + 1) ** penalty if penalty else end.log_prob

    def choose(self, best: list[list[float]], symbols: list[list[int]], length: int) -> list[Candidate]:
        """Make the best continuations the beam, give up the others, and return the beam."""
        candidates: list[Candidate] = []
        most = math.inf  # a cost that as many candidates don't exceed as are looked at
        for parent, before in enumerate(self.log_probs):
            costs = [-(before + log_prob) for log_prob in best[parent]]
            number = bisect_right(costs, most)
            candidates += [
                (cost, parent, token)
                for cost, token in zip(costs[:number], symbols[parent], strict=False)
                if cost < math.inf
            ]
            if len(costs) > self.size:
                most = min(most, costs[self.size])
        candidates.sort()
        at_limit = length + 2 > self.limits.steps  # a prefix one token longer could not even end
        selection = [] if at_limit else candidates[: self.size]
        if len(candidates) > len(selection):
            self.give_up(-candidates[len(selection)][0])
        if self.gave_up and self.normalized:
            selection = self._shrink(selection)
        self.log_probs = [-cost for cost, _, _ in selection]
        return selection

    def _shrink(self, selection: list[Candidate]) -> list[Candidate]:
        """Let candidates go that can change neither the best outputs nor the certificate."""
        if len(self.costs) < self.wanted:
            return selection
        worst = -self.costs[-1]
        survivors = [candidate for candidate in selection if self.limits.ceiling(-candidate[0]) > worst]
        if len(survivors) < len(selection):
            self.give_up(-selection[len(survivors)][0])
        return survivors

    def conclude(self, history: list[_Rows], n_best: int | None) -> Result:
        """Return the result: hypotheses are made of the outputs that are returned, and of those that equal them."""
        ends = self.ends
        if n_best is not None and len(ends) > n_best + 1:
            least = heapq.nlargest(n_best + 1, map(self.score, ends))[-1]
            ends = [end for end in ends if self.score(end) >= least]
        self.finished = [_hypothesis(history, end, self.src_length) for end in ends]
        return self.result(self.normalized, n_best)


def _hypothesis(history: list[_Rows], end: _End, src_length: int) -> Hypothesis:
    """Read an output back from its last row."""
    tokens: list[int] = []
    support: list[int] = []
    attended: list[int] = []
    weights: list[Tensor] = []
    row = end.row
    for rows in reversed(history[: end.step + 1]):
        tokens.append(rows.tokens[row])
        support.append(rows.support[row])
        attended.append(rows.num_attended[row])
        if rows.attention is not None:
            weights.append(rows.attention[row, :src_length])
        row = rows.parents[row]
    return Hypothesis(
        tokens=tuple(reversed(tokens[:-1])),  # without the start
        log_prob=end.log_prob,
        support=tuple(reversed(support)),
        num_attended=tuple(reversed(attended)),
        attention=torch.stack(weights[::-1]) if weights else None,
    )
