"""Define the results of a search: hypotheses and their certificate."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

Kind = Literal["complete", "optimal", "bounded", "none"]
Stop = Literal["budget", "time", "mass", "length"]
Scope = Literal["all", "limited"]
ROUNDING = 1e-9  # rounding error of sums of many probabilities in float64
TIE = 1e-13  # relative rounding error of a log-probability, a sum of up to some hundred terms in float64
LARGEST_LOG = math.log(sys.float_info.max)
LARGE_SCORES = "the scores are so large that their dtype rounds them to whole numbers, so close scores become equal"


@dataclass(frozen=True)
class Hypothesis:
    """Finished output of a search.

    Args:
        tokens: Symbols without start and end.
        log_prob: Natural logarithm of the probability, including the end.
        support: Number of possible symbols per step, including the step of the end.
        num_attended: Number of source positions with non-zero weight per step.
        attention: Attention weights [steps, src length]; None without `keep_attention`.
        segmentations: For a text, the found sequences that spell it, most probable first. `log_prob` is then the
            logarithm of the sum of their probabilities; the other fields describe the first sequence. Empty otherwise.

    Example:
        >>> hypothesis = Hypothesis(tokens=(7, 8), log_prob=math.log(0.9), support=(2, 1, 1), num_attended=(1, 1, 1))
        >>> round(hypothesis.prob, 2)
        0.9
    """

    tokens: tuple[int, ...]
    log_prob: float
    support: tuple[int, ...]
    num_attended: tuple[int, ...]
    attention: Tensor | None = field(default=None, compare=False)
    segmentations: tuple[Hypothesis, ...] = field(default=(), compare=False)

    @property
    def prob(self) -> float:
        """Return the probability. Unnormalized values above the largest float become the largest float."""
        return math.exp(min(self.log_prob, LARGEST_LOG))

    def score(self, length_penalty: float = 0.0) -> float:
        r"""Return :math:`\log p(y \mid x) / n^a`, with n symbols, end included, and length penalty a."""
        return self.log_prob / (len(self.tokens) + 1) ** length_penalty


@dataclass(frozen=True)
class Certificate:
    r"""Statement of what a search has proved about its result.

    - `complete`: no possible output is missing; the hypotheses are the whole distribution.
    - `optimal`: outputs may be missing, but none is more probable than the best hypothesis.
    - `bounded`: no missing output is more probable than `exp(bound)`, which exceeds the best hypothesis.
    - `none`: nothing is proved, because no output was found, prefixes of an alpha-ReLU model were dropped, or there is
      a `reason`.

    For normalized models and without a length penalty, every kind means that no missing output is more probable than
    `exp(bound)`. If D is the set of dropped prefixes,

    .. math:: \mathrm{bound} = \max_{y \in D} \log p(y \mid x) \ge \max_{y \in D} \max_{y'} \log p(y y' \mid x)

    The certificate is about the outputs that the options allow, for example only outputs with a required prefix.
    With a length penalty, "optimal" and "bounded" compare scores instead of probabilities, and only among outputs
    within the maximum length. The bound is then the best score that a missing output could have:

    .. math:: \mathrm{bound} = \max_{y \in D} \log p(y \mid x) / n_{\max}^a

    Args:
        kind: "complete", "optimal", "bounded" or "none".
        bound: Largest log-probability of a dropped prefix or output; -inf if none was dropped. With a length penalty,
            the best score that a dropped prefix or output could have.
        reason: Why nothing is proved although outputs were found; otherwise None. A step's largest score is then so
            large that its dtype contains only whole numbers (from 2^23 in float32, 2^52 in float64, 2^10 in float16 and
            2^7 in bfloat16). Scores that differ by less than 1 may be rounded to the same number, which is a factor of
            e in probability. The bound is computed from the rounded scores.

    Example:
        >>> Certificate("optimal", bound=-2.3).proves_best, Certificate("bounded", bound=-0.2).proves_best
        (True, False)
    """

    kind: Kind
    bound: float
    reason: str | None = None

    @property
    def proves_best(self) -> bool:
        """Return whether the best hypothesis is proved to be the most probable output."""
        return self.kind in ("complete", "optimal")


@dataclass(frozen=True)
class Result:
    """Hypotheses of one source, best first, and their certificate.

    Args:
        hypotheses: Outputs, best first.
        certificate: Proved claim about the outputs.
        length_penalty: Exponent of the length in the scores that rank outputs; 0 ranks by probability.
        stopped_by: Why an exhaustive search ended without the requested proof: "budget", "time", "mass" or "length";
            None: the proof was found, or the search was not exhaustive.
        expanded: Number of prefixes that an exhaustive search expanded.
        scope: "all" if the certificate is about all outputs; "limited" if the search required a prefix, a pattern, or a
            minimum length of at least two symbols.
        normalized: Whether the probabilities of all outputs sum to at most 1.
        missing: For texts, an upper bound on the total probability of the sequences that were not found. It also bounds
            the missing probability of each text.

    Example:
        >>> drew = Hypothesis((7, 8), -0.105, (2, 1, 1), (1, 1, 1))
        >>> drawed = Hypothesis((7, 9), -2.303, (2, 1, 1), (1, 1, 1))
        >>> result = Result((drew, drawed), Certificate("complete", -math.inf))
        >>> result.best.tokens, round(result.mass, 2)
        ((7, 8), 1.0)
        >>> result.truncated(1).certificate
        Certificate(kind='optimal', bound=-2.303, reason=None)
    """

    hypotheses: tuple[Hypothesis, ...]
    certificate: Certificate
    length_penalty: float = 0.0
    stopped_by: Stop | None = field(default=None, compare=False)
    expanded: int = field(default=0, compare=False)
    scope: Scope = field(default="all", compare=False)
    normalized: bool = field(default=True, compare=False)
    missing: float = field(default=0.0, compare=False)

    @property
    def best(self) -> Hypothesis | None:
        """Return the most probable hypothesis, or None if no output was found."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def mass(self) -> float:
        """Return the total probability of the hypotheses: 1 if the result is complete and the model normalized."""
        return total_mass((h.prob for h in self.hypotheses), self.normalized)

    @property
    def proven(self) -> tuple[Hypothesis, ...]:
        """Return the hypotheses whose rank is certain, because no missing output could precede them."""
        if self.certificate.kind == "none":
            return ()
        min_score = least_score(self.certificate.bound)
        return tuple(h for h in self.hypotheses if h.score(self.length_penalty) >= min_score)

    def truncated(self, n_best: int | None) -> Result:
        """Return a result with the `n_best` best hypotheses (None: all); a shortened list is not complete."""
        if n_best is None or len(self.hypotheses) <= n_best:
            return self
        dropped = self.hypotheses[n_best]
        bound = max(self.certificate.bound, dropped.score(self.length_penalty))
        if 0 < self.missing < math.inf and not self.length_penalty:
            bound = max(bound, math.log(dropped.prob + self.missing))
        kind: Kind = "optimal" if self.certificate.kind == "complete" else self.certificate.kind
        return replace(
            self, hypotheses=self.hypotheses[:n_best], certificate=replace(self.certificate, kind=kind, bound=bound)
        )


