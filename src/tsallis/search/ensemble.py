"""Several models as one: probabilities are averaged, so that supports unite and no zero kills a word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.models.decoder import Decoder, Step


@dataclass(frozen=True)
class _States:
    parts: tuple[Any, ...]

    def select(self, index: Tensor) -> _States:
        return _States(tuple(part.select(index) for part in self.parts))


class _Averaged:
    """The output of an ensemble: its scores are log-probabilities already."""

    def __init__(self, normalized: bool) -> None:
        self.normalized = normalized

    def probs(self, scores: Tensor) -> Tensor:
        return scores.exp()

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores


class Ensemble:
    r"""Models of one vocabulary that decode together, by the mean of their probabilities at every step.

    .. math:: p(y_t \mid y_{<t}, x) = \frac{1}{M} \sum_{m=1}^{M} p_m(y_t \mid y_{<t}, x)

    It follows the decoder protocol itself, so that every search takes it, and ensembles of ensembles are fine.
    Averaging logarithms instead would let one model's zero forbid what all others expect.

    Args:
        models: anything with the decoder protocol; their maps and sizes may differ, their vocabularies may not.

    Raises:
        ValueError: no models, or at the first step, models with different numbers of symbols.

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
            raise ValueError("an ensemble needs at least one model")
        self.models = list(models)
        self.output = _Averaged(all(model.output.normalized for model in self.models))

    def modules(self) -> Iterator[nn.Module]:
        """All modules of all models."""
        for model in self.models:
            if hasattr(model, "modules"):
                yield from model.modules()

    def eval(self) -> Ensemble:
        """Every model without dropout. Searches see to it themselves, and undo it."""
        for model in self.models:
            if hasattr(model, "eval"):
                model.eval()
        return self

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Any, ...]:
        return tuple(model.encode(src, src_lengths) for model in self.models)

    def start(self, memory: tuple[Any, ...]) -> _States:
        return _States(tuple(model.start(part) for model, part in zip(self.models, memory, strict=True)))

    def step(self, state: _States, token: Tensor) -> Step:
        """Scores are the logarithms [batch, d_vocab] of the mean probabilities; attention [batch, src] is the mean."""
        steps = [model.step(part, token) for model, part in zip(self.models, state.parts, strict=True)]
        each = [model.output.log_probs(step.scores) for model, step in zip(self.models, steps, strict=True)]
        sizes = {log_probs.shape[-1] for log_probs in each}
        if len(sizes) > 1:
            raise ValueError(f"the models of an ensemble must share a vocabulary, got {sorted(sizes)} symbols")
        scores = torch.stack(each).logsumexp(0) - math.log(len(each))
        attention = torch.stack([step.attention for step in steps]).mean(0)
        return Step(scores, attention, _States(tuple(step.state for step in steps)))
