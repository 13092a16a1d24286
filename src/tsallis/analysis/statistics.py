"""Compute any number of statistics of attention in one pass over a recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from tsallis.analysis.record import Recording
from tsallis.analysis.weights import AttentionLayer, Sentence
from tsallis.errors import InputError

R = TypeVar("R")


class Statistic(ABC, Generic[R]):
    """Base class of statistics, which accumulate numbers over sentences.

    A subclass implements `_update`, which adds a sentence, and `_result`. It should not store the sentences.

    Args:
        layers: Attention modules of the recording.

    Example:
        >>> class Longest(Statistic[int]):
        ...     longest = 0
        ...
        ...     def _update(self, sentence):
        ...         self.longest = max(self.longest, len(sentence.text.source))
        ...
        ...     def _result(self):
        ...         return self.longest
        >>> layer = AttentionLayer("encoder", 0, (1.5,))
        >>> collect(Recording([layer], [Sentence.of([[[1, 0], [0, 1]]])]), Longest([layer]))
        (2,)
    """

    def __init__(self, layers: Sequence[AttentionLayer]) -> None:
        self.layers = tuple(layers)
        self.sentences = 0

    def update(self, sentence: Sentence) -> None:
        """Add a sentence."""
        self._update(sentence)
        self.sentences += 1

    def result(self) -> R:
        """Return the records.

        Raises:
            InputError: There were no sentences.
        """
        if self.sentences == 0:
            raise InputError("can't describe the corpus: it has no sentences, or is an iterator that was already used")
        return self._result()

    @abstractmethod
    def _update(self, sentence: Sentence) -> None: ...

    @abstractmethod
    def _result(self) -> R: ...


def collect(recording: Recording, *statistics: Statistic[Any]) -> tuple[Any, ...]:
    """Compute several statistics of a recording in one pass.

    Args:
        recording: Recording of a model.
        *statistics: Statistics with the layers of the recording.

    Returns:
        The result of each statistic.

    Raises:
        InputError: The recording has no sentences.

    Example:
        >>> from tsallis.analysis import Density, Diversity
        >>> layer = AttentionLayer("encoder", 0, (1.5, 2.0))
        >>> recording = Recording([layer], [Sentence.of([[[1, 0], [1, 0]], [[0.5, 0.5], [0, 1]]])])
        >>> densities, diversities = collect(recording, Density([layer]), Diversity([layer]))
        >>> [head.density for head in densities.heads], round(diversities.layers[0].divergence, 4)
        ([0.5, 0.75], 0.6556)
    """
    for sentence in recording:
        for statistic in statistics:
            statistic.update(sentence)
    return tuple(statistic.result() for statistic in statistics)
