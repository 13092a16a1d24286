"""Completions of a run's outputs, in text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tsallis.data.batching import Batch
from tsallis.models.protocol import device_of
from tsallis.search import Choice, Completions, complete
from tsallis.special_symbols import UNK
from tsallis.tasks.base import Task
from tsallis.training import Run


@dataclass(frozen=True)
class Completer:
    """Completions of a run, in text."""

    run: Run
    task: Task
    n_best: int

    @cached_property
    def names(self) -> list[str]:
        """The spelling of each symbol."""
        return self._names(range(len(self.run.tgt_vocab)))

    def complete(self, source: Batch, typed: str) -> tuple[list[int], Completions]:
        """Return the whole symbols of what is typed, and what may follow."""
        tokens, rest = self.task.split_typed(typed, self.run)
        if UNK in tokens:  # of the text itself nothing is known
            return tokens, Completions(float("-inf"), (), (), 0, 0.0, 0.0)
        batch = source.to(device_of(self.run.model))
        sources = self.run.model, batch.src, batch.src_lengths
        return tokens, complete(*sources, self.names, tokens, rest, n_best=self.n_best)

    def describe(self, source: Batch, typed: str) -> dict[str, Any]:
        """Return completions as what JSON holds."""
        tokens, completions = self.complete(source, typed)
        start = [*tokens, *completions.certain]
        return {
            "typed": typed,
            "possible": completions.possible,
            "log_prob": completions.log_prob if completions.log_prob > float("-inf") else None,
            "text": self._text(start) if completions.certain else typed,
            "certain": self._names(completions.certain),
            "support": completions.support,
            "mass": completions.mass,
            "missing": completions.missing,
            "next": [self._choice(start, choice) for choice in completions.choices],
        }

    def _choice(self, start: Sequence[int], choice: Choice) -> dict[str, Any]:
        text = self._text([*start, *choice.tokens])
        return {"text": text, "symbols": self._names(choice.tokens), "prob": choice.prob, "ends": choice.ends}

    def _names(self, tokens: Sequence[int]) -> list[str]:
        return [self.run.tgt_vocab.name(token) for token in tokens]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.run.tgt_vocab.text(tokens))
