"""The evaluation of a model and its search on a test set: loss, certificates and sparsity."""

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

BATCH = 128  # rows computed together
WHOLE = 1 - 1e-6  # a hypothesis with at least this much probability has all of it, up to rounding


@dataclass(frozen=True)
class Evaluation:
    """A model and a search on a test set, whatever the task.

    Args:
        samples: their number.
        loss: mean a symbol that the vocabulary has, with teacher forcing.
        gold_in_support: share of symbols with a probability, with teacher forcing; one that the vocabulary lacks has
            none.
        symbol_accuracy: share of symbols that are the most probable, with teacher forcing.
        unknown_symbols: the number of gold symbols that the vocabulary lacks.
        gold_possible: share of samples whose gold output has a probability, whatever the search lists.
        gold_listed: share of samples whose gold output is among the hypotheses.
        single: share of samples whose whole mass is on one hypothesis.
        complete, optimal, bounded, none: shares of the kinds of certificates.
        output_support: symbols with a probability, mean over the best hypotheses' steps.
        output_sum: sum of a step's probabilities, mean over steps, with teacher forcing.
        attention_support: positions with a weight, mean over the best hypotheses' steps.
        attention_support_teacher_forced: the same, with teacher forcing; mean over heads.
        empty: number of samples without a hypothesis.
        empty_rate: share of samples for which the empty output is more probable than the best hypothesis.
        empty_best: share of samples for which the empty output is proved to be the most probable of all.
        empty_possible: share of samples for which the empty output has a probability.
        seconds: of the search.
        speed: symbols of the best hypotheses a second.

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
    loss: float
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
        """Return the values by their names."""
        return asdict(self)


def evaluate(
    model: Decoder, corpus: Corpus, results: Sequence[Result], seconds: float, vocabulary: Any = None
) -> Evaluation:
    """Compute loss, certificates and sparsity of a model, and of a search's results on a corpus with targets.

    Args:
        model: an encoder-decoder of this package, or an ensemble of such.
        corpus: with targets.
        results: of a search, in the corpus's order.
        seconds: the time that the search took.
        vocabulary: Of the outputs, where results are about texts: then what is said of outputs is said of texts. None:
            it is said of sequences of symbols.

    Returns:
        Means and shares over the corpus.

    Raises:
        ValueError: an empty corpus, or not one result a sample.

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
        raise ValueError(f"there must be one result a sample, and a sample at least: got {len(results)} for {count}")
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
        loss=scores.loss,
        gold_in_support=scores.gold_in_support,
        symbol_accuracy=scores.symbol_accuracy,
        unknown_symbols=scores.unknown_symbols,
        gold_possible=sum(possible.values()) / count,
        gold_listed=hits / count,
        output_sum=scores.output_sum,
        attention_support_teacher_forced=scores.attention_support,
        empty_rate=sum(more for more, _ in compared) / count,
        empty_best=sum(proof == "yes" for _, proof in compared) / count,
        empty_possible=sum(log_prob > -math.inf for log_prob in empty) / count,
        seconds=seconds,
        **_search_scores(model, results, seconds),
    )


def _search_scores(model: Decoder, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return what :class:`Evaluation` has of the results alone."""
    count = len(results)
    kinds = [r.certificate.kind for r in results]
    best = [r.best for r in results if r.best is not None]
    last = -1 if ends_are_certain(model) else None  # the step of the end, of which there is nothing to say
    steps = [n for h in best for n in h.support[:last]]
    counts = [n for h in best for n in h.num_attended[:last]]
    return {
        "single": sum(h.prob >= WHOLE for h in best) / count if model.output.normalized else 0.0,
        **{kind: kinds.count(kind) / count for kind in ("complete", "optimal", "bounded", "none")},
        "output_support": sum(steps) / max(len(steps), 1),
        "attention_support": sum(counts) / max(len(counts), 1),
        "empty": count - len(best),
        "speed": len(steps) / max(seconds, 1e-9),
    }


def _without_unknown(corpus: Corpus, possible: Mapping[int, bool]) -> list[int]:
    """Return the rows whose targets are not possible, but hold no unknown symbol."""
    return [row for row in range(len(corpus)) if not possible[row] and UNK not in corpus.tgt[row]]


def _possible_texts(model: Decoder, corpus: Corpus, rows: Sequence[int], vocabulary: Any) -> dict[int, bool]:
    """Return by row whether any sequence that spells its target has a probability."""
    possible: dict[int, bool] = {}
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        batch = corpus.batch(part).to(device_of(model))
        scored = score_outputs(model, batch, [vocabulary.decode(corpus.tgt[row]) for row in part], vocabulary)
        possible.update({row: found.possible is True for row, (_, found) in zip(part, scored, strict=True)})
    return possible
