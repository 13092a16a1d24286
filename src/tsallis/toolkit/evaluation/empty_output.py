"""Comparison of the empty output with the outputs of a search (Tezekbayev et al. 2022, table 2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder, device_of
from tsallis.models.spellings import ambiguous_text, spellings_of
from tsallis.search import Result, score
from tsallis.search.spelling import score_texts
from tsallis.symbols import BOS, EOS
from tsallis.toolkit.data.corpus import Corpus


def empty_log_probs(model: Decoder, corpus: Corpus, batch_size: int = 128, vocabulary: Any = None) -> Tensor:
    """Compute the log-probability [rows] of the empty output of each row, in float64.

    If several symbol sequences of `vocabulary` can spell the same text, compute the log-probability of the empty text.
    """
    log_probs = torch.empty(len(corpus), dtype=torch.float64)
    device, as_texts = device_of(model), vocabulary is not None and ambiguous_text(vocabulary) is not None
    for batch in corpus.batches(batch_size):
        if as_texts:
            sources = batch.src.to(device), batch.src_lengths.to(device)
            text_probs = score_texts(model, *sources, [""] * len(batch.src), spellings_of(vocabulary))
            log_probs[list(batch.index)] = torch.tensor([text.log_prob for text in text_probs], dtype=torch.float64)
            continue
        begin, end = (torch.full((len(batch.src), 1), token, device=device) for token in (BOS, EOS))
        log_probs[list(batch.index)] = score(
            model, batch.src.to(device), batch.src_lengths.to(device), begin, end
        ).cpu()
    return log_probs


def compare_empty(log_prob: float, result: Result, vocabulary: Any = None) -> tuple[bool, str]:
    """Compare the empty output with the outputs of a search (Tezekbayev et al. 2022, table 2).

    Args:
        log_prob: Log-probability of the empty output.
        result: Result of the search.
        vocabulary: Vocabulary of the outputs, if the result is about texts. With None, an output is empty only if it
            has no tokens.

    Returns:
        Whether the empty output is more probable than the best hypothesis (False if the best hypothesis is empty), and
        whether the empty output is the most probable output of all: "yes" or "no" if proved, otherwise "unknown".
    """
    best, certificate = result.best, result.certificate
    if log_prob == -math.inf:
        return False, "no" if certificate.reason is None else "unknown"
    nonempty = [h for h in result.hypotheses if (h.tokens if vocabulary is None else vocabulary.decode(h.tokens))]
    best_is_empty = best is not None and best not in nonempty[:1]
    more_probable = best is None or (not best_is_empty and log_prob > best.log_prob)
    if certificate.reason is not None:  # the log-probabilities prove nothing
        return more_probable, "unknown"
    # With a length penalty, the best hypothesis is not always the most probable one.
    if any(hypothesis.log_prob > log_prob for hypothesis in nonempty):
        return more_probable, "no"
    # Nothing is known about outputs outside the scope. With a length penalty, a certificate that is not complete is
    # only about outputs within the maximum length.
    if result.scope == "limited" or (result.length_penalty and certificate.kind != "complete"):
        return more_probable, "unknown"
    if best_is_empty:
        return False, "yes" if certificate.proves_best else "unknown"
    proved = certificate.kind == "complete" or (certificate.kind != "none" and log_prob >= certificate.bound)
    if result.missing and nonempty:  # the listed probability of a text is only a lower bound
        proved = proved and math.exp(log_prob) >= max(h.prob for h in nonempty) + result.missing
    return more_probable, "yes" if proved else "unknown"
