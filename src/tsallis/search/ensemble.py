"""Combine models by averaging their probabilities: a symbol is possible if any model allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsallis.errors import describe
from tsallis.models.compiled import CompiledSteps, run_beams
from tsallis.models.protocol import Decoder, DecoderOutput, DerivedStep, Step, unclear_rows


@dataclass(frozen=True)
class _States:
    parts: tuple[Any, ...]

    def select(self, index: Tensor) -> _States:
        return _States(tuple(part.select(index) for part in self.parts))


class EnsembleOutput(NamedTuple):
    """Results of an ensemble for all steps, with teacher forcing."""

    hidden: Tensor  # [batch, tgt, size]: hidden states of the models, concatenated
    attention: Tensor | None  # [batch, tgt, src]: mean weights of the models; None if a model returns no weights
    parts: tuple[DecoderOutput, ...]  # results of each model


class AveragedOutput:
    """Output of an ensemble, whose scores are the logarithms of the models' mean probabilities.

    Args:
        outputs: Output layers of the models.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)

    @property
    def normalized(self) -> bool:
        """Return whether the probabilities of every model sum to 1."""
        return all(output.normalized for output in self.outputs)

    @property
    def d_model(self) -> int:
        """Return the total size of the models' hidden states."""
        return sum(self._sizes())

    def _sizes(self) -> list[int]:
        return [output.d_model for output in self.outputs]

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logarithms [..., d_vocab] of mean probabilities, from concatenated hidden states [..., size]."""
        parts = zip(self.outputs, hidden.split(self._sizes(), -1), strict=True)
        return mean_log_probs([output.log_probs(output.scores(part)) for output, part in parts])

    def probs(self, scores: Tensor) -> Tensor:
        return scores.exp()

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores

    def loss(self, hidden: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Return the mean of the models' losses, because the loss of the mean probabilities may be infinite."""
        parts = zip(self.outputs, hidden.split(self._sizes(), -1), strict=True)
        return torch.stack([output.loss(part, target, **options) for output, part in parts]).mean(0)


def mean_log_probs(member_log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithms of mean probabilities, from log-probabilities [..., d_vocab] of each model.

    Raises:
        ValueError: The models have different numbers of symbols.
    """
    sizes = {log_probs.shape[-1] for log_probs in member_log_probs}
    if len(sizes) > 1:
        raise ValueError(f"the models of an ensemble must have vocabularies of the same size, got {sorted(sizes)}")
    members = torch.stack(list(member_log_probs))
    largest = members.amax(0)
    finite = torch.where(largest == -torch.inf, 0, largest)
    # Average the differences from the largest value: the result is accurate near probability 1 and not above this
    # value.
    return largest + (members - finite).expm1().mean(0).log1p()


def _mean_attention(attentions: Sequence[Tensor | None]) -> Tensor | None:
    """Return the mean of the models' weights, or None if a model returned none."""
    available = [weights for weights in attentions if weights is not None]
    if len(available) < len(attentions):
        return None
    sizes = {weights.shape[-1] for weights in available}
    if len(sizes) > 1:
        raise ValueError(f"the models of an ensemble must attend to the same number of positions, got {sorted(sizes)}")
    return torch.stack(available).mean(0)


class Ensemble(nn.Module):
    r"""Ensemble of models with one vocabulary, which averages their probabilities at every step.

    .. math:: p(y_t \mid y_{<t}, x) = \frac{1}{M} \sum_{m=1}^{M} p_m(y_t \mid y_{<t}, x)

    The ensemble implements the decoder protocol, so all searches and other ensembles accept it. It does not average
    logarithms, because one model's zero would then exclude symbols that all other models expect.

    Args:
        models: At least one model, each with the decoder protocol. Models may differ in their activations and sizes,
            but not in their vocabularies.

    Raises:
        TypeError: An object is not a model with the decoder protocol.
        ValueError: There are no models. The first step raises this error if the models differ in their numbers of
            symbols, or in their numbers of attended positions, for example because of different image grids.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import beam_search
        >>> both = Ensemble([RNNSeq2Seq(20, 15, d_model=8), RNNSeq2Seq(20, 15, d_model=6, output="sparsemax")])
        >>> results = beam_search(both, torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), max_length=4)
        >>> len(results)
        2
    """

    def __init__(self, models: Sequence[Decoder]) -> None:
        if not models:
            raise ValueError("models must contain at least one model, got none")
        if wrong := [model for model in models if not hasattr(model, "output")]:
            raise TypeError(f"models must contain models with the decoder protocol, got {describe(wrong[0])}")
        super().__init__()
        self.models: list[Any] = list(models)
        self.members = nn.ModuleList(model for model in self.models if isinstance(model, nn.Module))
        self.output = AveragedOutput([model.output for model in self.models])

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, need_attention: bool = False) -> EnsembleOutput:
        """Decode all steps with teacher forcing; every model needs this method."""
        parts = tuple(model(src, src_lengths, tgt_in, need_attention=need_attention) for model in self.models)
        attention = _mean_attention([part.attention for part in parts])
        return EnsembleOutput(torch.cat([part.hidden for part in parts], -1), attention, parts)

    def num_attended(self, decoded: EnsembleOutput) -> Tensor:
        """Return the number of attended source positions per step [batch, tgt], averaged over the models."""
        return torch.stack([m.num_attended(part) for m, part in zip(self.models, decoded.parts, strict=True)]).mean(0)

    @property
    def image_store(self) -> Any:
        """Return the images that sources refer to by number, if the models answer questions about images."""
        return getattr(self.models[0], "image_store", None)

    @image_store.setter
    def image_store(self, images: Any) -> None:
        for model in self.models:
            model.image_store = images

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Any, ...]:
        return tuple(model.encode(src, src_lengths) for model in self.models)

    def start(self, memory: tuple[Any, ...]) -> _States:
        return _States(tuple(model.start(part) for model, part in zip(self.models, memory, strict=True)))

    def step(self, state: _States, token: Tensor) -> Step:
        """Run one step. Scores [batch, d_vocab] are logarithms of mean probabilities; attention weights are means."""
        steps = [model.step(part, token) for model, part in zip(self.models, state.parts, strict=True)]
        log_probs = [
            model.output.log_probs(step.scores).double() for model, step in zip(self.models, steps, strict=True)
        ]
        attention = _mean_attention([step.attention for step in steps])
        result = DerivedStep(mean_log_probs(log_probs), attention, _States(tuple(step.state for step in steps)))
        result.unclear = torch.stack([unclear_rows(step) for step in steps]).any(0)
        return result

    def run_beams(self, state: _States, beams: Any, end: int, keep: bool) -> list[Tensor] | None:
        """Run all steps of a beam search in one call, or return None; see :func:`tsallis.models.compiled.run_beams`."""
        # A wrapper of a model may change its probabilities.
        is_compiled = type(self) is Ensemble and all(isinstance(model, CompiledSteps) for model in self.models)
        return run_beams(state.parts, beams, end, keep) if is_compiled else None
