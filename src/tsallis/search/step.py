"""The common base of all searches: prefixes linked to their parents, and one checked step of a model."""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import describe
from tsallis.models.protocol import Decoder
from tsallis.search.certificate import Hypothesis, Result, Scope, certify
from tsallis.search.checks import check_limits, check_prefix
from tsallis.search.texts import Text, merge_texts
from tsallis.symbols import BOS, EOS


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """An unfinished hypothesis: its last token, and the prefix before it. Prefixes share their beginnings."""

    parent: Prefix | None = None
    token: int = BOS
    log_prob: float = 0.0
    length: int = 0  # tokens
    support: int = 0  # of the last step
    num_attended: int = 0
    attention: Tensor | None = None  # [src]

    def chain(self) -> list[Prefix]:
        """Return the prefixes of one token, of two, and so on to this one."""
        chain: list[Prefix] = []
        node = self
        while node.parent is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]


@dataclass(frozen=True)
class Limits:
    """Which outputs of a source are searched for, and how they are ranked.

    Args:
        steps: of the longest output, its end included.
        min_length: of the shortest output, without its end.
        prefix: the tokens that every output begins with.
        length_penalty: the exponent of the steps that a log-probability is divided by.
    """

    steps: int
    min_length: int = 0
    prefix: tuple[int, ...] = ()
    length_penalty: float = 0.0

    @property
    def free_from(self) -> int:
        """The length of the prefixes that may be followed by anything."""
        return max(len(self.prefix), self.min_length)

    @property
    def scope(self) -> Scope:
        """What a certificate of the search speaks of, see :class:`Result`."""
        return "limited" if self.prefix or self.min_length > 1 else "all"

    def score_bound(self, log_prob: Any) -> Any:
        """Return the best score of any output that begins with a prefix of this log-probability, as a normalised model
        holds it: as long as there may be, and no less probable."""
        return log_prob / self.steps**self.length_penalty

    def restrict(self, totals: Tensor, length: int) -> None:
        """Make what may not follow a prefix of a length impossible, but for the end: totals [d_vocab], in place."""
        if length < len(self.prefix):
            token = self.prefix[length]
            if token >= len(totals):
                raise ValueError(f"a prefix holds the symbol {token}, the model knows {len(totals)}")
            log_prob = totals[token].clone()
            totals.fill_(-torch.inf)[token] = log_prob


@dataclass(kw_only=True)
class Search:
    """The state of the search of one source: its finished outputs, and the bound on those given up."""

    src_length: int
    limits: Limits
    finished: list[Hypothesis] = field(default_factory=list)
    bound: float = -math.inf
    known_bound: float = math.inf  # that of another search, as a score
    gave_up: bool = False
    unclear: bool = False  # whether scores of a step were too large to be told apart

    def give_up(self, log_prob: float) -> None:
        """Note that a prefix is not followed."""
        self.bound = max(self.bound, log_prob)
        self.gave_up = True

    def nth_score(self, n: int) -> float:
        """Return the score of the n-th best output so far, -inf where there are fewer."""
        if len(self.finished) < n:
            return -math.inf
        return heapq.nlargest(n, (h.score(self.limits.length_penalty) for h in self.finished))[-1]

    def result(self, normalized: bool, n_best: int | None, text: Text | None = None) -> Result:
        bound, penalty = min(self.limits.score_bound(self.bound), self.known_bound), self.limits.length_penalty
        result = certify(self.finished, bound, self.gave_up, normalized, penalty, self.limits.scope, self.unclear)
        if text is not None:
            result = merge_texts(result, text, normalized, limited=self.limits.free_from > 0)
        return result.truncated(n_best)


