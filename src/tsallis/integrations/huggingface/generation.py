"""Sampling from a sparse distribution in `generate`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from tsallis.functional.maps import log_entmax
from tsallis.functional.rows import alpha_number


class EntmaxLogitsProcessor(LogitsProcessor):
    r"""Sampling by entmax instead of softmax: what is improbable has the probability zero, with no cut by hand.

    .. math:: p = \mathrm{entmax}_\alpha(z / T)

    The scores become :math:`\log p`, so that the softmax of `generate` gives :math:`p` itself. The size of the support
    follows the model's certainty: one token where it is sure, many where it is not. Top-k and top-p are not needed;
    call `generate` with `do_sample=True, top_k=0, top_p=1.0`, as a model's own settings may have them.

    `support_sizes` are those of the last call of `generate`; one whose prompts are exactly what the call before
    returned counts as the same call.

    Args:
        alpha: at least 1: sparser the larger it is; 1 is softmax.
        temperature: the scores are divided by it; below 1 fewer tokens stay.

    Raises:
        ValueError: an alpha below 1, a temperature that is not above 0.

    Example:
        >>> processor = EntmaxLogitsProcessor(alpha=1.5)
        >>> scores = processor(torch.tensor([[3]]), torch.tensor([[2.0, 1.0, 0.1]]))
        >>> scores.softmax(-1), processor.support_sizes
        (tensor([[0.8307, 0.1693, 0.0000]]), tensor([[2]]))
    """

    def __init__(self, alpha: float = 1.5, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.alpha, self.temperature = alpha_number(alpha), float(temperature)
        self._ids: Tensor | None = None  # of the last step
        self._sizes: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [batch, classes], -inf outside the support; `generate` calls this at every step."""
        if not self._continues(input_ids):  # another call of `generate`
            self._sizes.clear()
        self._ids = input_ids
        log_probs = log_entmax(scores.float() / self.temperature, self.alpha)
        self._sizes.append((log_probs > -torch.inf).sum(-1))
        return log_probs.to(scores.dtype)

    def _continues(self, input_ids: Tensor) -> bool:
        """Tell whether every sentence is one of the last step and a token more; a beam search changes their order."""
        last, rest = self._ids, input_ids[:, :-1]
        if last is None or last.shape != rest.shape or last.device != rest.device:
            return False
        return torch.equal(last, rest) or len(torch.cat([last, rest]).unique(dim=0)) == len(last.unique(dim=0))

    @property
    def support_sizes(self) -> Tensor:
        """The number of tokens that had a probability at each step of the last call of `generate` [batch, steps]."""
        return torch.stack(self._sizes, -1) if self._sizes else torch.empty(0, 0, dtype=torch.long)
