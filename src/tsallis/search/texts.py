"""Convert results about token sequences to results about texts, which several sequences may spell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tsallis.search.certificate import Certificate, Hypothesis, Result, exp_above_zero, log_sum

Text = Callable[[Sequence[int]], str]
ROUNDING = 1e-6  # rounding error of a sum of probabilities in float32


def merge_texts(result: Result, text: Text, normalized: bool, limited: bool = False) -> Result:
    r"""Return a result about texts: the probability of a text is the sum over the sequences that spell it.

    Let m bound the probability of all sequences that were not found. The probability of a listed text is at most its
    listed probability plus m. The probability of any other text is at most m. The best text is therefore optimal if it
    is at least m, and leads the second text by m:

    .. math:: p(t_1) \ge \max(p(t_2), 0) + m, \qquad m = 1 - \sum_y p(y)

    A certificate about texts may be weaker than the one about sequences, because probabilities of sequences add up. A
    certificate about texts is "none" with a length penalty and for values that are not normalized, unless the list is
    complete.

    Args:
        result: Result of a search with all its hypotheses.
        text: Function that spells a sequence of tokens.
        normalized: Whether the probabilities of all sequences sum to at most 1.
        limited: Whether a prefix, a minimum length or a pattern excluded sequences that may spell listed texts.

    Returns:
        The texts, best first.

    Example:
        >>> probs = {(5,): 0.5, (6, 7): 0.25, (8,): 0.25}
        >>> sequences = [Hypothesis(tokens, math.log(prob), (2,), (1,)) for tokens, prob in probs.items()]
        >>> result = Result(tuple(sequences), Certificate("complete", -math.inf))
        >>> merged = merge_texts(result, lambda tokens: "new" if 8 in tokens else "low", normalized=True)
        >>> [(hypothesis.tokens, round(hypothesis.prob, 2)) for hypothesis in merged.hypotheses]
        [((5,), 0.75), ((8,), 0.25)]
    """
    groups: dict[str, dict[tuple[int, ...], Hypothesis]] = {}
    for hypothesis in result.hypotheses:
        for sequence in hypothesis.segmentations or (hypothesis,):
            groups.setdefault(text(sequence.tokens), {})[sequence.tokens] = sequence
    penalty = result.length_penalty
    texts = [join_segmentations(group.values()) for group in groups.values()]
    texts.sort(key=lambda h: (-h.score(penalty), h.tokens))
    merged = replace(result, hypotheses=tuple(texts), missing=0.0)
    if result.certificate.kind == "complete" and not limited:
        return merged
    missing = missing_probability(merged.mass) if normalized else math.inf
    if not normalized or penalty or not texts or result.certificate.kind == "none":
        # A score is a log-probability divided by a positive number, so it is at most 0.
        bound = result.certificate.bound if not normalized else 0.0 if penalty else math.log(missing)
        return replace(merged, certificate=Certificate("none", bound, result.certificate.reason), missing=missing)
    return replace(merged, certificate=_certify_texts(texts, [missing] * len(texts), missing), missing=missing)


def _certify_texts(texts: Sequence[Hypothesis], missing: Sequence[float], unlisted: float) -> Certificate:
    """Return the certificate of texts, which are sorted best first.

    Args:
        texts: Listed texts.
        missing: Upper bounds on the missing probability of each text.
        unlisted: Upper bound on the probability of any other text.
    """
    probs = [text.prob for text in texts]
    upper_bounds = [prob + missing_prob for prob, missing_prob in zip(probs, missing, strict=True)]
    # If a text may be more probable than the text before it, no later rank is certain.
    bound = max(
        [
            unlisted,
            *(next_bound for prob, next_bound in zip(probs, upper_bounds[1:], strict=False) if next_bound > prob),
        ]
    )
    if probs[0] >= bound:
        return Certificate("optimal", math.log(bound) if bound else -math.inf)
    return Certificate("bounded", math.log(min(max(bound, upper_bounds[0]), 1.0)))


def complete_texts(result: Result, text_probabilities: Sequence[TextProbability]) -> Result:
    """Add the segmentations of the best texts to a result about texts.

    Args:
        result: Result about texts.
        text_probabilities: Segmentations of the first texts, from :func:`score_texts`.
    """
    missing, texts = [], []
    for number, text in enumerate(result.hypotheses):
        text_missing = result.missing
        if number < len(text_probabilities):
            text_missing = min(text_missing, text_probabilities[number].missing)
            segmentations = (*text.segmentations, *text_probabilities[number].segmentations)
            text = join_segmentations({sequence.tokens: sequence for sequence in segmentations}.values())
        texts.append(text)
        missing.append(text_missing)
    penalty = result.length_penalty
    order = sorted(range(len(texts)), key=lambda i: (-texts[i].score(penalty), texts[i].tokens))
    texts, missing = [texts[i] for i in order], [missing[i] for i in order]
    certificate = result.certificate
    if certificate.kind in ("optimal", "bounded") and result.missing:
        # The bound and the missing probability are valid for all other texts. The certificate of a complete list that
        # was shortened stays valid.
        certificate = _certify_texts(texts, missing, math.exp(certificate.bound))
    return replace(result, hypotheses=tuple(texts), certificate=certificate)


@dataclass(frozen=True)
class TextProbability:
    """Segmentations of a text that were found.

    Args:
        segmentations: Possible sequences that spell the text, the most probable first.
        log_missing: Logarithm of an upper bound on the probability of sequences that were not followed; -inf if all
            sequences were followed.

    Example:
        >>> both = [Hypothesis((number,), math.log(prob), (2, 1), (1, 1)) for number, prob in ((5, 0.5), (6, 0.25))]
        >>> round(math.exp(TextProbability(tuple(both)).log_prob), 6)
        0.75
    """

    segmentations: tuple[Hypothesis, ...] = ()
    log_missing: float = -math.inf

    @property
    def missing(self) -> float:
        """Return the upper bound on the missing probability; 0 only if all sequences were followed."""
        return exp_above_zero(self.log_missing)

    @property
    def log_prob(self) -> float:
        """Return the log-probability of the found sequences, a lower bound unless `exact` is True."""
        return join_segmentations(self.segmentations).log_prob if self.segmentations else -math.inf

    @property
    def exact(self) -> bool:
        """Return whether the log-probability is exact up to rounding."""
        return self.log_missing <= math.log(ROUNDING) + min(self.log_prob, 0.0)

    @property
    def possible(self) -> bool | None:
        """Return whether the text is possible; None if an incomplete search found no sequence."""
        return True if self.segmentations else None if self.log_missing > -math.inf else False

    def including(self, sequence: Hypothesis) -> TextProbability:
        """Return a copy that includes another possible sequence."""
        if any(known.tokens == sequence.tokens for known in self.segmentations):
            return self
        ranked = join_segmentations((*self.segmentations, sequence)).segmentations
        return replace(self, segmentations=ranked)


def missing_probability(mass: float) -> float:
    """Return 1 minus the probability that was found, plus a margin for rounding."""
    return min(1.0, max(0.0, 1 - mass) + ROUNDING)


def join_segmentations(sequences: Iterable[Hypothesis]) -> Hypothesis:
    """Merge sequences that spell one text: return the most probable sequence, with the sum of all probabilities."""
    ranked = tuple(sorted(sequences, key=lambda h: (-h.log_prob, h.tokens)))
    return replace(ranked[0], log_prob=log_sum(h.log_prob for h in ranked), segmentations=ranked)
