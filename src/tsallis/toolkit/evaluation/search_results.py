"""Search for the outputs of a corpus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from tsallis.models.batch import Batch
from tsallis.models.protocol import Decoder, device_of
from tsallis.search import Result, SearchOptions, beam_search, exact_search, exhaustive
from tsallis.search.options import OF_TEXTS
from tsallis.toolkit.data.corpus import Corpus


def search_batch(model: Decoder, batch: Batch, options: SearchOptions, **data: Any) -> list[Result]:
    """Search for the outputs of a batch in the mode of the options: "beam", "exact" or "all".

    `data` are arguments of the search that are not options, such as `prefixes` and `text`.
    """
    search: Any = {"beam": beam_search, "exact": exact_search, "all": exhaustive}[options.mode]
    batch = batch.to(device_of(model))
    results: list[Result] = search(model, batch.src, batch.src_lengths, **data, **options.arguments)
    return results


def search_batches(model: Decoder, batches: Iterable[Batch], options: SearchOptions, **data: Any) -> dict[int, Result]:
    """Search for the outputs of batches, and return the results by row of the corpus."""
    by_row: dict[int, Result] = {}
    for batch in batches:
        by_row.update(zip(batch.index, search_batch(model, batch, options, **data), strict=True))
    return by_row


def search_corpus(
    model: Decoder, corpus: Corpus, options: SearchOptions, batch_size: int = 128, **data: Any
) -> list[Result]:
    """Search for the outputs of every row of a corpus.

    Args:
        model: Model with the decoder protocol.
        corpus: Sources.
        options: Options of the search; its mode is "beam", "exact" or "all".
        batch_size: Number of rows that are searched together.
        data: Arguments of the search that are not options, such as `text` of :func:`tsallis.search.beam_search`.

    Returns:
        One result per row, in the order of the corpus.

    Raises:
        ValueError: If the mode is "sample", or an option needs texts, such as `prefix` or `pattern`.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model, corpus = RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5], [5]], [[5], [4]])
        >>> len(search_corpus(model, corpus, SearchOptions(beam_size=2)))
        2
    """
    if options.mode == "sample":
        raise ValueError("mode must be beam, exact or all to search a corpus, got sample")
    if wrong := [name for name, value in options.given.items() if value and name in OF_TEXTS - {"mode"}]:
        raise ValueError(f"{wrong[0]} can't be used to search a corpus, because a corpus has no texts")
    by_row = search_batches(model, corpus.batches(batch_size), options, **data)
    return [by_row[i] for i in range(len(corpus))]


def timed_search(model: Decoder, corpus: Corpus, options: SearchOptions, **data: Any) -> tuple[list[Result], float]:
    """Search a corpus, and return the results and the duration of the search in seconds."""
    began = time.perf_counter()
    results = search_corpus(model, corpus, options, **data)
    return results, time.perf_counter() - began


def accuracy(results: Sequence[Result], corpus: Corpus) -> float:
    """Return the share of results whose best hypothesis equals the target.

    Args:
        results: Search results, in the order of the corpus.
        corpus: Corpus with targets.

    Returns:
        The share, from 0 to 1; 0 if there are no results.

    Example:
        >>> from tsallis.search import Certificate, Hypothesis
        >>> result = Result((Hypothesis((5,), -0.1, (1, 1), (1, 1)),), Certificate("complete", float("-inf")))
        >>> accuracy([result, result], Corpus([[4], [4]], [[5], [4]]))
        0.5
    """
    num_correct = sum(r.best is not None and list(r.best.tokens) == list(corpus.tgt[i]) for i, r in enumerate(results))
    return num_correct / max(len(results), 1)
