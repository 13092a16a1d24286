"""Searches over a corpus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from tsallis.models.batch import Batch
from tsallis.models.protocol import Decoder, device_of
from tsallis.search import Result, beam_search, exact_search
from tsallis.toolkit.data.corpus import Corpus


def search_batches(
    model: Decoder, batches: Iterable[Batch], beam_size: int, budget: int | None = None, **limits: Any
) -> dict[int, Result]:
    """Return the results of a beam search by row of the corpus; with a budget, of an exact search.

    `limits` are those of :func:`tsallis.search.beam_search`, such as `length_penalty`.
    """
    device = device_of(model)
    by_row: dict[int, Result] = {}
    for batch in batches:
        sources = batch.src.to(device), batch.src_lengths.to(device)
        if budget is None:
            results = beam_search(model, *sources, beam_size=beam_size, **limits)
        else:
            results = exact_search(model, *sources, beam_size=beam_size, budget=budget, **limits)
        by_row.update(zip(batch.index, results, strict=True))
    return by_row


def search_corpus(
    model: Decoder, corpus: Corpus, beam_size: int, batch_size: int = 128, budget: int | None = None, **limits: Any
) -> list[Result]:
    """Compute the results of a beam search for every row of a corpus.

    Args:
        model: with the decoder protocol.
        corpus: the sources.
        beam_size: prefixes kept a source.
        batch_size: rows searched together.
        budget: prefixes that an exact search expands a row, in place of a beam search; None: there is none.
        limits: of :func:`tsallis.search.beam_search`, such as `length_penalty`.

    Returns:
        One result a row, in the corpus's order.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> len(search_corpus(RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5], [5]], [[5], [4]]), beam_size=2))
        2
    """
    by_row = search_batches(model, corpus.batches(batch_size), beam_size, budget, **limits)
    return [by_row[i] for i in range(len(corpus))]


def timed_search(
    model: Decoder, corpus: Corpus, beam_size: int, budget: int | None = None, **limits: Any
) -> tuple[list[Result], float]:
    """Return the results of a beam search, or with a budget an exact one, and the seconds it took."""
    began = time.perf_counter()
    results = search_corpus(model, corpus, beam_size, budget=budget, **limits)
    return results, time.perf_counter() - began


def accuracy(results: Sequence[Result], corpus: Corpus) -> float:
    """Return the share of results whose best hypothesis is the target of the row.

    Args:
        results: of a search, in the corpus's order.
        corpus: with targets.

    Returns:
        The share, from 0 to 1; 0 of no results.

    Example:
        >>> from tsallis.search import Certificate, Hypothesis
        >>> result = Result((Hypothesis((5,), -0.1, (1, 1), (1, 1)),), Certificate("complete", float("-inf")))
        >>> accuracy([result, result], Corpus([[4], [4]], [[5], [4]]))
        0.5
    """
    right = sum(r.best is not None and list(r.best.tokens) == list(corpus.tgt[i]) for i, r in enumerate(results))
    return right / max(len(results), 1)
