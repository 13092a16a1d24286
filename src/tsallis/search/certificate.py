"""Results of a search: hypotheses, and a certificate of what is proved about them."""

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
ROUNDING = 1e-9  # of log-probabilities summed in float64 over as many steps as there may be
LARGEST_LOG = math.log(sys.float_info.max)
LARGE_SCORES = "scores are so large that their dtype holds whole numbers only and cannot tell close ones apart"


@dataclass(frozen=True)
class Hypothesis:
    """A finished output.

    Args:
        tokens: symbols without start and end.
        log_prob: natural logarithm of the probability, the end included.
        support: the number of symbols with a probability, one count a step, the end's step included.
        num_attended: the number of source positions with a weight, one count a step.
        attention: weights [steps, src length], with `keep_attention`.
        segmentations: For a text, the sequences found that spell it, the most probable first: `log_prob` is the
            logarithm of the sum of their probabilities, everything else belongs to the first. Empty for a sequence.

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
        """The probability; of a model without a normaliser at most the largest float."""
        return math.exp(min(self.log_prob, LARGEST_LOG))

    def score(self, length_penalty: float = 0.0) -> float:
        r"""Return :math:`\log p(y \mid x) / n^a`, with n the symbols and the end, and a the length penalty."""
        return self.log_prob / (len(self.tokens) + 1) ** length_penalty


@dataclass(frozen=True)
class Certificate:
    r"""The proof that a search gives about its result.

    - `complete`: no output with a probability is missing: the hypotheses are the whole distribution.
    - `optimal`: outputs may be missing, and none of them is more probable than the best hypothesis.
    - `bounded`: no output is more probable than `exp(bound)`, which exceeds the best hypothesis.
    - `none`: nothing is proved, because nothing was finished, the model's values are no probabilities, or `reason`.

    For normalised models no output that is missing is more probable than `exp(bound)`, whatever the kind: with D the
    prefixes that were dropped,

    .. math:: \mathrm{bound} = \max_{y \in D} \log p(y \mid x) \ge \max_{y \in D} \max_{y'} \log p(y y' \mid x)

    All of this is said of the outputs that were searched for: with a prefix or a least length, of those that begin so
    or are as long. With a length penalty "optimal" and "bounded" speak of scores in place of probabilities, of the
    outputs within the greatest length; the bound is then the best score that any of those could have:

    .. math:: \mathrm{bound} = \max_{y \in D} \log p(y \mid x) / n_{\max}^a

    Args:
        kind: "complete", "optimal", "bounded" or "none".
        bound: the log-probability of the best prefix (or output) that was dropped, or with a length penalty the best
            score that any of them could have; -inf if none was.
        reason: Why nothing is proved although outputs were finished, if the numbers of the model do not allow a proof:
            the largest score of a step is so large that its dtype holds whole numbers only (from 2^23 in float32, 2^52
            in float64, 2^10 in float16 and 2^7 in bfloat16). Scores that differ by less than 1, a factor of e between
            their probabilities, can then be the same number. The bound of such a certificate is that of the numbers
            as they were rounded.

    Example:
        >>> Certificate("optimal", bound=-2.3).proves_best, Certificate("bounded", bound=-0.2).proves_best
        (True, False)
    """

    kind: Kind
    bound: float
    reason: str | None = None

    @property
    def proves_best(self) -> bool:
        """True where the best hypothesis is proved to be the most probable output of all."""
        return self.kind in ("complete", "optimal")


@dataclass(frozen=True)
class Result:
    """The hypotheses of one source, best first, and their certificate.

    Args:
        hypotheses: the best first.
        certificate: the proof about them.
        length_penalty: the exponent of the length in the scores that rank them; 0: they are ranked by probability.
        stopped_by: why a search ended that has not proved what it was asked for: "budget", "time", "mass" or "length";
            None: it has, or it was no exhaustive one.
        expanded: the prefixes that an exhaustive search expanded.
        scope: what the certificate speaks of: "all": of every output with a symbol; "limited": of those that begin with
            a prefix or have at least a length of two symbols or more.
        normalized: whether the probabilities of all outputs sum to at most 1.
        missing: For texts, an upper bound on the probability of all sequences that were not found: so much, at most, is
            missing from the probability of any text.

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
        """The most probable hypothesis; None where every path is a dead end or longer than allowed."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def mass(self) -> float:
        """The probability of all hypotheses together: 1 if the result is complete and the model normalised."""
        return total_mass((h.prob for h in self.hypotheses), self.normalized)

    @property
    def proven(self) -> tuple[Hypothesis, ...]:
        """The hypotheses whose rank is certain: no output that is missing would stand before one of these."""
        if self.certificate.kind == "none":
            return ()
        least = self.certificate.bound - ROUNDING
        return tuple(h for h in self.hypotheses if h.score(self.length_penalty) >= least)

    def truncated(self, n_best: int | None) -> Result:
        """Return the `n_best` best hypotheses (None: all) and their certificate: a list cut short is not complete."""
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


def total_mass(probs: Iterable[float], normalized: bool) -> float:
    """Return the sum of probabilities: that of a normalised model is at most 1, whatever the rounding of each.

    >>> total_mass([0.7, 0.3 + 1e-16, 1e-17], normalized=True)
    1.0
    """
    try:
        total = math.fsum(probs)
    except OverflowError:  # values that are no probabilities
        total = sys.float_info.max
    return min(total, 1.0) if normalized else total


def certify(
    hypotheses: Sequence[Hypothesis],
    bound: float,
    gave_up: bool,
    normalized: bool,
    length_penalty: float = 0.0,
    scope: Scope = "all",
    unclear: bool = False,
) -> Result:
    """Sort what was finished and state what is proved.

    Args:
        hypotheses: everything finished.
        bound: log-probability of the best prefix dropped, cut or left open, or the best score it could lead to.
        gave_up: whether there was any such prefix.
        normalized: whether a longer hypothesis is never more probable.
        length_penalty: of the scores that rank hypotheses.
        scope: of the search, see :class:`Result`.
        unclear: whether scores of a step were too large to be told apart: then nothing is proved.
    """
    ranked = tuple(sorted(hypotheses, key=lambda h: (-h.score(length_penalty), h.tokens)))
    if unclear or (gave_up and not (ranked and normalized)):
        kind: Kind = "none"
    elif not gave_up:
        kind = "complete"
    else:
        # Sums of the same logarithms differ by their rounding: a tie with a prefix is no doubt about the best.
        kind = "optimal" if ranked[0].score(length_penalty) >= bound - ROUNDING else "bounded"
    certificate = Certificate(kind, bound, LARGE_SCORES if unclear else None)
    return Result(ranked, certificate, length_penalty, scope=scope, normalized=normalized)
