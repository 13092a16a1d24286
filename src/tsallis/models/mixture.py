"""Define the base class of output layers whose probabilities are a mixture of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.functional.losses import reduce
from tsallis.functional.maps import tsallis_entropy
from tsallis.functional.sparse_rows import SparseRows
from tsallis.nn import OutputLayer
from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.ranking import best_of_log_probs
from tsallis.ops.sparse_rows import row_numbers


class MixtureOutput(OutputLayer):
    """Output layer that mixes distributions. Its scores are log-probabilities in float64.

    Hidden states begin with the states of the activation, of the size of the projection. Only `loss_of_scores` takes
    the scores of the activation. Subclasses define `scores` and `_losses`.
    """

    def probs(self, scores: Tensor) -> Tensor:
        """Return probabilities [..., d_vocab]; those of alpha-ReLU need not sum to 1."""
        return self.log_probs(scores).exp()

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities in float64; scores divided by a temperature are normalized again."""
        return scores.log_softmax(-1) if self.normalized else scores

    def best_symbols(self, scores: Tensor, count: int, end: int, only: Tensor | None = None) -> BestSymbols:
        """Return the most probable symbols, see :meth:`tsallis.nn.OutputLayer.best_symbols`."""
        return best_of_log_probs(self.log_probs(scores), count, end, only)

    def _screened_weight(self, rows: Tensor) -> None:
        """Return None: the scan of a weight does not know the other distributions."""

    def thresholds(self, scores: Tensor, probs: Tensor) -> None:
        """Return None: a mixture has no single threshold."""

    def loss(
        self,
        hidden: Tensor,
        target: Tensor | SparseRows,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Compute the loss of the mixture, with the arguments of :meth:`tsallis.nn.OutputLayer.loss`.

        Label smoothing acts on the activation's scores.
        """
        if isinstance(target, SparseRows):
            if label_smoothing:
                raise ValueError(f"label_smoothing must be 0 for targets in SparseRows, got {label_smoothing}")
            return self._soft_loss(hidden, target, reduction)
        active = target != ignore_index
        hidden = torch.where(active.unsqueeze(-1), hidden, 0)  # NaN would reach the gradient of the weight
        total = reduce(self._losses(hidden, target.unsqueeze(-1), active.unsqueeze(-1)), active.sum(), reduction)
        if label_smoothing == 0:
            return total
        states = hidden[..., : self.projection.in_features].to(self.weight.dtype)
        generated = target.masked_fill(target >= len(self.weight), ignore_index)
        return total + label_smoothing * self._lead(states, generated, ignore_index, reduction)

    def _soft_loss(self, hidden: Tensor, target: SparseRows, reduction: str) -> Tensor:
        r"""Compute the loss of distributions q.

        .. math:: L(q) = \sum_y q_y L(y) - H_\alpha(q)

        where H is the Tsallis entropy: both parts of the loss are linear in the target, apart from its entropy.
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        if len(rows) != len(target):
            raise ValueError(f"target must have {len(rows)} rows, one per hidden state, got {len(target)}")
        target.check_classes(self.d_vocab)
        row, zeros = row_numbers(target.offsets, len(target.indices)), target.probs.new_zeros(len(target))
        probs = (target.probs / zeros.index_add(0, row, target.probs)[row]).double()
        symbols = target.indices.long().unsqueeze(-1)
        losses = self._losses(rows[row], symbols, torch.ones_like(symbols, dtype=torch.bool))
        entropy = tsallis_entropy(probs.unsqueeze(-1), self.alpha)  # each symbol's part
        # A symbol that the teacher excludes may have an infinite loss.
        symbol_losses = torch.where(probs > 0, probs * losses, 0) - entropy
        total = torch.zeros_like(zeros, dtype=symbol_losses.dtype).index_add(0, row, symbol_losses).to(losses.dtype)
        return reduce(total.view(hidden.shape[:-1]), (target.offsets.diff() > 0).sum(), reduction)

    def _losses(self, hidden: Tensor, target: Tensor, active: Tensor) -> Tensor:
        """Return the loss [...] of each target [..., 1], 0 where not `active` [..., 1]."""
        raise NotImplementedError

    def divergence(self, probs: Tensor, target: Tensor) -> Tensor:
        """Return the Bregman divergence of the Tsallis entropy from targets [..., 1], for an alpha above 1."""
        power = self.alpha - 1
        surprisal = -torch.expm1(power * safe_log(probs.gather(-1, target))) / power
        return surprisal - (1 - (probs**self.alpha).sum(-1, keepdim=True)) / self.alpha


def safe_log(x: Tensor) -> Tensor:
    """Return logarithms with gradient 0 at 0; an infinite gradient would become NaN when multiplied by 0."""
    zero = x == 0  # not `x <= 0`: a NaN must stay NaN
    return torch.where(zero, -torch.inf, torch.where(zero, 1, x).log())
