"""Scores of a model and of its outputs, and measures of its sparsity."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tsallis.data.batching import Batch, counted
from tsallis.data.corpus import Corpus
from tsallis.search import Result, beam_search, exact_search, score
from tsallis.search.step import evaluating
from tsallis.special_symbols import BOS, EOS

WHOLE = 1 - 1e-6  # a hypothesis with at least this much probability has all of it, up to rounding
AT_ONCE = 1 << 24  # scores computed together
TEACHER_FORCED = ("loss", "gold_in_support", "symbol_accuracy")  # that may decide which checkpoint is best
LOWER_IS_BETTER = ("loss", "levenshtein", "ter")


def rank_score(name: str, value: float) -> float:
    """Return a score such that a larger one is better: a loss or a distance with the other sign.

    Args:
        name: of the score, also as a mean of languages ("macro_levenshtein").
        value: of the score.

    Returns:
        The value, or its negative.

    Example:
        >>> rank_score("accuracy", 0.5), rank_score("macro_levenshtein", 0.5)
        (0.5, -0.5)
    """
    return -value if name.removeprefix("macro_") in LOWER_IS_BETTER else value


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the insertions, deletions and replacements that turn one sequence into the other.

    Args:
        a: a text, or a sequence of symbols.
        b: the other one.

    Returns:
        The least number of them.

    Example:
        >>> levenshtein("drawed", "drew")
        3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def exact_match(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of texts that are the reference.

    Args:
        texts: outputs of a model.
        references: one for each.

    Returns:
        The share, from 0 to 1; 0 of no texts.

    Example:
        >>> exact_match(["drew", "drawed"], ["drew", "drew"])
        0.5
    """
    return sum(a == b for a, b in zip(texts, references, strict=True)) / max(len(texts), 1)


