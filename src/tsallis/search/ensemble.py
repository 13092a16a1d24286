"""Several models as one: probabilities are averaged, so that supports unite and no zero kills a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores


class Ensemble:
    """Models of one vocabulary that decode together, by the mean of their probabilities at every step.

    It follows the decoder protocol itself, so that every search takes it (Peters et al. 2019, sec. 4.1, average raw
    probabilities as well). Averaging logarithms instead would let one model's zero forbid what all others expect.

    Raises:
        ValueError: no models, or models with different numbers of symbols.
    """

    training = False

    def __init__(self, models: Sequence[Decoder]) -> None:
        if not models:
            raise ValueError("an ensemble needs at least one model")
        self.models = list(models)
        for model in self.models:
            if isinstance(model, torch.nn.Module):
                model.eval()
        self.output = _Averaged(all(model.output.normalized for model in self.models))

    def encode(self, src: Tensor, src_lengths: Tensor) -> tuple[Any, ...]:
        return tuple(model.encode(src, src_lengths) for model in self.models)

    def start(self, memory: tuple[Any, ...]) -> _States:
        return _States(tuple(model.start(part) for model, part in zip(self.models, memory, strict=True)))

    def step(self, state: _States, token: Tensor) -> Step:
        steps = [model.step(part, token) for model, part in zip(self.models, state.parts, strict=True)]
        each = [model.output.log_probs(step.scores) for model, step in zip(self.models, steps, strict=True)]
        sizes = {log_probs.shape[-1] for log_probs in each}
        if len(sizes) > 1:
            raise ValueError(f"the models of an ensemble must share a vocabulary, got {sorted(sizes)} symbols")
        scores = torch.stack(each).exp().mean(0).log()
        attention = torch.stack([step.attention for step in steps]).mean(0)
        return Step(scores, attention, _States(tuple(step.state for step in steps)))