def least_score(bound: float) -> float:
    """Return the smallest score that reaches a bound in spite of rounding."""
    return bound - TIE * abs(bound)


def total_mass(probs: Iterable[float], normalized: bool) -> float:
    """Return the sum of probabilities, at most 1 for a normalized model in spite of rounding.

    >>> total_mass([0.7, 0.3 + 1e-16, 1e-17], normalized=True)
    1.0
    """
    try:
        total = math.fsum(probs)
    except OverflowError:  # the sum of unnormalized values is too large
        total = sys.float_info.max
    return min(total, 1.0) if normalized else total


def log_sum(log_probs: Iterable[float]) -> float:
    """Return the logarithm of the sum of probabilities, which may be too small for a float; -inf if there are none.

    >>> log_sum([-1000.0, -1000.0])
    -999.3068528194401
    """
    terms = list(log_probs)
    largest = max(terms, default=-math.inf)
    if math.isinf(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))


def exp_above_zero(log_prob: float) -> float:
    """Return the exponential, which is zero only for -inf: tiny results become the smallest float."""
    return math.exp(log_prob) or (math.ulp(0.0) if log_prob > -math.inf else 0.0)


def certify(
    hypotheses: Sequence[Hypothesis],
    bound: float,
    gave_up: bool,
    normalized: bool,
    length_penalty: float = 0.0,
    scope: Scope = "all",
    unclear: bool = False,
) -> Result:
    """Sort the hypotheses, and return them with their certificate.

    Args:
        hypotheses: All finished outputs.
        bound: Largest log-probability of a dropped, cut or open prefix, or the best score that it could reach.
        gave_up: Whether any prefix was dropped, cut or left open.
        normalized: Whether continuations are at most as probable as their prefix.
        length_penalty: Exponent of the length in scores.
        scope: Scope of the search, see :class:`Result`.
        unclear: Whether scores were too large to be distinguished: then nothing is proved.
    """
    ranked = tuple(sorted(hypotheses, key=lambda h: (-h.score(length_penalty), h.tokens)))
    if unclear or (gave_up and not (ranked and normalized)):
        kind: Kind = "none"
    elif not gave_up:
        kind = "complete"
    else:
        # A tie with a prefix also proves the best output. Rounded sums of equal value may differ slightly.
        kind = "optimal" if ranked[0].score(length_penalty) >= least_score(bound) else "bounded"
    certificate = Certificate(kind, bound, LARGE_SCORES if unclear else None)
    return Result(ranked, certificate, length_penalty, scope=scope, normalized=normalized)
