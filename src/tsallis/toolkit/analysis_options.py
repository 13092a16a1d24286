"""Options of an analysis. This module does not import torch, so `--help` shows the defaults quickly."""

from __future__ import annotations

from dataclasses import dataclass

from tsallis.search.options import EndRule


@dataclass(frozen=True)
class Options:
    """Options of the summary of a corpus: the numbers of sentences, and the options of the search.

    Args:
        limit: Number of sentences to analyse, from the start of the corpus.
        sentences: Number of sentences whose attention weights are all part of the summary.
        importance: Number of sentences on which to measure the importance of heads (the loss without each head). With
            0, the importance is not measured.
        searched: Number of sentences, from the start of the corpus, that are searched in addition to `sentences`. The
            search gives the list of wrong answers and the rate of empty outputs. Language models are not searched.
        examples: Number of example sentences that show the role of a head.
        beam_size: Beam size of the search for outputs.
        end_rule: Rule for finished outputs of the search, see :func:`tsallis.search.beam_search`.

    Example:
        >>> Options(limit=200).sentences
        30
    """

    limit: int = 1000
    sentences: int = 30
    importance: int = 0
    searched: int = 200
    examples: int = 3
    beam_size: int = 5
    end_rule: EndRule = "every"
