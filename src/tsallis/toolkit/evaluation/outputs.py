"""Records of outputs and references: probabilities per symbol, certificates, and the empty output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tsallis.models.protocol import Decoder, device_of
from tsallis.models.spellings import ambiguous_text
from tsallis.search import Certificate, Hypothesis, Result, TokenScores, score_tokens
from tsallis.search.texts import TextProbability
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.empty_output import compare_empty, empty_log_probs
from tsallis.toolkit.evaluation.text_probabilities import complete_results, describe_segmentations, score_outputs

BATCH = 128  # batch size for scoring outputs


def describe_tokens(scores: TokenScores, tgt_vocab: Any) -> dict[str, Any]:
    """Return the log-probability of each symbol of an output, and the reason if the output is impossible.

    Args:
        scores: Scores of the output.
        tgt_vocab: Vocabulary that spells the symbols.

    Returns:
        A dictionary with "possible", "log_prob", "tokens" and "impossible". Each entry of "tokens" has "symbol",
        "log_prob" (None if impossible) and "support". "impossible" is None or describes the first impossible symbol:
        its "step" (from 1), its "gap" below the threshold (None if undefined), the "support" of the step, and under
        "instead" the possible symbols with their probabilities.
    """
    columns = zip(scores.tokens, scores.log_probs, scores.support, strict=True)
    tokens = [{"symbol": tgt_vocab.name(t), "log_prob": finite(p), "support": n} for t, p, n in columns]
    exclusion, impossible = scores.exclusion, None
    if exclusion is not None:
        impossible = {
            "step": exclusion.step + 1,
            "symbol": tgt_vocab.name(exclusion.token),
            "gap": None if exclusion.gap is None else finite(exclusion.gap),
            "support": exclusion.support,
            "instead": [{"symbol": tgt_vocab.name(t), "prob": prob} for t, prob in exclusion.alternatives],
        }
    possible = exclusion is None
    return {
        "possible": possible,
        "log_prob": scores.log_prob if possible else None,
        "tokens": tokens,
        "impossible": impossible,
    }


def describe_text(scores: TokenScores, text: TextProbability, tgt_vocab: Any) -> dict[str, Any]:
    """Return the log-probability of a text as JSON values.

    Args:
        scores: Scores of the most probable segmentation of the text, or of the usual one if the text is impossible.
        text: Probability of the text, with its segmentations.
        tgt_vocab: Vocabulary that spells the symbols.

    Returns:
        The dictionary of :func:`describe_tokens`, but "log_prob" is the log-probability of the text. It sums over all
        "segmentations" and is a lower bound unless "exact" is True. "missing" is an upper bound on the probability of
        segmentations that were not searched. "possible" is None if no segmentation was found and the search was not
        complete.
    """
    return {
        **describe_tokens(scores, tgt_vocab),
        "possible": text.possible,
        "log_prob": text.log_prob if text.segmentations else None,
        "exact": text.exact,
        "missing": finite(text.missing),
        "segmentations": describe_segmentations(text.segmentations, tgt_vocab),
    }


def describe_hypothesis(hypothesis: Hypothesis, tgt_vocab: Any, length_penalty: float = 0.0) -> dict[str, Any]:
    """Return an output of a search or a sample as JSON values.

    A text also has "segmentations". Its "prob" and "log_prob" sum over all segmentations; its supports belong to the
    first segmentation.

    Args:
        hypothesis: Output to describe.
        tgt_vocab: Vocabulary that spells the symbols.
        length_penalty: Length penalty of the search. If it is not 0, "score" contains the score that ranks outputs.
    """
    content: dict[str, Any] = {
        "text": tgt_vocab.decode(hypothesis.tokens),
        "prob": hypothesis.prob,
        "log_prob": hypothesis.log_prob,
        "support": hypothesis.support,
        "num_attended": hypothesis.num_attended,
    }
    if length_penalty:
        content["score"] = hypothesis.score(length_penalty)
    if hypothesis.segmentations:
        content["segmentations"] = describe_segmentations(hypothesis.segmentations, tgt_vocab)
    return content


def describe_certificate(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as JSON values: kind, bound, and the reason if there is one."""
    reason = {} if certificate.reason is None else {"reason": certificate.reason}
    return {"certificate": certificate.kind, **reason, "bound": finite(certificate.bound)}


