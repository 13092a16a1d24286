"""Define what all searches share: linked prefixes, limits, and a checked step of a model."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from tsallis.errors import describe
from tsallis.models.protocol import Decoder, count_attended
from tsallis.search.certificate import Hypothesis, Result, Scope, certify
from tsallis.search.checks import check_limits, check_prefix, is_sequence
from tsallis.search.patterns import Pattern
from tsallis.search.text_prefix import TextPrefix
from tsallis.search.texts import Text, merge_texts
from tsallis.symbols import BOS, EOS


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Unfinished hypothesis: its last token, and the prefix before it."""

    parent: Prefix | None = None
    token: int = BOS
    log_prob: float = 0.0
    length: int = 0  # number of tokens
    support: int = 0  # number of possible symbols at the last step
    num_attended: int = 0
    attention: Tensor | None = None  # attention weights [src] of the last step

    def chain(self) -> list[Prefix]:
        """Return the prefixes of length one, two and so on, up to this one."""
        chain: list[Prefix] = []
        node = self
        while node.parent is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]


@dataclass(frozen=True)
class Limits:
    """Limits on the outputs of a source, and the length penalty of their scores.

    Args:
        steps: Maximum length, including the end.
        min_length: Minimum length, without the end.
        prefix: Tokens that every output starts with.
        length_penalty: Exponent a of scores, which are log-probabilities divided by length**a.
    """

    steps: int
    min_length: int = 0
    prefix: tuple[int, ...] = ()
    length_penalty: float = 0.0

    @property
    def free_from(self) -> int:
        """Return the minimum length at which a prefix may end; from this length on, any symbol may follow."""
        return max(len(self.prefix), self.min_length)

    @property
    def scope(self) -> Scope:
        """Return the scope of a certificate, see :class:`Result`."""
        return "limited" if self.prefix or self.min_length > 1 else "all"

    def score_bound(self, log_prob: Any) -> Any:
        """Return the best score of an output that starts with a prefix of this log-probability.

        With a normalized model, the best output has the maximum length, and is as probable as the prefix."""
        return log_prob / self.steps**self.length_penalty

    def restrict(self, totals: Tensor, length: int) -> None:
        """Set totals [d_vocab] to -inf, in place, for symbols that the required prefix excludes at this length."""
        if length < len(self.prefix):
            token = self.prefix[length]
            if token >= len(totals):
                raise ValueError(f"symbols of a prefix must be from 0 to {len(totals) - 1}, got {token}")
            log_prob = totals[token].clone()
            totals.fill_(-torch.inf)[token] = log_prob


@dataclass(kw_only=True)
class Search:
    """State of the search of one source: its finished outputs, and the bound on dropped prefixes."""

    src_length: int
    limits: Limits
    finished: list[Hypothesis] = field(default_factory=list)
    bound: float = -math.inf
    known_bound: float = math.inf  # bound of another search, as a score
    gave_up: bool = False
    unclear: bool = False  # whether scores were too large to be distinguished
    patterns: Sequence[Pattern | TextPrefix] = ()  # patterns that the model's outputs match

    def give_up(self, log_prob: float) -> None:
        """Record that a prefix is dropped."""
        self.bound = max(self.bound, log_prob)
        self.gave_up = True

    def nth_score(self, n: int) -> float:
        """Return the score of the n-th best output so far, or -inf."""
        if len(self.finished) < n:
            return -math.inf
        return heapq.nlargest(n, (h.score(self.limits.length_penalty) for h in self.finished))[-1]

    @property
    def lacks_spellings(self) -> bool:
        """Return whether the search excludes some of the sequences that spell a text."""
        return self.limits.free_from > 0 or any(pattern.excludes_bytes for pattern in self.patterns)

    def result(self, normalized: bool, n_best: int | None, text: Text | None = None) -> Result:
        bound, penalty = min(self.limits.score_bound(self.bound), self.known_bound), self.limits.length_penalty
        scope: Scope = "limited" if self.patterns else self.limits.scope
        result = certify(self.finished, bound, self.gave_up, normalized, penalty, scope, self.unclear)
        if text is not None:
            result = merge_texts(result, text, normalized, limited=self.lacks_spellings)
        return result.truncated(n_best)


