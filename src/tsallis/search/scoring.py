"""Log-probabilities of given outputs, whole and token by token, and why an output is impossible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.checks import check_at_least_one, check_sources, check_targets
from tsallis.search.step import advance, checked_log_probs, eval_mode
from tsallis.symbols import IGNORE_INDEX


@torch.no_grad()
def score(model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
    """Compute the log-probabilities of given outputs.

    The steps are those of search: the score of a search's output is the log-probability that the search reported.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        tgt_in: [batch, tgt] tokens, the start first.
        tgt_out: [batch, tgt] tokens, the end last, padded with -100.

    Returns:
        [batch] in float64, -inf where the model holds the output impossible.

    Raises:
        ValueError: targets of different shapes; a model whose probabilities are NaN.

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
            mask = gold != IGNORE_INDEX
            log_prob = log_probs.gather(-1, torch.where(mask, gold, 0).unsqueeze(-1)).squeeze(-1)
            total = total + torch.where(mask, log_prob, 0)
    return total


@dataclass(frozen=True)
class Exclusion:
    """The first token of an output that a model holds impossible.

    Args:
        step: its place in the output, from 0.
        token: its number.
        gap: by how much its score is below the threshold, above which a symbol has a probability; infinite for a symbol
            that the model never gives; None where there is no one threshold, as of an ensemble.
        support: the number of tokens that are possible in its place.
        alternatives: the most probable of them with their probabilities, the best first.

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
    """An output token by token, its end included, as far as it is possible.

    Args:
        tokens: up to the first that is impossible.
        log_probs: of each, given those before it; -inf of one that is impossible.
        support: the number of tokens that are possible, one count a step.
        exclusion: the token that is impossible; None where the whole output is possible.

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
        """The log-probability of the output, -inf where it is impossible."""
        return sum(self.log_probs)  # in the order of `score`


@torch.no_grad()
def score_tokens(
    model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, alternatives: int = 10
) -> list[TokenScores]:
    """Compute the log-probability of every token of given outputs, and say which token makes one impossible.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        tgt_in: [batch, tgt] tokens, the start first.
        tgt_out: [batch, tgt] tokens, the end last, padded with -100.
        alternatives: the most tokens that are named in place of an impossible one.

    Returns:
        One :class:`TokenScores` an output; its log-probability is that of :func:`score`.

    Raises:
        ValueError: targets of different shapes; a model whose probabilities are NaN.

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
            each = checked_log_probs(model, scores, range(len(src)))  # [batch, d_vocab]
            values = each.gather(-1, gold.clamp(min=0).unsqueeze(-1)).squeeze(-1).tolist()
            counts = (each > -torch.inf).sum(-1).tolist()
            for row, (number, value) in enumerate(zip(gold.tolist(), values, strict=True)):
                if number == IGNORE_INDEX or row in exclusions:
                    continue
                tokens[row].append(number)
                log_probs[row].append(value)
                support[row].append(counts[row])
                if value == -math.inf:
                    gap = _gap(model, scores[row], number)
                    best = each[row].topk(min(alternatives, counts[row]))
                    pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
                    exclusions[row] = Exclusion(step, number, gap, counts[row], tuple(pairs))
    columns = enumerate(zip(tokens, log_probs, support, strict=True))
    return [TokenScores(tuple(t), tuple(p), tuple(n), exclusions.get(row)) for row, (t, p, n) in columns]


def _gap(model: Any, scores: Tensor, token: int) -> float | None:
    """Return by how much a token's score is below the threshold of a step's scores [d_vocab].

    In units of scores the threshold is :math:`\\tau / (\\alpha - 1)`.
    """
    output = model.output
    if not hasattr(output, "thresholds"):
        return None
    if output.normalized:  # the map depends on differences alone, and a threshold of large scores has few digits
        scores = scores.double() - scores.amax()
    threshold = output.thresholds(scores, output.log_probs(scores).exp())
    if scores[token] == -torch.inf or threshold is None:
        return math.inf
    # Zero where a score is the threshold, but for rounding.
    return max(float(threshold) / (output.alpha - 1) - float(scores[token]), 0.0)
