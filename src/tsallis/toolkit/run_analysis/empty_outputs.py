"""Empty outputs that are more probable than the best one of a search (Tezekbayev et al. 2022, table 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsallis.analysis.outputs import EmptyOutput, EmptyRate
from tsallis.errors import InputError
from tsallis.search import Result
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.empty_output import compare_empty, empty_log_probs


def empty_rate(model: Any, corpus: Corpus, results: Sequence[Result], vocabulary: Any = None) -> EmptyRate:
    r"""Compute the share of sentences whose empty output is more probable than the best output of a search.

    .. math:: \frac{1}{N} \, \big|\{n : p(\langle/s\rangle \mid x_n) > p(\hat y_n \mid x_n)\}\big|

    (Tezekbayev et al. 2022, table 2; Stahlberg and Byrne 2019). Both log-probabilities are float64 sums of
    the same steps, and compared exactly. Sentences whose best output is empty never count, whatever the rounding.

    Args:
        model: Encoder-decoder model.
        corpus: Corpus with the sources.
        results: Results of a search, in the order of the corpus.
        vocabulary: Vocabulary of the outputs, if the results are about texts.

    Returns:
        The share of such sentences, and a list of them.

    Raises:
        InputError: If the corpus is empty.
        ValueError: If there is not one result per sentence.

    Example:
        >>> import torch
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import beam_search
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="softmax")
        >>> results = beam_search(model, torch.tensor([[4, 5]]), torch.tensor([2]), beam_size=4)
        >>> empty_rate(model, Corpus([[4, 5]], [[5]]), results).rate  # the best of all was found
        0.0
    """
    if len(corpus) == 0:
        raise InputError("there are no sentences to compare outputs of: the corpus is empty")
    if len(results) != len(corpus):
        raise ValueError(f"there must be one result a sentence: got {len(results)} for {len(corpus)} sentences")
    outputs = []
    empties = empty_log_probs(model, corpus, vocabulary=vocabulary).tolist()
    for index, (empty, result) in enumerate(zip(empties, results, strict=True)):
        best = result.best
        log_prob = best.log_prob if best else -float("inf")
        if compare_empty(empty, result, vocabulary)[0]:
            outputs.append(EmptyOutput(index, empty, log_prob))
    return EmptyRate(len(corpus), len(outputs) / len(corpus), tuple(outputs))
