"""Scores of sparse probabilities on texts (Martins et al. 2020, *Sparse Text Generation*, sec. 4)."""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-6  # default smoothing of the epsilon-perplexity


def smoothed_losses(gold: Tensor, symbols: int, epsilon: float = EPSILON) -> Tensor:
    r"""Return :math:`-\log((p_y + \epsilon) / (1 + \epsilon |V|))` for `gold` probabilities and |V| `symbols`.

    Example:
        >>> smoothed_losses(torch.tensor([1.0, 0.0]), 10, 0.1).exp()
        tensor([ 1.8182, 20.0000], dtype=torch.float64)
    """
    return ((1 + epsilon * symbols) / (gold.double() + epsilon)).log()


def sparsemax_scores(probs: Tensor, gold: Tensor) -> Tensor:
    r"""Return :math:`p_y + (1 - \|p\|^2) / 2` for `probs` [n, vocabulary] and `gold` probabilities [n].

    Example:
        >>> sparsemax_scores(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5])).tolist()
        [0.75]
    """
    return gold + (1 - probs.square().sum(-1)) / 2
