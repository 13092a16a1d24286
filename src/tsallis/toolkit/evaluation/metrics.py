"""Evaluate a model and its search results on a test set: loss, certificates and sparsity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tsallis.models.label_decoder import ends_are_certain
from tsallis.models.protocol import Decoder, device_of
from tsallis.search import Result
from tsallis.symbols import UNK
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.empty_output import compare_empty, empty_log_probs
from tsallis.toolkit.evaluation.teacher_forcing import TeacherForcedScores, teacher_forced_sums
from tsallis.toolkit.evaluation.text_probabilities import score_outputs

BATCH = 128  # number of rows per batch


@dataclass(frozen=True)
class Evaluation:
    """Results of a model and a search on a test set, for every task.

    Args:
        samples: Number of samples.
        loss: Mean loss per known reference symbol, with teacher forcing.
        gold_in_support: Share of reference symbols with non-zero probability, with teacher forcing. Unknown symbols
            have probability 0.
        symbol_accuracy: Share of reference symbols that are predicted correctly, with teacher forcing.
        unknown_symbols: Number of reference symbols that are not in the vocabulary.
        gold_possible: Share of samples whose reference has non-zero probability, regardless of the search.
        gold_listed: Share of samples whose reference is among the hypotheses.
        single: Share of samples with only one possible output.
        complete, optimal, bounded, none: Share of samples with each kind of certificate.
        output_support: Mean number of symbols with non-zero probability per step of the best hypotheses.
        output_sum: Mean sum of probabilities per step, with teacher forcing.
        attention_support: Mean number of attended positions per step of the best hypotheses.
        attention_support_teacher_forced: Mean number of attended positions per step and head, with teacher forcing.
        empty: Number of samples without a hypothesis.
        empty_rate: Share of samples for which the empty output is more probable than the best hypothesis.
        empty_best: Share of samples for which the empty output is proved to be the most probable one.
        empty_possible: Share of samples for which the empty output has non-zero probability.
        seconds: Duration of the search.
        speed: Symbols of the best hypotheses per second.

    Example:
        >>> from tsallis.search import SearchOptions
        >>> from tsallis.toolkit.evaluation import search_corpus
        >>> from tsallis.models import RNNSeq2Seq
        >>> model, corpus = RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5], [5]], [[5], [4]])
        >>> results = search_corpus(model, corpus, SearchOptions(beam_size=2))
        >>> evaluation = evaluate(model, corpus, results, seconds=1.0)
        >>> evaluation.as_dict()["samples"]
        2
    """

    samples: int
    loss: float | None
    gold_in_support: float
    symbol_accuracy: float
    unknown_symbols: int
    gold_possible: float
    gold_listed: float
    single: float
    complete: float
    optimal: float
    bounded: float
    none: float
    output_support: float
    output_sum: float
    attention_support: float
    attention_support_teacher_forced: float
    empty: int
    empty_rate: float
    empty_best: float
    empty_possible: float
    seconds: float
    speed: float

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name, without a missing loss."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def evaluate(
    model: Decoder, corpus: Corpus, results: Sequence[Result], seconds: float, vocabulary: Any = None
) -> Evaluation:
    """Compute loss, certificates and sparsity of a model and its search results on a corpus with targets.

    Args:
        model: Encoder-decoder of this package, or an ensemble.
        corpus: Corpus with targets.
        results: Search results, in the order of the corpus.
        seconds: Duration of the search.
        vocabulary: Vocabulary of the outputs, if results are about texts. Outputs are then compared as texts; with
            None, they are compared as sequences of symbols.

    Returns:
        Means and shares over the corpus.

    Raises:
        ValueError: If the corpus is empty, or there is not exactly one result per sample.

    Example:
        >>> from tsallis.search import SearchOptions
        >>> from tsallis.toolkit.evaluation import search_corpus
        >>> from tsallis.models import RNNSeq2Seq
        >>> model, corpus = RNNSeq2Seq(6, 6, d_model=8, output="softmax"), Corpus([[4, 5]], [[5]])
        >>> results = search_corpus(model, corpus, SearchOptions(beam_size=2))
        >>> evaluate(model, corpus, results, seconds=1.0).gold_in_support
        1.0
    """
    count = len(corpus)
    if not count or len(results) != count:
        raise ValueError(
            f"expected one result per sample and at least one sample, got {len(results)} results for {count} samples"
        )
    possible: dict[int, bool] = {}
    scores = TeacherForcedScores.of(teacher_forced_sums(model, corpus.batches(BATCH), possible=possible))
    output: Any = list if vocabulary is None else vocabulary.decode
    gold = [output(corpus.tgt[row]) for row in range(count)]
    hits = sum(any(output(h.tokens) == gold[row] for h in result.hypotheses) for row, result in enumerate(results))
    if vocabulary is not None:
        possible.update(_possible_texts(model, corpus, _without_unknown(corpus, possible), vocabulary))
    empty = empty_log_probs(model, corpus, vocabulary=vocabulary).tolist()
    compared = [compare_empty(log_prob, result, vocabulary) for log_prob, result in zip(empty, results, strict=True)]
    return Evaluation(
        samples=count,
        loss=scores.loss if scores.unknown_symbols < sum(map(len, corpus.tgt)) else None,
        gold_in_support=scores.gold_in_support,
        symbol_accuracy=scores.symbol_accuracy,
        unknown_symbols=scores.unknown_symbols,
        gold_possible=sum(possible.values()) / count,
        gold_listed=hits / count,
        output_sum=scores.output_sum,
        attention_support_teacher_forced=scores.attention_support,
        empty_rate=sum(more_probable for more_probable, _ in compared) / count,
        empty_best=sum(proof == "yes" for _, proof in compared) / count,
        empty_possible=sum(log_prob > -math.inf for log_prob in empty) / count,
        seconds=seconds,
        **_search_scores(model, results, seconds),
    )


def _search_scores(model: Decoder, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return the fields of :class:`Evaluation` that depend only on the search results."""
    count = len(results)
    kinds = [r.certificate.kind for r in results]
    best = [r.best for r in results if r.best is not None]
    last = -1 if ends_are_certain(model) else None  # leave out the step of the end symbol if the end is certain
    steps = [n for h in best for n in h.support[:last]]
    counts = [n for h in best for n in h.num_attended[:last]]
    return {
        "single": sum(r.certificate.kind == "complete" and len(r.hypotheses) == 1 for r in results) / count,
        **{kind: kinds.count(kind) / count for kind in ("complete", "optimal", "bounded", "none")},
        "output_support": sum(steps) / max(len(steps), 1),
        "attention_support": sum(counts) / max(len(counts), 1),
        "empty": count - len(best),
        "speed": len(steps) / max(seconds, 1e-9),
    }


def _without_unknown(corpus: Corpus, possible: Mapping[int, bool]) -> list[int]:
    """Return the rows whose target is impossible, but contains no unknown symbol."""
    return [row for row in range(len(corpus)) if not possible[row] and UNK not in corpus.tgt[row]]


def _possible_texts(model: Decoder, corpus: Corpus, rows: Sequence[int], vocabulary: Any) -> dict[int, bool]:
    """Return, for each row, whether any sequence that spells its target has non-zero probability."""
    possible: dict[int, bool] = {}
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        batch = corpus.batch(part).to(device_of(model))
        scored = score_outputs(model, batch, [vocabulary.decode(corpus.tgt[row]) for row in part], vocabulary)
        possible.update({row: probability.possible is True for row, (_, probability) in zip(part, scored, strict=True)})
    return possible
