"""Sizes of an analysis. This module imports no torch: commands read the defaults before they print their help."""

from __future__ import annotations

from dataclasses import dataclass

from tsallis.errors import check_whole
from tsallis.search.options import EndRule


@dataclass(frozen=True)
class Options:
    """Sizes of a summary: how much of a corpus it takes in.

    Args:
        limit: sentences that are analysed, the first ones.
        sentences: how many of them the summary holds with all weights.
        importance: sentences on which the loss without each head is measured; 0 leaves it out.
        searched: sentences, the first ones, that are searched for the rate of empty outputs beside those it holds.
        examples: sentences that show the role of a head.
        beam_size: of the search for outputs.
        end_rule: Which outputs of the search count, see :func:`tsallis.search.beam_search`.

    Raises:
        ValueError: a number below 1, of `importance` and `searched` below 0.

    Example:
        >>> Options(limit=200).sentences
        30
    """

    limit: int = 1000
    sentences: int = 30
    importance: int = 0
    searched: int = 0
    examples: int = 3
    beam_size: int = 5
    end_rule: EndRule = "every"

    def __post_init__(self) -> None:
        for name in ("limit", "sentences", "importance", "searched", "examples", "beam_size"):
            check_whole(name, getattr(self, name), least=0 if name in ("importance", "searched") else 1)
