"""Define an output layer that also copies symbols of the source: a pointer-generator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from tsallis.errors import check_integer, describe
from tsallis.models.mixture import MixtureOutput, safe_log
from tsallis.models.protocol import DerivedStep, Step
from tsallis.nn import OutputLayer
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager.log_probs import indistinct
from tsallis.symbols import FIRST, UNK


class CopyOutput(MixtureOutput):
    r"""Output layer that mixes the probabilities of an activation such as entmax with attention to the source.

    .. math:: p(y) = (1 - g) \, p_\mathrm{out}(y) + g \sum_j a_j \, p_j(y), \qquad g = \sigma(v^\top h + b)

    (See et al. 2017, eq. 9.) :math:`a_j` is the attention to the source position j, and :math:`p_j` gives the target
    symbol of that position probability 1. A position without a target symbol, such as a tag, has
    :math:`p_j = p_\mathrm{out}`. So probabilities sum to 1, and a symbol is possible exactly if the activation or the
    attention makes it possible.

    The loss of the target y is the mean of two losses. The first is the loss of the activation, as in
    :class:`tsallis.nn.OutputLayer`. The second is the Bregman divergence of the Tsallis entropy of the mixture,

    .. math:: \frac{1 - p_y^{\alpha-1}}{\alpha-1} - \frac{1 - \sum_i p_i^\alpha}{\alpha}.

    The second loss is a proper scoring rule, and is finite at :math:`p_y = 0`, where :math:`-\log p_y` is infinite. At
    :math:`g = 0` both losses are equal if the activation makes the target possible; for softmax, the second loss is
    :math:`-\log p_y`. The second loss alone has no gradient at :math:`p_y = 0`, and teaches the activation little if
    copying is easy. The first loss has a gradient everywhere.

    Hidden states are larger than `d_model` of the constructor: they also contain the attention to each target symbol,
    and to positions without a target symbol (see :meth:`attend`). Scores are log-probabilities in float64. Only
    `loss_of_scores` takes the scores of the activation.

    Args:
        d_model: Size of the hidden states, without attention.
        d_vocab: Number of target symbols.
        targets: Target symbol of each source symbol; -1 if the symbol is not copied.
        options: Other arguments of :class:`tsallis.nn.OutputLayer`.

    Raises:
        ValueError: If a target symbol is special or not in the vocabulary.

    Example:
        >>> output = CopyOutput(8, 6, [-1, -1, -1, -1, 5, 4], transform="sparsemax")
        >>> attention, source = torch.tensor([[1.0, 0.0]]), torch.tensor([[5, 4]])
        >>> hidden = output.attend(torch.zeros(1, 8), attention, output.copies(source))
        >>> round(output.probs(output.scores(hidden)).sum().item(), 6)
        1.0
    """

    targets: Tensor

    def __init__(self, d_model: int, d_vocab: int, targets: Sequence[int], *options: Any, **named: Any) -> None:
        super().__init__(d_model, d_vocab, *options, **named)
        targets = [check_integer("a target symbol of copy", number, -1) for number in targets]
        if wrong := [number for number in targets if number != -1 and not FIRST <= number < d_vocab]:
            raise ValueError(f"copy must contain target symbols from {FIRST} to {d_vocab - 1} or -1, got {wrong[0]}")
        self.gate = nn.Linear(d_model, 1)
        self.register_constant("targets", torch.tensor(targets, device="cpu"), self.weight.device)
        self.unknown: tuple[int, ...] = ()  # target symbols of the source symbols that follow those in `targets`

    @property
    def d_vocab(self) -> int:
        """Return the number of symbols that an output may contain, see :func:`with_unknown`."""
        return max(len(self.weight), *(number + 1 for number in self.unknown), 0)

    @property
    def d_model(self) -> int:
        """Return the size of the hidden states, including attention."""
        return self.projection.in_features + self.d_vocab + 1

    def copies(self, src: Tensor) -> Tensor:
        """Return the index [batch, src] of the column that collects the attention to each source symbol.

        The columns are those that :meth:`attend` appends.
        """
        targets = torch.cat([self.targets, self.targets.new_tensor(self.unknown)])[src]
        dropped = (targets < 0) | pad(self.never, (0, self.d_vocab - len(self.never)))[targets]
        return targets.masked_fill(dropped, self.d_vocab)

    def attend(self, hidden: Tensor, attention: Tensor, copies: Tensor) -> Tensor:
        """Append attention weights to hidden states: one per target symbol, and one for positions without a symbol.

        Args:
            hidden: Hidden states [batch, d_model] or [batch, tgt, d_model].
            attention: Weights [batch, src] or [batch, tgt, src].
            copies: Result of :meth:`copies` [batch, src].
        """
        attention = upcast(attention)
        index = (copies if attention.dim() == 2 else copies.unsqueeze(1)).expand_as(attention)
        columns = attention.new_zeros(*attention.shape[:-1], self.d_vocab + 1)
        return torch.cat([hidden, columns.scatter_add(-1, index, attention)], -1)

    def step(self, hidden: Tensor, attention: Tensor, copies: Tensor, state: Any) -> Step:
        """Create a decoding step from the arguments of :meth:`attend` and the new state."""
        hidden = self.attend(hidden, attention, copies)
        step = DerivedStep(self.scores(hidden), attention, state)
        step.unclear = indistinct(self._split(hidden)[0])
        return step

    def _split(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the scores of the activation, the logit of the gate, the attention to symbols, and to no symbol."""
        states, columns = hidden.split([self.projection.in_features, self.d_vocab + 1], -1)
        states = states.to(self.weight.dtype)
        return super().scores(states), self.gate(states), columns[..., :-1], columns[..., -1:]

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logarithms of the mixture [..., d_vocab] in float64; -inf exactly where the mixture is zero."""
        scores, gate, copied, uncopied = self._split(hidden)
        log_gate, log_generation = logsigmoid(gate.double()), logsigmoid(-gate.double())
        log_generation = torch.logaddexp(log_generation, log_gate + safe_log(uncopied.double()))
        generated = pad(OutputLayer.log_probs(self, scores), (0, copied.shape[-1] - scores.shape[-1]), value=-torch.inf)
        parts = log_generation + generated, log_gate + safe_log(copied.double())
        impossible = (parts[0] == -torch.inf) & (parts[1] == -torch.inf)  # the gradient of logaddexp is NaN there
        return torch.logaddexp(*(part.masked_fill(impossible, 0) for part in parts)).masked_fill(impossible, -torch.inf)

    def _losses(self, hidden: Tensor, target: Tensor, active: Tensor) -> Tensor:
        scores, gate, copied, uncopied = self._split(hidden)
        known = active & (target < scores.shape[-1])  # the activation has no scores for unknown symbols
        map_loss = self.loss_of_scores(scores, torch.where(known, target, -100).squeeze(-1), reduction="none")
        target, scores, gate_logit = torch.where(active, target, 0), upcast(scores), upcast(gate)
        gate = gate_logit.sigmoid()
        copy_prob = gate * copied.gather(-1, target)
        if self.alpha == 1:
            score = scores.gather(-1, torch.where(known, target, 0))
            generated = torch.where(known, score - scores.logsumexp(-1, keepdim=True), -torch.inf)
            log_generation = torch.logaddexp(logsigmoid(-gate_logit), logsigmoid(gate_logit) + safe_log(uncopied))
            log_parts = log_generation + generated, safe_log(copy_prob)
            impossible = ~active | ((log_parts[0] == -torch.inf) & (log_parts[1] == -torch.inf))
            loss = -torch.logaddexp(*(part.masked_fill(impossible, 0) for part in log_parts))
            loss = loss.masked_fill(impossible, torch.inf)
        else:
            generated = (1 - gate * (1 - uncopied)) * OutputLayer.probs(self, scores)
            probs = pad(generated, (0, copied.shape[-1] - scores.shape[-1])) + gate * copied
            loss = self.divergence(probs, target)
        return (map_loss + loss.squeeze(-1)).masked_fill(~active.squeeze(-1), 0) / 2

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, copies={int((self.targets >= 0).sum())}"


def make_output(
    d_model: int, d_vocab: int, src_vocab: int, copied: Sequence[int] | None, *options: Any, **named: Any
) -> OutputLayer:
    """Create the output layer of a model; it copies source symbols if `copied` gives their target symbols.

    Raises:
        ValueError: If `copied` does not give one target symbol per source symbol, or a target symbol is invalid.
    """
    if copied is None:
        return OutputLayer(d_model, d_vocab, *options, **named)
    if len(copied) != src_vocab:
        raise ValueError(f"copy must have {src_vocab} numbers, one per source symbol, got {len(copied)}")
    return CopyOutput(d_model, d_vocab, copied, *options, **named)


def embed_known(table: nn.Embedding, symbols: Tensor, output: OutputLayer) -> Tensor:
    """Return the embeddings of symbols; a model that copies reads symbols outside its vocabulary as unknown."""
    if isinstance(output, CopyOutput):
        symbols = symbols.masked_fill(symbols >= table.num_embeddings, UNK)
    embedded: Tensor = table(symbols)
    return embedded


def with_unknown(model: Any, targets: Sequence[int]) -> Any:
    """Return a model that also copies source symbols outside its vocabulary, with the same parameters.

    Source symbol `src_vocab + i` is read as unknown and copied as target symbol `targets[i]`. Target symbols from
    `tgt_vocab` on represent symbols that the target vocabulary lacks; only copying makes them possible (See et al. 2017
    call this the extended vocabulary).

    Args:
        model: Model with the argument `copy`.
        targets: Target symbols, from 4.

    Raises:
        ValueError: If the model does not copy, or a target symbol is special.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = with_unknown(RNNSeq2Seq(5, 5, 8, copy=[-1, -1, -1, -1, 4]), [5])
        >>> state = model.start(model.encode(torch.tensor([[4, 5]]), torch.tensor([2])))
        >>> model.step(state, torch.tensor([1])).scores.shape
        torch.Size([1, 6])
    """
    if not isinstance(model.output, CopyOutput):
        raise ValueError("the model does not copy symbols: create it with the argument copy")
    if targets and min(targets) < FIRST:
        raise ValueError(f"targets must be symbols of at least {FIRST}, got {describe(min(targets))}")
    extended, output = copy.copy(model), copy.copy(model.output)
    output.unknown = tuple(targets)
    extended._modules = {**model._modules, "output": output}
    return extended
