"""Measures against slow and plain counts of the same."""

from __future__ import annotations

import pytest

from tsallis.data.corpus import Corpus
from tsallis.evaluation.metrics import WHOLE, Evaluation, evaluate
from tsallis.evaluation.search_results import accuracy, search_corpus, timed_search
from tsallis.evaluation.teacher_forcing import teacher_forced_scores
from tsallis.models import RNNSeq2Seq
from tsallis.search import Ensemble
from unit.evaluation.small_models import CORPUS, model


def evaluated(net: RNNSeq2Seq | Ensemble) -> Evaluation:
    return evaluate(net, CORPUS, *timed_search(net, CORPUS, beam_size=3))


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax", "alpha_relu"])
def test_evaluation_is_what_its_results_say(output: str) -> None:
    net = model(output).eval()
    result = evaluated(net)
    results = search_corpus(net, CORPUS, 3)
    count = len(CORPUS)
    assert result.samples == count and result.empty == sum(r.best is None for r in results)
    shares = result.complete + result.optimal + result.bounded + result.none
    assert shares == pytest.approx(1)
    assert result.complete == sum(r.certificate.kind == "complete" for r in results) / count
    assert result.as_dict()["loss"] == teacher_forced_scores(net, CORPUS).loss
    if output == "alpha_relu":
        assert result.single == 0  # its values are no probabilities
        assert result.output_sum != pytest.approx(1, abs=1e-3)
    else:
        assert result.single == sum(bool(r.best and r.best.prob >= WHOLE) for r in results) / count
        assert result.output_sum == pytest.approx(1, abs=1e-5)
    steps = [n for r in results if r.best for n in r.best.support]
    looks = [n for r in results if r.best for n in r.best.num_attended]
    assert result.output_support == pytest.approx(sum(steps) / max(len(steps), 1))
    assert result.attention_support == pytest.approx(sum(looks) / max(len(looks), 1))
    assert result.attention_support_teacher_forced == teacher_forced_scores(net, CORPUS).attention_support
    assert result.speed == pytest.approx(len(steps) / result.seconds)
    if output == "softmax":
        assert result.complete == 0 and result.gold_in_support == 1


def test_a_gold_output_that_was_found_is_possible() -> None:
    net = model("softmax").eval()
    results = search_corpus(net, CORPUS, 3)
    message = Corpus(CORPUS.src, [list(r.hypotheses[-1].tokens) for r in results])  # the search's own finds as the gold
    assert evaluate(net, message, results, 1.0).gold_possible == 1
    assert evaluate(net, CORPUS, results, 1.0).gold_possible == 0
    best = Corpus(CORPUS.src, [list(r.best.tokens) if r.best else [] for r in results])
    assert accuracy(results, best) == 1 and accuracy(results, CORPUS) == 0


def test_a_sure_model_has_its_mass_on_one_hypothesis() -> None:
    result = evaluated(model("sparsemax", spread=300.0).eval())
    assert result.single + result.empty / result.samples > 0.9 and result.output_support < 1.1


@pytest.mark.parametrize("nested", [False, True])
def test_an_ensemble_is_evaluated_as_one_model(nested: bool) -> None:
    """Of equal models the numbers are the model's; of others supports unite and losses are averaged."""
    net = model("entmax").eval()
    twice = Ensemble([Ensemble([net, net]), net] if nested else [net, net])
    expected, result = evaluated(net).as_dict(), evaluated(twice).as_dict()
    for name in expected.keys() - {"seconds", "speed"}:
        assert result[name] == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.parametrize(("corpus", "results"), [(Corpus([], []), 0), (CORPUS, 1)])
def test_what_has_no_result_a_sample_is_refused(corpus: Corpus, results: int) -> None:
    net = model("softmax")
    with pytest.raises(ValueError, match=f"one result a sample, .* got {results} for {len(corpus)}"):
        evaluate(net, corpus, search_corpus(net, CORPUS, 3)[:results], 1.0)
