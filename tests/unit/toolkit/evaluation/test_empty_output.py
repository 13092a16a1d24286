"""Probability of the empty output, and its comparison with the outputs of a search."""

from __future__ import annotations

import pytest
import torch

from tsallis.search import Certificate, Hypothesis, Result, SearchOptions
from tsallis.search.certificate import LARGE_SCORES
from tsallis.symbols import EOS
from tsallis.toolkit.evaluation.empty_output import compare_empty, empty_log_probs
from tsallis.toolkit.evaluation.metrics import evaluate
from tsallis.toolkit.evaluation.search_results import search_corpus
from unit.toolkit.evaluation.small_models import CORPUS, model

NOTHING = Certificate("none", -torch.inf)


@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_empty_log_probs_match_eos_at_the_first_step(output: str) -> None:
    """The empty output is as probable as an end at the first step, and counts if it beats the best hypothesis."""
    net = model(output).eval()
    first = []
    for i in range(len(CORPUS)):
        batch = CORPUS.batch([i])
        with torch.no_grad():
            hidden = net(batch.src, batch.src_lengths, batch.tgt_in[:, :1]).hidden
        first.append(net.output.log_probs(net.output.scores(hidden))[0, 0, EOS])
    result = empty_log_probs(net, CORPUS, batch_size=5)
    torch.testing.assert_close(result, torch.stack(first), atol=1e-5, rtol=1e-5)
    results = search_corpus(net, CORPUS, SearchOptions(beam_size=3))
    better = 0
    for e, r in zip(result.tolist(), results, strict=True):
        better += e > -torch.inf if r.best is None else r.best.tokens != () and e > r.best.log_prob
    assert evaluate(net, CORPUS, results, 1.0).empty_rate == better / len(CORPUS)


def test_empty_rate_ignores_empty_best_outputs() -> None:
    net = model("softmax").eval()
    worse = [Result((Hypothesis((), e - 1e-7, (1,), (1,)),), NOTHING) for e in empty_log_probs(net, CORPUS).tolist()]
    assert evaluate(net, CORPUS, worse, 1.0).empty_rate == 0
    other = [Result((Hypothesis((5,), e - 1e-7, (1,), (1,)),), NOTHING) for e in empty_log_probs(net, CORPUS).tolist()]
    assert evaluate(net, CORPUS, other, 1.0).empty_rate == 1
    assert evaluate(net, CORPUS, [Result((), NOTHING)] * len(CORPUS), 1.0).empty_rate == 1


def test_best_of_all_uses_the_most_probable_hypothesis() -> None:
    """With a length penalty, the first hypothesis need not be the most probable one."""
    hypotheses = Hypothesis((5,) * 8, -1.3, (1,), (1,)), Hypothesis((4,), -0.9, (1,), (1,))
    result = Result(hypotheses, Certificate("complete", -torch.inf))
    assert compare_empty(-1.2, result) == (True, "no")
    assert compare_empty(-0.8, result) == (True, "yes")
    assert compare_empty(-1.4, result) == (False, "no")


def test_scores_too_large_to_be_distinguished_prove_nothing_about_the_empty_output() -> None:
    unclear = Certificate("none", -torch.inf, LARGE_SCORES)
    for hypotheses in ((), (Hypothesis((5,), -0.5, (1,), (1,)),)):
        for log_prob in (-torch.inf, -1.0):
            assert compare_empty(log_prob, Result(hypotheses, unclear))[1] == "unknown"


def test_certificates_that_are_not_about_all_outputs_prove_nothing_about_the_empty_one() -> None:
    """With a length penalty, outputs beyond the maximum length are not part of a certificate."""
    hypotheses = (Hypothesis((), -1.2, (1,), (1,)),)
    optimal = Certificate("optimal", -torch.inf)
    assert compare_empty(-1.2, Result(hypotheses, optimal)) == (False, "yes")
    assert compare_empty(-1.2, Result(hypotheses, optimal, length_penalty=1.0)) == (False, "unknown")
    assert compare_empty(-1.2, Result(hypotheses, optimal, scope="limited")) == (False, "unknown")
    complete = Certificate("complete", -torch.inf)
    assert compare_empty(-1.2, Result(hypotheses, complete, length_penalty=1.0)) == (False, "yes")