class Expansion:
    """All that may follow the prefixes of a step: log-probabilities, and the attention of their rows."""

    def __init__(self, attention: Tensor, log_probs: Tensor, keep: bool) -> None:
        self.log_probs = log_probs  # [rows, d_vocab]
        self.support = (log_probs > -torch.inf).sum(-1).tolist()
        self.num_attended = (attention > 0).sum(-1).tolist()
        self.attention = attention if keep else None

    def totals(self, prefixes: Sequence[Prefix], limits: Sequence[Limits]) -> tuple[Tensor, list[float]]:
        """Return log-probabilities [rows, d_vocab] of prefixes and one more token, and of their ends, -inf there.

        What a row's limits rule out is impossible, too.
        """
        before = torch.tensor([p.log_prob for p in prefixes], dtype=torch.float64, device=self.log_probs.device)
        totals = before.unsqueeze(-1) + self.log_probs
        ends: list[float] = totals[:, EOS].tolist()
        totals[:, EOS] = -torch.inf
        for row, (prefix, limit) in enumerate(zip(prefixes, limits, strict=True)):
            if prefix.length < limit.free_from:
                ends[row] = -math.inf
                limit.restrict(totals[row], prefix.length)
        return totals, ends

    def extend(self, prefix: Prefix, row: int, token: int, log_prob: float) -> Prefix:
        attention = None if self.attention is None else self.attention[row]
        return Prefix(prefix, token, log_prob, prefix.length + 1, self.support[row], self.num_attended[row], attention)

    def finish(self, prefix: Prefix, row: int, log_prob: float, src_length: int) -> Hypothesis:
        chain = self.extend(prefix, row, EOS, log_prob).chain()
        weights = [node.attention for node in chain if node.attention is not None]
        return Hypothesis(
            tokens=tuple(node.token for node in chain[:-1]),
            log_prob=log_prob,
            support=tuple(node.support for node in chain),
            num_attended=tuple(node.num_attended for node in chain),
            attention=torch.stack([w[:src_length] for w in weights]) if weights else None,
        )


def advance(model: Decoder, state: Any, token: Tensor, sources: Sequence[int]) -> tuple[Tensor, Tensor, Any]:
    """Make one step: log-probabilities [rows, d_vocab] in float64, attention [rows, src] and the state after it.

    Raises:
        ValueError: probabilities that are NaN.
    """
    step = model.step(state, token)
    return checked_log_probs(model, step.scores, sources), step.attention, step.state


def checked_log_probs(model: Decoder, scores: Tensor, sources: Sequence[int]) -> Tensor:
    """Return the log-probabilities of a step's scores [rows, d_vocab] in float64.

    Raises:
        ValueError: probabilities that are NaN. A search that took them for zeros would prove what is not so.
    """
    log_probs = model.output.log_probs(scores)
    has_nan = log_probs.isnan().any(-1)
    if has_nan.any():
        refuse_nan(min(source for source, nan in zip(sources, has_nan.tolist(), strict=True) if nan))
    return log_probs


def refuse_nan(source: int) -> None:
    """Refuse a source's probabilities."""
    raise ValueError(f"the model's probabilities are NaN for source {source} of the batch (counted from 0)")


def make_limits(
    src_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
) -> list[Limits]:
    """Return the limits of each source; the default of `max_length` is twice a source's length and 20 after its prefix.

    Raises:
        TypeError: anything but numbers and symbols.
        ValueError: numbers that can't be, or of which none is between them; not one prefix a source, and one that ends
            or is too long.
    """
    check_limits(min_length, max_length, length_penalty)
    if prefixes is None:
        starts: list[tuple[int, ...]] = [()] * len(src_lengths)
    elif isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
        raise TypeError(f"prefixes must be a sequence with the symbols of each source, got {describe(prefixes)}")
    else:
        starts = [check_prefix(prefix, f"the prefix of source {source}") for source, prefix in enumerate(prefixes)]
    if len(starts) != len(src_lengths):
        raise ValueError(f"there must be one prefix a source, got {len(starts)} for {len(src_lengths)} sources")
    limits = []
    for source, (length, start) in enumerate(zip(src_lengths, starts, strict=True)):
        longest = max(2 * length + 20 + len(start), min_length) if max_length is None else max_length
        if len(start) > longest:
            raise ValueError(f"the prefix of source {source} has {len(start)} tokens, max_length is {max_length}")
        limits.append(Limits(int(longest) + 1, int(min_length), start, float(length_penalty)))
    return limits


def _parts(model: Any) -> list[Any]:
    """Return a model's modules, some perhaps twice: those of one are read from its dictionary, which is quick."""
    if not isinstance(model, nn.Module):
        return list(model.modules()) if hasattr(model, "modules") else []
    modules = [model]
    for module in modules:
        modules += [part for part in module.__dict__["_modules"].values() if part is not None]
    return modules


@contextlib.contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Turn off the model's dropout while the context lasts, and leave every part of it as it was."""
    training = [m for m in _parts(model) if m.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
