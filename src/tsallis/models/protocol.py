"""The protocol all models follow, so that search, scoring and ensembles are written once.

A model encodes a batch of sources into a memory and starts a decoder state from it. A step maps the state and one token
per row to scores of the next token. States are rows: they are selected, repeated and dropped by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.log_probs import indistinct
from tsallis.ops.eager.ranking import best_of_log_probs


@dataclass(frozen=True)
class Memory:
    """The encoder's states of a batch of sources.

    Args:
        states: [batch, src, d_model]
        mask: boolean [batch, src], True where there is a symbol.
        summary: the encoder's last states, each [batch, ...].
        copies: [batch, src], the column that collects the attention to each position in a model that copies, see
            :meth:`tsallis.models.copying.CopyOutput.attend`.

    Example:
        >>> memory = Memory(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
        >>> memory.select(torch.tensor([0, 0, 1])).states.shape
        torch.Size([3, 5, 8])
    """

    states: Tensor
    mask: Tensor
    summary: tuple[Tensor, ...] = ()
    copies: Tensor | None = None

    def select(self, index: Tensor) -> Memory:
        """Select rows by index: reorder, repeat or drop them."""
        copies = None if self.copies is None else self.copies[index]
        return Memory(self.states[index], self.mask[index], tuple(x[index] for x in self.summary), copies)


def source_mask(lengths: Tensor, sources: Tensor) -> Tensor:
    """Return a mask [batch, src], True where sources [batch, src, ...] of these lengths have a symbol."""
    return torch.arange(sources.shape[1], device=sources.device) < lengths.to(sources.device).unsqueeze(1)


def join(states: Sequence[Any]) -> Any:
    """Concatenate the rows of several states: a state is a dataclass of tensors, tuples and dataclasses of them.

    One that needs more than this has a method `join(states)` of its own.
    """
    first = states[0]
    if len(states) == 1 or first is None:
        return first
    if hasattr(first, "join"):
        return first.join(states)
    if isinstance(first, Tensor):
        return torch.cat(list(states))
    if isinstance(first, tuple):
        return tuple(join(parts) for parts in zip(*states, strict=True))
    return type(first)(**{f.name: join([getattr(s, f.name) for s in states]) for f in fields(first)})


class Step(NamedTuple):
    """One step of decoding.

    Args:
        scores: [batch, d_vocab], -inf for impossible symbols.
        attention: weights [batch, src].
        state: after the step, for the next one.
    """

    scores: Tensor
    attention: Tensor
    state: Any


class DerivedStep(Step):
    """Step whose scores combine several distributions, as log-probabilities.

    `unclear` [batch] is True if the scores of one part were too large to be distinguished, see
    :class:`tsallis.search.Certificate`.
    """

    unclear: Tensor


class BestStep(NamedTuple):
    """One step of decoding, as far as a beam search reads it.

    Args:
        best: the best symbols of each row.
        num_attended: [batch]: the source positions with a weight.
        attention: weights [batch, src], or None if not requested.
        state: after the step, for the next one.
    """

    best: BestSymbols
    num_attended: Tensor
    attention: Tensor | None
    state: Any


class DecoderOutput(NamedTuple):
    """All steps at once, with teacher forcing.

    Args:
        hidden: [batch, tgt, d_model]
        attention: weights [batch, tgt, src]; None where a model holds no weights by default.
    """

    hidden: Tensor
    attention: Tensor | None


class State(Protocol):
    def select(self, index: Tensor) -> State:
        """Select rows by index: reorder, repeat or drop them."""
        ...


class Output(Protocol):
    """The methods of an output layer that search calls; :class:`tsallis.nn.OutputLayer` has it."""

    @property
    def normalized(self) -> bool:
        """True where probabilities sum to 1, so that a longer hypothesis is never more probable."""
        ...

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities [rows, d_vocab] in float64, -inf where impossible."""
        ...


class Decoder(Protocol):
    """The methods of a model that search calls.

    :class:`~tsallis.models.RNNSeq2Seq`, :class:`~tsallis.models.TransformerSeq2Seq`,
    :class:`~tsallis.models.LanguageModel`, :class:`~tsallis.models.LabelDecoder` and :class:`~tsallis.search.Ensemble`
    have them. A state has a method `select(index)` that reorders, repeats or drops its rows. A beam search calls two
    more where a model has them, because they can be faster: `step_best` in the place of `step`, and `run_beams`.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model: Decoder = RNNSeq2Seq(20, 15, d_model=8)
        >>> state = model.start(model.encode(torch.tensor([[7, 8, 9]]), torch.tensor([3])))
        >>> model.step(state, torch.tensor([1])).scores.shape  # after the start
        torch.Size([1, 15])
    """

    @property
    def output(self) -> Output: ...

    def encode(self, src: Tensor, src_lengths: Tensor) -> Any:
        """Encode symbols [batch, src] with their counts [batch] to a memory."""
        ...

    def start(self, memory: Any) -> Any:
        """Return the state before the first token."""
        ...

    def step(self, state: Any, token: Tensor) -> Step:
        """Read one token [batch] and return the scores of the next."""
        ...


def best_of_step(output: Any, step: Step, count: int, end: int, only: Tensor | None) -> BestStep:
    """Return what a beam search reads of a step: of an output layer's own making, or from all log-probabilities."""
    if only is not None:
        check_symbols(only, step.scores.shape[1])
    if hasattr(output, "best_symbols") and not isinstance(step, DerivedStep):
        best = output.best_symbols(step.scores, count, end, only)
    else:
        best = best_of_log_probs(output.log_probs(step.scores), count, end, only, unclear_rows(step))
    return BestStep(best, (step.attention > 0).sum(-1), step.attention, step.state)


def unclear_rows(step: Step) -> Tensor:
    """Return which rows [batch] of a step have scores that are too large to be told apart."""
    return step.unclear if isinstance(step, DerivedStep) else indistinct(step.scores)


def check_symbols(symbols: Tensor, d_vocab: int) -> None:
    """Refuse prefixes with symbols that the model does not know."""
    largest = int(symbols.max())
    if largest >= d_vocab:
        raise ValueError(f"a prefix holds the symbol {largest}, the model knows {d_vocab}")


def device_of(model: object) -> torch.device:
    """Return where a model's parameters are; the CPU for one without any."""
    parameter = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return torch.device("cpu") if parameter is None else parameter.device
