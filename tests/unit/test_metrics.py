"""Measures against slow and plain counts of the same."""

from __future__ import annotations

import pytest
import torch

from tsallis.data import Vocabulary, english_verbs
from tsallis.data.corpus import Corpus
from tsallis.data.vocabulary import EOS
from tsallis.metrics import WHOLE, evaluate, forced, levenshtein, search_corpus
from tsallis.models import RNNSeq2Seq
from tsallis.search import beam_search

EXAMPLES = english_verbs()["dev"][:12]
SRC = Vocabulary.build(e.src_tokens() for e in EXAMPLES)
TGT = Vocabulary.build(e.tgt_tokens() for e in EXAMPLES)
CORPUS = Corpus.encode(EXAMPLES, SRC, TGT)
FORMS = [e.form or "" for e in EXAMPLES]


def model(output: str = "entmax", spread: float = 3.0) -> RNNSeq2Seq:
    torch.manual_seed(2)
    found = RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, dropout=0.5, output=output)
    with torch.no_grad():  # scores far enough apart for sparse supports
        found.output.projection.weight.mul_(10 * spread)
        found.attention.bilinear.weight.mul_(100)
        found.output.projection.bias[EOS] += 0.5
    return found


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax"])
def test_forced_is_what_single_rows_add_up_to(output: str) -> None:
    net = model(output).eval()
    loss = correct = possible = supported = attended = steps = 0.0
    for i in range(len(CORPUS)):
        batch = CORPUS.batch([i])
        with torch.no_grad():
            decoded = net(batch.src, batch.src_lengths, batch.tgt_in)
            scores = net.output.scores(decoded.hidden)[0]
            probs = net.output.probs(scores)
            summed = net.output.loss(decoded.hidden, batch.tgt_out, reduction="sum")
        gold = batch.tgt_out[0]
        loss += float(summed)
        correct += int((probs.argmax(-1) == gold).sum())
        possible += int((probs[range(len(gold)), gold] > 0).sum())
        supported += int((probs > 0).sum())
        attended += int((decoded.attention > 0).sum())
        steps += len(gold)
    found = forced(net, CORPUS, batch_size=5)
    assert found.loss == pytest.approx(loss / steps, rel=1e-5)
    assert found.symbol_accuracy == pytest.approx(correct / steps)
    assert found.gold_in_support == pytest.approx(possible / steps)
    assert found.output_support == pytest.approx(supported / steps)
    assert found.attention_support == pytest.approx(attended / steps)


def test_measuring_leaves_the_model_in_training() -> None:
    net = model()
    net.train()
    first = forced(net, CORPUS)
    assert net.training and forced(net, CORPUS) == first  # no dropout while measuring
    search_corpus(net, CORPUS, 2)
    assert net.training


def test_results_come_in_the_order_of_the_corpus() -> None:
    net = model().eval()
    results = search_corpus(net, CORPUS, 3, batch_size=5)
    assert len(results) == len(CORPUS)
    for i, result in enumerate(results):
        batch = CORPUS.batch([i])
        (alone,) = beam_search(net, batch.src, batch.src_lengths, beam_size=3)
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in alone.hypotheses]


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax", "alpha_relu"])
def test_evaluation_is_what_its_results_say(output: str) -> None:
    net = model(output).eval()
    found = evaluate(net, CORPUS, FORMS, TGT, beam_size=3)
    results = search_corpus(net, CORPUS, 3)
    texts = ["".join(TGT.decode(r.best.tokens)) if r.best else "" for r in results]
    count = len(CORPUS)
    assert found.samples == count and found.empty == sum(r.best is None for r in results)
    assert found.accuracy == sum(a == b for a, b in zip(texts, FORMS, strict=True)) / count
    assert found.levenshtein == sum(levenshtein(a, b) for a, b in zip(texts, FORMS, strict=True)) / count
    shares = found.complete + found.optimal + found.bounded + found.none
    assert shares == pytest.approx(1)
    assert found.complete == sum(r.certificate.kind == "complete" for r in results) / count
    assert found.as_dict()["loss"] == forced(net, CORPUS).loss
    if output == "alpha_relu":
        assert found.single == 0  # its values are no probabilities
    else:
        assert found.single == sum(bool(r.best and r.best.prob >= WHOLE) for r in results) / count
    steps = [n for r in results if r.best for n in r.best.support]
    assert found.output_support == pytest.approx(sum(steps) / max(len(steps), 1))
    if output == "softmax":
        assert found.complete == 0 and found.gold_in_support == 1


def test_a_sure_model_has_its_mass_on_one_hypothesis() -> None:
    found = evaluate(model("sparsemax", spread=300.0).eval(), CORPUS, FORMS, TGT, beam_size=3)
    assert found.single + found.empty / found.samples > 0.9 and found.output_support < 1.1