def describe_result(result: Result, tgt_vocab: Any) -> dict[str, Any]:
    """Return a search result as JSON values: certificate, bound, mass and hypotheses.

    A result about texts also has "missing", an upper bound on the probability of sequences that were not found.
    """
    hypotheses = [describe_hypothesis(h, tgt_vocab, result.length_penalty) for h in result.hypotheses]
    missing = {"missing": finite(result.missing)} if any(h.segmentations for h in result.hypotheses) else {}
    return {
        **describe_certificate(result.certificate),
        "mass": result.mass,
        **missing,
        "hypotheses": hypotheses,
        "stopped_by": result.stopped_by,
        "expanded": result.expanded,
    }


def output_records(
    model: Decoder, tgt_vocab: Any, corpus: Corpus, answers: Sequence[Sequence[str]], results: Sequence[Result]
) -> Iterator[dict[str, Any]]:
    """Yield a record per row: the reference and the best output, with probabilities and the certificate.

    The key "empty" compares the empty output with the best output, see
    :func:`tsallis.toolkit.evaluation.empty_output.compare_empty`.

    Args:
        model: Model that was searched.
        tgt_vocab: Vocabulary that spells the symbols.
        corpus: Corpus with targets.
        answers: Right answers of each row; the corpus contains the first one.
        results: Search results, one per row.
    """
    ambiguous = ambiguous_text(tgt_vocab) is not None
    references = [next(iter(row_answers), "") for row_answers in answers]
    empty, device = empty_log_probs(model, corpus, vocabulary=tgt_vocab).tolist(), device_of(model)
    for first in range(0, len(results), BATCH):
        rows = range(first, min(first + BATCH, len(results)))
        batch = corpus.batch(rows).to(device)
        batch_results = [results[row].truncated(1) for row in rows]
        described: list[dict[str, Any]]
        if ambiguous:
            batch_results = complete_results(model, batch, batch_results, tgt_vocab)
            scored = score_outputs(model, batch, [references[row] for row in rows], tgt_vocab)
            described = [describe_text(*row_scores, tgt_vocab) for row_scores in scored]
        else:
            scores = score_tokens(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
            described = [describe_tokens(row_scores, tgt_vocab) for row_scores in scores]
        for row, reference, result in zip(rows, described, batch_results, strict=True):
            more_probable, best_of_all = compare_empty(empty[row], results[row], tgt_vocab if ambiguous else None)
            yield {
                "reference": {"text": references[row], **reference},
                **({"answers": answers[row]} if len(answers[row]) > 1 else {}),
                "output": _describe_best(tgt_vocab, answers[row], results[row], result.best),
                "empty": {"log_prob": finite(empty[row]), "more_probable": more_probable, "best_of_all": best_of_all},
            }


def _describe_best(tgt_vocab: Any, answers: Sequence[str], result: Result, best: Hypothesis | None) -> dict[str, Any]:
    text = tgt_vocab.decode(best.tokens) if best else ""
    return {
        "text": text,
        "right": text in answers,
        "log_prob": best.log_prob if best else None,
        "support": best.support if best else None,
        "num_attended": best.num_attended if best else None,
        **describe_certificate(result.certificate),
        "hypotheses": len(result.hypotheses),
        "mass": result.mass,
        "stopped_by": result.stopped_by,
    }


def finite(value: float) -> float | None:
    """Return a number; return None for infinity and NaN, which JSON cannot represent."""
    return value if math.isfinite(value) else None
