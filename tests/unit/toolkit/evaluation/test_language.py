"""Scores of texts under probabilities that may be zero, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from unit.toolkit.evaluation.text_oracle import text_scores

PROBS = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.6, 0.4, 0.0]])


def test_scores_of_three_tokens() -> None:
    epsilon = 1e-3
    scores = text_scores(PROBS, torch.tensor([1, 2, 0]), epsilon)
    each = [math.log((p + epsilon) / (1 + 4 * epsilon)) for p in (0.25, 1.0, 0.0)]
    assert scores.epsilon_perplexity == pytest.approx(math.exp(-sum(each) / 3))
    squares = (0.375, 1.0, 0.52)
    expected = sum(p + (1 - s) / 2 for p, s in zip((0.25, 1.0, 0.0), squares, strict=True)) / 3
    assert scores.sparsemax_score == pytest.approx(expected)


def test_with_an_epsilon_of_zero_it_is_the_perplexity() -> None:
    probs = torch.full((5, 4), 0.25)
    assert text_scores(probs, torch.arange(5) % 4, 0.0).epsilon_perplexity == pytest.approx(4)
