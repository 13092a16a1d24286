"""The empty output beside those of a search (Tezekbayev et al. 2022, table 2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tsallis.data.corpus import Corpus
from tsallis.models.protocol import device_of
from tsallis.search import Result, score
from tsallis.special_symbols import BOS, EOS


def empty_log_probs(model: Any, corpus: Corpus, batch_size: int = 128) -> Tensor:
    """Compute the log-probability of the empty output for every row [rows], in float64."""
    log_probs = torch.empty(len(corpus), dtype=torch.float64)
    device = device_of(model)
    for batch in corpus.batches(batch_size):
        begin, end = (torch.full((len(batch.src), 1), token, device=device) for token in (BOS, EOS))
        log_probs[list(batch.index)] = score(
            model, batch.src.to(device), batch.src_lengths.to(device), begin, end
        ).cpu()
    return log_probs


def compare_empty(log_prob: float, result: Result) -> tuple[bool, str]:
    """Compare the empty output with those of a search (Tezekbayev et al. 2022, table 2).

    Both log-probabilities are sums in float64 over the same steps, and compared exactly.

    Args:
        log_prob: of the empty output.
        result: of the search.

    Returns:
        Whether the empty output is more probable than the best hypothesis, of which it is not one; and whether it is
        the most probable output of all: "yes" and "no" where that is proved, otherwise "unknown".
    """
    best, certificate = result.best, result.certificate
    if log_prob == -math.inf:
        return False, "no"
    beaten = best is None or (bool(best.tokens) and log_prob > best.log_prob)
    # Under a length penalty the best hypothesis need not be the most probable one.
    if any(hypothesis.tokens and hypothesis.log_prob > log_prob for hypothesis in result.hypotheses):
        return beaten, "no"
    if best is not None and not best.tokens:
        return False, "yes" if certificate.proves_best else "unknown"
    if result.scope == "limited":  # nothing is known of the outputs outside of it
        return beaten, "unknown"
    proved = certificate.kind == "complete" or (certificate.kind != "none" and log_prob >= certificate.bound)
    return beaten, "yes" if proved else "unknown"
