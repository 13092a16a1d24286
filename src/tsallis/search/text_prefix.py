"""Restrict searches to outputs whose text starts with a given text, in any spelling."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.models.spellings import START, Place, Spellings
from tsallis.symbols import BOS

FULL, DEAD = -1, -2  # states of prefixes that spell the text, and of excluded prefixes


class TextPrefix:
    """Beginning of texts, a pattern for :class:`~tsallis.search.patterns.RestrictedModel`.

    A state is the number of a place in the text. Tokens may extend beyond the text.

    Args:
        text: Beginning of all texts.
        spellings: Spellings of the model's vocabulary.
        length: Number of symbols of a spelling, which is added to the default maximum length.
    """

    excludes_bytes = False
    start = 0

    def __init__(self, text: str, spellings: Spellings, length: int) -> None:
        self.text, self.spellings, self.length = text.encode(), spellings, length
        self._numbers: dict[Place, int] = {START: 0}
        self._places = [START]
        self._steps: dict[int, dict[int, int]] = {FULL: {}, DEAD: {}}

    def allowed(self, states: Tensor, d_vocab: int) -> Tensor:
        """Return which tokens [rows, d_vocab] may follow."""
        allowed = torch.zeros(len(states), d_vocab, dtype=torch.bool)
        for row, state in enumerate(states.tolist()):
            allowed[row, [*self._next(state)]] = True
            allowed[row] |= state == FULL
        return allowed

    def read(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the states [rows] after one token per row; the start symbol changes nothing."""
        pairs = zip(states.tolist(), tokens.tolist(), strict=True)
        return torch.tensor([s if s == FULL or t == BOS else self._next(s).get(t, DEAD) for s, t in pairs])

    def _next(self, state: int) -> dict[int, int]:
        """Return the state after each token that may follow before the text is spelled."""
        if state not in self._steps:
            place = self._places[state]
            following = self.spellings.following(self.text, place)
            steps = {token: self._state(reached) for token, reached in following}
            self._steps[state] = steps | dict.fromkeys(self.spellings.crossing(self.text, place), FULL)
        return self._steps[state]

    def _state(self, place: Place) -> int:
        if place.position == len(self.text):
            return FULL
        if place not in self._numbers:
            self._numbers[place] = len(self._places)
            self._places.append(place)
        return self._numbers[place]