class Expansion:
    """Results of a step: log-probabilities and attention of the rows."""

    def __init__(self, attention: Tensor | None, log_probs: Tensor, keep: bool) -> None:
        self.log_probs = log_probs  # [rows, d_vocab]
        self.support = (log_probs > -torch.inf).sum(-1).tolist()
        self.num_attended = count_attended(attention, log_probs).tolist()
        self.attention = attention if keep else None

    def totals(self, prefixes: Sequence[Prefix], limits: Sequence[Limits]) -> tuple[Tensor, list[float]]:
        """Return two log-probabilities: of prefixes with one more token [rows, d_vocab], and of prefixes that end.

        The first result is -inf for the end, and for symbols that the limits exclude.
        """
        prefix_log_probs = torch.tensor(
            [p.log_prob for p in prefixes], dtype=torch.float64, device=self.log_probs.device
        )
        totals = prefix_log_probs.unsqueeze(-1) + self.log_probs
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

    def finish(self, prefix: Prefix, row: int, log_prob: float, src_length: int | None = None) -> Hypothesis:
        chain = self.extend(prefix, row, EOS, log_prob).chain()
        weights = [node.attention for node in chain if node.attention is not None]
        return Hypothesis(
            tokens=tuple(node.token for node in chain[:-1]),
            log_prob=log_prob,
            support=tuple(node.support for node in chain),
            num_attended=tuple(node.num_attended for node in chain),
            attention=torch.stack([w[:src_length] for w in weights]) if weights else None,
        )


def advance(model: Decoder, state: Any, token: Tensor, sources: Sequence[int]) -> tuple[Tensor, Tensor | None, Any]:
    """Run one step; return float64 log-probabilities [rows, d_vocab], attention [rows, src], and the new state.

    Raises:
        ValueError: Probabilities are NaN or infinite.
    """
    step = model.step(state, token)
    return checked_log_probs(model, step.scores, sources), step.attention, step.state


def checked_log_probs(model: Decoder, scores: Tensor, sources: Sequence[int]) -> Tensor:
    """Return the log-probabilities of a step's scores [rows, d_vocab] in float64.

    Raises:
        ValueError: Probabilities are NaN or infinite, or the model did not return one row per token. Treating NaN as
            zero would make the proof wrong.
    """
    log_probs = model.output.log_probs(scores).double()
    if len(log_probs) != len(sources):
        refuse_rows(len(log_probs), len(sources))
    is_finite = log_probs.amax(-1) < torch.inf  # False for NaN
    if not is_finite.all():
        refuse_nan(min(source for source, finite in zip(sources, is_finite.tolist(), strict=True) if not finite))
    return log_probs


def refuse_nan(source: int) -> None:
    """Raise because a probability of a source is infinite or NaN."""
    raise ValueError(f"the model's probabilities are infinite or NaN for source {source} of the batch (counted from 0)")


def refuse_rows(returned: int, rows: int) -> NoReturn:
    """Raise because a step of the model returned another number of rows than it read tokens."""
    raise ValueError(f"a step of the model must return one row per token, got {returned} rows, not {rows}")


def make_limits(
    src_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    length_penalty: float = 0.0,
    extra: int = 0,
) -> list[Limits]:
    """Return the limits of each source.

    By default, `max_length` is the length of the prefix, plus twice the source's length, plus 20, plus `extra`.

    Raises:
        TypeError: An argument is not a number or symbols.
        ValueError: A number is out of range, the limits contradict each other, or prefixes are invalid.
    """
    check_limits(min_length, max_length, length_penalty)
    if prefixes is None:
        starts: list[tuple[int, ...]] = [()] * len(src_lengths)
    elif not is_sequence(prefixes):
        raise TypeError(f"prefixes must be a list with one sequence of symbols per source, got {describe(prefixes)}")
    else:
        starts = [check_prefix(prefix, f"the prefix of source {source}") for source, prefix in enumerate(prefixes)]
    if len(starts) != len(src_lengths):
        raise ValueError(
            f"prefixes must have one prefix per source, got {len(starts)} prefixes for {len(src_lengths)} sources"
        )
    limits = []
    for source, (length, start) in enumerate(zip(src_lengths, starts, strict=True)):
        longest = max(2 * length + 20 + len(start) + extra, min_length) if max_length is None else max_length
        if len(start) > longest:
            raise ValueError(
                f"the prefix of source {source} must have at most max_length {max_length} tokens, got {len(start)}"
            )
        limits.append(Limits(int(longest) + 1, int(min_length), start, float(length_penalty)))
    return limits
