"""Records of single outputs beside their references: probabilities by symbol, certificates, the empty output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tsallis.data.corpus import Corpus
from tsallis.evaluation.empty_output import compare_empty, empty_log_probs
from tsallis.models.protocol import device_of
from tsallis.search import Certificate, Hypothesis, Result, TokenScores, score_tokens

BATCH = 128  # outputs scored together


def describe_tokens(scores: TokenScores, tgt_vocab: Any) -> dict[str, Any]:
    """Return an output's log-probability by symbol, and why it is impossible, with names in place of numbers.

    Args:
        scores: of the output.
        tgt_vocab: that spells symbols.

    Returns:
        "possible", "log_prob", "tokens" with "symbol", "log_prob" and "support" of each, and "impossible": None, or the
        first impossible symbol, its "step" from 1, "gap" below the threshold (None where there is no one threshold, or
        the symbol is never given), "support" and the symbols possible "instead" with their probabilities. What is
        impossible has a log-probability of None.
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


def describe_hypothesis(hypothesis: Hypothesis, tgt_vocab: Any, length_penalty: float = 0.0) -> dict[str, Any]:
    """Return an output of a search or a draw as what JSON holds.

    Args:
        hypothesis: to describe.
        tgt_vocab: that spells symbols.
        length_penalty: of the search; where it is not 0, "score" is what ranks outputs.
    """
    content = {
        "text": tgt_vocab.text(hypothesis.tokens),
        "prob": hypothesis.prob,
        "log_prob": hypothesis.log_prob,
        "support": hypothesis.support,
        "num_attended": hypothesis.num_attended,
    }
    if length_penalty:
        content["score"] = hypothesis.score(length_penalty)
    return content


def describe_certificate(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as what JSON holds: kind and bound, and the reason where there is one."""
    reason = {} if certificate.reason is None else {"reason": certificate.reason}
    return {"certificate": certificate.kind, **reason, "bound": finite(certificate.bound)}


def describe_result(result: Result, tgt_vocab: Any) -> dict[str, Any]:
    """Return the result of a search as what JSON holds: its certificate, bound and mass, and the hypotheses."""
    hypotheses = [describe_hypothesis(h, tgt_vocab, result.length_penalty) for h in result.hypotheses]
    return {
        **describe_certificate(result.certificate),
        "mass": result.mass,
        "hypotheses": hypotheses,
        "stopped_by": result.stopped_by,
        "expanded": result.expanded,
    }


def output_records(
    model: Any, tgt_vocab: Any, corpus: Corpus, references: Sequence[str], results: Sequence[Result]
) -> Iterator[dict[str, Any]]:
    """Yield a record of each row: reference and best output, with what is known and proved about them.

    "empty" compares the empty output with the best one, see :func:`tsallis.evaluation.empty_output.compare_empty`.

    Args:
        model: that was searched.
        tgt_vocab: that spells its symbols.
        corpus: the rows, with targets.
        references: the text of each target.
        results: of a search, one a row.
    """
    empty, device = empty_log_probs(model, corpus).tolist(), device_of(model)
    for first in range(0, len(results), BATCH):
        rows = range(first, min(first + BATCH, len(results)))
        batch = corpus.batch(rows).to(device)
        scores = score_tokens(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
        for row, of_reference in zip(rows, scores, strict=True):
            more, best = compare_empty(empty[row], results[row])
            yield {
                "reference": {"text": references[row], **describe_tokens(of_reference, tgt_vocab)},
                "output": _describe_best(tgt_vocab, references[row], results[row]),
                "empty": {"log_prob": finite(empty[row]), "more_probable": more, "best_of_all": best},
            }


def _describe_best(tgt_vocab: Any, reference: str, result: Result) -> dict[str, Any]:
    best = result.best
    text = tgt_vocab.text(best.tokens) if best else ""
    return {
        "text": text,
        "right": text == reference,
        "log_prob": best.log_prob if best else None,
        "support": best.support if best else None,
        "num_attended": best.num_attended if best else None,
        **describe_certificate(result.certificate),
        "hypotheses": len(result.hypotheses),
        "mass": result.mass,
        "stopped_by": result.stopped_by,
    }


def finite(value: float) -> float | None:
    """Return a number, or None of one that JSON has no word for."""
    return value if math.isfinite(value) else None
