"""Define hard monotonic attention: an output layer that sums over all monotonic alignments of target and source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsallis.functional.maps import log_entmax
from tsallis.models.mixture import MixtureOutput, safe_log
from tsallis.models.protocol import DerivedStep
from tsallis.nn import OutputLayer
from tsallis.ops.eager.log_probs import indistinct

ORDERS = (0, 1)
JUMPS = 4  # distances from here on share a score


class AlignedSteps(NamedTuple):
    """States, scores and log-probabilities of the steps of a target, for every aligned source position.

    Args:
        states: Hidden states of each position [batch, tgt, src, d_model].
        scores: The map's scores of each position [batch, tgt, src, d_vocab].
        log_probs: Log-probabilities of these scores, in float64.
        transitions: Log-probabilities [batch, tgt, src, src] of the next position, given the last one.
    """

    states: Tensor
    scores: Tensor
    log_probs: Tensor
    transitions: Tensor


class MonotonicOutput(MixtureOutput):
    r"""Output layer with hard monotonic attention (Wu and Cotterell 2019).

    Each target symbol is aligned to one source position :math:`a_i`, and positions never decrease:

    .. math:: p(y) = \sum_{a_1 \le \dots \le a_n} \prod_i p(a_i \mid a_{i-1}, y_{<i}) \, p(y_i \mid a_i, y_{<i})

    The forward algorithm computes this sum and the probability of each next symbol exactly. The transitions are
    :math:`\mathrm{entmax}_\alpha` of scores of the positions from :math:`a_{i-1}` on. Order 0 uses the scores of soft
    attention. Order 1 adds a learned score of the distance :math:`\min(a_i - a_{i-1}, 4)`, which depends on the state
    at :math:`a_{i-1}`. The first transition starts at the first position.

    The next symbol has a mixture of the distributions of all positions. A symbol is possible exactly if it is possible
    at a position that an alignment can reach. If an impossible symbol is read, it does not change the probabilities of
    the positions.

    With softmax as output map, the loss of a target is :math:`-\log p(y)`. Otherwise the loss of a symbol is the mean
    of two losses, as in :class:`tsallis.models.copying.CopyOutput`: the expected loss of the activation over the
    positions, and the Bregman divergence of the mixture.

    Args:
        d_model: Size of the hidden states of a position.
        d_vocab: Number of target symbols.
        order: Order of the transitions, 0 or 1.
        attention_alpha: Alpha of the transitions.
        options: Other arguments of :class:`tsallis.nn.OutputLayer`.

    Raises:
        ValueError: If the order is neither 0 nor 1.

    Example:
        >>> output = MonotonicOutput(8, 6, 1, 2.0, transform="sparsemax")
        >>> steps = output.prepare(torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
        >>> hidden, positions = output.align(steps, torch.randint(4, 6, (2, 3)))
        >>> output.scores(hidden).shape, positions.shape
        (torch.Size([2, 3, 6]), torch.Size([2, 3, 4]))
    """

    def __init__(self, d_model: int, d_vocab: int, order: int, attention_alpha: float, *options: Any, **named: Any):
        super().__init__(d_model, d_vocab, *options, **named)
        if order not in ORDERS:
            raise ValueError(f"monotonic must be 0 or 1, the order of the transitions, got {order}")
        self.attention_alpha = attention_alpha
        self.jump = nn.Linear(d_model, JUMPS + 1) if order else None
        self.allowed = int((~self._constants["never"]).int().argmax())

    @property
    def d_model(self) -> int:
        """Return the size of the hidden states: the activation's states, log-probabilities, a constant of the loss."""
        return self.projection.in_features + self.d_vocab + 1

    def prepare(self, states: Tensor, attention: Tensor, mask: Tensor) -> AlignedSteps:
        """Return scores and transitions of all steps.

        Args:
            states: Hidden states of each position [batch, tgt, src, d_model].
            attention: Scores of the positions [batch, tgt, src].
            mask: Mask of the source [batch, src].
        """
        position = torch.arange(mask.shape[1], device=mask.device)
        distance = position - position.unsqueeze(1)  # [src, src]: from the last position to the next
        attention = attention.unsqueeze(-2)
        if self.jump is not None:
            jumps = self.jump(states)  # [batch, tgt, src, JUMPS + 1]
            attention = attention + jumps.gather(-1, distance.clamp(0, JUMPS).expand(*jumps.shape[:-1], -1))
        # Rows of padding are never used; allow all positions there, because log_entmax needs one.
        reachable = ((distance >= 0) | ~mask.unsqueeze(-1)) & mask.unsqueeze(1)
        transitions = log_entmax(torch.where(reachable.unsqueeze(1), attention, -torch.inf), self.attention_alpha)
        scores = super().scores(states)
        return AlignedSteps(states, scores, OutputLayer.log_probs(self, scores), transitions)

    def start(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first state of the alignment for sources of the shape of `like` [batch, src].

        The state has the logarithms of the probabilities of positions [batch, src], and of symbols at each position
        [batch, src, d_vocab]. All symbols have probability 1, so that reading the start symbol has no effect.
        """
        first = like.new_full(like.shape, -torch.inf, dtype=torch.float64)
        first[:, 0] = 0
        return first, first.new_zeros(*like.shape, self.d_vocab)

    def align(self, steps: AlignedSteps, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states [batch, tgt, ...] for `scores` and `loss`, and probabilities of positions.

        Args:
            steps: Result of :meth:`prepare`.
            tokens: Start symbol and target symbols [batch, tgt].
        """
        positions, log_probs = self.start(steps.states[:, 0, :, 0])
        step_positions = []
        for i, token in enumerate(tokens.unbind(1)):
            positions = self._next_positions(positions, log_probs, token, steps.transitions[:, i])
            log_probs = steps.log_probs[:, i]
            step_positions.append(positions)
        positions = torch.stack(step_positions, 1)  # [batch, tgt, src]
        weights = positions.exp()
        states = (weights.to(steps.states.dtype).unsqueeze(2) @ steps.states).squeeze(2)
        constant = (weights * self._loss_constants(steps.scores)).sum(-1, keepdim=True)
        hidden = torch.cat([states, _mix(positions, steps.log_probs), constant], -1)
        return hidden, weights.to(steps.states.dtype)

    def step(self, state: Any, token: Tensor, step: AlignedSteps) -> DerivedStep:
        """Return one step of decoding.

        Args:
            state: Decoder state with `memory` and `alignment`; the first alignment is the result of :meth:`start`.
            token: Token to read [batch].
            step: Result of :meth:`prepare` for one step.
        """
        positions, log_probs = state.alignment
        positions, log_probs = (
            self._next_positions(positions, log_probs, token, step.transitions[:, 0]),
            step.log_probs[:, 0],
        )
        weights = positions.exp().to(step.states.dtype)
        result = DerivedStep(_mix(positions, log_probs), weights, replace(state, alignment=(positions, log_probs)))
        result.unclear = (indistinct(step.scores[:, 0]) & state.memory.mask).any(1)
        return result

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logarithms of the mixture [..., d_vocab] in float64; -inf exactly where the mixture is zero."""
        return self._split(hidden)[1]

    def _split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return hidden.double().split([self.projection.in_features, self.d_vocab, 1], -1)

    @staticmethod
    def _next_positions(positions: Tensor, log_probs: Tensor, token: Tensor, transitions: Tensor) -> Tensor:
        """Return the log-probabilities of the next position [batch, src] after a token [batch]."""
        joint = positions + log_probs.gather(-1, token[:, None, None].expand(-1, positions.shape[1], 1)).squeeze(-1)
        total = _logsumexp(joint, -1).unsqueeze(-1)
        possible = total > -torch.inf
        positions = torch.where(possible, joint - total.masked_fill(~possible, 0), positions)
        return _logsumexp(positions.unsqueeze(-1) + transitions, -2)

    def _loss_constants(self, scores: Tensor) -> Tensor:
        """Return the part of the activation's loss [...] that does not depend on the target; 0 for softmax."""
        if self.alpha == 1:
            return scores.new_zeros(scores.shape[:-1])
        target = torch.full(scores.shape[:-1], self.allowed, device=scores.device)
        return self.loss_of_scores(scores, target, reduction="none") + scores[..., self.allowed]

    def _losses(self, hidden: Tensor, target: Tensor, active: Tensor) -> Tensor:
        states, log_probs, constant = self._split(hidden)
        target = torch.where(active, target, self.allowed)
        if self.alpha == 1:
            losses = -log_probs.gather(-1, target)
        else:
            map_loss = constant - super().scores(states.to(self.weight.dtype)).gather(-1, target)
            losses = (map_loss + self.divergence(log_probs.exp(), target)) / 2
        return losses.masked_fill(~active, 0).squeeze(-1)


def _mix(positions: Tensor, log_probs: Tensor) -> Tensor:
    """Return the log-probabilities of a mixture [..., d_vocab] over positions [..., src]."""
    return _logsumexp(positions.unsqueeze(-1) + log_probs, -2)


def _logsumexp(x: Tensor, dim: int) -> Tensor:
    """Compute logsumexp with a gradient of zero, not NaN, where all entries are -inf."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    return (safe_log((x - top).exp().sum(dim, keepdim=True)) + top).squeeze(dim)
