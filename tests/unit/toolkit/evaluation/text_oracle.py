"""Scores of the tokens of a text, from the whole probabilities before each of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tsallis.toolkit.evaluation.language import EPSILON, smoothed_losses, sparsemax_scores


class TextScores(NamedTuple):
    epsilon_perplexity: float
    sparsemax_score: float


def text_scores(probs: Tensor, tokens: Tensor, epsilon: float = EPSILON) -> TextScores:
    """Return the scores of probabilities [n, vocabulary] for tokens [n]."""
    probs = probs.double()
    gold = probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    losses, scores = smoothed_losses(gold, probs.shape[1], epsilon), sparsemax_scores(probs, gold)
    return TextScores(losses.mean().exp().item(), scores.mean().item())
