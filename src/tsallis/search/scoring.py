"""Compute log-probabilities of given outputs, per output or per token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.models.mixture import MixtureOutput
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, check_symbols
from tsallis.search.checks import check_at_least_one, check_sources, check_targets
from tsallis.search.step import advance, checked_log_probs
from tsallis.symbols import IGNORE_INDEX


@torch.no_grad()
def score(model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
    """Compute the log-probabilities of given outputs.

    For an output that a search found, the result equals the log-probability that the search returned, up to rounding of
    the model's scores. Near the threshold of a sparse output, this rounding has the largest effect.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src: Symbols of the sources [batch, src].
        src_lengths: Number of symbols per source [batch].
        tgt_in: Tokens that the decoder reads [batch, tgt], starting with the start symbol.
        tgt_out: Tokens to predict [batch, tgt], ending with the end symbol, padded with -100.

    Returns:
        Log-probabilities [batch] in float64, -inf for impossible outputs.

    Raises:
        ValueError: The targets have different shapes, or probabilities are NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (1, 5)), torch.tensor([5])
        >>> score(model, src, lengths, torch.tensor([[1, 7, 8]]), torch.tensor([[7, 8, 2]])).exp().item() > 0
        True
    """
    check_sources(model, src, src_lengths)
    tgt_in, tgt_out = check_targets(model, src, tgt_in, tgt_out)
    total = torch.zeros(len(src), dtype=torch.float64, device=src.device)
    if len(src) == 0:
        return total
    with eval_mode(model):
        state = model.start(model.encode(src, src_lengths))
        for token, gold in zip(tgt_in.unbind(1), tgt_out.unbind(1), strict=True):
            log_probs, _, state = advance(model, state, token, range(len(src)))  # [batch, d_vocab]
            check_symbols(gold, log_probs.shape[1], "tgt_out")
            mask = gold != IGNORE_INDEX
            log_prob = log_probs.gather(-1, torch.where(mask, gold, 0).unsqueeze(-1)).squeeze(-1)
            total = total + torch.where(mask, log_prob, 0)
    return total


@dataclass(frozen=True)
class Exclusion:
    """First impossible token of an output.

    Args:
        step: Position in the output, from 0.
        token: Number of the token.
        gap: How far the token's score is below the threshold of possible symbols; infinite for a symbol that is never
            generated; None if there is no single threshold, as in an ensemble.
        support: Number of possible tokens at this position.
        alternatives: Most probable tokens at this position with their probabilities, best first.

    Example:
        >>> Exclusion(step=1, token=7, gap=0.3, support=1, alternatives=((5, 1.0),)).alternatives[0]
        (5, 1.0)
    """

    step: int
    token: int
    gap: float | None
    support: int
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the tokens of an output, including the end, up to the first impossible token.

    Args:
        tokens: Tokens up to and including the first impossible token.
        log_probs: Log-probability of each token given the tokens before it; -inf for an impossible token.
        support: Number of possible tokens per step.
        exclusion: First impossible token; None if the whole output is possible.

    Example:
        >>> TokenScores((7, 2), (-0.5, -0.25), (3, 2), None).log_prob
        -0.75
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    support: tuple[int, ...]
    exclusion: Exclusion | None

    @property
    def log_prob(self) -> float:
        """Return the log-probability of the output, -inf if it is impossible."""
        return sum(self.log_probs)  # sum in the same order as `score`


@torch.no_grad()
def score_tokens(
    model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, alternatives: int = 10
) -> list[TokenScores]:
    """Compute the log-probability of every token of given outputs, and the first impossible token.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src: Symbols of the sources [batch, src].
        src_lengths: Number of symbols per source [batch].
        tgt_in: Tokens that the decoder reads [batch, tgt], starting with the start symbol.
        tgt_out: Tokens to predict [batch, tgt], ending with the end symbol, padded with -100.
        alternatives: Maximum number of alternatives to an impossible token.

    Returns:
        One :class:`TokenScores` per output, whose log-probability equals that of :func:`score`.

    Raises:
        ValueError: The targets have different shapes, or probabilities are NaN or infinite.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax", forbidden=(9,))
        >>> src, lengths = torch.randint(4, 20, (1, 5)), torch.tensor([5])
        >>> (scores,) = score_tokens(model, src, lengths, torch.tensor([[1, 7, 9]]), torch.tensor([[7, 9, 2]]))
        >>> scores.exclusion.step, scores.exclusion.token, scores.exclusion.support
        (1, 9, 14)
    """
    check_sources(model, src, src_lengths)
    tgt_in, tgt_out = check_targets(model, src, tgt_in, tgt_out)
    check_at_least_one(alternatives=alternatives)
    tokens: list[list[int]] = [[] for _ in range(len(src))]
    log_probs: list[list[float]] = [[] for _ in tokens]
    support: list[list[int]] = [[] for _ in tokens]
    exclusions: dict[int, Exclusion] = {}
    if not tokens:
        return []
    with eval_mode(model):
        state = model.start(model.encode(src, src_lengths))
        for step, (token, gold) in enumerate(zip(tgt_in.unbind(1), tgt_out.unbind(1), strict=True)):
            scores, _, state = model.step(state, token)
            step_log_probs = checked_log_probs(model, scores, range(len(src)))  # [batch, d_vocab]
            check_symbols(gold, step_log_probs.shape[1], "tgt_out")
            values = step_log_probs.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1).tolist()
            counts = (step_log_probs > -torch.inf).sum(-1).tolist()
            for row, (number, value) in enumerate(zip(gold.tolist(), values, strict=True)):
                if number == IGNORE_INDEX or row in exclusions:
                    continue
                tokens[row].append(number)
                log_probs[row].append(value)
                support[row].append(counts[row])
                if value == -math.inf:
                    gap = _gap(model, scores[row], number)
                    best = step_log_probs[row].topk(min(alternatives, counts[row]))
                    pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
                    exclusions[row] = Exclusion(step, number, gap, counts[row], tuple(pairs))
    columns = enumerate(zip(tokens, log_probs, support, strict=True))
    return [TokenScores(tuple(t), tuple(p), tuple(n), exclusions.get(row)) for row, (t, p, n) in columns]


def _gap(model: Any, scores: Tensor, token: int) -> float | None:
    """Return how far a token's score is below the threshold of a step's scores [d_vocab].

    In units of scores, the threshold is :math:`\\tau / (\\alpha - 1)`.
    """
    output = model.output
    if not hasattr(output, "thresholds") or isinstance(output, MixtureOutput):
        return None
    if scores[token] == -torch.inf:
        return math.inf
    if output.normalized:  # subtract the largest score, because a threshold of large scores has few digits
        scores = scores.double() - scores.amax()
    threshold = output.thresholds(scores, output.log_probs(scores).exp())
    if threshold is None:
        return math.inf
    # The gap is zero if a score equals the threshold up to rounding.
    return max(float(threshold) / (output.alpha - 1) - float(scores[token]), 0.0)
