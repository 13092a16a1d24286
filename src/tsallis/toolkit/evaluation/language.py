"""How well probabilities that may be zero predict a text (Martins et al. 2020, *Sparse Text Generation*, sec. 4)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

EPSILON = 1e-6  # of the epsilon-perplexity


class TextScores(NamedTuple):
    """Scores of the tokens of a text; perplexity is none of them, for one token of probability 0 makes it infinite.

    Args:
        epsilon_perplexity: :math:`\\exp(-\\overline{\\log((p_y + \\epsilon) / (1 + \\epsilon |V|))})`.
        sparsemax_score: the mean of :math:`p_y + (1 - \\|p\\|^2) / 2`: 1 where every token is certain.
        accuracy: share of the tokens that are the most probable ones.
        gold_in_support: share of the tokens with a probability above zero.
        support: mean number of symbols with a probability above zero.
    """

    epsilon_perplexity: float
    sparsemax_score: float
    accuracy: float
    gold_in_support: float
    support: float


def smoothed_losses(gold: Tensor, symbols: int, epsilon: float = EPSILON) -> Tensor:
    r"""Return :math:`-\log((p_y + \epsilon) / (1 + \epsilon |V|))` of probabilities of gold tokens, with |V| symbols.

    Example:
        >>> smoothed_losses(torch.tensor([1.0, 0.0]), 10, 0.1).exp()
        tensor([ 1.8182, 20.0000], dtype=torch.float64)
    """
    return ((1 + epsilon * symbols) / (gold.double() + epsilon)).log()


def sparsemax_scores(probs: Tensor, gold: Tensor) -> Tensor:
    r"""Return :math:`p_y + (1 - \|p\|^2) / 2` of probabilities [n, vocabulary] and those of gold tokens [n].

    Example:
        >>> sparsemax_scores(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5])).tolist()
        [0.75]
    """
    return gold + (1 - probs.square().sum(-1)) / 2


def text_scores(probs: Tensor, tokens: Tensor, epsilon: float = EPSILON) -> TextScores:
    """Return the scores of the probabilities [n, vocabulary] that a model gave before each token [n] of a text.

    Raises:
        ValueError: no tokens, probabilities of other tokens.

    Example:
        >>> text_scores(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])).sparsemax_score
        0.875
    """
    if not len(tokens) or probs.dim() != 2 or len(probs) != len(tokens):
        raise ValueError(
            f"probs must be [n, vocabulary] of n tokens, got {tuple(probs.shape)} and {tuple(tokens.shape)}"
        )
    probs = probs.double()
    gold = probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return TextScores(
        epsilon_perplexity=smoothed_losses(gold, probs.shape[1], epsilon).mean().exp().item(),
        sparsemax_score=sparsemax_scores(probs, gold).mean().item(),
        accuracy=(probs.argmax(1) == tokens).double().mean().item(),
        gold_in_support=(gold > 0).double().mean().item(),
        support=(probs > 0).sum(1).double().mean().item(),
    )
