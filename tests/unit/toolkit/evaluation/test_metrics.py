"""Evaluation measures, compared with slow and simple computations."""

from __future__ import annotations

import math

import pytest
import torch

from tsallis.models import LabelDecoder, RNNSeq2Seq
from tsallis.search import Ensemble, SearchOptions, score
from tsallis.symbols import UNK
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.metrics import Evaluation, evaluate
from tsallis.toolkit.evaluation.search_results import accuracy, search_corpus, timed_search
from tsallis.toolkit.evaluation.teacher_forcing import row_hits, teacher_forced_scores
from unit.toolkit.evaluation.small_models import CORPUS, model


def evaluated(net: RNNSeq2Seq | Ensemble) -> Evaluation:
    return evaluate(net, CORPUS, *timed_search(net, CORPUS, SearchOptions(beam_size=3)))


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax", "alpha_relu"])
def test_evaluation_matches_search_results(output: str) -> None:
    net = model(output).eval()
    result = evaluated(net)
    results = search_corpus(net, CORPUS, SearchOptions(beam_size=3))
    count = len(CORPUS)
    assert result.samples == count and result.empty == sum(r.best is None for r in results)
    shares = result.complete + result.optimal + result.bounded + result.none
    assert shares == pytest.approx(1)
    assert result.complete == sum(r.certificate.kind == "complete" for r in results) / count
    assert result.as_dict()["loss"] == teacher_forced_scores(net, CORPUS).loss
    assert result.single == sum(r.certificate.kind == "complete" and len(r.hypotheses) == 1 for r in results) / count
    if output == "alpha_relu":
        assert result.output_sum != pytest.approx(1, abs=1e-3)
    else:
        assert result.output_sum == pytest.approx(1, abs=1e-5)
    steps = [n for r in results if r.best for n in r.best.support]
    looks = [n for r in results if r.best for n in r.best.num_attended]
    assert result.output_support == pytest.approx(sum(steps) / max(len(steps), 1))
    assert result.attention_support == pytest.approx(sum(looks) / max(len(looks), 1))
    assert result.attention_support_teacher_forced == teacher_forced_scores(net, CORPUS).attention_support
    assert result.speed == pytest.approx(len(steps) / result.seconds)
    if output == "softmax":
        assert result.complete == 0 and result.gold_in_support == 1


def test_gold_listed_counts_references_among_hypotheses() -> None:
    net = model("softmax").eval()
    results = search_corpus(net, CORPUS, SearchOptions(beam_size=3))
    message = Corpus(CORPUS.src, [list(r.hypotheses[-1].tokens) for r in results])  # found outputs as references
    assert evaluate(net, message, results, 1.0).gold_listed == 1
    assert evaluate(net, CORPUS, results, 1.0).gold_listed == 0
    best = Corpus(CORPUS.src, [list(r.best.tokens) if r.best else [] for r in results])
    assert accuracy(results, best) == 1 and accuracy(results, CORPUS) == 0


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "alpha_relu"])
def test_gold_possible_does_not_depend_on_beam_size(output: str) -> None:
    """`gold_possible` agrees with the scores of references; those with unknown symbols are impossible."""
    net = model(output, spread=2.0).eval()
    known = [[4, 5], [4], [5, 5, 4], *CORPUS.tgt[3:-1]]
    corpus = Corpus(CORPUS.src, [*known, [UNK]])
    searches = [search_corpus(net, corpus, SearchOptions(beam_size=size)) for size in (1, 4)]
    shares = {evaluate(net, corpus, results, 1.0).gold_possible for results in searches}
    batches = [corpus.batch([row]) for row in range(len(corpus))]
    scores = [score(net, b.src, b.src_lengths, b.tgt_in, b.tgt_out).item() for b in batches]
    assert shares == {sum(value > -math.inf for value in scores) / len(corpus)}
    assert 0 < shares.pop() < 1


def test_classifier_metrics_ignore_the_end_symbol() -> None:
    """The end symbol after a label does not count: it is certain and would halve the loss."""
    torch.manual_seed(1)
    net = LabelDecoder(12, 6, d_model=8, num_basis=8).eval()
    with torch.no_grad():
        net.classifier.output.weight.zero_()
        net.classifier.output.bias.copy_(torch.tensor([0.1, 0.0]))
    corpus = Corpus([[5], [6, 7], [8], [9, 4]], [[4], [5], [5], [4]])
    for read in (net, Ensemble([net, net])):
        result = evaluate(read, corpus, search_corpus(read, corpus, SearchOptions(beam_size=2)), seconds=2.0)
        assert result.loss == pytest.approx(math.log(2), abs=2e-3) and result.symbol_accuracy == 0.5
        assert result.output_support == 2 and result.gold_in_support == result.gold_possible == result.gold_listed == 1
        assert result.attention_support == pytest.approx(6 / 4) and result.speed == 4 / 2
        scores = teacher_forced_scores(read, corpus)
        assert (scores.output_support, scores.attention_support, scores.output_sum) == (2, 1.5, pytest.approx(1))
        assert row_hits(read, corpus.batches(2)) == {0: (1, 1), 1: (0, 1), 2: (0, 1), 3: (1, 1)}


@pytest.mark.parametrize("nested", [False, True])
def test_ensemble_of_equal_models_matches_one_model(nested: bool) -> None:
    """An ensemble of equal models has the results of one model."""
    net = model("entmax").eval()
    twice = Ensemble([Ensemble([net, net]), net] if nested else [net, net])
    expected, result = evaluated(net).as_dict(), evaluated(twice).as_dict()
    for name in expected.keys() - {"seconds", "speed"}:
        assert result[name] == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.parametrize(("corpus", "results"), [(Corpus([], []), 0), (CORPUS, 1)])
def test_evaluate_requires_one_result_per_sample(corpus: Corpus, results: int) -> None:
    net = model("softmax")
    with pytest.raises(ValueError, match=f"one result per sample .* got {results} results for {len(corpus)}"):
        evaluate(net, corpus, search_corpus(net, CORPUS, SearchOptions(beam_size=3))[:results], 1.0)