def form_scores(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the share of texts that are the reference, and the mean distance to it.

    Args:
        texts: inflected forms.
        references: one for each.

    Returns:
        "accuracy", and "levenshtein", the mean of :func:`levenshtein`.

    Example:
        >>> form_scores(["drew", "drawed"], ["drew", "drew"])
        {'accuracy': 0.5, 'levenshtein': 1.5}
    """
    distances = [levenshtein(a, b) for a, b in zip(texts, references, strict=True)]
    return {"accuracy": exact_match(texts, references), "levenshtein": sum(distances) / max(len(texts), 1)}


@dataclass(frozen=True)
class CorpusScore:
    """A score of a whole corpus with the signature that makes it comparable.

    Args:
        name: such as "bleu".
        value: in the metric's own units: BLEU and chrF from 0 to 100, TER in percent.
        signature: sacrebleu's.
    """

    name: str
    value: float
    signature: str


def translation_scores(
    texts: Sequence[str],
    references: Sequence[str],
    tgt_lang: str = "",
    names: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase: bool = False,
    tokenized: bool = False,
) -> list[CorpusScore]:
    """Compute BLEU, chrF and TER by sacrebleu; its signatures say how.

    Args:
        texts: translations.
        references: one for each.
        tgt_lang: "ja", "ko" or "zh" for a tokeniser that knows their words; all others have sacrebleu's default, 13a.
        names: which of "bleu", "chrf" and "ter".
        lowercase: whether capitals count as small letters.
        tokenized: whether white space separates the words of BLEU already; otherwise sacrebleu's tokeniser does.

    Returns:
        One score for each name.

    Example:
        >>> [round(s.value, 1) for s in translation_scores(["the cat sat on the mat"], ["the cat sat on a mat"])]
        [53.7, 72.1, 16.7]
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    tokenizer = {"tokenize": "none", "force": True} if tokenized else {"trg_lang": tgt_lang}
    factories: dict[str, Any] = {
        "bleu": lambda: BLEU(lowercase=lowercase, **tokenizer),
        "chrf": lambda: CHRF(lowercase=lowercase),
        "ter": TER,  # never tells capitals from small letters
    }
    scores = []
    for name in names:
        metric = factories[name]()
        value = metric.corpus_score(list(texts), [list(references)]).score
        scores.append(CorpusScore(name, float(value), str(metric.get_signature())))
    return scores


@cache
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()


def sentence_chrf(text: str, reference: str) -> float:
    """Return sacrebleu's chrF of one text, from 0 to 1; 1 of two that are the same.

    Args:
        text: a translation.
        reference: the right one.

    Example:
        >>> round(sentence_chrf("the cat sat on the mat", "the cat sat on a mat"), 3)
        0.721
    """
    return 1.0 if text == reference else float(_chrf().sentence_score(text, [reference]).score) / 100


@dataclass(frozen=True)
class TeacherForcedScores:
    """Loss and sparsity of a model with teacher forcing, symbols that its vocabulary lacks left out.

    Args:
        loss: the map's own loss, a symbol.
        gold_in_support: share of symbols with a probability.
        symbol_accuracy: share of symbols that are the most probable.
        output_support: symbols with a probability, mean over steps.
        output_sum: sum of a step's probabilities, mean over steps: 1 but for alpha-ReLU.
        logit_norm: Euclidean norm of the scores, mean over steps.
        threshold: of the map, mean over steps, see :func:`output_thresholds`; NaN for softmax, which has none.
        attention_support: positions with a weight, mean over steps (and heads).

    Example:
        >>> scores = TeacherForcedScores.of([1.0, 2.0, 2.0, 6.0, 2.0, 4.0, 0.5, 3.0, 2.0])  # sums, of two symbols
        >>> scores.loss, scores.output_support
        (0.5, 3.0)
    """

    loss: float
    gold_in_support: float
    symbol_accuracy: float
    output_support: float
    output_sum: float
    logit_norm: float
    threshold: float
    attention_support: float

    @classmethod
    def of(cls, sums: Sequence[float]) -> TeacherForcedScores:
        """Return the means of sums by :func:`teacher_forced_sums`, which may be added up over batches and processes."""
        *totals, symbols = sums
        return cls(*(total / max(symbols, 1) for total in totals))


@dataclass(frozen=True)
class Evaluation:
    """A model and a search on a test set, whatever the task.

    Args:
        samples: their number.
        loss: mean a symbol, with teacher forcing.
        gold_in_support: share of symbols with a probability, with teacher forcing.
        symbol_accuracy: share of symbols that are the most probable, with teacher forcing.
        gold_possible: share of samples whose gold output is among the hypotheses.
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
        >>> from tsallis.models import RNNSeq2Seq
        >>> model, corpus = RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5], [5]], [[5], [4]])
        >>> evaluation = evaluate(model, corpus, search_corpus(model, corpus, beam_size=2), seconds=1.0)
        >>> evaluation.as_dict()["samples"]
        2
    """

    samples: int
    loss: float
    gold_in_support: float
    symbol_accuracy: float
    gold_possible: float
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


def teacher_forced_scores(model: Any, corpus: Corpus, batch_size: int = 128) -> TeacherForcedScores:
    """Compute loss and sparsity with teacher forcing.

    Args:
        model: an encoder-decoder of this package, or an ensemble of such.
        corpus: with targets.
        batch_size: rows computed together.

    Returns:
        Means over all symbols.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> scores = teacher_forced_scores(RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5]], [[5]]))
        >>> round(scores.output_sum, 4)
        1.0
    """
    return TeacherForcedScores.of(teacher_forced_sums(model, corpus.batches(batch_size)))


@torch.no_grad()
def teacher_forced_sums(
    model: Any, batches: Iterable[Batch], densities: dict[str, Tensor] | None = None
) -> list[float]:
    """Return the numbers of :class:`TeacherForcedScores` summed over symbols, and how many there were.

    To `densities`, a float64 tensor [layers, heads] for each kind of attention, each head's density in a batch is
    added, times the batch's symbols.
    """
    totals = torch.zeros(len(fields(TeacherForcedScores)) + 1, dtype=torch.float64)
    device = device_of(model)
    with evaluating(model):
        for batch in batches:
            tgt_out = batch.tgt_out.to(device)
            decoded = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))
            mask = counted(tgt_out)
            hidden, gold = decoded.hidden[mask], tgt_out[mask]  # [symbols, d_model], [symbols]
            width = max(1, AT_ONCE // model.output.scores(hidden[:1]).shape[-1])
            parts = zip(hidden.split(width), gold.split(width), strict=True)
            of_output = sum((_output_sums(model.output, h, y) for h, y in parts), torch.zeros(7).double())
            rest = [model.num_attended(decoded)[mask].double().sum(), mask.sum().double()]
            totals += torch.cat([of_output, torch.stack(rest).cpu()])
            for kind, layers in (model.attention_stats() if densities else {}).items():
                assert densities is not None
                densities[kind] += torch.stack([s.density for s in layers]).double().cpu() * int(mask.sum())
    sums: list[float] = totals.tolist()
    return sums


def _output_sums(output: Any, hidden: Tensor, gold: Tensor) -> Tensor:
    """Return the sums over symbols of what :class:`TeacherForcedScores` says of the output layer [7]."""
    scores = output.scores(hidden)  # [symbols, d_vocab]
    probs = output.probs(scores)
    of_gold = probs.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    thresholds = output_thresholds(output, scores, probs) if hasattr(output, "alpha") else None
    # An ensemble's scores are not those that its models' losses are of.
    of_scores = hasattr(output, "loss_of_scores")
    sums = [
        (output.loss_of_scores if of_scores else output.loss)(scores if of_scores else hidden, gold, reduction="sum"),
        (of_gold > 0).sum(),
        (probs.argmax(-1) == gold).sum(),
        (probs > 0).sum(),
        probs.sum(),
        scores.masked_fill(scores == -torch.inf, 0).norm(dim=-1).sum(),
        probs.new_tensor(torch.nan) if thresholds is None else thresholds.sum(),
    ]
    return torch.stack([x.double() for x in sums]).cpu()


def output_thresholds(output: Any, scores: Tensor, probs: Tensor) -> Tensor | None:
    r"""Return the threshold of an output layer's map at each step, in float64.

    .. math:: \tau(z) = (\alpha-1) \max z - (\max p)^{\alpha-1}

    of :math:`p_i = [(\alpha-1) z_i - \tau(z)]_+^{1/(\alpha-1)}` (Peters et al. 2019, eq. 13; Tezekbayev et al. 2022,
    sec. 2 and fig. 7); alpha-ReLU has the layer's own, the same at every step.

    Args:
        output: the layer.
        scores: [steps, symbols].
        probs: their values, [steps, symbols].

    Returns:
        Thresholds [steps]; None for softmax, which has none.

    Example:
        >>> from tsallis.nn import OutputLayer
        >>> layer, scores = OutputLayer(2, 3, "sparsemax"), torch.tensor([[1.0, 0.5, -2.0]])
        >>> output_thresholds(layer, scores, layer.probs(scores)).tolist()
        [0.25]
    """
    if not output.normalized:
        return torch.full(scores.shape[:-1], output.tau, dtype=torch.float64, device=scores.device)
    eps = output.alpha - 1
    return None if eps == 0 else eps * scores.amax(-1).double() - probs.amax(-1).double() ** eps


def search_batches(
    model: Any, batches: Iterable[Batch], beam_size: int, budget: int | None = None
) -> dict[int, Result]:
    """Return the results of a beam search by row of the corpus; with a budget, of an exact search."""
    device = device_of(model)
    by_row: dict[int, Result] = {}
    for batch in batches:
        sources = batch.src.to(device), batch.src_lengths.to(device)
        if budget is None:
            results = beam_search(model, *sources, beam_size=beam_size)
        else:
            results = exact_search(model, *sources, beam_size=beam_size, budget=budget)
        by_row.update(zip(batch.index, results, strict=True))
    return by_row


def search_corpus(
    model: Any, corpus: Corpus, beam_size: int, batch_size: int = 128, budget: int | None = None
) -> list[Result]:
    """Compute the results of a beam search for every row of a corpus.

    Args:
        model: with the decoder protocol.
        corpus: the sources.
        beam_size: prefixes kept a source.
        batch_size: rows searched together.
        budget: prefixes that an exact search expands a row, in place of a beam search; None: there is none.

    Returns:
        One result a row, in the corpus's order.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> len(search_corpus(RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5], [5]], [[5], [4]]), beam_size=2))
        2
    """
    by_row = search_batches(model, corpus.batches(batch_size), beam_size, budget)
    return [by_row[i] for i in range(len(corpus))]


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
    if log_prob == -math.inf or (best is not None and best.tokens and best.log_prob > log_prob):
        return False, "no"
    if best is not None and not best.tokens:
        return False, "yes" if certificate.proves_best else "unknown"
    beaten = best is None or log_prob > best.log_prob
    proved = certificate.kind == "complete" or (certificate.kind != "none" and log_prob >= certificate.bound)
    return beaten, "yes" if proved else "unknown"


def evaluate(model: Any, corpus: Corpus, results: Sequence[Result], seconds: float) -> Evaluation:
    """Compute loss, certificates and sparsity of a model, and of a search's results on a corpus with targets.

    Args:
        model: an encoder-decoder of this package, or an ensemble of such.
        corpus: with targets.
        results: of a search, in the corpus's order.
        seconds: the time that the search took.

    Returns:
        Means and shares over the corpus.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model, corpus = RNNSeq2Seq(6, 6, d_model=8, output="softmax"), Corpus([[4, 5]], [[5]])
        >>> evaluate(model, corpus, search_corpus(model, corpus, beam_size=2), seconds=1.0).gold_in_support
        1.0
    """
    scores = teacher_forced_scores(model, corpus)
    count = len(corpus)
    kinds = [r.certificate.kind for r in results]
    best = [r.best for r in results if r.best is not None]
    steps = [n for h in best for n in h.support]
    counts = [n for h in best for n in h.num_attended]
    single = sum(h.prob >= WHOLE for h in best) if model.output.normalized else 0
    hits = sum(
        any(list(h.tokens) == list(corpus.tgt[i]) for h in result.hypotheses) for i, result in enumerate(results)
    )
    empty = empty_log_probs(model, corpus).tolist()
    compared = [compare_empty(log_prob, result) for log_prob, result in zip(empty, results, strict=True)]
    return Evaluation(
        samples=count,
        loss=scores.loss,
        gold_in_support=scores.gold_in_support,
        symbol_accuracy=scores.symbol_accuracy,
        gold_possible=hits / count,
        single=single / count,
        complete=kinds.count("complete") / count,
        optimal=kinds.count("optimal") / count,
        bounded=kinds.count("bounded") / count,
        none=kinds.count("none") / count,
        output_support=sum(steps) / max(len(steps), 1),
        output_sum=scores.output_sum,
        attention_support=sum(counts) / max(len(counts), 1),
        attention_support_teacher_forced=scores.attention_support,
        empty=count - len(best),
        empty_rate=sum(more for more, _ in compared) / count,
        empty_best=sum(proof == "yes" for _, proof in compared) / count,
        empty_possible=sum(log_prob > -math.inf for log_prob in empty) / count,
        seconds=seconds,
        speed=len(steps) / max(seconds, 1e-9),
    )


def timed_search(model: Any, corpus: Corpus, beam_size: int, budget: int | None = None) -> tuple[list[Result], float]:
    """Return the results of a beam search, or with a budget an exact one, and the seconds it took."""
    began = time.perf_counter()
    results = search_corpus(model, corpus, beam_size, budget=budget)
    return results, time.perf_counter() - began


def device_of(model: Any) -> torch.device:
    """Return where a model's parameters are; the CPU for one without any."""
    parameter = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    return torch.device("cpu") if parameter is None else parameter.device
