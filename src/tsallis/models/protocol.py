"""Define the protocol that all models follow, so that search, scoring and ensembles support every model.

A model encodes a batch of sources into a memory and creates a decoder state from the memory. A step maps the state and
one token per row to scores of the next token. The rows of a state can be selected, repeated and dropped by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tsallis.ops.arguments import BestSymbols
from tsallis.ops.eager.log_probs import indistinct
from tsallis.ops.eager.ranking import best_of_log_probs


@dataclass(frozen=True)
class Memory:
    """Encoder states of a batch of sources.

    Args:
        states: states [batch, src, d_model].
        mask: boolean mask [batch, src], True for symbols.
        summary: last states of the encoder, each [batch, ...].
        copies: for a model that copies, the index [batch, src] of the column that collects the attention to each
            position, see :meth:`tsallis.models.copying.CopyOutput.attend`.
        features: for a model with a second encoder, boolean mask [batch, src], True for features.

    Example:
        >>> memory = Memory(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
        >>> memory.select(torch.tensor([0, 0, 1])).states.shape
        torch.Size([3, 5, 8])
    """

    states: Tensor
    mask: Tensor
    summary: tuple[Tensor, ...] = ()
    copies: Tensor | None = None
    features: Tensor | None = None

    def select(self, index: Tensor) -> Memory:
        """Select rows by index: reorder, repeat or drop them."""
        optional_tensors = (None if x is None else x[index] for x in (self.copies, self.features))
        return Memory(self.states[index], self.mask[index], tuple(x[index] for x in self.summary), *optional_tensors)


def source_mask(lengths: Tensor, sources: Tensor) -> Tensor:
    """Return a mask [batch, src], True where sources [batch, src, ...] of these lengths have a symbol."""
    return torch.arange(sources.shape[1], device=sources.device) < lengths.to(sources.device).unsqueeze(1)


def join(states: Sequence[Any]) -> Any:
    """Concatenate the rows of several states.

    A state is a dataclass of tensors, tuples and dataclasses. Other states have their own method `join(states)`.

    Raises:
        TypeError: The state is neither.
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
    if not is_dataclass(first) or isinstance(first, type):
        raise TypeError(
            "the state of a model must consist of tensors, tuples and dataclasses, or have a method join(states), "
            f"got {type(first).__name__}"
        )
    return type(first)(**{f.name: join([getattr(s, f.name) for s in states]) for f in fields(first)})


class Step(NamedTuple):
    """One step of decoding.

    Args:
        scores: scores [batch, d_vocab], -inf for impossible symbols.
        attention: attention weights [batch, src], or None for a model without attention.
        state: state after the step.
    """

    scores: Tensor
    attention: Tensor | None
    state: Any


class DerivedStep(Step):
    """Step whose scores combine several distributions, as log-probabilities.

    `unclear` [batch] is True if the scores of one part were too large to be distinguished, see
    :class:`tsallis.search.Certificate`.
    """

    unclear: Tensor


class BestStep(NamedTuple):
    """Results of one decoding step that beam search needs.

    Args:
        best: best symbols of each row.
        num_attended: number of source positions with non-zero weight [batch].
        attention: attention weights [batch, src], or None if not requested.
        state: state after the step.
    """

    best: BestSymbols
    num_attended: Tensor
    attention: Tensor | None
    state: Any


class DecoderOutput(NamedTuple):
    """Output of all decoding steps with teacher forcing.

    Args:
        hidden: hidden states [batch, tgt, d_model].
        attention: attention weights [batch, tgt, src], or None if the model did not store them.
    """

    hidden: Tensor
    attention: Tensor | None


class State(Protocol):
    """State of a decoder: a dataclass of tensors, tuples and dataclasses, or an object with a method `join(states)`.

    `join` is called on the first of several states, and returns one state with the rows of all.
    """

    def select(self, index: Tensor) -> State:
        """Select rows by index: reorder, repeat or drop them."""
        ...


class Output(Protocol):
    """Interface of an output layer for search; :class:`tsallis.nn.OutputLayer` implements it."""

    @property
    def normalized(self) -> bool:
        """Return whether probabilities sum to 1, so that extending a hypothesis never makes it more probable."""
        ...

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities [rows, d_vocab] in float64, -inf for impossible symbols."""
        ...


class Decoder(Protocol):
    """Interface of a model for search.

    :class:`~tsallis.models.RNNSeq2Seq`, :class:`~tsallis.models.TransformerSeq2Seq`,
    :class:`~tsallis.models.LanguageModel`, :class:`~tsallis.models.LabelDecoder` and :class:`~tsallis.search.Ensemble`
    implement it. A state has a method `select(index)` that reorders, repeats or drops its rows. Unless it is a
    dataclass of tensors, it also has a method `join(states)` that concatenates the rows of several states. A model may
    have two more methods, which make beam search faster: `step_best`, which replaces `step`, and `run_beams`.

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
        """Read one token per row [batch] and return the scores of the next token."""
        ...


def best_of_step(output: Any, step: Step, count: int, end: int, only: Tensor | None) -> BestStep:
    """Return the results of a step for beam search; use the output layer's `best_symbols` if possible."""
    if only is not None:
        check_symbols(only, step.scores.shape[1])
    if _uses_best_symbols(output) and not isinstance(step, DerivedStep):
        best = output.best_symbols(step.scores, count, end, only)
    else:
        best = best_of_log_probs(output.log_probs(step.scores).double(), count, end, only, unclear_rows(step))
    return BestStep(best, count_attended(step.attention, step.scores), step.attention, step.state)


def _uses_best_symbols(output: Any) -> bool:
    """Return whether an output has `best_symbols`, and neither a subclass nor the object replaces `log_probs`."""
    kind: Any = type(output)
    return "log_probs" not in getattr(output, "__dict__", ()) and _class_uses_best_symbols(kind)


@cache
def _class_uses_best_symbols(kind: Any) -> bool:
    names = (name for base in kind.__mro__ for name in ("best_symbols", "log_probs") if name in vars(base))
    return next(names, "") == "best_symbols"


def count_attended(attention: Tensor | None, scores: Tensor) -> Tensor:
    """Return the number of attended positions of each row [batch]; 0 without attention."""
    return (scores[:, :0] if attention is None else attention > 0).sum(-1, dtype=torch.long)


def unclear_rows(step: Step) -> Tensor:
    """Return a mask [batch] of the rows whose scores are too large to be distinguished."""
    return step.unclear if isinstance(step, DerivedStep) else indistinct(step.scores)


def check_symbols(symbols: Tensor, d_vocab: int, name: str = "a prefix") -> None:
    """Raise if a symbol is outside the model's vocabulary."""
    largest = int(symbols.max())
    if largest >= d_vocab:
        raise ValueError(f"symbols of {name} must be from 0 to {d_vocab - 1}, got {largest}")


def device_of(model: object) -> torch.device:
    """Return the device of a model's parameters, or the CPU for a model without parameters."""
    parameter = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return torch.device("cpu") if parameter is None else parameter.device
